"""The driver: Problem → bounds → method → Schedule → Plan; where the layout is open, Workload → layout and Schedule → Plan.

`compile_job` is the compiler behind `schedc compile`: whatever method made the schedule, the same simulator times it and the same
verifiers accept it.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from schedc import __version__
from schedc.analysis.bounds.clock import Clock
from schedc.analysis.bounds.lower_bounds import Bound, bounds_in_time
from schedc.analysis.bounds.residency import rank_without_room
from schedc.compile.certify import MOST_BOUNDED_OPS, bounds_within, certify, first_of
from schedc.errors import CheckFailed, Defect, Infeasible, InvalidInput, NoPlanFound
from schedc.ir import Layout, MadeBy, OpenLayout, Plan, Problem, Scope, Workload
from schedc.solvers.common.base import Improvement, SearchSettings
from schedc.solvers.common.incumbent import BestKnown, Candidate, Ended, Incumbent
from schedc.solvers.driver.portfolio import solve, try_methods
from schedc.units import format_bytes
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.frontend.job import Job
    from schedc.solvers.common.incumbent import Failure

CHECKS_S_PER_OP, CHECKS_S_PER_RANK = 40e-6, 1.5e-3
"""What checking and writing the plan after the search takes."""
OWN_BOUNDS_SHARE = 0.05
"""Of the time limit, for the bounds of the layout that was chosen, which its plan is held against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A verified plan, and how it came to be."""

    plan: Plan
    seconds: float
    candidates: tuple[Candidate, ...]
    history: tuple[Improvement, ...]
    solver_log: tuple[str, ...]
    """What a solver's bound rests on; the certificate has its digest."""
    failures: tuple[Failure, ...]
    """Of the methods that ended with an exception of their own, which are defects of schedc. The plan does not rest on them."""
    ended: Ended
    """Why the work ended."""
    layout: Layout | None = None
    """The layout that was chosen; None: it was given."""
    layouts: int = 1
    """How many layouts were evaluated."""
    chosen: str = ""
    """Where a layout was chosen, the candidate that has it."""


def compile_job(job: Job, settings: SearchSettings | None = None) -> Compiled:
    """The best plan that the method finds for the job; see `compile_problem` and `compile_layouts`."""
    if job.open_layout is None:
        return compile_problem(job.problem, settings, job_sha256=job.sha256)
    return compile_layouts(job.workload, job.open_layout, settings, job_sha256=job.sha256)


def compile_problem(problem: Problem, settings: SearchSettings | None = None, *, job_sha256: str = "") -> Compiled:
    """The best plan that the method finds.

    The time limit is for all of it: what checking and writing the plan will take is kept back from the search. Where that is more
    than the limit, the methods that make a schedule at once still get a second, and the plan is late. An interruption ends the
    search, not the checks of what it found.

    Args:
        problem: what must be done.
        settings: the method, when it ends, and who is told; None: `auto` without limits.
        job_sha256: of the job file, for the plan.

    Raises:
        InvalidInput: the problem contradicts itself, the method's name or options are wrong.
        Infeasible: a rank's memory limit is below what one microbatch needs.
        NoPlanFound: no method found a schedule within the memory limits.
        Defect: a method's schedule, or the plan made of it, breaks a rule.
    """
    begun, settings = time.perf_counter(), settings or SearchSettings()
    _check_sound(problem)
    check_feasible(problem)
    limits = settings.limits
    bounds, bounds_cut = bounds_within(problem, limits)
    bound = max(bounds, key=lambda each: each.value_ns)
    if limits.time_s is not None:
        limits = replace(limits, time_s=max(0.0, limits.time_s - (time.perf_counter() - begun) - checks_s(problem)))
    with defects_named(problem.name, settings.method):
        known = solve(problem, replace(settings, limits=limits), bound_ns=bound.value_ns, bound_by=bound.name)
    if known.schedule is None:
        reasons = "; ".join(f"{entry.method}: {entry.why_not}" for entry in known.candidates)
        in_time = " in the time given" if known.ended == Ended.OUT_OF_TIME else ""
        raise NoPlanFound(f"{problem.name}: no plan found{in_time}: {reasons}")
    made_by = _made_by(known, job_sha256, is_cut=bounds_cut)
    plan = certify(problem, known.schedule, made_by, proven=known if known.solver_log else None, bounds=bounds)
    return _compiled(plan, known, begun)


