"""What one machine must idle while microbatches are away from it and memory keeps others out; any number of stages per rank.

Takes a frame of a problem; gives the least span of a frame by the idle time of one machine (a rank, a link or a trunk) under the
memory limit of one rank. It generalizes `idle_gaps` from one stage to all stages of a rank, and from ranks to links. What one
microbatch can have done, and what it then holds, is in `memory_states`.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import chain
from operator import add
from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import Until, check, never
from schedc.analysis.bounds.memory_states import Knapsack, Status, WayStep, pareto_front, statuses_after, trip_of
from schedc.ir import Resource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.analysis.bounds.heads_and_tails import Frame

START = -1
"""In place of a step before all steps: the frame's start."""


def chunk_idle_gap_bound_of_rank(frame: Frame, rank: int, until: Until = never) -> int:
    """The least span of the frame, by the idle time of a rank under its own memory limit.

    In the frame of a stage span (`Frame.observer`) it is 0 for all ranks but the observer. Proof: `chunk_idle_gap_bound`.

    Raises:
        TimeUp: the time is up.
    """
    return chunk_idle_gap_bound(frame, Resource.of_rank(rank), rank, until) if frame.observer in (None, rank) else 0


def chunk_idle_gap_bound(frame: Frame, machine: Resource, rank: int, until: Until = never) -> int:
    """The least span of the frame, by the idle time of a machine under the memory limit of any rank.

    It is the machine's work and the most idle time that a chain of disjoint gaps proves.

    Assumes: chains of whole microbatches or of slices taken for such, any objective and placement. With several paths, the largest
    of: the bound of each path alone, as without the other microbatches no schedule takes longer; and where all of them have
    equally many steps, the bound of all microbatches together. Of that one, step p of a microbatch is the p-th of its own trip; all
    that follows says of a step what holds on each trip: times are the least, work is the longest, statuses are those of any.

    The *steps* of a microbatch are the blocks and transfers that use the machine or the rank's memory, in the order of its path
    there and back. A forward acquires bytes when it begins; a gradient part releases some when it ends, and its rest, some time
    later, the others. A microbatch's *status* is how many steps are behind it, and which of the rests; it holds these bytes, and
    so much of its work is done (durations are the longest of any microbatch, so that counting a step's work counts no less).

    Gaps. For steps p before q, gap (p, q, j) reaches from the j-th end of p to the j-th start of q, whichever microbatches
    these are. Each microbatch starts q at least `away` after it ended p, so the gap is at least so long. Where p is the frame's
    start, or q its end, head and tail take the place of `away`. Its work is no more than what is begun when it closes less what has
    ended when it opens:

    - When it closes, fewer than j microbatches have begun q: those have done all of their work at most, and each other one what a
      status before q has. If a step has begun but not ended, count it as ended: no less work, no more bytes. The bytes of all
      statuses are within the limit: `closed[q][j]` is the most work.
    - When it opens, j microbatches at least have ended p. What has begun and not ended counts as not begun: no more work, no more
      bytes. Again the bytes must fit: `opened[p][j]` is the least work. As the gap closes later, fewer than j have begun q by
      then, so one at least of the j waits: `waiting[p, q][j]` is the least work with that.

    The gap idles for the rest of its length. Blocks may be cut, and interrupted between p and q, without change.

    Disjoint. If p' ≥ q, the j-th end of p' comes after the j-th start of q. Else, just before the j-th start of q, fewer than j
    microbatches have begun q, and the others between p' and q hold at least some bytes each, so that only `between` of them fit:
    the (j + between)-th end of p' is not before that start. Hence idle[q][j], the most idle time before the j-th start of q, is
    the largest over gaps that close there of their own idle time and that of the gaps that have closed when they open.
    The idle times add up to the end of the frame, and add to the machine's work.

    Work is nominal (`heads_and_tails`): of a backward its gradient part and its rest, whether fused or split; what a schedule does
    beyond that counts as idle. No memory is released before the nominal parts are done. Collectives are idle time here, too.

    Where BW takes less than B + W, splitting adds B + W − BW to a rank's work: each nanosecond of W costs (B + W − BW) ÷ W. Count
    that in the gap in which the W runs, gaps being disjoint. A gap then costs no less than its idle time as above, where a W counts
    for no more than its rest: less its cost. And let all gradient steps end when the gradient is sent, and have all of BW as their
    work, none of it later. What they and the forwards leave of the gap is idle, at its full length, or W: at W's cost, the least
    of the rank's stages.

    Raises:
        TimeUp: the time is up.
    """
    trips = [trip_of(each, machine, rank) for each in frame.by_path]
    limit_bytes = frame.problem.memory_limit_bytes[rank]
    bounds_ns = [
        _trips_bound([trip], limit_bytes, each.microbatches, until) if trip else 0
        for trip, each in zip(trips, frame.by_path, strict=True)
    ]
    if len(trips) > 1 and all(trips) and len(set(map(len, trips))) == 1:
        bounds_ns.append(_trips_bound(trips, limit_bytes, frame.microbatches, until))
    return max(bounds_ns, default=0)


