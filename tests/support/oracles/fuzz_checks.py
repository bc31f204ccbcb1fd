"""What must hold for any job: the checks of the fuzzer, each by means that do not share the code that they check.

`check_job` takes a job's text and gives what does not hold, with the kind of the failure, by which it is recognized while its job
is made smaller. The cheap part takes some 20 ms for a job: the front end, a few constructive methods, random schedules, simulator
against replay against a second simulator, bounds, plans as text. The costly part asks the solvers, and brute force.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any

from inputs.fuzz_jobs import read_extra, write_job
from inputs.graphs import random_order
from inputs.tiny_problems import random_schedule

from oracles.brute_force import SearchTooLarge, optimum, peaks, timing
from oracles.findings import Checks
from oracles.fuzz_open import check_open_layout
from oracles.fuzz_periods import check_period
from oracles.fuzz_problems import has_room, too_little_memory, with_extra
from oracles.fuzz_terminal import terminal_open, terminal_period, terminal_whole
from oracles.sharded_step import held_bytes, makespan_ns
from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.driver import compile_problem
from schedc.errors import Infeasible, NoPlanFound, Unsupported
from schedc.formats.plan.plan_file import parse_plan, plan_json
from schedc.frontend.job import load_job
from schedc.ir.index import tables_of
from schedc.ir.ops import BLOCKS, Kind
from schedc.ir.plan import BoundName, Certificate, MadeBy
from schedc.ir.problem import Objective
from schedc.ir.schedule import Parts
from schedc.lower.plan import lower
from schedc.lower.sharding import with_collectives
from schedc.models.blocks import grid_of
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.driver.registry import constructive
from schedc.solvers.driver.sharded import levels_of
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.exact.milp import MOST_TICKS, solve_milp
from schedc.solvers.templates import TEMPLATES
from schedc.verify.plan.channels import needs_of
from schedc.verify.plan.checks import verify_plan
from schedc.verify.plan.replay import replay
from schedc.verify.problem import verify_problem
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path
    from random import Random

    from oracles.findings import Finding
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

CONSTRUCTIVE = (
    *TEMPLATES,
    "greedy",
    "greedy{n_sub=1}",
    "greedy{n_sub=2}",
    "greedy{n_sub=8}",
    "greedy{n_sub=3,in_flight=memory}",
    "greedy{alternate=true,weight_lag=1,look_ahead=1}",
    "spread",
    "spread{n_sub=1}",
    "pipemorph",
    "pipemorph{policy=initial}",
    "rule-table",
)
SEARCHES = (
    "local{rounds=1,evaluations=40}",
    "polish{rounds=1,evaluations=40}",
    "cpsat",
    "refute",
    "milp",
    "auto",
)
COMPILED = ("greedy", "1f1b", "zb-h1", "rule-table", "spread", "gpipe", "interleaved")
"""Methods by which a job is also compiled as a whole, twice."""

METHODS_A_JOB = 3
MOST_STATES = 3_000
"""Brute force gives up on larger searches."""
SOLVER_OPS = 24
"""Solvers are asked about jobs of at most this many blocks."""


def check_job(
    text: str,
    seed: str,
    directory: Path,
    counts: Counter[str],
    *,
    costly: bool = False,
    terminal: bool = False,
    thorough: bool = False,
) -> list[Finding]:
    """Everything that does not hold for the job.

    Args:
        text: a job as `fuzz_jobs` writes it.
        seed: what is drawn for its checks: which methods, which random schedules.
        directory: where its files may be written.
        counts: what is checked is counted here.
        costly: ask the searches and solvers, too.
        terminal: run the command line, too.
        thorough: every constructive method, not a few.
    """
    checks = Checks(seed, counts, thorough)
    with checks.step("front end"):
        job = load_job(write_job(text, directory))
        if job.open_layout is not None:
            check_open_layout(job, checks, costly=costly)
            if terminal:
                terminal_open(directory, checks)
            return checks.findings
        problem = with_extra(job.problem, read_extra(text))
        _count_features(problem, counts)
        if violations := verify_problem(problem):
            checks.fail("front end: verify_problem", violations[0])
        elif problem.updates is not None:
            check_period(problem, checks, costly=costly)
            if terminal:
                terminal_period(directory, checks)
        else:
            known = _cheap(problem, checks)
            if costly and sum(3 for _ in problem.blocks()) <= SOLVER_OPS:
                _solvers(problem, known, checks)
            if costly:
                _searches(problem, known, checks)
            if terminal:
                terminal_whole(problem, directory, checks)
    return checks.findings


def _count_features(problem: Problem, counts: Counter[str]) -> None:
    trunks = [link.trunk for link in problem.links if link.trunk is not None]
    differ = any(len(stage.durations_ns(kind)) > 1 for stage in problem.stages for kind in BLOCKS)
    durations = [time for stage in problem.stages for kind in BLOCKS for time in stage.durations_ns(kind)]
    both = [(stage.backward_ns[0], stage.backward_input_ns[0] + stage.backward_weight_ns[0]) for stage in problem.stages]
    features = {
        f"placement {problem.placement}": True,
        "fused only": not problem.split_backward,
        "BW < B + W": any(fused < apart for fused, apart in both),
        "BW > B + W": any(fused > apart for fused, apart in both),
        "a duration of 0": 0 in durations,
        "in odd numbers": max(durations) > 10**7 and gcd(*durations) == 1,
        "several stages on a rank": len(problem.stages) > problem.ranks,
        "a shared trunk": len(trunks) > len(set(trunks)),
        "memory limits": any(limit is not None for limit in problem.memory_limit_bytes),
        "collectives": problem.data_parallel is not None,
        "collectives on a trunk": problem.data_parallel is not None and problem.data_parallel.trunk is not None,
        "sharded weights": problem.is_sharded,
        "sharded weights in memory that is limited": problem.is_sharded and any(problem.memory_limit_bytes),
        "stage span": problem.objective is Objective.STAGE_SPAN,
        "torch": not problem.cut_blocks,
        "durations by microbatch": differ,
        "microbatches that differ, in any order": differ and not problem.in_order,
        "steps that overlap": problem.updates is not None,
        "one wire into a rank": len(trunks) > len(set(trunks)) and problem.updates is not None,
        "a latency that holds its link": any(link.setup_ns for link in problem.links),
        "recomputation": any(stage.recompute for stage in problem.stages),
        "a graph": bool(problem.edges),
        "slices": bool(problem.slices),
        "a graph in slices": bool(problem.edges and problem.slices),
        "a value without a gradient": any(not edge.has_gradient for edge in problem.edges),
        "a value for several stages": len({(edge.source, edge.value) for edge in problem.edges}) < len(problem.edges),
    }
    counts.update(f"feature {name}" for name, there in features.items() if there)


@dataclass(frozen=True)
class _Known:
    """A valid schedule and what it reaches."""

    name: str
    schedule: Schedule
    objective_ns: int


def _cheap(problem: Problem, checks: Checks) -> list[_Known]:
    """The cheap checks; returns the schedules that are valid."""
    thorough, random = checks.thorough, checks.random("schedules")
    infeasible = too_little_memory(problem)
    with checks.step("bounds"):
        bounds = {bound.name: bound.value_ns for bound in lower_bounds(problem)}
    if checks.findings:
        return []
    schedules: list[tuple[str, Schedule]] = []
    # Of sharded weights orders are made with room for some, and get their collectives then.
    room = random.choice(list(levels_of(problem).values())) if problem.is_sharded else problem
    for method in CONSTRUCTIVE if thorough else checks.random("methods").sample(CONSTRUCTIVE, METHODS_A_JOB):
        before = len(schedules)
        with checks.step(method, Unsupported):
            made = with_collectives(problem, constructive(method)(room))
            schedules += [(method, made)] if made is not None else []
        is_limited = any(limit is not None for limit in problem.memory_limit_bytes)
        sure = not (infeasible or problem.is_sharded or (problem.edges and is_limited))
        if method.startswith("greedy") and len(schedules) == before and sure:
            checks.fail("greedy: no schedule where memory holds one microbatch", method)
    for _ in range(3 if thorough else 2):  # they meet more ties than any method
        drawn = random_schedule if problem.is_chain and not problem.slices else random_order
        schedule = drawn(random, room, _random_parts(random, problem) if random.random() < 0.3 else ())
        made = None if schedule is None else with_collectives(problem, schedule)
        schedules += [("random", made)] if made is not None else []
    known: list[_Known] = []
    tables = tables_of(problem)
    for name, schedule in schedules:
        with checks.step(f"checked {name.partition('{')[0]}"):
            if violations := verify_schedule(problem, schedule):
                if name not in TEMPLATES or any(violation.rule != "memory-limit" for violation in violations):
                    checks.fail(f"{name.partition('{')[0]}: rule {violations[0].rule}", violations[0])
                continue
            if infeasible:
                checks.fail("infeasible: has a schedule", name)
            timeline = simulate(problem, schedule, tables=tables)
            _check_timing(problem, schedule, timeline, checks)
            if not has_room(problem, schedule):  # for values that wait
                checks.counts["values that wait are too much"] += 1
                if name != "random" and name not in TEMPLATES:
                    checks.fail(f"{name.partition('{')[0]}: values that wait are too much", peak_bytes(problem, schedule))
                continue
            objective_ns = timeline.objective_ns(problem.objective)
            for bound, value_ns in bounds.items():
                if value_ns > objective_ns:
                    checks.fail(f"bound {bound} too high", f"{value_ns} ns, but {name} takes {objective_ns} ns")
            known.append(_Known(name, schedule, objective_ns))
            if thorough or name == "random" or len(known) == 1:
                plan = _plan(problem, schedule, timeline, bounds)
                _check_plan(plan, timeline, bounds, checks, text=thorough or len(known) == 1)
    compiled = checks.random("compiled")
    if thorough or compiled.random() < 0.1:
        for method in COMPILED if thorough else [compiled.choice(COMPILED)]:
            _compile_twice(problem, method, Limits(), known, checks)
    return known


def _random_parts(random: Random, problem: Problem) -> tuple[Parts, ...]:
    """Some kinds of blocks cut, where they may be; their parts may take no time."""
    if not problem.cut_blocks:
        return ()
    shares = [(1, 1), (1, 2), (1, 1, 1), (5, 1)]
    return tuple(
        Parts(kind=kind, stage=stage, shares=random.choice(shares))
        for stage in range(len(problem.stages))
        for kind in BLOCKS
        if random.random() < 0.3 and not (problem.stages[stage].recompute and kind in (Kind.B, Kind.BW))
    )


def _for_brute_force(problem: Problem, parts: tuple[Parts, ...] = ()) -> bool:
    """Whether the brute force knows it: no durations of 0, of parts neither, and no collectives but of one stage on each rank."""
    if problem.is_sharded or (problem.data_parallel is not None and len(problem.stages) > problem.ranks):
        return False
    if min(time for stage in problem.stages for kind in BLOCKS for time in stage.durations_ns(kind)) < 1:
        return False
    return all(min(each.durations_ns(time)) > 0 for each in parts for time in problem.stages[each.stage].durations_ns(each.kind))


def _check_timing(problem: Problem, schedule: Schedule, timeline: Timeline, checks: Checks) -> None:
    """The simulator against the brute force's."""
    if problem.is_sharded:
        _check_sharded_timing(problem, schedule, timeline, checks)
        return
    if not _for_brute_force(problem, schedule.parts):
        return
    checks.counts["timed by the brute force"] += 1
    found = timing(problem, schedule)
    if found != (timeline.makespan_ns, timeline.stage_span_ns):
        checks.fail("simulator against brute force", f"{(timeline.makespan_ns, timeline.stage_span_ns)} against {found}")
    if (held := tuple(peaks(problem, schedule))) != peak_bytes(problem, schedule):
        checks.fail("memory against brute force", f"{peak_bytes(problem, schedule)} against {held}")


