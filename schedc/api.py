"""The public functions of `import schedc`: read or build a job, compile, time, bound and check it, read and write plans.

`schedc` exports what `__all__` names, and loads it at its first use (docs/api.md). The commands are written on these functions.
What takes long to load is imported by the function that needs it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schedc.errors import CheckFailed, Defect, Infeasible, InvalidInput, NoPlanFound, SchedcError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from os import PathLike

    from schedc.adapt.node_mapping import Assignment
    from schedc.adapt.repartition import Repartition, RepartitionMethod
    from schedc.analysis.bounds.lower_bounds import Bound
    from schedc.analysis.difference.plans import PlanDifference
    from schedc.analysis.simulation.online import Run
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.compile.driver import Compiled
    from schedc.frontend.job import Job
    from schedc.ir.conditions import Conditions, LinkTrace
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.solvers.common.base import Improvement
    from schedc.study.explain.explain import Explanation
    from schedc.study.loss.convergence import ConvergenceConstants
    from schedc.study.loss.time_to_loss import LossCandidate, TimeToLoss
    from schedc.verify.violation import Violation

    StrPath = str | PathLike[str]
else:
    _TYPES = {
        "Assignment": "schedc.adapt.node_mapping",
        "Bound": "schedc.analysis.bounds.lower_bounds",
        "Compiled": "schedc.compile.driver",
        "Conditions": "schedc.ir.conditions",
        "ConvergenceConstants": "schedc.study.loss.convergence",
        "Improvement": "schedc.solvers.common.base",
        "Job": "schedc.frontend.job",
        "LossCandidate": "schedc.study.loss.time_to_loss",
        "Plan": "schedc.ir.plan",
        "PlanDifference": "schedc.analysis.difference.plans",
        "Repartition": "schedc.adapt.repartition",
        "TimeToLoss": "schedc.study.loss.time_to_loss",
        "Timeline": "schedc.analysis.simulation.timeline",
        "Violation": "schedc.verify.violation",
    }

    def __getattr__(name: str) -> object:
        """A type, from the module that defines it."""
        if name not in _TYPES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_TYPES[name]), name)


__all__ = [
    "Assignment",
    "Bound",
    "CheckFailed",
    "Compiled",
    "Conditions",
    "ConvergenceConstants",
    "Defect",
    "Improvement",
    "Infeasible",
    "InvalidInput",
    "Job",
    "LossCandidate",
    "NoPlanFound",
    "Plan",
    "PlanDifference",
    "Repartition",
    "SchedcError",
    "TimeToLoss",
    "Timeline",
    "Unsupported",
    "Violation",
    "assign_plan",
    "compile_job",
    "diff_plans",
    "explain_plan",
    "lower_bounds",
    "make_job",
    "read_job",
    "read_plan",
    "repartition_plan",
    "simulate_plan",
    "time_to_loss",
    "unroll_plan",
    "verify_plan",
    "write_plan",
    "write_profile",
]


def read_job(path: StrPath, *, set: Mapping[str, Any] | None = None) -> Job:
    """The job in a file.

    Args:
        path: of the job.toml.
        set: values that take the place of those in the file, by their paths: `{"pipeline.microbatches": 32}`. As `--set` of the
            commands; a value is what TOML would give: text, numbers, booleans, lists and dicts.

    Raises:
        InvalidInput: the file, one that it names, or a value cannot be used; says the key, what was found and what is expected.
    """
    from schedc.frontend.job import load_job
    from schedc.frontend.job_source import python_override

    return load_job(path, [python_override(key, value) for key, value in (set or {}).items()])


def make_job(
    table: Mapping[str, Any],
    *,
    directory: StrPath = ".",
    name: str = "job",
    set: Mapping[str, Any] | None = None,
) -> Job:
    """The job in a table of the same shape as the file, with the same checks.

    Args:
        table: sections by name, each a dict; quantities are text with a unit, as in the file.
        directory: what paths in the table are relative to.
        name: the job's, unless the table has one.
        set: as of `read_job`.

    Raises:
        InvalidInput: a value, or a file that the table names, cannot be used.
    """
    from schedc.frontend.job import checked_job
    from schedc.frontend.job_source import python_override, source_of_table

    overrides = [python_override(key, value) for key, value in (set or {}).items()]
    return checked_job(source_of_table(table, directory=Path(directory), name=name, overrides=overrides))


def write_profile(
    model: str,
    path: StrPath,
    *,
    device: str = "h100",
    tp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    context_exchange: str = "ring",
    expert_exchange: str = "all-to-all",
    framework: str = "plain",
    microbatch: int = 1,
    sequence: int | None = None,
    images: int = 0,
    image_size: tuple[int, int] | None = None,
    table: StrPath | None = None,
) -> None:
    """Predict what a model's layers cost, and write them as a profile.json for jobs; what was there is replaced.

    Args:
        model: a known name, or the path of a Hugging Face config.json.
        path: of the profile.
        device: a known name.
        tp: the tensor parallel size.
        cp: the context parallel size.
        ep: the expert parallel size.
        etp: devices that divide the width of an expert; None: tp.
        context_exchange: how the devices of a sequence meet: `ring`, or `all-to-all`.
        expert_exchange: how tokens come to their experts: `all-to-all`, or `hierarchical`.
        framework: whose habits count: `plain`, or `megatron-te`.
        microbatch: sequences in a microbatch.
        sequence: tokens in a sequence, those of images included; None: 4096, or the model's position embeddings if fewer.
        images: in a microbatch, all its sequences together; 0: a model that takes images is its decoder alone.
        image_size: width and height of each image in pixels; None: as the model has it.
        table: a file with measured products of the device, as `schedc profile --operators` writes it.

    Raises:
        InvalidInput: there is no such model or device, or a file cannot be used.
        Unsupported: a dimension of the model cannot be divided so.
    """
    from schedc.costs.predicted import predicted
    from schedc.io.outputs import write_atomically

    made = predicted(
        model,
        device,
        tp=tp,
        cp=cp,
        ep=ep,
        etp=etp,
        context_exchange=context_exchange,
        expert_exchange=expert_exchange,
        framework=framework,
        microbatch=microbatch,
        sequence=sequence,
        images=images,
        image_size=image_size,
        table=None if table is None else Path(table),
    )
    write_atomically(Path(path), made.profile_json().encode())


def compile_job(
    job: Job,
    *,
    method: str | None = None,
    time_limit_s: float | None = None,
    gap: float | None = None,
    seed: int | None = None,
    workers: int = 8,
    deterministic_limit: float | None = None,
    on_improvement: Callable[[Improvement], None] = lambda _: None,
) -> Compiled:
    """The best plan that is found for the job, checked, with its certificate.

    Args:
        job: what is compiled.
        method: `auto`, or a method's name with its options in braces. None: as the job says, likewise the next three.
        time_limit_s: for all of it, in seconds. The default is 60.
        gap: the search ends when the plan is proven to be within it, as 0.01.
        seed: of random numbers.
        workers: search threads of CP-SAT.
        deterministic_limit: ends the search after this much work instead of time: the same plan on every machine.
        on_improvement: is called with each better schedule or bound at once. What it raises ends the search, and is raised.

    Raises:
        InvalidInput: the method's name or an option is wrong, or the time limit is too short even for the checks.
        Infeasible: no schedule exists.
        NoPlanFound: no method found a schedule.
        Defect: schedc's own result breaks a rule.
    """
    from schedc.compile.driver import compile_job as compile_by
    from schedc.compile.settings import search_settings
    from schedc.solvers.common.incumbent import Ended

    settings = search_settings(
        job,
        method=method,
        time_limit_s=time_limit_s,
        gap=gap,
        seed=seed,
        workers=workers,
        deterministic_limit=deterministic_limit,
    )
    failures = list[Exception]()

    def report(improvement: Improvement) -> None:
        try:
            if not failures:
                on_improvement(improvement)
        except (
            Exception
        ) as error:  # the caller's, not the method's that found the improvement: ends the search, and is raised again
            failures.append(error)
            settings.interruption.requested = True

    try:
        compiled = compile_by(job, replace(settings, report=report))
    finally:
        if failures:
            raise failures[0]
    if compiled.ended == Ended.INTERRUPTED:
        raise KeyboardInterrupt  # the search keeps the best so far for commands; a program's Ctrl-C ends the program
    return compiled


def lower_bounds(job: Job) -> tuple[Bound, ...]:
    """Times that no schedule of the job can beat: its objective is at least the largest of them.

    Where the job leaves its layout open, the one bound that holds for every layout.

    Raises:
        Infeasible: no layout has room on its ranks.
    """
    if job.open_layout is not None:
        from schedc.analysis.bounds.layouts.layout_bound import layout_bound

        return (layout_bound(job.workload, job.open_layout),)
    from schedc.analysis.bounds import lower_bounds as of_problem

    return of_problem.lower_bounds(job.problem)


def read_plan(path: StrPath) -> Plan:
    """The plan in a file.

    Raises:
        InvalidInput: the file cannot be read or is no plan; what breaks a rule of plans is found by `verify_plan`.
    """
    from schedc.formats.plan import plan_file

    return plan_file.read_plan(Path(path))


def write_plan(plan: Plan, path: StrPath) -> None:
    """Write the plan's file, whole or not at all; what was there is replaced.

    Raises:
        InvalidInput: it cannot be written.
    """
    from schedc.formats.plan import plan_file

    plan_file.write_plan(plan, Path(path))


def unroll_plan(plan: Plan, steps: int) -> Plan:
    """The plan of a run of steps, of a plan of one period of steps that overlap; a run begins and ends empty.

    Raises:
        InvalidInput: the plan's steps do not overlap, or there are too few of them or too many.
        CheckFailed: the plan breaks a rule.
    """
    from schedc.lower.run import run_of

    if violations := verify_plan(plan):
        raise CheckFailed(f"{plan.name}: {violations[0]}")
    return run_of(plan, steps)


def verify_plan(plan: Plan, job: Job | None = None) -> tuple[Violation, ...]:
    """Every rule that the plan breaks: coverage, order, memory, channels, deadlock, certificate; empty: it is sound.

    Args:
        plan: what is checked; its bounds are computed again.
        job: whose plan it has to be: the same ranks, paths, costs, links, limits and objective. None: any job's.
    """
    from schedc.compile.certify import check_plan
    from schedc.compile.plans import check_scope, problem_for
    from schedc.verify.problem import check_costs, check_pipeline

    violations = check_plan(plan)
    if job is not None:
        problem, unlike = problem_for(plan, job)
        violations += unlike + check_scope(plan, job)
        if problem is not None:
            violations += check_pipeline(plan, problem) + check_costs(plan, problem)
    return violations


def diff_plans(before: Plan, after: Plan) -> PlanDifference:
    """What is different between two plans: layout, orders, certificate, memory, costs, and how they were made.

    It is empty where the plans are equal, and only there. Plans of different shape have a difference, too; then `not_compared` says
    why their orders are not compared.
    """
    from schedc.analysis.difference.plans import diff_plans as difference_of

    return difference_of(before, after)


def explain_plan(
    plan: Plan,
    job: Job | None = None,
    *,
    time_limit_s: float = 30.0,
    most: int = 6,
    allowed: float = 0.05,
) -> Explanation:
    """Where a plan's time goes, what delays its links tolerate, and what would shorten its step, each change solved again.

    Args:
        plan: the plan.
        job: the plan's, to try other placements; None: they are not tried.
        time_limit_s: of all of it: what is cheap first, then searches. Where it ends none, the result is the same on every machine.
        most: how many links, and how many ranks, are solved again; those that promise most with the plan's orders.
        allowed: by which share the step may be longer, for the delays.

    Raises:
        CheckFailed: the plan breaks a rule, or is not one of the job.
    """
    from schedc.study.explain.explain import explain_plan as explanation_of

    explanation = explanation_of(plan, job, time_limit_s=time_limit_s, most=most, allowed=allowed)
    if explanation.interrupted:
        raise KeyboardInterrupt  # it keeps what is known for the command; a program's Ctrl-C ends the program
    return explanation


def simulate_plan(plan: Plan, job: Job | None = None, *, transfers: str = "decoupled") -> Timeline:
    """When everything of the plan happens, under its own costs or those of a job with the same pipeline.

    Args:
        plan: whose orders are run.
        job: the job; None: the plan's own costs.
        transfers: how transfers hold up compute: not at all, in one queue for each rank (`one-queue`), or each one (`blocking`).

    Raises:
        InvalidInput: `transfers` is none of these.
        CheckFailed: the job has another pipeline, the plan's orders break a rule, or the ranks wait for each other indefinitely
            where transfers block.
    """
    from schedc.analysis.simulation.engines import Transfers
    from schedc.compile.plans import time_plan
    from schedc.io.location import Location

    if transfers not in list(Transfers):
        raise Location("transfers").refuse(repr(transfers), f"one of {', '.join(Transfers)}")
    return time_plan(plan, costs_for(plan, job), transfers=Transfers(transfers))


def choosing_run(plan: Plan, job: Job | None = None, *, links: LinkTrace | None = None, choose: bool = True) -> Run:
    """What happens where each rank chooses its next op by what has come: orders and times.

    Args:
        plan: whose orders the ranks prefer.
        job: whose costs count, as of `simulate_plan`.
        links: how the links change from the beginning of the step on; None: they do not.
        choose: False: the ranks keep to the plan's orders.

    Raises:
        InvalidInput: the plan's steps overlap.
        CheckFailed: as `simulate_plan`.
    """
    from schedc.analysis.simulation.online import not_before, simulate_online
    from schedc.lower.problem import problem_under

    if plan.problem.updates is not None:
        raise InvalidInput(
            f"{plan.name}: the plan's steps overlap; its ranks keep to the plan's orders, as updates decide what ops read"
        )
    simulate_plan(plan, job)  # refuses what cannot be timed
    problem = costs_for(plan, job)
    later = [] if links is None else [(time_ns, problem_under(problem, conditions)) for time_ns, conditions in links.entries]
    planned = not_before(plan.problem, plan.schedule()) if choose else None
    return simulate_online(problem, plan.schedule(), later, choose=choose, planned=planned)


def assign_plan(
    plan: Plan,
    links: StrPath,
    *,
    gradient_bytes: int | Sequence[int],
    replicas: int | None = None,
    buckets: int = 1,
    order: str = "pipelines",
    exact_links: bool = False,
    keep_orders: bool = False,
    time_limit_s: float | None = None,
) -> Assignment:
    """Which node takes which replica and rank, so that slow links cost least.

    Args:
        plan: of one pipeline.
        links: the file of the links between all nodes (a topology), by process number.
        gradient_bytes: what the all-reduce of a rank sums: one number, or one for each rank.
        replicas: how many pipelines there are; None: as the plan says.
        buckets: a rank's all-reduce is this many, one after the other.
        order: how processes are numbered: `pipelines`, or `ranks` as Megatron-LM does.
        exact_links: do not take links as equal whose costs are nearly so.
        keep_orders: do not plan anew: every rank keeps the plan's order.
        time_limit_s: of each search, in seconds; None: a fixed amount of work.

    Raises:
        InvalidInput: the file cannot be used or has other processes, or a value is wrong.
    """
    from schedc.adapt.node_mapping import Order, assign_plan as assignment_of
    from schedc.io.location import Location

    if order not in list(Order):
        raise Location("order").refuse(repr(order), f"one of {', '.join(Order)}")
    return assignment_of(
        plan,
        Path(links),
        (gradient_bytes,) if isinstance(gradient_bytes, int) else gradient_bytes,
        replicas=replicas,
        buckets=buckets,
        order=Order(order),
        exact_links=exact_links,
        keep_orders=keep_orders,
        time_limit_s=time_limit_s,
    )


def repartition_plan(
    plan: Plan,
    job: Job,
    conditions: Conditions | None = None,
    *,
    slow: Mapping[int, float] | None = None,
    memory_limits: Mapping[int, int] | None = None,
    steps: int = 1000,
    pause_s: float = 0.0,
    bytes_per_parameter: float | None = None,
    method: RepartitionMethod = "transfer",
    top_k: int | None = None,
) -> Repartition:
    """Other layers for the ranks, where that gains more than the move takes.

    Args:
        plan: that runs; one path.
        job: the plan's, whose profile has layers.
        conditions: what differs from the job's costs, as a monitor says; None: nothing.
        slow: by rank, how many times as long all that it computes takes, besides.
        memory_limits: by rank, how many bytes it can hold: of everything where the job has `memory.capacity` (what is left of it
            after the reserve), else of activations; what the job says of other ranks holds.
        steps: how many are to come like this.
        pause_s: what a move takes besides sending, in seconds.
        bytes_per_parameter: of weights and optimizer state together; None: the job's.
        method: `transfer` gives layers from stage to stage; `condensation` tries all boundaries behind layers that take long.
        top_k: how many layers those are; None: as many as make at most 2000 layouts.

    Raises:
        InvalidInput: the plan is not the job's, or a value is wrong.
        Unsupported: the plan has two paths.
        Infeasible: no boundaries of the stages have room on their ranks.
        NoPlanFound: no layout that has room was found.
    """
    from fractions import Fraction

    from schedc.adapt.repartition import repartition
    from schedc.io.location import Location, show
    from schedc.ir.conditions import AS_PLANNED, MOST, Conditions
    from schedc.ir.ops import Kind

    given = conditions or AS_PLANNED
    slowdown = dict(given.slowdown)
    for rank, factor in (slow or {}).items():
        if not 0 <= rank < plan.problem.ranks or not 0 < factor < math.inf:
            raise Location("slow").refuse(
                f"{rank}: {show(factor)}", f"numbers above 0 for ranks from 0 to {plan.problem.ranks - 1}"
            )
        for kind in (Kind.F, Kind.B, Kind.W):
            slowdown[rank, kind] = slowdown.get((rank, kind), 1.0) * factor
    for rank, size_bytes in (memory_limits or {}).items():
        if not 0 <= rank < plan.problem.ranks or not isinstance(size_bytes, int) or not 0 <= size_bytes <= MOST:
            expected = f"whole numbers from 0 to {MOST} for ranks from 0 to {plan.problem.ranks - 1}"
            raise Location("memory_limits").refuse(f"{rank}: {show(size_bytes)}", expected)
    return repartition(
        plan,
        job.workload,
        Conditions(links=given.links, slowdown=slowdown),
        steps=steps,
        memory_limits=memory_limits,
        pause_ns=round(pause_s * 1e9),
        bytes_per_parameter=None if bytes_per_parameter is None else Fraction(str(bytes_per_parameter)),
        method=method,
        top_k=top_k,
    )


def time_to_loss(
    candidates: Iterable[LossCandidate],
    *,
    convergence: StrPath | ConvergenceConstants | None = None,
    error: float | None = None,
    learning_rate: float | None = None,
    optimizer: str | None = None,
    tokens: int | None = None,
    delay_table: StrPath | None = None,
) -> TimeToLoss:
    """Which way to run a training job reaches a loss first: the time of an update, times how many updates its delays need.

    How many they are says either DynPipe's bound (`convergence`, `error`), or a table of measurements (`optimizer`, `tokens`).

    Args:
        candidates: the ways, each with its period and the delay of each stage; without delay its makespan.
        convergence: a convergence.json that a run has measured, or what the theory must know of the loss function.
        error: that the mean squared gradient is to reach. So far it is not the loss that the theory speaks of.
        learning_rate: of the updates; None: as the file says.
        optimizer: by its name in the table.
        tokens: that a run without delay needs until the loss, in the unit of the candidates'.
        delay_table: a file of measurements of your own; None: published ones that are shipped, of one model and one seed.

    Raises:
        InvalidInput: a file or a value cannot be used, or both or neither of the two ways are asked for.
    """
    from schedc.io.location import show
    from schedc.study.loss.convergence import ConvergenceConstants
    from schedc.study.loss.time_to_loss import Measurements, theory_of, times_to_loss

    theory = {"error": error, "learning_rate": learning_rate}
    table = {"tokens": tokens, "delay_table": delay_table}
    if (convergence is None) == (optimizer is None):
        found = "neither" if convergence is None else "both"
        raise InvalidInput(f"time_to_loss: found {found} of convergence and optimizer, expected one: the theory, or the table")
    of, others = ("convergence", table) if convergence is not None else ("optimizer", theory)
    for name, value in others.items():
        if value is not None:
            raise InvalidInput(f"{name}: found {show(value) if isinstance(value, float) else value}, expected none with {of}")
    if optimizer is not None:
        from schedc.study.loss.delay_table import read_delay_table

        if tokens is None:
            raise InvalidInput("tokens: found nothing, expected how many a run without delay needs until the loss")
        path = None if delay_table is None else Path(delay_table)
        return times_to_loss(candidates, Measurements(table=read_delay_table(path), optimizer=optimizer, tokens=tokens))
    if error is None:
        raise InvalidInput("error: found nothing, expected the mean squared gradient that is to be reached")
    assert convergence is not None
    source = convergence if isinstance(convergence, ConvergenceConstants) else str(convergence)
    return times_to_loss(candidates, theory_of(source, error=error, learning_rate=learning_rate))


def costs_for(plan: Plan, job: Job | None) -> Problem:
    """The problem under whose costs a plan is timed: its own, or that of a job in the plan's layout.

    Raises:
        CheckFailed: the job leaves its layout open, and the plan's is none of those.
    """
    if job is None:
        return plan.problem
    from schedc.compile.plans import problem_for

    problem, unlike = problem_for(plan, job)
    if problem is None:
        raise CheckFailed(f"{plan.name}: its layout is none that the job leaves open: {unlike[0]}")
    return problem