def _trips_bound(trips: Sequence[Sequence[WayStep]], limit_bytes: int | None, count: int, until: Until) -> int:
    """The same for microbatches each of which takes one of these trips, all with equally many steps."""
    every = [step for trip in trips for step in trip]
    costs_ns = _gap_costs_ns(trips, limit_bytes, count, Fraction(1), until)
    price = min((step.split_price for step in every if step.split_price is not None), default=Fraction(0))
    if price:
        all_sent_ns = _gap_costs_ns([[step.all_sent() for step in trip] for trip in trips], limit_bytes, count, price, until)
        costs_ns = {gap: list(map(max, of_gap, all_sent_ns[gap])) for gap, of_gap in costs_ns.items()}
    statuses, size, after_ns = _statuses(trips), len(trips[0]), min(step.after_ns for step in every)

    def between(p: int, q: int) -> int:
        """How many microbatches, at most, have step p behind them and step q not: 0 if p does not precede q."""
        if p >= q:
            return 0
        least_bytes = min(held_bytes for some in statuses[p + 1 : q + 1] for held_bytes, _ in some)
        return count if limit_bytes is None or least_bytes == 0 else limit_bytes // least_bytes

    apart = [[(q, between(p, q)) for q in range(size)] for p in range(size)]
    into = [list(zip(*(costs_ns[p, q] for p in range(START, q)), strict=True)) for q in range(size)]  # by the step and j
    idle = [[0] * count for _ in range(size)]
    best_ns = 0
    for j in range(count):
        check(until)
        ended = [0]  # the most idle time before the frame's start, and before the j-th end of each step
        for q in range(size):
            idle[q][j] = max(idle[q][j - 1] if j else 0, *map(add, ended, into[q][j]))
            ended.append(max(idle[other][j - most] for other, most in apart[q] if j >= most))
            best_ns = max(best_ns, ended[-1] + max(after_ns, costs_ns[q, size][j]))
    return sum(step.all_ns for step in every) + best_ns


def _gap_costs_ns(
    trips: Sequence[Sequence[WayStep]], limit_bytes: int | None, count: int, price: Fraction, until: Until
) -> dict[tuple[int, int], list[int]]:
    """Per gap from a step (`START`: the frame's start) to another (the number of steps: its end), and j: what it costs at least.

    `trips` have their steps with what counts as work; `price` is of a nanosecond of the gap that this work does not fill.
    """
    size, whole_ns = len(trips[0]), max(sum(step.work_ns + step.rest_ns for step in trip) for trip in trips)
    statuses = _statuses(trips)
    left_ns: dict[tuple[int, int], list[int]] = {}
    undone_after: list[Knapsack] = []  # per step, of those behind which it is
    for at in range(size):
        check(until)
        others = Knapsack([status for some in statuses[: at + 1] for status in some], limit_bytes, count).most(limit_bytes).tolist()
        closed = [j * whole_ns + others[count - j] for j in range(count)]
        head_ns, tail_ns = min(trip[at].head_ns for trip in trips), min(trip[at].tail_ns for trip in trips)
        left_ns[START, at] = [max(0, head_ns - done_ns) for done_ns in closed]
        for p in range(at):
            between = _undone(statuses[p + 1 : at + 1], whole_ns)
            away_ns = min(trip[at].begin_ns - trip[p].end_ns for trip in trips)
            waiting = _work_at_opening(between, undone_after[p], limit_bytes, count, whole_ns)
            left_ns[p, at] = [max(0, away_ns - max(0, most - least)) for most, least in zip(closed, waiting, strict=True)]
        undone_after.append(Knapsack(_undone(statuses[at + 1 :], whole_ns), limit_bytes, count))
        undone = undone_after[at].most(limit_bytes).tolist()
        most_after_ns = (count - 1) * whole_ns  # of those that have not ended the step, and of the others what is undone
        left_ns[at, size] = [max(0, tail_ns - most_after_ns + j * whole_ns - undone[j + 1]) for j in range(count)]
    if price == 1:
        return left_ns
    return {gap: [each_ns * price.numerator // price.denominator for each_ns in of_gap] for gap, of_gap in left_ns.items()}


def _statuses(trips: Sequence[Sequence[WayStep]]) -> list[list[Status]]:
    """Per number of steps behind a microbatch, what it may hold and have done, whichever trip it takes."""
    return [list(chain.from_iterable(some)) for some in zip(*map(statuses_after, trips), strict=True)]


def _undone(statuses: Sequence[Sequence[Status]], whole_ns: int) -> list[Status]:
    """Statuses as bytes held and work not done."""
    return [(held_bytes, whole_ns - done_ns) for some in statuses for held_bytes, done_ns in some]


def _work_at_opening(between: Sequence[Status], others: Knapsack, limit_bytes: int | None, count: int, whole_ns: int) -> list[int]:
    """Per j, the least work of j + 1 microbatches that have ended a step, of which one has not begun a later one.

    `between` has the statuses of that one, as work not done, `others` those of the others; `whole_ns` is all work of one of them.
    """
    most: list[int] = [0] * count
    for held_bytes, undone_ns in pareto_front(between):
        room_bytes = None if limit_bytes is None else max(0, limit_bytes - held_bytes)
        most = list(map(max, most, (undone_ns + others.most(room_bytes)[:count]).tolist()))
    return [(j + 1) * whole_ns - undone_ns for j, undone_ns in enumerate(most)]