def _check_sharded_timing(problem: Problem, schedule: Schedule, timeline: Timeline, checks: Checks) -> None:
    """The simulator against a step that is timed slowly: of whole blocks that take time, each link with its own occupancy."""
    links = all(link.trunk is None and link.bytes_per_second is None for link in problem.links)
    least_ns = min(time for stage in problem.stages for kind in BLOCKS for time in stage.durations_ns(kind))
    if schedule.parts or problem.slices or not links or least_ns < 1:
        return
    checks.counts["sharded weights, timed slowly"] += 1
    if (found := makespan_ns(problem, schedule)) != timeline.makespan_ns:
        checks.fail("simulator against a slow step", f"{timeline.makespan_ns} against {found}")
    held = tuple(held_bytes(problem, *each) for each in zip(schedule.orders, schedule.collectives, strict=True))
    if held != peak_bytes(problem, schedule):
        checks.fail("memory against a slow step", f"{peak_bytes(problem, schedule)} against {held}")


def _plan(problem: Problem, schedule: Schedule, timeline: Timeline, bounds: dict[BoundName, int]) -> Plan:
    """The plan of a schedule, made as the driver does, with the bounds that are known already."""
    objective_ns = timeline.objective_ns(problem.objective)
    name = max(bounds, key=bounds.__getitem__)
    certificate = Certificate(
        makespan_ns=timeline.makespan_ns,
        lower_bound_ns=bounds[name],
        gap=(objective_ns - bounds[name]) / objective_ns if objective_ns else 0.0,
        bound=name,
        bubble_ratio=timeline.bubble_ratio,
        peak_activation_bytes=peak_bytes(problem, schedule),
        stage_span_ns=timeline.stage_span_ns,
        objective=problem.objective,
    )
    return lower(problem, schedule, timeline, certificate=certificate, made_by=MadeBy(schedc="0", method="fuzz"))


