"""A question of the least period for CP-SAT, and what is known: whether any schedule has this period, or one near the best.

What is asked of all schedules, of all ranks or of some (`build_modulo`), is a proof where the answer is no. What is asked of those
near the best known, whose orders are fixed but for some, is answered soon, and proves nothing. To build a model counts as work.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING

from schedc.analysis.gap import check_bound
from schedc.analysis.simulation.period import steady_state
from schedc.ir import Kind, Op, Schedule
from schedc.models.modulo import build_modulo, orders_of, pairs_of
from schedc.solvers.common.base import Limits, SolverStatus
from schedc.solvers.exact.cpsat_solver import digest_of, run, solver_of
from schedc.spelling import counted
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ortools.sat.python.cp_model import CpModel, CpSolver

    from schedc.ir import Problem
    from schedc.models.modulo_variables import ModuloModel

LEAST_S = 0.25
"""No question of all schedules and ranks gets less."""
MOST_S = 5.0
"""No other question gets more work where nothing else limits it."""
S_PER_PAIR = 1e-4
"""Building a model takes this much of a limit, for each two ops that one rank runs in a period."""


@dataclass(slots=True)
class Known:
    """What is known, and what is left of the limits."""

    problem: Problem
    limits: Limits
    best: Schedule
    best_ns: int
    lower_ns: int
    on_schedule: Callable[[Schedule], None]
    on_bound: Callable[[int], None]
    begun: float = field(default_factory=time.perf_counter)
    work: float = 0.0
    log: list[str] = field(default_factory=list)
    ended_by: BaseException | None = None
    slow: float = 1.0
    """How much longer than `S_PER_PAIR` it takes to build a model, of a limit of seconds."""

    @property
    def spent(self) -> float:
        """Of the limit, between 0 and 1."""
        shares = [0.0]
        if self.limits.clock_s:
            shares.append((time.perf_counter() - self.begun) / self.limits.clock_s)
        if self.limits.deterministic:
            shares.append(self.work / self.limits.deterministic)
        return max(shares)

    @property
    def left(self) -> Limits:
        """What is left of the limits."""
        return self.limits.left(self.begun, self.work)

    def part(self, share: float, *, is_small: bool) -> Limits:
        """This share of what is left, for a question of all schedules and ranks or a small one; for that, never without a limit."""
        part = self.left.part(share, least=0.0 if is_small else LEAST_S)
        return replace(part, deterministic=MOST_S) if is_small and part.time_s is None and part.deterministic is None else part

    def build_s(self, ranks: Collection[int] | None = None) -> float:
        """What a model of the ranks takes to be built, of seconds or of work."""
        return self.slow * S_PER_PAIR * pairs_of(self.problem, range(self.problem.ranks) if ranks is None else ranks)

    @property
    def is_over(self) -> bool:
        """Whether an interruption ends it, or what is left of a limit would be spent before a model is built."""
        return self.ended_by is not None or self.left.least <= self.build_s()

    def take(self, schedule: Schedule) -> int:
        """The period of a schedule that keeps the rules, which is the best from now on if none is shorter."""
        period_ns = steady_state(self.problem, schedule).period_ns
        if period_ns < self.best_ns:
            self.best, self.best_ns = schedule, period_ns
            self.on_schedule(schedule)
        return period_ns

    def raise_bound(self, lower_ns: int) -> None:
        """All periods are at least this long, as a proof says."""
        if lower_ns > self.lower_ns:
            self.lower_ns = lower_ns
            check_bound(lower_ns, self.best_ns, "modulo")
            self.on_bound(lower_ns)

    def run(self, solver: CpSolver, model: CpModel, asked: str) -> SolverStatus:
        """Run CP-SAT; it spends work, and the log says what was asked and what it answered."""
        status, self.ended_by = run(solver, model)
        self.work += solver.response_proto.deterministic_time
        self.log += [digest_of(model), f"{asked}: status {status}"]
        return status

    @property
    def is_proven(self) -> bool:
        """Whether the gap that is asked for is reached."""
        return self.best_ns - self.lower_ns <= self.limits.gap * self.best_ns


@dataclass(frozen=True, slots=True)
class Near:
    """The schedules near the best: each two ops of a rank keep its order, but on some ranks those that are close to each other.

    Which steps ops are of is not fixed.
    """

    ranks: Collection[int]
    most_apart: int
    """Up to how many places in the rank's period count as close."""


def ask(
    known: Known,
    period_ns: int,
    share: float,
    *,
    ranks: Collection[int] | None = None,
    near: Near | None = None,
    like: Schedule | None = None,
) -> SolverStatus:
    """Whether there is a schedule of at most this period; what is found counts, or that there is none.

    Args:
        known: what is known; its limits are spent, and what is better is noted and reported.
        period_ns: the period.
        share: of what is left of the limits.
        ranks: which count (`build_modulo`): a yes is no schedule then.
        near: only these schedules; a no is no proof then.
        like: only schedules that differ from this one in when updates run (`_fix_blocks`), which itself may break limits; a no is
            no proof then, either.
    """
    built = build(known, period_ns, ranks, is_strict=ranks is None)
    is_near = near is not None or like is not None
    if near is not None:
        _fix(built, known.best, near)
    if like is not None:
        _fix_blocks(built, like)
    is_part = is_near or ranks is not None
    status, found = solve(known, built, share, is_part=is_part)
    if status is SolverStatus.INFEASIBLE and not is_near and built.is_mixed and built.is_strict:  # which is no proof
        status, found = solve(known, build(known, period_ns), share)
    if status is SolverStatus.INFEASIBLE and not is_near:
        known.raise_bound(period_ns + 1)
    if found is None:
        return SolverStatus.UNKNOWN if ranks is None and status is SolverStatus.OPTIMAL else status
    return status if known.take(found) <= period_ns else SolverStatus.UNKNOWN


