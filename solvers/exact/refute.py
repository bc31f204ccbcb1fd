"""A lower bound from relaxations: CP-SAT settles one after another, each of which counts more of what a schedule must keep to.

Takes a Problem with bounds from both sides; gives a better lower bound. The model is `build_relaxed`: links and needs, then the
compute of the ranks that did several things at once in the best schedule so far, then with that the memory of one rank more each
time, as far as that takes no longer than a share of the limits. In turn with these, memory counts alone, of a rank more each time.
Each is asked for one makespan after another above the bound. It is CP-SAT's word, and speaks of schedules whose F, B and BW are
whole, however they cut W: with what is left of a rank's compute, the order in which its W follow each other, the model is one of
all these (`models.cpsat.cut_weights`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import Clock, TimeUp, Until
from schedc.analysis.bounds.heads_and_tails import frames_of
from schedc.analysis.bounds.idle_gaps_chunks import chunk_idle_gap_bound_of_rank
from schedc.analysis.bounds.residency import residency_bound_of_rank, slices_as_microbatches, without_recomputed_bytes
from schedc.analysis.gap import check_bound
from schedc.errors import Unsupported
from schedc.ir import BoundName, Kind, Objective, Problem
from schedc.models.blocks import blocks_of, grid_of
from schedc.models.cpsat.model import build_relaxed
from schedc.models.start_windows import windows_of
from schedc.solvers.common.base import Limits, SolverStatus
from schedc.solvers.common.method import Search
from schedc.solvers.exact.cpsat_solver import asked_of, digest_of, one_worker, run, work_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from ortools.sat.python import cp_model

    from schedc.models.blocks import Blocks, TimeGrid
    from schedc.models.cpsat.variables import CpSatVariables
    from schedc.solvers.common.incumbent import Incumbent

STEPS, MOST_STEPS = 100, 1600
"""The first makespan asked for is above the bound by the objective over the one; the least step is the objective over the other."""
LEAST_S, SHARE, FEW_SHARE = 0.25, 0.5, 0.05
"""A question gets no less than the first where as much is left; of that, the second at most, or the last if memory alone counts."""
RANKS, RANKS_SHARE = 3, 0.1
"""Of this many ranks the memory counts at last, with all compute: those where it causes the longest waits. To find them takes at
most this share of a time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuted:
    """How far it came."""

    lower_bound_ns: int
    """The bound it was given, or a better one."""
    cut_short: bool
    """Whether a limit ended it; else the bound is the optimum of the whole relaxation, or as good as was asked for."""
    work: float = field(default=0.0, compare=False)
    """What it spent, in the units of a deterministic limit."""


class Refute(Search, frozen=True):
    """A better bound alone: CP-SAT settles relaxations, each of which counts more ranks' compute and memory."""

    name, place, graphs, slices = "refute", 270, True, True

    def improve(self, incumbent: Incumbent, limits: Limits) -> None:
        """Offer better bounds."""
        if incumbent.schedule is None or not BoundName.CPSAT_CUT.speaks_of(incumbent.schedule.parts):
            return  # what is best cuts other blocks than W, of which the bound does not speak
        found = refute(
            incumbent.problem,
            bound_ns=incumbent.bound_ns,
            objective_ns=incumbent.objective_ns,
            limits=limits,
            on_bound=lambda bound_ns, log: incumbent.raise_bound(bound_ns, BoundName.CPSAT_CUT, log),
        )
        incumbent.work += found.work
        incumbent.cut_short |= found.cut_short and limits.deterministic is None


