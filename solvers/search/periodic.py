"""Periodic schedules: a wave of microbatches is scheduled once, with its period as objective, and repeated (modulo scheduling).

A Problem goes in, a Schedule for all its microbatches comes out; the search takes no longer for a thousand of them than for ten
waves. Warm-up and cool-down are the same order with what lies before the first and after the last microbatch left out, as early as
it can run. Where memory is short and a link slow, the steady state has waves of about as many microbatches as memory holds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir import Kind, Op, Problem, Schedule
from schedc.models.blocks import TimeGrid, grid_of
from schedc.models.periodic import build_cycle, held_at_most, takes_less_fused
from schedc.solvers.common.base import NO_LIMITS, Limits
from schedc.solvers.common.method import Search
from schedc.solvers.heuristics.greedy import Greedy

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortools.sat.python import cp_model

    from schedc.models.periodic import Cycle
    from schedc.solvers.common.incumbent import Incumbent

SETTLED_WAVES = 7
"""A schedule of this many waves is long enough to have a steady state."""
SLACK = 1.06
"""A wave is sought among those whose period is at most this many times the hint's, which need not repeat itself exactly."""
DETERMINISTIC_TIME = 8.0
"""Without a limit, the effort for each size of wave, in CP-SAT's unit (a second or a few)."""
LARGEST_WAVE = 16
WORKERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """The steady state: when each op of one wave starts, and after which time the next wave does the same."""

    microbatches: int
    period_ns: int
    start_ns: dict[Op, int]

    @property
    def per_microbatch_ns(self) -> float:
        """The period's share of one microbatch."""
        return self.period_ns / self.microbatches

    def tiled(self, times: int) -> Wave:
        """This many of these waves as one."""
        start_ns = {
            op._replace(microbatch=op.microbatch + number * self.microbatches): at_ns + number * self.period_ns
            for number in range(times)
            for op, at_ns in self.start_ns.items()
        }
        return Wave(microbatches=times * self.microbatches, period_ns=times * self.period_ns, start_ns=start_ns)


class Periodic(Search, frozen=True):
    """Periodic schedules: one wave of microbatches, solved with its period as objective and repeated."""

    name, place = "periodic", 250

    def improve(self, incumbent: Incumbent, limits: Limits) -> None:
        """Offer the schedule of each wave that is better than those before it."""
        timed = limits.deterministic is None
        incumbent.work += limits.deterministic or 0.0  # it does not tell what it spent of it
        given = limits if timed else replace(limits, time_s=None)
        periodic(incumbent.problem, limits=given, on_schedule=lambda schedule: incumbent.offer_valid(schedule, self.name))
        incumbent.cut_short |= timed and incumbent.found_by == self.name


