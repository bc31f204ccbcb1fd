"""Start windows: between which ticks each op may start, and from when each rank's clock runs; one table for both formulations.

Blocks and an upper bound of the objective go in. What may be fused counts with the least that it takes.

For the makespan every clock runs from 0, and an op of duration d starts in [head, upper − tail − d], by longest paths.

For the stage span a rank's clock runs from its first start. Where that is certain the rank ends by it plus the upper bound.
Elsewhere it is a decision: a rank may begin with a microbatch that arrives late, and so later than it could; but with one that
arrives then, or at 0 with one that enters there, as its first op waits for nothing else (`Windows.firsts`). Of the end it is known
that it is at most the upper bound after the latest first start, and that there is no moment at which nothing happens. All of this
is said of the starts that the simulator gives a schedule, and of those starts with their names exchanged (see `models.blocks`). The
models let any other op wait, and what a rank begins with have another name, which no order of ops need give: for the stage span
they are relaxations, and `with_late_begins` makes schedules of what they find.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.ir import Kind, Objective, Op, Problem, Schedule, groups_of
from schedc.models.blocks import Blocks, BlockTransfer, entries_of, followers_of, may_be_held_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


CLOSE = 0.01
"""In ticks: the MILP's starts may be off by a rounding error."""


@dataclass(frozen=True, slots=True)
class Windows:
    """In ticks. Where `least` is above the upper bound, there is no schedule, and a window may be empty; else none is."""

    earliest: dict[Op, int]
    """Per op, its earliest start."""
    latest: dict[Op, int]
    """Per op, its latest start in a schedule whose objective is at most the upper bound."""
    tail: dict[Op, int]
    """Per op, the least time from its end to the end of everything; 0 where the stage span is the objective."""
    end: int
    """By then everything that the objective counts has ended."""
    origin: dict[int, int | None]
    """Per rank with ops, when its clock starts; None: with its first op, whose start is decided."""
    firsts: dict[int, list[tuple[Op, BlockTransfer | None]]]
    """Per rank whose first start is a decision: with one of these forwards it begins, as that message arrives; None: at 0. Empty:
    it may begin at any time."""
    least: int
    """No schedule has a smaller objective."""


def windows_of(problem: Problem, blocks: Blocks, upper: int) -> Windows:
    """The windows of all schedules whose objective is at most `upper` ticks, along needs, transfers, collectives and chains."""
    after = followers_of(blocks)
    least = {op: blocks.least(op) for op in after}
    earliest = {op: blocks.gather.get(op.stage, 0) for op in after}
    for op, followers in after.items():
        for later, gap in followers:
            earliest[later] = max(earliest[later], earliest[op] + least[op] + gap)
    ranks = sorted({problem.rank_of(op) for op in after})
    if problem.objective is Objective.MAKESPAN:
        tail = _tails(blocks, after)
        latest = {op: upper - tail[op] - least[op] for op in after}
        path = max(earliest[op] + least[op] + tail[op] for op in after)
        return Windows(earliest, latest, tail, upper, dict.fromkeys(ranks, 0), {}, path)
    origin = {rank: 0 if _begins_at_once(problem, blocks, rank) else None for rank in ranks}
    busy = sum(blocks.duration.values()) + sum(move.occupancy + move.latency for move in blocks.transfers)
    busy += sum(blocks.gather.values()) + sum(blocks.scatter.values())
    end = {rank: busy if start is None else min(busy, start + upper) for rank, start in origin.items()}
    latest = _latest(problem, after, least, end)
    first = {rank: min(latest[op] for op in after if problem.rank_of(op) == rank) for rank in ranks}
    end = {rank: min(end[rank], first[rank] + upper) for rank in ranks}
    latest = _latest(problem, after, least, end)
    work = dict.fromkeys(ranks, 0)
    for op, ticks in blocks.duration.items():  # fused, B and W take the least together
        work[problem.rank_of(op)] += 0 if blocks.may_vanish(op) else blocks.fused.get(op, ticks)
    paths = (earliest[op] + least[op] for op in after if origin[problem.rank_of(op)] is not None)
    least_span = max(max(work.values()), *paths, *(upper + 1 for op in after if latest[op] < earliest[op]), 0)
    return Windows(
        earliest, latest, dict.fromkeys(after, 0), max(end.values()), origin, _firsts(problem, blocks, origin), least_span
    )


def _tails(blocks: Blocks, after: dict[Op, list[tuple[Op, int]]]) -> dict[Op, int]:
    """Per op, the least time from its end to the end of everything."""
    tail = dict.fromkeys(after, 0)
    for chain in blocks.chains:
        tail[chain[-1]] = blocks.scatter.get(chain[-1].stage, 0)
    weights: dict[Op, list[Op]] = defaultdict(list)
    for op in blocks.duration:
        if blocks.may_vanish(op):
            weights[blocks.backward_of(op)].append(op)
    for op in reversed(after):
        for later, gap in after[op]:
            tail[op] = max(tail[op], gap + blocks.least(later) + tail[later])
        if op in blocks.fused:
            weight = sum(blocks.duration[part] for part in weights[op])
            split = blocks.duration[op] + max(tail[op], weight + tail[weights[op][-1]])
            tail[op] = min(split, blocks.fused[op] + tail[op]) - blocks.least(op)
    return tail


def _latest(problem: Problem, after: dict[Op, list[tuple[Op, int]]], least: dict[Op, int], end: dict[int, int]) -> dict[Op, int]:
    """Per op, its latest start where each rank ends by then."""
    latest = {op: end[problem.rank_of(op)] - least[op] for op in after}
    for op in reversed(after):
        for later, gap in after[op]:
            latest[op] = min(latest[op], latest[later] - gap - least[op])
    return latest