def refute(
    problem: Problem,
    *,
    bound_ns: int,
    objective_ns: int,
    limits: Limits,
    on_bound: Callable[[int, tuple[str, ...]], None] = lambda *_: None,
) -> Refuted:
    """Refute makespans from the bound up to the objective, as far as the relaxations and the limits let.

    Every question is for a relaxed schedule of at most `upper` ticks. Where there is none, there is no schedule that is whole but
    for W either: with durations and start times rounded down to ticks, it would be a relaxed one. Where there is one, the best of
    them is the relaxation's optimum, which bounds all schedules.

    Args:
        problem: what must be done.
        bound_ns: a lower bound that is known already.
        objective_ns: the makespan of a schedule that is known.
        limits: when to stop, and the seed (one worker answers); in deterministic time all steps share the limit.
        on_bound: is called with each better bound, and what it rests on.

    Raises:
        Unsupported: the objective is another one.
        Defect: a bound is above the makespan of the known schedule.
    """
    if problem.objective is not Objective.MAKESPAN:
        raise Unsupported(f"refute bounds the makespan; the objective is {problem.objective}")
    check_bound(bound_ns, objective_ns, "known before refute")
    grid = grid_of(problem, objective_ns)
    blocks = blocks_of(problem, grid)
    clock = Clock(inf if limits.time_s is None or limits.deterministic is not None else RANKS_SHARE * limits.time_s)
    asker = _Asker(problem, grid, blocks, objective_ns, limits, on_bound, time.perf_counter(), bound_ns, grid.ticks(bound_ns))
    path, order = windows_of(problem, blocks, asker.enough).least, _ranks(problem, clock) if asker.goes_on else ()
    lines = [_grow(asker, order, path), _by_memory(asker, order, path)]
    while lines and asker.goes_on and not asker.counts_all:
        lines = [line for line in lines if next(line, line) is not line]
    cut_short = clock.has_cut or not (asker.counts_all or asker.is_good_enough)
    return Refuted(lower_bound_ns=asker.bound_ns, cut_short=cut_short, work=asker.spent)


@dataclass(frozen=True, slots=True)
class _Counted:
    """Of which ranks a relaxation counts that they compute one F or backward at a time, and the memory limit."""

    computing: frozenset[int] = frozenset()
    limited: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Asker:
    """Asks CP-SAT for relaxed schedules; keeps the best bound, and what was spent."""

    problem: Problem
    grid: TimeGrid
    blocks: Blocks
    objective_ns: int
    limits: Limits
    on_bound: Callable[[int, tuple[str, ...]], None]
    begun: float
    bound_ns: int
    lower: int
    """The bound in ticks."""
    spent: float = 0.0
    counts_all: bool = False
    """Whether the best schedule of a relaxation keeps to all that counts, so that no relaxation bounds more."""

    @property
    def enough(self) -> int:
        """The known schedule in ticks."""
        return self.grid.ticks(self.objective_ns)

    @property
    def is_good_enough(self) -> bool:
        """Whether nothing, or too little, is left between the bound and the known schedule."""
        return self.lower >= self.enough or self.objective_ns - self.bound_ns <= self.limits.gap * self.objective_ns

    @property
    def goes_on(self) -> bool:
        """Whether there is something to ask, and a limit allows it."""
        return not self.is_good_enough and self.limits.left(self.begun, self.spent).least > 0

    def ask(self, counted: _Counted, upper: int, share: float) -> tuple[SolverStatus, frozenset[int]]:
        """For the best relaxed schedule of at most `upper` ticks, in a share of what is left; and of it, if found, `_crowded`."""
        windows, computing, limited = windows_of(self.problem, self.blocks, upper), counted.computing, counted.limited
        model = build_relaxed(self.problem, self.blocks, windows, self.lower, upper, computing=computing, limited=limited)
        limits = self.limits.left(self.begun, self.spent).part(share, least=LEAST_S)
        solver = one_worker(replace(limits, gap=0.0))  # several settle the same with more work
        status, ended_by = run(solver, model.model)
        self.spent += work_of(solver)
        crowded = _crowded(self.problem, model, solver.value) if status is SolverStatus.OPTIMAL else frozenset()
        if status is not SolverStatus.UNKNOWN:
            least = upper + 1 if status is SolverStatus.INFEASIBLE else int(solver.best_objective_bound)
            self.lower, tick_ns = max(self.lower, least), self.grid.tick_ns
            if self.lower * tick_ns > self.bound_ns:
                self.bound_ns = self.lower * tick_ns
                check_bound(self.bound_ns, self.objective_ns, "refute")
                of, memory_of = (", ".join(map(str, sorted(ranks))) or "none" for ranks in (computing, limited))
                what = f"refute: of compute, F and backwards of ranks {of}; memory of ranks {memory_of} only"
                answer = f"status {status}, at least {self.lower} ticks of {tick_ns} ns"
                self.on_bound(self.bound_ns, (*asked_of(solver), what, digest_of(model.model), answer))
        if ended_by is not None:
            raise ended_by
        return status, crowded


