"""A lower bound from a relaxation: CP-SAT refutes one makespan after another, each a little above the last.

Takes a Problem with bounds from both sides; gives a better lower bound. The model is `build_relaxed`: links, needs
and the memory of a few ranks, while ranks compute any number of ops at once. Each makespan is a question of its own: windows are
narrow then, and the answer comes sooner than a bound that creeps. It is CP-SAT's word, and speaks of schedules whose F, B and BW
are whole, however they cut W: with what is left of a rank's compute, the order in which its W follow each other, the model is one
of all these (`models.cpsat.cut_weights`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from math import inf
from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import Clock, TimeUp, Until
from schedc.analysis.bounds.heads_and_tails import frames_of
from schedc.analysis.bounds.idle_gaps_chunks import chunk_idle_gap_bound_of_rank
from schedc.analysis.bounds.residency import residency_bound_of_rank, slices_as_microbatches, without_recomputed_bytes
from schedc.analysis.gap import check_bound
from schedc.errors import Unsupported
from schedc.ir import BoundName, Objective, Problem
from schedc.models.blocks import blocks_of, grid_of
from schedc.models.cpsat.model import build_relaxed
from schedc.models.start_windows import windows_of
from schedc.solvers.common.base import Limits, SolverStatus
from schedc.solvers.common.method import Search
from schedc.solvers.exact.cpsat import SOLVER, digest_of, run, solver_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.solvers.common.incumbent import Incumbent

STEPS, MOST_STEPS = 100, 1600
"""The first step is the objective over the one, the least that is tried over the other."""
LEAST_S = 0.25
"""No question gets less."""
RANKS = 3
"""The memory of this many ranks counts: those where it causes the longest waits."""
RANKS_SHARE = 0.1
"""Finding them takes at most this share of a time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuted:
    """How far it came."""

    lower_bound_ns: int
    """The bound it was given, or a better one."""
    cut_short: bool
    """Whether a limit ended it; else the bound is the relaxation's optimum, or as good as was asked for."""
    work: float = field(default=0.0, compare=False)
    """What it spent, in the units of a deterministic limit."""


class Refute(Search, frozen=True):
    """A better bound alone: CP-SAT refutes makespans for a model without the ranks' compute."""

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
    """Refute makespans from the bound up to the objective, as far as the relaxation and the limits let.

    Every step asks for a relaxed schedule of at most that many ticks. Where there is none, there is no schedule that is whole but
    for W either: with durations and start times rounded down to ticks, it would be a relaxed one. Where there is one, the best of
    them is the relaxation's optimum, which bounds all schedules, and the end.

    Args:
        problem: what must be done.
        bound_ns: a lower bound that is known already.
        objective_ns: the makespan of a schedule that is known.
        limits: when to stop, the seed and the workers; in deterministic time all steps share the limit.
        on_bound: is called with each better bound, and what it rests on.

    Raises:
        Unsupported: the objective is another one.
        Defect: a bound is above the makespan of the known schedule.
    """
    if problem.objective is not Objective.MAKESPAN:
        raise Unsupported(f"refute bounds the makespan; the objective is {problem.objective}")
    check_bound(bound_ns, objective_ns, "known before refute")
    begun, spent = time.perf_counter(), 0.0
    grid = grid_of(problem, objective_ns)
    blocks = blocks_of(problem, grid)
    clock = Clock(inf if limits.time_s is None or limits.deterministic is not None else RANKS_SHARE * limits.time_s)
    ranks = _ranks(problem, clock)
    lower, enough = grid.ticks(bound_ns), grid.ticks(objective_ns)
    path = windows_of(problem, blocks, enough).least
    step, least = max(1, enough // STEPS), max(1, enough // MOST_STEPS)
    while lower < enough and objective_ns - bound_ns > limits.gap * objective_ns:
        left_s = None if limits.time_s is None else limits.time_s - (time.perf_counter() - begun)
        work = None if limits.deterministic is None else limits.deterministic - spent
        if step < least or any(left is not None and left <= 0 for left in (left_s, work)):
            return Refuted(lower_bound_ns=bound_ns, cut_short=True, work=spent)
        upper = max(path, min(lower + step, enough - 1))
        model = build_relaxed(problem, blocks, windows_of(problem, blocks, upper), lower, upper, ranks)
        # No question gets more than half of what is left, so that a smaller step can follow one that is not answered.
        time_s = None if left_s is None else max(left_s / 2, LEAST_S)
        deterministic = None if work is None else min(work, max(work / 2, LEAST_S))
        solver = solver_of(replace(limits, time_s=time_s, deterministic=deterministic, gap=0.0))
        code, ended_by = run(solver, model)
        status = solver.status_name(code)
        spent += solver.response_proto.deterministic_time
        if status == SolverStatus.UNKNOWN:
            if ended_by is not None:
                raise ended_by
            step //= 2
            continue
        lower = upper + 1 if status == SolverStatus.INFEASIBLE else max(lower, int(solver.best_objective_bound))
        if lower * grid.tick_ns > bound_ns:
            bound_ns = lower * grid.tick_ns
            check_bound(bound_ns, objective_ns, "refute")
            log = (
                SOLVER.format(version("ortools")),
                f"{solver.parameters.num_workers} workers, seed {solver.parameters.random_seed}",
                f"refute: any number of ops at once on a rank; memory of ranks {', '.join(map(str, ranks))} only",
                digest_of(model),
                f"status {status}, at least {lower} ticks of {grid.tick_ns} ns",
            )
            on_bound(bound_ns, log)
        if ended_by is not None:
            raise ended_by
        if status != SolverStatus.INFEASIBLE:
            return Refuted(lower_bound_ns=bound_ns, cut_short=clock.has_cut or status != SolverStatus.OPTIMAL, work=spent)
    return Refuted(lower_bound_ns=bound_ns, cut_short=clock.has_cut, work=spent)


def _ranks(problem: Problem, until: Until) -> tuple[int, ...]:
    """Those ranks whose memory limit counts, of the ranks for whose bounds there is time; of graphs by their stays."""
    (frame,) = frames_of(slices_as_microbatches(without_recomputed_bytes(problem)))
    bounds_ns = [0] * problem.ranks
    with suppress(TimeUp):
        for rank in range(problem.ranks):
            of_rank = residency_bound_of_rank(frame, rank) if problem.edges else chunk_idle_gap_bound_of_rank(frame, rank, until)
            bounds_ns[rank] = of_rank
    return tuple(sorted(sorted(range(problem.ranks), key=lambda rank: -bounds_ns[rank])[:RANKS]))
