"""The least period by CP-SAT: one period after another is found feasible, or refuted.

A Problem whose steps overlap and a known period go in; a better one and a proven lower bound come out. The model is
`schedc.models.modulo`; each period T is a question of its own, whether any schedule has it. No is a proof that all take T + 1 or
more, as what is feasible with T is with all that is longer. The bound is asked for first, then what is just below the best known,
which proves it, in turn with what lies in the middle. Of the least period that is found the delays are minimized. Schedules are
timed by `steady_state`; only the bound is CP-SAT's own word. A model grows with the pairs of a rank's ops; to build it counts as
work, and none is built for which too little is left of a limit, nor of a very long period: what is known is kept.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import combinations
from typing import TYPE_CHECKING

from schedc.analysis.gap import check_bound
from schedc.analysis.simulation.period import steady_state
from schedc.analysis.simulation.versions import versions_of
from schedc.errors import Defect, Unsupported
from schedc.ir import BoundName, Kind, Op, Problem, Schedule, Versions
from schedc.models.modulo import build_modulo, minimize_delays, orders_of, pairs_of
from schedc.solvers.common.base import Limits, Solved, SolverStatus
from schedc.solvers.common.method import Search
from schedc.solvers.exact.cpsat import SOLVER, digest_of, run, solver_of
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schedc.models.modulo_variables import ModuloModel
    from schedc.solvers.common.incumbent import Incumbent

SHARE = 0.15
"""Of what is left of a limit, each question gets this much."""
DELAYS_SHARE = 0.3
"""The least delays get this much of it, once the period is settled."""
LEAST_S = 0.25
"""No question gets less."""
S_PER_PAIR = 5e-5
"""Building a model takes this much of a limit, for each two ops that one rank runs in a period."""
MOST_PAIRS = 100_000
"""With more of them nothing is asked: a model would take five seconds and half a gigabyte, its search several times that."""


class Modulo(Search, frozen=True):
    """CP-SAT on the modulo schedule, from the best period known. Workers, seed and limits are the command's."""

    name, place = "modulo", 265
    steps_overlap = True

    def improve(self, incumbent: Incumbent, limits: Limits) -> None:
        """Offer shorter periods, and bounds."""
        solved = solve_modulo(
            incumbent.problem,
            incumbent.start,
            limits=limits,
            known_bound_ns=incumbent.bound_ns,
            on_schedule=lambda schedule: incumbent.offer_valid(schedule, self.name),
            on_bound=lambda bound_ns: incumbent.raise_bound(bound_ns, BoundName.CPSAT, ()),
        )
        incumbent.take_solved(solved, BoundName.CPSAT, limits)


@dataclass(slots=True)
class Known:
    """What is known, and what is left of the limits."""

    problem: Problem
    limits: Limits
    best: Schedule
    best_ns: int
    lower_ns: int
    begun: float = field(default_factory=time.perf_counter)
    work: float = 0.0
    log: list[str] = field(default_factory=list)
    ended_by: BaseException | None = None
    share: float = SHARE
    """Of what is left, for the next question."""
    build_s: float = 0.0
    """What the next model takes to be built, of seconds or of work."""

    @property
    def left(self) -> tuple[float | None, float | None]:
        """Seconds and work that are left."""
        limits = self.limits
        left_s = None if limits.clock_s is None else limits.clock_s - (time.perf_counter() - self.begun)
        return left_s, None if limits.deterministic is None else limits.deterministic - self.work

    @property
    def is_over(self) -> bool:
        """Whether an interruption ends it, or what is left of a limit would be spent before a model is built."""
        return self.ended_by is not None or any(left is not None and left <= self.build_s for left in self.left)


def solve_modulo(
    problem: Problem,
    incumbent: Schedule,
    *,
    limits: Limits,
    known_bound_ns: int = 1,
    on_schedule: Callable[[Schedule], None] = lambda _: None,
    on_bound: Callable[[int], None] = lambda _: None,
) -> Solved:
    """Find the least period, or prove that the known one is.

    Args:
        problem: one step of a run without end.
        incumbent: a valid period; only shorter ones, and those of less delay, are better.
        limits: when to stop, the seed and the workers; all questions share a limit.
        known_bound_ns: a lower bound that is known already.
        on_schedule: is called with every better schedule.
        on_bound: is called with every better bound, in nanoseconds.

    Raises:
        Unsupported: the problem's steps do not overlap.
        Defect: a bound is above a known period.
    """
    if problem.updates is None or not problem.updates.is_period:
        raise Unsupported("modulo finds periods; this job's steps do not overlap")
    first_ns = steady_state(problem, incumbent).period_ns
    check_bound(known_bound_ns, first_ns, "known before modulo")
    pairs = pairs_of(problem)
    known = Known(problem, limits, incumbent, first_ns, max(1, known_bound_ns), build_s=S_PER_PAIR * pairs)
    if pairs > MOST_PAIRS:
        known.log.append(f"{pairs} pairs of ops, of which no model is built")
    for period_ns in _questions(known) if pairs <= MOST_PAIRS else ():
        before_ns = known.best_ns, known.lower_ns
        status = _ask(known, period_ns)
        if known.best_ns < before_ns[0]:
            on_schedule(known.best)
        if known.lower_ns > before_ns[1]:
            check_bound(known.lower_ns, known.best_ns, "modulo")
            on_bound(known.lower_ns)
        if status is SolverStatus.UNKNOWN and known.is_over:
            break
    if pairs <= MOST_PAIRS and not known.is_over and _fewer_delays(known):
        on_schedule(known.best)
    status = SolverStatus.OPTIMAL if known.best_ns == known.lower_ns else SolverStatus.FEASIBLE
    return Solved(
        schedule=known.best,
        objective_ns=known.best_ns,
        lower_bound_ns=known.lower_ns,
        status=status,
        log=(SOLVER.format(version("ortools")), f"{limits.workers} workers, seed {limits.seed}", *known.log),
        work=known.work,
        ended_by=known.ended_by,
    )


