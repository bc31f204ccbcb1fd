"""All layouts that are open: contiguous partitions, and the rank of each stage, symmetric ones once.

Takes a workload and what is open; gives layouts one after another. There are many: small problems only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.analysis.bounds.layouts.rank_kinds import rank_kinds
from schedc.solvers.layout.layout_arrays import LayoutArrays

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir.layout import OpenLayout
    from schedc.ir.workload import Workload


def open_layouts(workload: Workload, open_layout: OpenLayout) -> Iterator[LayoutArrays]:
    """Every partition with every map of its stages to ranks that is open: connected, every rank with a stage, none with too many.

    Stages recompute as it is given.

    Where the placement is open, the ranks of a kind (`rank_kinds`, with the proof that swapping them changes nothing) have their
    first stages in ascending order.
    """
    for ranks in _maps(workload, open_layout):
        again = tuple(map(open_layout.recomputes, range(len(ranks))))
        for cuts in _partitions(workload, open_layout, len(ranks)):
            yield LayoutArrays(cuts, ranks, again)


def _partitions(workload: Workload, open_layout: OpenLayout, stages: int) -> Iterator[tuple[int, ...]]:
    layers = len(workload.layers)
    if open_layout.layers_of_stage is not None:
        yield (0, *(last for _, last in open_layout.layers_of_stage))
        return

    def grown(cuts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        left = stages - len(cuts) + 1  # stages that have no end yet
        if left == 1:
            yield (*cuts, layers)
            return
        for cut in range(cuts[-1] + 1, layers - left + 2):
            yield from grown((*cuts, cut))

    if stages <= layers:
        yield from grown((0,))


def _maps(workload: Workload, open_layout: OpenLayout) -> Iterator[tuple[int, ...]]:
    if open_layout.placement is not None:
        yield open_layout.placement.rank_of_stage
        return
    most = open_layout.stages or min(len(workload.layers), open_layout.chunks * workload.ranks)
    least = open_layout.stages or workload.ranks
    kinds, network = rank_kinds(workload), workload.network
    joined = {
        (a, b)
        for a in range(workload.ranks)
        for b in range(workload.ranks)
        if a == b or (network.connects(a, b) and network.connects(b, a))
    }

    def grown(ranks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        missing = workload.ranks - len(set(ranks))
        if missing == 0 and len(ranks) >= least:
            yield ranks
        if len(ranks) + max(1, missing) > most:
            return
        for kind in kinds:
            used = [rank for rank in kind if rank in ranks]
            for rank in kind[: len(used) + 1]:
                if ranks.count(rank) < open_layout.chunks and (not ranks or (ranks[-1], rank) in joined):
                    yield from grown((*ranks, rank))

    yield from grown(())
