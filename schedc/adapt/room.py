"""Layouts that have room, where ranks can hold less than their job says: a workload and a layout in, one that has room out.

Ranks keep their stages. From the layout that runs, layers go one by one to where least is lacking then. If that ends too early, and
each rank has one stage, all boundaries are tried, which finds a layout that has room if there is one. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from schedc.analysis.bounds.residency import minimum_limit_bytes
from schedc.errors import Infeasible, NoPlanFound
from schedc.ir import Workload
from schedc.lower.problem import problem_of
from schedc.solvers.layout.moves import transferred
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schedc.solvers.layout.layout_arrays import LayoutArrays


def limited(workload: Workload, limits: Mapping[int, int]) -> Workload:
    """The workload whose ranks hold at most this many bytes: of all where the job says a capacity, else of activations."""
    devices = list(workload.devices)
    for rank, size_bytes in limits.items():
        if devices[rank].capacity_bytes is not None:
            devices[rank] = replace(devices[rank], capacity_bytes=size_bytes)
        else:
            devices[rank] = replace(devices[rank], in_flight=None, limit_bytes=size_bytes)
    return replace(workload, devices=tuple(devices))


def lacking_bytes(workload: Workload, draft: LayoutArrays, placement: str | None) -> tuple[int, ...]:
    """Per rank, how much less it can hold than its stages need for one microbatch; 0: nothing is lacking."""
    problem = problem_of(workload, draft.layout(placement))
    return tuple(
        0 if limit is None else max(0, needed - limit)
        for limit, needed in zip(problem.memory_limit_bytes, minimum_limit_bytes(problem), strict=True)
    )


def with_room(workload: Workload, running: LayoutArrays, placement: str | None) -> LayoutArrays:
    """A layout in which nothing is lacking, from the one that runs by few transfers; that one itself, if it has room.

    Raises:
        Infeasible: there is none: each rank has one stage, none recomputes, and the model is a chain without slices.
        NoPlanFound: none was found.
    """
    now, lacking = running, lacking_bytes(workload, running, placement)
    while any(lacking):
        following = _with_less_lacking(workload, now, placement, lacking)
        if following is None:
            break
        now, lacking = following, lacking_bytes(workload, following, placement)
    if not any(lacking):
        return now
    rank = next(rank for rank, each in enumerate(lacking) if each)
    said = f"rank {rank} lacks {format_bytes(lacking[rank])} for one microbatch"
    is_chain = not workload.edges and not workload.slices
    exact = is_chain and len({*running.ranks}) == len(running.ranks) and not any(running.again)
    if not exact:
        raise NoPlanFound(f"{workload.name}: no layout was found that has room: in the best one {said}")
    cuts = _cuts_with_room(workload, running)
    if cuts is None:
        raise Infeasible(f"{workload.name}: no boundaries of the stages have room on their ranks: in the best ones found {said}")
    return running._replace(cuts=cuts)


def _with_less_lacking(
    workload: Workload, now: LayoutArrays, placement: str | None, lacking: tuple[int, ...]
) -> LayoutArrays | None:
    """The transfer after which least is lacking, of equal ones the shortest: from a rank that lacks something, else from any."""
    count = range(len(now.ranks))
    for givers in ([stage for stage in count if lacking[now.ranks[stage]]], count):
        pairs = sorted(((giver, taker) for giver in givers for taker in count), key=lambda pair: abs(pair[0] - pair[1]))
        drafts = [draft for pair in pairs if (draft := transferred(now, *pair)) is not None]
        sums = [sum(lacking_bytes(workload, draft, placement)) for draft in drafts]
        if min(sums, default=sum(lacking)) < sum(lacking):
            return drafts[sums.index(min(sums))]
    return None


def _cuts_with_room(workload: Workload, running: LayoutArrays) -> tuple[int, ...] | None:
    """Boundaries with room, each stage alone on its rank and not recomputed; None: there are none.

    Proof: `ends` of a stage are all layers with which it can end, as those before it have room. What a stage needs grows with its
    layers, so that none that ends later fits where one does not.
    """
    layers, stages = workload.layers, len(running.ranks)
    static = [0, *accumulate(layer.static_bytes for layer in layers)]
    active = [0, *accumulate(layer.activation_bytes for layer in layers)]
    ends: list[dict[int, int]] = [{0: 0}]
    """Of each stage, where it may end, with one of the layers with which it begins then."""
    for stage, rank in enumerate(running.ranks):
        device, found = workload.devices[rank], dict[int, int]()
        own = workload.static_bytes[stage if len(workload.static_bytes) > 1 else 0]
        for first in sorted(ends[-1], key=lambda at: abs(at - running.cuts[stage])):  # of several, near where it begins now
            for last in range(first + 1, len(layers) - (stages - 1 - stage) + 1):
                needed = active[last] - active[first]
                if device.capacity_bytes is not None and own + static[last] - static[first] + needed > device.capacity_bytes:
                    break
                if device.limit_bytes is not None and needed > device.limit_bytes:
                    break
                found.setdefault(last, first)
        ends.append(found)
    cuts = [len(layers)]
    for found in reversed(ends[1:]):
        if cuts[0] not in found:
            return None
        cuts.insert(0, found[cuts[0]])
    return tuple(cuts)
