"""The driver: Problem → bounds → method → Schedule → Plan; where the layout is open, Workload → layout and Schedule → Plan.

`compile_job` is the compiler behind `schedc compile`: whatever method made the schedule, the same simulator times it and the same
verifiers accept it. `GivenLayout` and `OpenLayouts` have what differs between the two: what is checked and bounded before the
search, what of the time limit the search gets, who searches, and what the certificate rests on.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeAlias

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
from schedc.solvers.driver.sharded import solve_sharded
from schedc.units import format_bytes
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.frontend.job import Job
    from schedc.solvers.common.base import Limits
    from schedc.solvers.common.incumbent import Failure

CHECKS_S_PER_OP, CHECKS_S_PER_RANK = 40e-6, 1.5e-3
"""What checking and writing the plan after the search takes."""
OWN_BOUNDS_SHARE = 0.05
"""Of the time limit, for the bounds of the layout that was chosen, which its plan is held against."""

Bounds: TypeAlias = tuple[Bound, ...]


@dataclass(frozen=True, slots=True)
class GivenLayout:
    """A plan of this problem."""

    problem: Problem
    scope: ClassVar = Scope.SCHEDULE

    @property
    def name(self) -> str:
        """The job's."""
        return self.problem.name

    def checked_bounds(self, limits: Limits) -> tuple[Bounds, bool]:
        """The problem's analytic bounds, once it is known to be sound, and whether a clock has left some out."""
        _check_sound(self.problem)
        check_feasible(self.problem)
        return bounds_within(self.problem, limits)

    def search_s(self, time_s: float, spent_s: float) -> float:
        """What the search gets of the time limit."""
        return max(0.0, time_s - spent_s - checks_s(self.problem))

    def whole_ns(self, _: Sequence[Candidate]) -> int | None:
        """None: slices are given."""
        return None

    def solve(self, settings: SearchSettings, bounds: Bounds, _: float | None) -> tuple[BestKnown, Problem, Bounds]:
        """What a search finds, the problem of its best schedule, and the problem's bounds.

        Raises:
            NoPlanFound: there is none.
        """
        bound = max(bounds, key=lambda each: each.value_ns)
        by = solve_sharded if self.problem.is_sharded else solve
        known = by(self.problem, settings, bound_ns=bound.value_ns, bound_by=bound.name)
        if known.schedule is None:
            reasons = "; ".join(f"{entry.method}: {entry.why_not}" for entry in known.candidates)
            in_time = " in the time given" if known.ended == Ended.OUT_OF_TIME else ""
            raise NoPlanFound(f"{self.name}: no plan found{in_time}: {reasons}")
        return known, self.problem, bounds


@dataclass(frozen=True, slots=True)
class OpenLayouts:
    """A plan in any of the layouts that are open; its lower bound holds for all of them."""

    workload: Workload
    open_layout: OpenLayout
    scope: ClassVar = Scope.LAYOUT

    @property
    def name(self) -> str:
        """The job's."""
        return self.workload.name

    def checked_bounds(self, _: Limits) -> tuple[Bounds, bool]:
        """None yet of a workload that is sound: the search knows one over all layouts."""
        from schedc.verify.workload import verify_workload

        if violations := verify_workload(self.workload):
            raise InvalidInput(f"{self.name}: {violations[0]}")
        return (), False

    def search_s(self, time_s: float, _: float) -> float:
        """What the search gets of the time limit."""
        from schedc.solvers.driver.layout_work import ops_of_two_chunks

        ops = ops_of_two_chunks(self.workload, self.open_layout)
        kept_s = ops * CHECKS_S_PER_OP + OWN_BOUNDS_SHARE * time_s * min(1.0, ops / MOST_BOUNDED_OPS)
        return max(0.5 * time_s, time_s - kept_s)

    def whole_ns(self, candidates: Sequence[Candidate]) -> int | None:
        """The least objective of whole microbatches, where slices are open."""
        from schedc.solvers.layout.cuts import WHOLE

        found = (each.objective_ns for each in candidates if f", {WHOLE}" in each.method and each.objective_ns is not None)
        return min(found, default=None) if self.open_layout.slices is not None else None

    def solve(self, settings: SearchSettings, _: Bounds, clock_s: float | None) -> tuple[BestKnown, Problem, Bounds]:
        """The same, of the layout that is chosen; it is bounded here where all the work has `clock_s`, else with its certificate.

        Raises:
            Defect: the layout is none of those that are open.
        """
        # They load much, which a job with a layout does without.
        from schedc.solvers.driver.layouts import solve_layouts
        from schedc.verify.layout import verify_open_layout

        known = solve_layouts(self.workload, self.open_layout, settings)
        best = known.best
        assert best is not None  # else it raised
        if unsound := verify_open_layout(self.workload, self.open_layout, best.layout):
            raise Defect(f"the layout chosen breaks a rule: {unsound[0]}")
        bounds: Bounds = ()
        if clock_s is not None and best.problem.num_ops <= MOST_BOUNDED_OPS:
            bounds = bounds_in_time(best.problem, Clock(OWN_BOUNDS_SHARE * clock_s))
        return known, best.problem, bounds


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
    layouts: int = 1
    """How many layouts were evaluated."""
    chosen: str = ""
    """Where a layout was chosen, the candidate that has it."""
    whole_ns: int | None = None
    """Where slices were chosen, the least objective of what has whole microbatches; None: they were not, or nothing was found."""

    @property
    def layout(self) -> Layout | None:
        """The layout that was chosen; None: it was given."""
        return self.plan.problem.layout if self.plan.certificate.scope is Scope.LAYOUT else None