def periodic(
    problem: Problem,
    *,
    limits: Limits = NO_LIMITS,
    waves: tuple[int, ...] = (),
    on_schedule: Callable[[Schedule], None] = lambda _: None,
) -> Schedule:
    """The schedule that repeats the best wave found.

    Sizes of waves are tried from small to large, until one needs no longer than the busiest rank works.

    Args:
        problem: one stage on each rank, one path, microbatches that are alike.
        limits: of a time limit, the last size gets what the others leave, and each of those up to a sixth. Without one the
            result does not depend on the machine. A deterministic limit is shared equally.
        waves: the sizes to try; default: powers of two, and as many as memory holds.
        on_schedule: called with the schedule of each wave that is better than those before it.

    Raises:
        Unsupported: the problem is of another kind, or no wave was found.
    """
    _check(problem)
    sizes = [size for size in waves or _sizes(problem) if size <= problem.microbatches]
    least_ns = _least_period_ns(problem)
    begun = time.perf_counter()
    best: Wave | None = None
    for size in sizes:
        share_s = None
        if limits.time_s is not None:
            share_s = limits.time_s / 6 if size != sizes[-1] else max(1.0, begun + limits.time_s - time.perf_counter())
        hints = [wave_of_greedy(problem, size)] if problem.microbatches >= SETTLED_WAVES * size else []
        if best is not None and size % best.microbatches == 0:
            hints.append(best.tiled(size // best.microbatches))
        hint = min(hints, key=lambda each: abs(each.per_microbatch_ns - least_ns), default=None)
        work = None if limits.deterministic is None else limits.deterministic / len(sizes)
        wave = solve_wave(problem, size, replace(limits, time_s=share_s, deterministic=work), hint)
        if wave is not None and (best is None or wave.per_microbatch_ns < best.per_microbatch_ns):
            best = wave
            on_schedule(unroll(problem, best))
        if best is not None and best.per_microbatch_ns <= least_ns:
            break
    if best is None:
        raise Unsupported("periodic: no wave was found in the time given; give more, or use another method")
    return unroll(problem, best)


def solve_wave(problem: Problem, size: int, limits: Limits, hint: Wave | None = None) -> Wave | None:
    """The best wave of this many microbatches that the search finds; None if it finds none.

    Args:
        problem: as for `periodic`.
        size: microbatches in the wave.
        limits: with a time limit, threads race; without one, they take turns, and a fixed effort ends the search.
        hint: a wave to start from.
    """
    from ortools.sat.python import cp_model

    from schedc.solvers.exact.cpsat import run

    longest_ns = size * _longest_period_ns(problem)
    if hint:
        longest_ns = int(SLACK * max(hint.period_ns, size * _least_period_ns(problem)))
    grid = grid_of(problem, problem.microbatches * longest_ns)
    cycle = build_cycle(problem, grid, size, -(-longest_ns // grid.tick_ns))
    if hint:
        # All starts are stretched with the period to the next step, which keeps every order and every need of a periodic hint.
        steps = -(-hint.period_ns // (grid.tick_ns * cycle.step))
        cycle.model.add_hint(cycle.steps, steps)
        for op, start in cycle.start.items():
            if (at_ns := hint.start_ns.get(op, hint.start_ns.get(op._replace(kind=Kind.BW)))) is not None:
                cycle.model.add_hint(start, at_ns * steps * cycle.step // hint.period_ns)
        for backward, (_, fused) in cycle.fused.items():
            cycle.model.add_hint(fused, backward not in hint.start_ns)
    solver = cp_model.CpSolver()
    _set(solver, limits)
    status, ended_by = run(solver, cycle.model)
    if ended_by is not None:
        raise ended_by
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return Wave(
        microbatches=size,
        period_ns=solver.value(cycle.steps) * cycle.step * grid.tick_ns,
        start_ns=_starts_ns(cycle, solver, grid),
    )


def _starts_ns(cycle: Cycle, solver: cp_model.CpSolver, grid: TimeGrid) -> dict[Op, int]:
    """When the ops of the wave start; a fused backward is in the place of its B, and has no W."""
    fused = {(op.stage, op.microbatch) for op, (_, literal) in cycle.fused.items() if solver.value(literal)}
    return {
        op._replace(kind=Kind.BW) if op.kind is Kind.B and op[1:3] in fused else op: solver.value(start) * grid.tick_ns
        for op, start in cycle.start.items()
        if op.kind is not Kind.W or op[1:3] not in fused
    }


def wave_of_greedy(problem: Problem, size: int) -> Wave:
    """The wave of greedy's schedule, uncut, that comes nearest to repeating itself, once the schedule has settled.

    Where it fuses some backwards and splits others, a backward is compared with the other wave's, fused or split, W with W.
    """
    count = min(problem.microbatches, SETTLED_WAVES * size)
    short = replace(problem, microbatches=count, path_of=(0,) * count)
    schedule = Greedy(n_sub=1)(short)
    timeline = simulate(short, schedule)
    start_ns: dict[Op, int] = {}
    for rank, order in enumerate(schedule.orders):
        start_ns.update(zip(order, timeline.start_ns(rank), strict=True))
    alike = {Kind.B: Kind.BW, Kind.BW: Kind.B}

    def before_ns(op: Op) -> int | None:
        """When the same op of the wave before starts."""
        before = op._replace(microbatch=op.microbatch - size)
        return start_ns.get(before, start_ns.get(before._replace(kind=alike.get(op.kind, op.kind))))

    def period_ns(first: int) -> int:
        return max(
            later_ns - earlier_ns
            for op, later_ns in start_ns.items()
            if first <= op.microbatch - size < first + 2 * size and (earlier_ns := before_ns(op)) is not None
        )

    first = min(range(3 * size // 2, count - 3 * size + 1), key=period_ns)
    origin_ns = start_ns[Op(Kind.F, problem.paths[0][0], first)]
    return Wave(
        microbatches=size,
        period_ns=period_ns(first),
        start_ns={
            op._replace(microbatch=op.microbatch - first): at_ns - origin_ns
            for op, at_ns in start_ns.items()
            if first <= op.microbatch < first + size
        },
    )


def unroll(problem: Problem, wave: Wave) -> Schedule:
    """The order in which the wave, repeated indefinitely, runs the problem's microbatches.

    It keeps every need and every memory limit that the wave keeps: needs are within a microbatch, and a release that a forward
    waits for is either in the order or belongs to a microbatch that does not exist and never held anything.
    """
    timed: list[list[tuple[int, int, Op]]] = [[] for _ in range(problem.ranks)]
    for op, start_ns in wave.start_ns.items():
        rank = timed[problem.rank_of(op)]
        for number, microbatch in enumerate(range(op.microbatch, problem.microbatches, wave.microbatches)):
            rank.append((start_ns + number * wave.period_ns, microbatch, op._replace(microbatch=microbatch)))
    return Schedule(orders=tuple(tuple(op for _, _, op in sorted(rank)) for rank in timed))


def _check(problem: Problem) -> None:
    path = problem.paths[0]
    if len(problem.paths) > 1 or len(path) != problem.ranks or len({problem.stages[stage].rank for stage in path}) != problem.ranks:
        raise Unsupported("periodic: expected one path with one stage on each rank; use greedy for other placements")
    kinds = (Kind.F, Kind.B, Kind.W, Kind.BW)
    if any(len(set(problem.stages[stage].durations_ns(kind))) > 1 for stage in path for kind in kinds):
        raise Unsupported("periodic: expected microbatches that all take the same time; use greedy for others")
    for stage in path:
        held_bytes, _, limit_bytes = held_at_most(problem, stage)
        if limit_bytes is not None and limit_bytes < held_bytes:
            raise Unsupported(f"periodic: the limit of rank {problem.stages[stage].rank} does not hold one activation; raise it")


def _sizes(problem: Problem) -> tuple[int, ...]:
    """Powers of two, up to what the tightest rank holds, and that."""
    slots = [
        limit_bytes // held_bytes
        for held_bytes, _, limit_bytes in (held_at_most(problem, stage) for stage in problem.paths[0])
        if limit_bytes is not None and held_bytes
    ]
    largest = min([LARGEST_WAVE, problem.microbatches, *slots])
    return tuple(sorted({largest, *(1 << power for power in range(5) if 1 << power < largest)}))


def _least_period_ns(problem: Problem) -> int:
    """The busiest rank's work on one microbatch."""
    apart = (Kind.F, Kind.B, Kind.W) if problem.split_backward else (Kind.F, Kind.BW)
    return max(
        sum(problem.duration_ns(kind, stage, 0) for kind in ((Kind.F, Kind.BW) if takes_less_fused(problem, stage) else apart))
        for stage in problem.paths[0]
    )


def _longest_period_ns(problem: Problem) -> int:
    """One microbatch after the other: all the work and all the transfers of one."""
    kinds = (Kind.F, Kind.B, Kind.W) if problem.split_backward else (Kind.F, Kind.BW)
    work_ns = sum(problem.duration_ns(kind, stage, 0) for kind in kinds for stage in problem.paths[0])
    sizes = [size for stage in problem.stages for size in (stage.message_bytes, stage.gradient_message_bytes)]
    return work_ns + sum(link.latency_ns + link.occupancy_ns(max(sizes)) for link in problem.links)


def _set(solver: cp_model.CpSolver, limits: Limits) -> None:
    solver.parameters.num_workers = WORKERS
    solver.parameters.random_seed = limits.seed
    if limits.time_s is None:
        solver.parameters.interleave_search = True
        solver.parameters.max_deterministic_time = DETERMINISTIC_TIME if limits.deterministic is None else limits.deterministic
    else:
        solver.parameters.max_time_in_seconds = limits.time_s