def _questions(known: Known) -> Iterator[int]:
    """The periods to ask for, as long as some question is open.

    The bound is first, then what is just below the best known. Where that has no answer in its time, shorter periods are asked for,
    which are easier to refute: near it after one that was answered, in the middle after one that was not. At last it gets the rest.
    """
    first_ns, best_ns, hard_ns, near = known.lower_ns, 0, 0, 2
    while known.best_ns - known.lower_ns > known.limits.gap * known.best_ns and not known.is_over:
        if first_ns and first_ns < known.best_ns - 1:
            period_ns = first_ns
        elif known.best_ns != best_ns:
            best_ns = known.best_ns
            period_ns = hard_ns = best_ns - 1
        elif hard_ns > known.lower_ns:
            period_ns = max(known.lower_ns, hard_ns - 1 - (hard_ns - known.lower_ns) // near)
        else:
            known.share = 1.0
            yield known.best_ns - 1
            return
        first_ns, lower_ns = 0, known.lower_ns
        yield period_ns
        near = 8 if known.lower_ns > lower_ns or known.best_ns < best_ns else 2
        if near == 2 and known.best_ns == best_ns:
            hard_ns = min(hard_ns, period_ns)


def _ask(known: Known, period_ns: int) -> SolverStatus:
    """Whether there is a schedule of at most this period; what is found counts, or that there is none."""
    built = _build(known, period_ns)
    status, found = _solve(known, built, known.share)
    if status is SolverStatus.INFEASIBLE:
        known.lower_ns = max(known.lower_ns, period_ns + 1)
    if found is None:
        return status
    found_ns = steady_state(known.problem, found).period_ns
    if found_ns < known.best_ns:
        known.best, known.best_ns = found, found_ns
    return status if found_ns <= period_ns else SolverStatus.UNKNOWN


def _fewer_delays(known: Known) -> bool:
    """Whether a schedule of the same period is found whose stages have less delay together, which then is the best."""
    before = sum(versions_of(known.problem, known.best).delays)
    updates = known.problem.updates
    if before == 0 or updates is None or updates.versions is Versions.TWO_BUFFERED:
        return False
    built = _build(known, known.best_ns)
    minimize_delays(built)
    _, found = _solve(known, built, DELAYS_SHARE)
    if found is None or steady_state(known.problem, found).period_ns > known.best_ns:
        return False
    if sum(versions_of(known.problem, found).delays) >= before:
        return False
    known.best = found
    return True


def _build(known: Known, period_ns: int) -> ModuloModel:
    """The model of a question, with the best schedule as its hint where that is an answer; it is a part of the work."""
    begun = time.perf_counter()
    built = build_modulo(known.problem, period_ns)
    # A hint that the first propagation refutes can abort CP-SAT 9.15, and with it the process.
    if period_ns >= known.best_ns:
        _hint(built, known.best)
    known.work += known.build_s
    if known.limits.clock_s is not None:
        known.build_s = max(known.build_s, time.perf_counter() - begun)
    return built


def _solve(known: Known, built: ModuloModel, share: float) -> tuple[SolverStatus, Schedule | None]:
    """Run CP-SAT for a share of what is left; its schedule, if that breaks no rule."""
    left_s, left = known.left
    limits = replace(
        known.limits,
        time_s=None if left_s is None else max(share * left_s, min(LEAST_S, left_s), 0.0),
        deterministic=None if left is None else max(share * left, min(LEAST_S, left), 0.0),
        gap=0.0,
    )
    solver = solver_of(limits)
    code, known.ended_by = run(solver, built.model)
    name = solver.status_name(code)
    if name == "MODEL_INVALID":
        raise Defect(f"modulo: the model is invalid: {built.model.validate()}")
    status = SolverStatus(name)
    known.work += solver.response_proto.deterministic_time
    known.log += [digest_of(built.model), f"period {built.period_ns} ns: status {status}"]
    if status not in (SolverStatus.OPTIMAL, SolverStatus.FEASIBLE):
        return status, None
    found = orders_of(built, solver.value)
    return status, None if verify_schedule(known.problem, found) else found


def _hint(built: ModuloModel, schedule: Schedule) -> None:
    """Hint the schedule: its orders, steps and fused backwards."""
    problem, count, model = built.problem, built.problem.microbatches, built.model
    for order, ops in zip(schedule.orders, built.ops, strict=True):
        place: dict[Op, tuple[int, int]] = {}  # in the period that begins with the rank's first U: which, of which step
        first = next(index for index, op in enumerate(order) if op.kind is Kind.U and op.stage == ops[0].stage)
        for index, op in enumerate(order):
            step, microbatch = (op.microbatch, 0) if op.kind is Kind.U else divmod(op.microbatch, count)
            found = 2 * ((index - first) % len(order)), step + (index < first)
            of_step = op._replace(microbatch=microbatch)
            if op.kind is Kind.BW and problem.split_backward:
                backward, weights = of_step._replace(kind=Kind.B), of_step._replace(kind=Kind.W)
                fused = backward in built.fused
                place[backward], place[weights] = found, (found[0] + 1, found[1])
                if fused:
                    model.add_hint(built.fused[backward], 1)
            else:
                place[of_step] = found
        for op, (_, step) in place.items():
            if op != ops[0]:
                model.add_hint(built.turn[op], place[ops[0]][1] - step)
        for one, other in combinations(ops[1:], 2):
            model.add_hint(built.before[one, other], place[one][0] < place[other][0])
