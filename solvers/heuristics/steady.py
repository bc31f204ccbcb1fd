"""List scheduling in the steady state: a problem whose steps overlap in, a period near the bound out.

Two ways. Where each rank has one stage, all run one forward and one backward in turn, and what is sought is how many microbatches
each has under way: at first what the round trip needs at the bound (Little's law); then, on the cycle that takes longest, more
where a stage turns from a backward to a forward. For any placement: iterative modulo scheduling (Rau, 1994), period by period from
the bound on. Each microbatch is laid out from its turn on the last stage, forwards as late as they can and backwards as early, so
that little is under way, each where its rank or link is free modulo the period; of idle time, no more is left in pieces that hold
nothing than the period has. Both are tried on fewer microbatches, too (`steady_repeat`). All are timed by `steady_state`; of equal
periods the least delays, then the least memory count.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from schedc.analysis.bounds.lower_bounds import cheap_bound_ns
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.period import Steady, steady_state
from schedc.analysis.simulation.unroll import step_of
from schedc.analysis.simulation.versions import versions_of
from schedc.errors import CheckFailed, Unsupported
from schedc.ir import Kind, Op, Problem, Schedule
from schedc.models.modulo_orders import needs_of, schedule_of_starts
from schedc.solvers.common.interruption import OutOfTime
from schedc.solvers.common.method import Constructive
from schedc.solvers.heuristics.modulo_timetable import ModuloTimetable
from schedc.solvers.heuristics.steady_repeat import repeats
from schedc.solvers.templates.overlapping import one_by_one, one_f_one_b
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LONGER = (0.0, 0.002, 0.01, 0.03, 0.07, 0.15, 0.3, 0.6, 1.2, 2.4, 5.0)
"""By how much a period is longer than the bound, from one try to the next."""
HALVINGS = 6
"""Then, how often the step between the last that failed and the first that did not is halved."""
EVALUATIONS = 15_000
"""Swaps that are tried at most, times the ops of a period."""


class SteadyList(Constructive, frozen=True):
    """Forwards and backwards in turn with as many under way as it takes, or iterative modulo scheduling: whichever is better."""

    name, place = "steady", 210
    steps_overlap = True

    @classmethod
    def candidates(cls, problem: Problem) -> Iterable[str]:
        """Always."""
        return (cls.name,)

    def construct(self, problem: Problem) -> Schedule:
        """The period; within memory, unless nothing is. Where the time ends, the best so far, at first all ops one by one.

        Raises:
            Unsupported: the problem's steps do not overlap.
        """
        if problem.updates is None or not problem.updates.is_period:
            raise Unsupported(f"{self.name} makes periods; this job's steps do not overlap")
        best = first = one_by_one(problem)
        try:
            for each in _better(problem, first, filter(partial(_sound, problem), repeats(problem, planned))):
                best = each  # of few microbatches, which takes a small part of the time
            own = first
            for own in _better(problem, first, _own(problem)):
                best = min(own, best, key=partial(rating, problem))
            own = _climbed(problem, own)
            best = min(own, best, key=partial(rating, problem))
            return best if best is own else _climbed(problem, best)
        except OutOfTime as late:
            late.by.quiet()
            return best


def planned(problem: Problem) -> Schedule:
    """The best of one problem, without repeating that of a smaller one."""
    first = one_by_one(problem)
    return _climbed(problem, [first, *_better(problem, first, _own(problem))][-1])


def _own(problem: Problem) -> Iterator[Schedule]:
    """All ways but repeats."""
    bound_ns = _bound_ns(problem)
    return chain(_in_turn(problem, bound_ns), _modulo(problem, bound_ns, steady_state(problem, one_by_one(problem)).period_ns))


def _bound_ns(problem: Problem) -> int:
    return max(1, cheap_bound_ns(problem))  # 0 where nothing takes time


def _better(problem: Problem, best: Schedule, ways: Iterable[Schedule]) -> Iterator[Schedule]:
    """Each that is better than all before."""
    best_rating = rating(problem, best)
    for schedule in ways:
        found = rating(problem, schedule)
        if found < best_rating:
            best_rating = found
            yield schedule


def _climbed(problem: Problem, best: Schedule) -> Schedule:
    return min(best, swap_climb(problem, best, _bound_ns(problem)), key=partial(rating, problem))


def rating(problem: Problem, schedule: Schedule) -> tuple[int, int, int]:
    """Period, sum of the delays, bytes of all ranks at their peaks: less is better."""
    period_ns = steady_state(problem, schedule).period_ns
    return period_ns, sum(versions_of(problem, schedule).delays), sum(peak_bytes(problem, schedule))


def _sound(problem: Problem, schedule: Schedule) -> bool:
    """Whether the period keeps its mode's rule and the memory limits."""
    return not verify_schedule(problem, schedule)


