"""Small changes of a draft: what a search over layouts tries next."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from schedc.ir import Workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from schedc.solvers.layout.layout_arrays import LayoutArrays

    Move: TypeAlias = Callable[[LayoutArrays, Random, int, int], LayoutArrays | None]


def moves_of(workload: Workload, *, partition: bool, placement: bool, stages: bool, recompute: bool) -> tuple[Move, ...]:
    """The moves where these are open; what is more likely is there several times.

    `partition`: boundaries may move; `placement`: stages may change ranks; `stages`: there may be more of them, or fewer;
    `recompute`: whether a stage recomputes may change. The busiest rank is by what the workload's layers take.
    """
    found: list[Move] = []
    if partition:
        found += [_boundary, _boundary, _slide, *[_relief(workload)] * 3]
    if placement:
        found += [_swap, _elsewhere]
    if partition and placement and stages:
        found += [_split, _merge, _split_and_merge]
    if recompute:
        found += [_recompute]
    return tuple(found)


def changed(draft: LayoutArrays, moves: tuple[Move, ...], random: Random, ranks: int, chunks: int) -> LayoutArrays | None:
    """The draft after one to three moves; None where the moves drawn do not fit it.

    Every rank keeps a stage and has at most `chunks`, every stage keeps a layer.
    """
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        after = random.choice(moves)(draft, random, ranks, chunks)
        if after is None:
            return None
        draft = after
    return draft


def _boundary(draft: LayoutArrays, random: Random, _ranks: int, _chunks: int) -> LayoutArrays | None:
    """One boundary moves by one layer, seldom more."""
    cuts = list(draft.cuts)
    if len(cuts) < 3:
        return None
    at = random.randrange(1, len(cuts) - 1)
    cuts[at] += random.choice((-1, 1)) * random.choice((1, 1, 1, 2, 3))
    return draft._replace(cuts=tuple(cuts)) if cuts[at - 1] < cuts[at] < cuts[at + 1] else None


def _slide(draft: LayoutArrays, random: Random, _ranks: int, _chunks: int) -> LayoutArrays | None:
    """Neighbouring boundaries move together, so that a layer goes from one stage to another one far away."""
    cuts = list(draft.cuts)
    if len(cuts) < 4:
        return None
    first, last = sorted(random.sample(range(1, len(cuts) - 1), 2))
    by = random.choice((-1, 1))
    for at in range(first, last + 1):
        cuts[at] += by
    return draft._replace(cuts=tuple(cuts)) if cuts[first - 1] < cuts[first] and cuts[last] < cuts[last + 1] else None


def _relief(workload: Workload) -> Move:
    """A move that takes a layer off the busiest rank, and gives it to a neighbour or to one of the least busy."""
    layers = workload.layers
    sums = [
        0,
        *accumulate(
            sum(layer.forward_ns) // len(layer.forward_ns) + sum(layer.backward_ns) // len(layer.backward_ns) for layer in layers
        ),
    ]
    pace = [float(1 / device.speed) for device in workload.devices]

    def relieve(draft: LayoutArrays, random: Random, ranks: int, _chunks: int) -> LayoutArrays | None:
        work = [0.0] * ranks
        for stage, rank in enumerate(draft.ranks):
            work[rank] += (sums[draft.cuts[stage + 1]] - sums[draft.cuts[stage]]) * pace[rank]
        order = sorted(range(ranks), key=work.__getitem__)
        stages = range(len(draft.ranks))
        giver = random.choice([stage for stage in stages if draft.ranks[stage] == order[-1]])
        taker = giver + random.choice((-1, 1))
        if random.random() < 0.5:
            idle = random.choice(order[: max(1, ranks // 4)])
            taker = random.choice([stage for stage in stages if draft.ranks[stage] == idle])
        return transferred(draft, giver, taker) if taker in stages else None

    return relieve


def transferred(draft: LayoutArrays, giver: int, taker: int) -> LayoutArrays | None:
    """A layer goes from one stage to another: all boundaries between them move by one; None: the giver has none to give."""
    if giver == taker or draft.cuts[giver + 1] - draft.cuts[giver] < 2:
        return None
    cuts = list(draft.cuts)
    for at in range(giver + 1, taker + 1):  # it gives its last layer to a later stage ...
        cuts[at] -= 1
    for at in range(taker + 1, giver + 1):  # ... or its first one to an earlier stage
        cuts[at] += 1
    return draft._replace(cuts=tuple(cuts))


def _swap(draft: LayoutArrays, random: Random, _ranks: int, _chunks: int) -> LayoutArrays | None:
    """Two stages change ranks with each other, or all stages of their ranks do."""
    ranks = list(draft.ranks)
    if len(ranks) < 2:
        return None
    a, b = random.sample(range(len(ranks)), 2)
    one, other = ranks[a], ranks[b]
    if one == other:
        return None
    if random.random() < 0.3:
        change = {one: other, other: one}
        return draft._replace(ranks=tuple(change.get(rank, rank) for rank in ranks))
    ranks[a], ranks[b] = other, one
    return draft._replace(ranks=tuple(ranks))


def _elsewhere(draft: LayoutArrays, random: Random, ranks: int, chunks: int) -> LayoutArrays | None:
    """A stage goes to another rank."""
    stage, rank = random.randrange(len(draft.ranks)), random.randrange(ranks)
    if draft.ranks.count(rank) >= chunks or draft.ranks.count(draft.ranks[stage]) < 2:
        return None
    return draft._replace(ranks=(*draft.ranks[:stage], rank, *draft.ranks[stage + 1 :]))


def _split(draft: LayoutArrays, random: Random, ranks: int, chunks: int) -> LayoutArrays | None:
    """A stage becomes two, one of them on any rank."""
    stage, rank = random.randrange(len(draft.ranks)), random.randrange(ranks)
    first, last = draft.cuts[stage], draft.cuts[stage + 1]
    if last - first < 2 or draft.ranks.count(rank) >= chunks:
        return None
    two = (rank, draft.ranks[stage]) if random.random() < 0.5 else (draft.ranks[stage], rank)
    return draft.with_stages(stage, stage + 1, (random.randrange(first + 1, last),), two, 2 * draft.again[stage : stage + 1])


def _merge(draft: LayoutArrays, random: Random, _ranks: int, _chunks: int) -> LayoutArrays | None:
    """Two neighbouring stages become one, on the rank of either."""
    if len(draft.ranks) < 2:
        return None
    stage = random.randrange(len(draft.ranks) - 1)
    goes = stage + random.randrange(2)
    if draft.ranks.count(draft.ranks[goes]) < 2:
        return None
    stays = 2 * stage + 1 - goes
    return draft.with_stages(stage, stage + 2, (), (draft.ranks[stays],), (draft.again[stays],))


def _split_and_merge(draft: LayoutArrays, random: Random, ranks: int, chunks: int) -> LayoutArrays | None:
    """One stage becomes two, and two others become one."""
    split = _split(draft, random, ranks, chunks + 1)
    merged = None if split is None else _merge(split, random, ranks, chunks)
    if merged is None or max(map(merged.ranks.count, merged.ranks)) > chunks:
        return None
    return merged


def _recompute(draft: LayoutArrays, random: Random, _ranks: int, _chunks: int) -> LayoutArrays | None:
    """A stage recomputes, or no longer does."""
    stage = random.randrange(len(draft.again))
    return draft._replace(again=(*draft.again[:stage], not draft.again[stage], *draft.again[stage + 1 :]))