def _grow(asker: _Asker, order: Sequence[int], path: int) -> Iterator[None]:
    """Let the relaxation count more and more, as long as it is settled; a question each time it goes on.

    At first the compute of ranks that did several things at once; then, with that, memory limits in the order given. Where not all
    is counted then, the first ranks' memory is tried with all that compute.
    """
    counted = _Counted()
    more = crowded = yield from _settle(asker, counted, path, SHARE)
    while more:
        tried = replace(counted, computing=counted.computing | more)
        more = yield from _settle(asker, tried, path, SHARE)
        if more is not None:
            counted, crowded, more = tried, more, more - tried.computing
    if crowded is None:
        return
    for rank in order:
        tried = replace(counted, limited=counted.limited | {rank})
        found = yield from _settle(asker, tried, path, SHARE)
        if found is None:
            break
        counted, crowded = tried, found
    asker.counts_all = counted.limited.issuperset(order) and crowded <= counted.computing
    if not asker.counts_all:
        yield from _settle(asker, _Counted(counted.computing | crowded, counted.limited | {*order[:RANKS]}), path, SHARE)


def _by_memory(asker: _Asker, order: Sequence[int], path: int) -> Iterator[None]:
    """Let memory limits alone count in the order given, of one rank more each time; a question each time it goes on."""
    for count in range(1, len(order) + 1):
        counted = _Counted(limited=frozenset(order[:count]))
        if (yield from _settle(asker, counted, path, FEW_SHARE)) is None:  # nor would one that counts more be settled
            return


def _settle(asker: _Asker, counted: _Counted, path: int, share: float) -> Generator[None, None, frozenset[int] | None]:
    """Ask for one makespan after another above the bound until one is possible; a question each time it goes on.

    Start windows are narrow where a makespan is little above the bound, and answers soon there. After each that is refuted the
    next is as far above it; after one that is not settled half as far. Returns `_crowded` of the relaxation's best, or None.
    """
    step, least = (max(1, asker.enough // parts) for parts in (STEPS, MOST_STEPS))
    while step >= least and asker.goes_on:
        status, crowded = asker.ask(counted, max(path, min(asker.lower + step, asker.enough - 1)), share)
        yield
        if status is SolverStatus.OPTIMAL:
            return crowded
        step = step if status is SolverStatus.INFEASIBLE else step // 2
    return None


def _crowded(problem: Problem, model: CpSatVariables, value: Callable[[cp_model.IntVar], int]) -> frozenset[int]:
    """The ranks on which an F or a backward starts before another one has ended."""
    busy_until: dict[int, int] = {}
    found: set[int] = set()
    starts = ((value(start), op) for op, start in model.start.items() if op.kind is not Kind.W)
    for start, op in sorted(starts):
        rank, fused = problem.rank_of(op), op in model.fused and value(model.fused[op])
        if start < busy_until.get(rank, 0):
            found.add(rank)
        taken = model.blocks.fused[op] if fused else model.blocks.duration[op]
        busy_until[rank] = max(busy_until.get(rank, 0), start + taken)
    return frozenset(found)


def _ranks(problem: Problem, until: Until) -> tuple[int, ...]:
    """Those with a memory limit, at first where it causes the longest waits, of those there is time for; of graphs by stays."""
    (frame,) = frames_of(slices_as_microbatches(without_recomputed_bytes(problem)))
    bounds_ns = [0] * problem.ranks
    with suppress(TimeUp):
        for rank in range(problem.ranks):
            of_rank = residency_bound_of_rank(frame, rank) if problem.edges else chunk_idle_gap_bound_of_rank(frame, rank, until)
            bounds_ns[rank] = of_rank
    limited = [rank for rank, limit in enumerate(problem.memory_limit_bytes) if limit is not None]
    return tuple(sorted(limited, key=lambda rank: -bounds_ns[rank]))