def _check_plan(plan: Plan, timeline: Timeline, bounds: dict[BoundName, int], checks: Checks, *, text: bool) -> None:
    """The verifier accepts it, the replay has the simulator's times to the op, and its text gives it back."""
    checks.counts["plans"] += 1
    if violations := verify_plan(plan, bounds=bounds):
        checks.fail(f"plan: rule {violations[0].rule}", violations[0])
        return
    ends_ns = [list(ends) for ends in replay(plan, needs_of(plan)).ends_ns]
    if ends_ns != [timeline.end_ns(rank) for rank in range(timeline.ranks)]:
        checks.fail("replay against simulator", f"{ends_ns}")
    if text:
        checks.counts["plans as text"] += 1
        content = plan_json(plan)
        again = parse_plan(content, "plan")
        if again != plan or plan_json(again) != content:
            checks.fail("text: another plan comes back", content[:200])


def _compile_twice(problem: Problem, method: str, limits: Limits, known: list[_Known], checks: Checks) -> None:
    """The whole compiler, with the same bytes twice where it says that the plan can be made again, and a bound below all known."""
    found = []
    with checks.step(f"compile {method}", Infeasible, NoPlanFound, Unsupported):
        for _ in range(2):
            compiled = compile_problem(problem, SearchSettings(method=method, limits=limits))
            found.append(plan_json(compiled.plan))
            bound, bound_ns = compiled.plan.certificate.bound, compiled.plan.certificate.lower_bound_ns
            for each in known:
                if bound_ns > each.objective_ns and bound.speaks_of(each.schedule.parts):
                    checks.fail(
                        f"compile {method}: {bound} too high", f"{bound_ns} ns, but {each.name} takes {each.objective_ns} ns"
                    )
            for failure in compiled.failures:  # the compiler goes on with what other methods found
                checks.fail(f"method {failure.method.partition('{')[0]}: {failure.error} in {failure.place}", failure)
        if found[0] != found[1] and compiled.plan.made_by.reproducible:
            checks.fail(f"compile {method.partition('{')[0]}: not the same bytes twice", found[0][:400])