def compile_layouts(
    workload: Workload, open_layout: OpenLayout, settings: SearchSettings | None = None, *, job_sha256: str = ""
) -> Compiled:
    """The best plan over the layouts that are open; its lower bound holds for all of them.

    Args:
        workload: what must be trained and on what.
        open_layout: what may be chosen.
        settings: the method, when it ends, and who is told; None: `auto` without limits.
        job_sha256: of the job file, for the plan.

    Raises:
        InvalidInput: the workload contradicts itself, or the method's name or options are wrong.
        Infeasible: no layout has room on its ranks.
        NoPlanFound: no method found a schedule within the memory limits.
        Defect: a method's schedule, or the plan made of it, breaks a rule.
    """
    # They load much, which a job with a layout does without.
    from schedc.solvers.driver.layouts import solve_layouts
    from schedc.verify.layout import verify_open_layout
    from schedc.verify.workload import verify_workload

    begun, settings = time.perf_counter(), settings or SearchSettings()
    if violations := verify_workload(workload):
        raise InvalidInput(f"{workload.name}: {violations[0]}")
    limits, clock_s = settings.limits, settings.limits.clock_s
    if limits.time_s is not None:
        ops = 3 * workload.microbatches * 2 * workload.ranks
        kept_s = ops * CHECKS_S_PER_OP + OWN_BOUNDS_SHARE * limits.time_s * min(1.0, ops / MOST_BOUNDED_OPS)
        limits = replace(limits, time_s=max(0.5 * limits.time_s, limits.time_s - kept_s))
    with defects_named(workload.name, settings.method):
        known = solve_layouts(workload, open_layout, replace(settings, limits=limits))
    best = known.best
    assert best is not None  # else it raised
    if unsound := verify_open_layout(workload, open_layout, best.layout):
        raise Defect(f"{workload.name}: the layout chosen breaks a rule: {unsound[0]}")
    bounds: tuple[Bound, ...] = ()
    if clock_s is not None and best.problem.num_ops <= MOST_BOUNDED_OPS:
        bounds = bounds_in_time(best.problem, Clock(OWN_BOUNDS_SHARE * clock_s))
    plan = certify(best.problem, best.schedule, _made_by(known, job_sha256), proven=known, scope=Scope.LAYOUT, bounds=bounds)
    return replace(_compiled(plan, known, begun), layout=best.layout, layouts=known.layouts, chosen=known.title)


def _made_by(known: BestKnown, job_sha256: str, *, is_cut: bool = False) -> MadeBy:
    """What the plan says of the work; `is_cut`: a clock has cut it besides."""
    return MadeBy(
        schedc=__version__,
        method=known.found_by,
        seed=known.limits.seed,
        job_sha256=job_sha256,
        reproducible=not (known.cut_short or is_cut),
    )


def _compiled(plan: Plan, known: BestKnown, begun: float) -> Compiled:
    return Compiled(
        plan=plan,
        seconds=time.perf_counter() - begun,
        candidates=tuple(known.candidates),
        history=tuple(known.history),
        solver_log=known.solver_log,
        failures=tuple(known.failures),
        ended=known.ended,
    )


@contextmanager
def defects_named(name: str, method: str) -> Iterator[None]:
    """A defect of a method says on what, and that the simulator refuses a method's schedule is one.

    Raises:
        Defect: within, there was one.
    """
    try:
        yield
    except Defect as error:
        raise Defect(f"{name}: {error}", error.plan_json) from error
    except CheckFailed as error:  # the simulator refused what a method made
        raise Defect(f"{name}: a schedule of {method} cannot run: {error}") from error


def time_methods(problem: Problem, methods: Sequence[str]) -> tuple[Candidate, ...]:
    """What each method makes of the problem, without a plan.

    Raises:
        InvalidInput: the problem contradicts itself, or a method's name or options are wrong.
    """
    _check_sound(problem)
    incumbent = Incumbent(problem=problem)
    try_methods(incumbent, methods)
    if incumbent.failures:
        raise incumbent.failures[0].exception
    return tuple(incumbent.candidates)


def _check_sound(problem: Problem) -> None:
    if violations := verify_problem(problem):
        raise InvalidInput(f"{problem.name}: {first_of(violations)}")


def checks_s(problem: Problem) -> float:
    """What checking and writing the plan takes."""
    return problem.num_ops * CHECKS_S_PER_OP + problem.ranks * CHECKS_S_PER_RANK


def check_feasible(problem: Problem) -> None:
    """Refuse a memory limit below what one microbatch needs.

    Raises:
        Infeasible: names the rank, its limit and the smallest that may suffice.
    """
    full = rank_without_room(problem)
    if full is not None:
        rank, limit, needed = full
        besides = " with its recomputation" if any(problem.stages[stage].recompute for stage in problem.stages_on(rank)) else ""
        raise Infeasible(
            f"{problem.name}: no schedule exists: rank {rank} may hold {format_bytes(limit)} of activations, but one microbatch"
            f" alone needs {format_bytes(needed)} there{besides}, the smallest limit that may suffice"
        )