def _in_turn(problem: Problem, bound_ns: int) -> Iterator[Schedule]:
    """One forward, one backward, where each rank has one stage: with fused backwards, and with W right behind, or later."""
    path = problem.paths[0]
    if len(problem.paths) > 1 or len(path) != problem.ranks or len({problem.stages[stage].rank for stage in path}) != len(path):
        return
    for later in (-1, 0, 1) if problem.split_backward else (-1,):
        counts = dict(zip(path, _round_trips(problem, path, bound_ns, fused=later < 0), strict=True))
        found = _climb(problem, path, counts, later, bound_ns)
        if found is not None:
            yield found
        if later <= 0:
            yield from _drained(problem, path, split=later == 0)


def _drained(problem: Problem, path: tuple[int, ...], *, split: bool) -> Iterator[Schedule]:
    """1F1B whose every stage ends a step before it begins the next, with as many under way as memory lets, or fewer."""
    count = problem.microbatches
    for most in range(len(path), 0, -1):
        orders: list[tuple[Op, ...]] = [()] * problem.ranks
        for place, stage in enumerate(path):
            warm_up = min(most, len(path) - place, count) - 1
            order = [Op(Kind.F, stage, each) for each in range(warm_up)]
            for each in range(count):
                if each + warm_up < count:
                    order.append(Op(Kind.F, stage, each + warm_up))
                order += [Op(kind, stage, each) for kind in ((Kind.B, Kind.W) if split else (Kind.BW,))]
            orders[problem.stages[stage].rank] = (*order, Op(Kind.U, stage, 0))
        schedule = Schedule(orders=tuple(orders))
        if _sound(problem, schedule):
            yield schedule