def build(known: Known, period_ns: int, ranks: Collection[int] | None = None, *, is_strict: bool = False) -> ModuloModel:
    """The model of a question, with the best schedule as its hint where that is an answer; it is a part of the work."""
    begun = time.perf_counter()
    built = build_modulo(known.problem, period_ns, ranks, is_strict=is_strict)
    # A hint that the first propagation refutes can abort CP-SAT 9.15, and with it the process.
    if period_ns >= known.best_ns and ranks is None:
        _hint(built, known.best)
    own_s = known.build_s(ranks)
    known.work += own_s
    if known.limits.clock_s is not None and own_s:
        known.slow = max(known.slow, known.slow * (time.perf_counter() - begun) / own_s)
    return built


def solve(known: Known, built: ModuloModel, share: float, *, is_part: bool = False) -> tuple[SolverStatus, Schedule | None]:
    """Run CP-SAT for a share of what is left; its schedule, if it is of all ranks and breaks no rule.

    One worker that only learns from conflicts is asked first. It needs a tenth of the time that several workers in turn need for
    most answers: a difference under a Boolean has no useful linear relaxation, and probing takes longer than the search. All
    workers are asked for the least delays. They also get the second half of the last question, which has all that is left.
    """
    workers, is_last = known.limits.workers, share == 1 and not is_part
    tries = [(share / 2, 1), (share, workers)] if is_last and workers > 1 else [(share, 1)]
    for part, asked in [(share, workers)] if built.model.has_objective() else tries:
        limits = known.part(part, is_small=is_part)
        solver = one_worker(limits) if asked == 1 else solver_of(replace(limits, gap=0.0, workers=asked))
        status = known.run(solver, built.model, f"period {built.period_ns} ns, {counted(asked, 'worker')}")
        if status is not SolverStatus.UNKNOWN or known.ended_by is not None:
            break
    if status not in (SolverStatus.OPTIMAL, SolverStatus.FEASIBLE) or len(built.ranks) < known.problem.ranks:
        return status, None
    found = orders_of(built, solver.value)
    return status, None if verify_schedule(known.problem, found) else found


def one_worker(limits: Limits) -> CpSolver:
    """The worker that only learns from conflicts."""
    solver = solver_of(replace(limits, gap=0.0, workers=1))
    solver.parameters.interleave_search = False
    solver.parameters.linearization_level = solver.parameters.cp_model_probing_level = 0
    return solver


def _places(built: ModuloModel, schedule: Schedule) -> dict[Op, tuple[int, int]]:
    """Per op of the model, its place in the period that begins with its rank's first U, and of which step it is; of all ranks.

    W of a fused backward is right behind that.
    """
    count, places = built.problem.microbatches, dict[Op, tuple[int, int]]()
    for order, ops in zip(schedule.orders, built.ops, strict=True):
        first = next(index for index, op in enumerate(order) if op.kind is Kind.U and op.stage == ops[0].stage)
        place = 0
        for index in (*range(first, len(order)), *range(first)):
            op = order[index]
            step, microbatch = (op.microbatch, 0) if op.kind is Kind.U else divmod(op.microbatch, count)
            kinds = (Kind.B, Kind.W) if op.kind is Kind.BW and built.problem.split_backward else (op.kind,)
            for kind in kinds:
                places[op._replace(kind=kind, microbatch=microbatch)] = place, step + (index < first)
                place += 1
    return places


def _fused(built: ModuloModel, schedule: Schedule) -> set[Op]:
    """The backwards of step 0 that are fused, of those that may be."""
    count = built.problem.microbatches
    ops = (
        op._replace(kind=Kind.B, microbatch=op.microbatch % count)
        for order in schedule.orders
        for op in order
        if op.kind is Kind.BW
    )
    return {op for op in ops if op in built.fused}


def _hint(built: ModuloModel, schedule: Schedule) -> None:
    """Hint the schedule: its orders, steps and fused backwards."""
    places = _places(built, schedule)
    for backward in _fused(built, schedule):
        built.model.add_hint(built.fused[backward], 1)
    for (one, other), rounds in built.met.items():
        more = _round(places, one, other) - rounds.least
        for at, each in enumerate(rounds.later):
            built.model.add_hint(each, more if rounds.is_wide else more > at)


def _round(places: Mapping[Op, tuple[int, int]], one: Op, other: Op) -> int:
    """In which round of one op the other op of its rank runs (`models.modulo`)."""
    return places[one][1] - places[other][1] - (places[one] > places[other])


def _fix_blocks(built: ModuloModel, schedule: Schedule) -> None:
    """Each two blocks of a rank have the round that they have in the schedule. Rounds of updates stay open."""
    places, fused = _places(built, schedule), _fused(built, schedule)
    for one, other in built.met:
        if Kind.U not in (one.kind, other.kind):
            built.model.add(built.round(one, other) == _round(places, one, other))
    for op, is_fused in built.fused.items():
        built.model.add(is_fused == (op in fused))


def _fix(built: ModuloModel, schedule: Schedule, near: Near) -> None:
    """Only what is near the schedule."""
    places, fused = _places(built, schedule), _fused(built, schedule)
    for rank, ops in enumerate(built.ops):
        most_apart = near.most_apart if rank in near.ranks else 0
        for one, other in combinations(ops[1:], 2):
            if abs(places[one][0] - places[other][0]) > most_apart:
                turns = built.round(ops[0], other) - built.round(ops[0], one)
                built.model.add(built.round(one, other) == turns - (places[one][0] > places[other][0]))
        for op in ops if not most_apart else ():
            if op in built.fused:
                built.model.add(built.fused[op] == (op in fused))