def _firsts(problem: Problem, blocks: Blocks, origin: dict[int, int | None]) -> dict[int, list[tuple[Op, BlockTransfer | None]]]:
    """Per rank whose first start is a decision, the forwards with one of which it begins, and as what arrives: see `Windows`.

    Its first op is a forward, as backwards follow forwards, and not one of a stage that follows another on the same rank. Where no
    all-gather is waited for, that of a stage which takes from no other waits for nothing; all that any other waits for is its last
    message. It is the first of its chain; where the rank begins with a microbatch that arrives late, that one's message has another
    name in the chain. Where that message may be held up by others unseen, it is not known when it arrives.
    """
    found: dict[int, list[tuple[Op, BlockTransfer | None]]] = {rank: [] for rank, start in origin.items() if start is None}
    if any(blocks.gather.values()):
        return found
    first_of, entries = {op: chain[0] for chain in blocks.chains for op in chain if op.kind is Kind.F}, entries_of(problem)
    enter: list[tuple[Op, BlockTransfer | None]] = [
        (op, None) for op in dict.fromkeys(first_of.values()) if op.stage in entries[problem.path_of[op.microbatch]]
    ]
    consumers = ((op, move) for move in blocks.transfers for op in move.consumers)
    messages = [(first_of[op], move) for op, move in consumers if op.kind is Kind.F]
    open_arrivals = set()
    for op, move in (*enter, *messages):
        if (rank := problem.rank_of(op)) in found:
            found[rank].append((op, move))
            if move is not None and may_be_held_up(problem, blocks, move):
                open_arrivals.add(rank)
    return {rank: [] if rank in open_arrivals else firsts for rank, firsts in found.items()}


def _begins_at_once(problem: Problem, blocks: Blocks, rank: int) -> bool:
    """Whether the rank's first op starts at 0 in every schedule that the simulator times.

    It does where each of its stages takes from no other, or follows such a one of the same rank, and no all-gather is waited for.
    Proof: the rank's first op follows nothing on its own rank. All but the forwards of stages that take from no other follow
    something: a forward such a stage's or the slice's before it, backwards their forwards. So it is such a forward, which waits for
    nothing.
    """
    for number, path in enumerate(problem.paths):
        begun: set[int] = set()  # stages that take from no other, and those that follow one on the rank
        inputs: dict[int, list[int]] = {stage: [] for stage in path}
        for edge in problem.edges_of(number):
            inputs[edge.destination].append(edge.source)
        for stage in path:
            on_rank = problem.stages[stage].rank == rank
            if begun.intersection(inputs[stage]) or (on_rank and not inputs[stage]):
                begun.add(stage)
            elif on_rank:
                return False
    return not any(blocks.gather.values())


def with_late_begins(problem: Problem, blocks: Blocks, schedule: Schedule, start_of: Callable[[Op], float]) -> Schedule:
    """The schedule with other names, where a rank begins late; itself where the objective is the makespan, of graphs and slices.

    In the models a rank may begin later than its first microbatch arrives; the simulator starts an op as soon as it can. So names
    are exchanged: the first forward of such a rank is that of the last microbatch, among those that are alike, that has arrived by
    its start, and those before it follow, each no earlier than it arrives. From there on the names go along with what is sent: the
    k-th forward of the next stage gets the k-th message, the k-th backward the k-th gradient, each W the name of its B. What a rank
    does at any time stays the same; needs are kept, as nothing moves. `schedule` has the orders of a solution of the model;
    `start_of` gives when an op starts there, in ticks.
    """
    if problem.objective is not Objective.STAGE_SPAN or problem.edges or problem.slices:
        return schedule
    names = _names(problem, blocks, {op: start_of(op) for op in blocks.duration})
    return replace(
        schedule,
        orders=tuple(
            tuple(op._replace(microbatch=names[op.kind is Kind.F, op.stage, op.microbatch]) for op in order)
            for order in schedule.orders
        ),
    )


def _names(problem: Problem, blocks: Blocks, start: Mapping[Op, float]) -> dict[tuple[bool, int, int], int]:
    """By whether it is a forward, stage and microbatch in the model: the microbatch whose op it becomes."""
    gap = {move.name: move.occupancy + move.latency for move in blocks.transfers}
    first: dict[int, Op] = {}
    for op in sorted(start, key=lambda op: (start[op], op)):
        first.setdefault(problem.rank_of(op), op)
    alike: dict[int, list[int]] = {}
    for microbatch, group in enumerate(groups_of(problem)):
        alike.setdefault(group, []).append(microbatch)
    names: dict[tuple[bool, int, int], int] = {}
    for slots in alike.values():
        path, order = problem.path(slots[0]), slots
        names |= {(True, path[0], slot): slot for slot in slots}
        for before, stage in pairwise(path):
            begin = Op(Kind.F, stage, slots[0])
            if first[problem.rank_of(begin)] == begin:
                sends = [Op(Kind.F, before, slot) for slot in slots]
                arrivals = [start[op] + blocks.duration[op] + gap.get(op, 0) for op in sends]
                # Where several arrive with the first and take no time, nothing is late, and another name could be waited for.
                is_late = arrivals[0] < start[begin] - CLOSE
                arrived = sum(each <= start[begin] + CLOSE for each in arrivals) if is_late else 1
                order = [order[max(arrived, 1) - 1], *order[: max(arrived, 1) - 1], *order[max(arrived, 1) :]]
            names |= {(True, stage, slot): name for slot, name in zip(slots, order, strict=True)}
        names |= {(False, stage, slot): name for stage in path for slot, name in zip(slots, order, strict=True)}
    return names