def compile_job(job: Job, settings: SearchSettings | None = None) -> Compiled:
    """The best plan that the method finds for the job; see `compile_question`."""
    question = GivenLayout(job.problem) if job.open_layout is None else OpenLayouts(job.workload, job.open_layout)
    return compile_question(question, settings, job_sha256=job.sha256)


def compile_problem(problem: Problem, settings: SearchSettings | None = None, *, job_sha256: str = "") -> Compiled:
    """As `compile_question`, of a problem."""
    return compile_question(GivenLayout(problem), settings, job_sha256=job_sha256)


def compile_question(
    question: GivenLayout | OpenLayouts, settings: SearchSettings | None = None, *, job_sha256: str = ""
) -> Compiled:
    """The best plan that the method finds; where layouts are open, over all of them, for which its lower bound then holds.

    The time limit is for all of it: what checking and writing the plan will take is kept back from the search. Where that is more
    than the limit, the methods that make a schedule at once still get a second, and the plan is late. An interruption ends the
    search, not the checks of what it found.

    Args:
        question: what must be done.
        settings: the method, when it ends, and who is told; None: `auto` without limits.
        job_sha256: of the job file, for the plan.

    Raises:
        InvalidInput: the problem or the workload contradicts itself, the method's name or options are wrong.
        Infeasible: a rank's memory limit is below what one microbatch needs; where layouts are open, in each of them.
        NoPlanFound: no method found a schedule within the memory limits.
        Defect: a method's schedule, or the plan made of it, breaks a rule.
    """
    begun, settings = time.perf_counter(), settings or SearchSettings()
    limits = settings.limits
    bounds, bounds_cut = question.checked_bounds(limits)
    if limits.time_s is not None:
        limits = replace(limits, time_s=question.search_s(limits.time_s, time.perf_counter() - begun))
    with defects_named(question.name, settings.method):
        known, problem, bounds = question.solve(replace(settings, limits=limits), bounds, settings.limits.clock_s)
    assert known.schedule is not None  # else it raised
    made_by = MadeBy(
        schedc=__version__,
        method=known.found_by,
        seed=limits.seed,
        job_sha256=job_sha256,
        reproducible=not (known.cut_short or bounds_cut),
    )
    proven = known if question.scope is Scope.LAYOUT or known.solver_log else None  # else the problem's own bounds count
    plan = certify(problem, known.schedule, made_by, proven=proven, scope=question.scope, bounds=bounds)
    return Compiled(
        plan=plan,
        seconds=time.perf_counter() - begun,
        candidates=tuple(known.candidates),
        history=tuple(known.history),
        solver_log=known.solver_log,
        failures=tuple(known.failures),
        ended=known.ended,
        layouts=known.layouts,
        chosen=known.title,
        whole_ns=question.whole_ns(known.candidates) if problem.slices else None,
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
    if problem.is_sharded:
        raise InvalidInput(f"{problem.name}: methods are compared for whole weights; compile the job, or leave out [data_parallel]")
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
        besides = ", its weights gathered," if problem.is_sharded else ""
        besides += " with its recomputation" if any(problem.stages[stage].recompute for stage in problem.stages_on(rank)) else ""
        raise Infeasible(
            f"{problem.name}: no schedule exists: rank {rank} may hold {format_bytes(limit)} of activations, but one microbatch"
            f" alone needs {format_bytes(needed)} there{besides}, the smallest limit that may suffice"
        )