def _searches(problem: Problem, known: list[_Known], checks: Checks) -> None:
    """One or two searches as the driver runs them, with limits that do not depend on the machine."""
    random = checks.random("searches")
    for search in SEARCHES if checks.thorough else random.sample(SEARCHES, 2):
        _compile_twice(problem, search, Limits(deterministic=0.2, workers=1), known, checks)


def _solvers(problem: Problem, known: list[_Known], checks: Checks) -> None:
    """CP-SAT and MILP against each other, against brute force, and against every schedule that is known."""
    whole = [entry for entry in known if not entry.schedule.parts]
    best_ns: int | None = None
    if _for_brute_force(problem):
        with checks.step("brute force", SearchTooLarge):
            best_ns = optimum(problem, most_states=MOST_STATES)
            checks.counts["brute force: optimum"] += 1
            if best_ns is None and known:
                checks.fail("brute force: finds no schedule", known[0].name)
            if best_ns is not None and too_little_memory(problem):
                checks.fail("infeasible: brute force finds a schedule", f"{best_ns} ns")
    fused = Kind.B if problem.split_backward else Kind.BW
    starts = [
        entry for entry in whole if all(op.kind in (Kind.F, fused, Kind.W) for order in entry.schedule.orders for op in order)
    ]
    if not starts:
        return
    start = checks.random("start").choice(starts)
    solved = {}
    if problem.is_sharded and problem.objective is not Objective.MAKESPAN:
        return
    solvers = {"cpsat": solve_cpsat} | ({} if problem.is_sharded else {"milp": solve_milp})
    for name, solve in solvers.items():
        with checks.step(f"solver {name}"):
            limits: dict[str, Any] = {"limits": Limits(deterministic=1.0, workers=1)}
            found = solved[name] = solve(problem, start.schedule, **limits)
            if violations := verify_schedule(problem, found.schedule):
                checks.fail(f"solver {name}: rule {violations[0].rule}", violations[0])
                continue
            objective_ns = simulate(problem, found.schedule).objective_ns(problem.objective)
            if objective_ns != found.objective_ns or objective_ns > start.objective_ns:
                checks.fail(f"solver {name}: objective", f"says {found.objective_ns}, is {objective_ns}, from {start.objective_ns}")
            whole.append(_Known(name, found.schedule, objective_ns))
    if best_ns is not None:
        for entry in whole:
            if entry.objective_ns < best_ns:
                checks.fail("brute force: not the optimum", f"{best_ns} ns, but {entry.name} takes {entry.objective_ns} ns")
        for bound in lower_bounds(problem):
            if bound.value_ns > best_ns:
                checks.fail(f"bound {bound.name} too high", f"{bound.value_ns} ns, the optimum is {best_ns} ns")
    least = min(whole, key=lambda entry: entry.objective_ns)
    least_ns = least.objective_ns if best_ns is None else min(best_ns, least.objective_ns)
    for name, found in solved.items():
        if found.lower_bound_ns > least_ns:
            checks.fail(
                f"solver {name}: bound too high", f"{found.lower_bound_ns} ns, but {least.name} or the optimum {least_ns} ns"
            )
    both = [found for found in solved.values() if found.status in ("OPTIMAL", "RELAXED") and found.lower_bound_ns > 0]
    makespan_ns = simulate(problem, start.schedule).makespan_ns
    grid = grid_of(problem, makespan_ns)
    if len(both) == 2 and grid.exact and makespan_ns <= MOST_TICKS * grid.tick_ns:  # else MILP's grid is coarser than CP-SAT's
        checks.counts["cpsat and milp optimal"] += 1
        waits = bool(problem.edges) and any(
            limit is not None for limit in problem.memory_limit_bytes
        )  # MILP's model has less of that
        if both[0].lower_bound_ns < both[1].lower_bound_ns or (both[0].lower_bound_ns > both[1].lower_bound_ns and not waits):
            checks.fail("cpsat against milp", f"{both[0].lower_bound_ns} against {both[1].lower_bound_ns} ns")