def _round_trips(problem: Problem, path: tuple[int, ...], period_ns: int, *, fused: bool) -> list[int]:
    """Per stage along the path, how many are under way at least, on average, at this period: what passes during a round trip."""
    backward, trip_ns = Kind.BW if fused else Kind.B, 0
    counts: list[int] = []
    hops_ns: dict[int, int] = defaultdict(int)
    for need in needs_of(problem):
        if need.producer.microbatch == 0 and need.resource is not None:
            hops_ns[max(path.index(need.producer.stage), path.index(need.consumer.stage))] += need.occupancy_ns + need.latency_ns
    for place in reversed(range(len(path))):
        trip_ns += problem.duration_ns(Kind.F, path[place], 0) + problem.duration_ns(backward, path[place], 0)
        counts.append(max(counts[-1] if counts else 1, -(-trip_ns * problem.microbatches // period_ns)))
        trip_ns += hops_ns[place]
    return counts[::-1]


def _climb(problem: Problem, path: tuple[int, ...], counts: dict[int, int], later: int, bound_ns: int) -> Schedule | None:
    """More microbatches under way where the longest cycle turns, while that helps; then fewer where it does not hurt."""
    best: tuple[int, dict[int, int]] | None = None
    most = len(path) * (problem.microbatches + 2) + sum(counts.values())

    def timed(now: dict[int, int]) -> Steady | None:
        schedule = one_f_one_b(problem, now, later=later)
        try:
            return steady_state(problem, schedule) if _sound(problem, schedule) else None
        except CheckFailed:
            return None

    while sum(counts.values()) < most:
        steady = timed(counts)
        if steady is None:
            lower = {stage: max(1, count - 1) for stage, count in counts.items()}
            if best is not None or lower == counts:
                break
            counts = lower  # what the round trip needs does not fit
            continue
        if best is None or steady.period_ns < best[0]:
            best = steady.period_ns, counts
        around = [*steady.longest, *steady.longest[:1]]
        neighbours = [(before, after) for before, after in pairwise(around) if before.stage == after.stage]
        turns = {after.stage for before, after in neighbours if before.kind is not Kind.F and after.kind is Kind.F}
        if steady.period_ns <= bound_ns or not turns or len({op.stage for op in around}) == 1:
            break
        raised = dict(counts)
        for stage in turns:
            for each in path[: path.index(stage) + 1]:
                raised[each] = max(raised[each], counts[stage] + 1)
        counts = raised
    if best is None:
        return None
    period_ns, counts = best
    for place, stage in enumerate(path):
        after = counts[path[place + 1]] if place + 1 < len(path) else 1
        while counts[stage] > after:
            fewer = counts | {stage: counts[stage] - 1}
            steady = timed(fewer)
            if steady is None or steady.period_ns > period_ns:
                break
            period_ns, counts = steady.period_ns, fewer
    return one_f_one_b(problem, counts, later=later)


def _modulo(problem: Problem, bound_ns: int, longest_ns: int) -> Iterator[Schedule]:
    """Per way, the shortest period that is found: the least that works, of longer and longer ones."""
    for split in (False, True) if problem.split_backward else (False,):
        way = replace(problem, split_backward=split)
        best: Schedule | None = None
        worked, failed = longest_ns, 0
        for share in LONGER:
            period_ns = bound_ns + int(bound_ns * share)
            if period_ns >= worked:
                break
            best, worked = _shorter(problem, way, period_ns, best, worked)
            if worked <= period_ns:
                break
            failed = period_ns
        for _ in range(HALVINGS):
            middle = (worked + failed) // 2
            if best is None or not failed or not failed < middle < worked:
                break
            best, now = _shorter(problem, way, middle, best, worked)
            worked, failed = now, failed if now <= middle else middle
        if best is not None:
            yield best


def _shorter(problem: Problem, way: Problem, period_ns: int, best: Schedule | None, best_ns: int) -> tuple[Schedule | None, int]:
    """The best of what was found and of what is laid out with this period, with its period, which may be another."""
    for packed in (False, True):
        if (starts := ModuloTimetable.of(way, period_ns, packed=packed).starts()) is None:
            continue
        schedule = schedule_of_starts(problem, starts, period_ns)
        found_ns = _period_ns(problem, schedule, best_ns)
        if found_ns is not None:
            best, best_ns = schedule, found_ns
        if best_ns <= period_ns:
            break
    return best, best_ns


def _period_ns(problem: Problem, schedule: Schedule, below_ns: int) -> int | None:
    """Its period, if that is shorter, and the schedule keeps all rules and limits."""
    try:
        period_ns = steady_state(problem, schedule).period_ns
    except CheckFailed:
        return None
    return period_ns if period_ns < below_ns and _sound(problem, schedule) else None


def swap_climb(problem: Problem, schedule: Schedule, bound_ns: int) -> Schedule:
    """Swap neighbours in a rank's order that lie on the longest cycle: those that shorten the period, else one that keeps it."""
    best, best_ns = schedule, steady_state(problem, schedule).period_ns
    left = EVALUATIONS // max(1, sum(map(len, schedule.orders)))
    seen = {schedule.orders}
    while best_ns > bound_ns:
        steady = steady_state(problem, schedule)
        around = set(pairwise([*steady.longest, *steady.longest[:1]]))
        following: Schedule | None = None
        following_ns = steady.period_ns + 1
        places = ((rank, index) for rank, order in enumerate(schedule.orders) for index in range(len(order)))
        for rank, index in places:
            if not _may_swap(problem, around, schedule.orders[rank][index - 1], schedule.orders[rank][index]):
                continue
            swapped = _swapped(problem, schedule, rank, index)
            if left <= 0:
                return best
            if swapped.orders in seen:
                continue
            seen.add(swapped.orders)
            left -= 1
            found_ns = _period_ns(problem, swapped, following_ns)
            if found_ns is not None:
                following, following_ns = swapped, found_ns
            if following_ns < steady.period_ns:
                break
        if following is None:
            return best
        schedule = following
        if following_ns < best_ns:
            best, best_ns = schedule, following_ns
    return best


def _may_swap(problem: Problem, around: set[tuple[Op, Op]], before: Op, after: Op) -> bool:
    """Whether the two follow each other on the cycle, and may be swapped as far as one microbatch goes."""
    alike = before.stage == after.stage and before.microbatch == after.microbatch and Kind.U not in (before.kind, after.kind)
    return (before, after) in around and not alike and problem.rank_of(before) == problem.rank_of(after)


def _swapped(problem: Problem, schedule: Schedule, rank: int, index: int) -> Schedule:
    """With the op at this place of the rank's order before the one that it follows, of the first that is the last."""
    order = list(schedule.orders[rank])
    if index:
        order[index - 1], order[index] = order[index], order[index - 1]
    else:
        last, first = order[-1], order[0]
        order[0] = _later(problem, last, -1)
        order[-1] = _later(problem, first, 1)
    least = min(step_of(op, problem.microbatches) for op in order)
    changed = tuple(_later(problem, op, -least) for op in order)
    return replace(schedule, orders=(*schedule.orders[:rank], changed, *schedule.orders[rank + 1 :]))


def _later(problem: Problem, op: Op, steps: int) -> Op:
    return op._replace(microbatch=op.microbatch + steps * (1 if op.kind is Kind.U else problem.microbatches))
