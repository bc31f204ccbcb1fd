"""Layouts to begin a search with that no proof rules out: the ranks' shares of layers in which the bound over layouts ends.

Takes a workload and a bound; gives layouts with at most two stages on a rank. Good schedules are often close to them, where
annealing from balanced partitions does not come.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import TimeUp, Until
from schedc.analysis.bounds.layouts.two_stages import MOST_LAYERS, Covers
from schedc.ir import Objective, OpenLayout, Semantics, Workload
from schedc.solvers.layout.layout_arrays import LayoutArrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

STEP, STEPS = 6, 4
"""Makespans are tried that are by 2^-6 above each other, the first by that above the bound; this many."""


def covered_layouts(workload: Workload, open_layout: OpenLayout, bound_ns: int, until: Until) -> Iterator[LayoutArrays]:
    """Layouts whose ranks might all keep a makespan little above the bound.

    None where the bound of shares says nothing (`two_stages_bound`), partition, ranks or number of stages are given, or in time.

    Args:
        workload: a chain of whole microbatches.
        open_layout: what may be chosen.
        bound_ns: of the makespan of all layouts.
        until: whether the time is up.
    """
    given = open_layout.placement is not None or open_layout.layers_of_stage is not None or open_layout.stages is not None
    is_for = workload.objective is Objective.MAKESPAN and workload.semantics is not Semantics.TORCH and not workload.edges
    if given or not is_for or open_layout.chunks < 2 or True in open_layout.heads or len(workload.layers) > MOST_LAYERS:
        return
    covers = Covers(workload, open_layout, until)
    if not covers.are_linked:
        return
    for _ in range(STEPS):
        bound_ns += bound_ns >> STEP
        covers.begin(are_apart=True)
        try:
            shares = covers.shares_within(bound_ns)
        except TimeUp:
            if until():
                return
            continue
        draft = None if shares is None else _layout_of(workload, shares, all(open_layout.recompute))
        if draft is not None:
            yield draft


def _layout_of(workload: Workload, shares: Sequence[tuple[int, NDArray[np.int64]]], again: bool) -> LayoutArrays | None:
    """The layout in which each layer is on the first rank whose share has it; None: a rank has none, or more than two stages."""
    owner = [-1] * len(workload.layers)
    for rank, (first, end, other, last) in reversed(shares):
        for layer in (*range(first, end), *range(other, last)):
            owner[layer] = rank
    cuts = [layer for layer, rank in enumerate(owner) if layer == 0 or rank != owner[layer - 1]]
    ranks = tuple(owner[cut] for cut in cuts)
    if set(ranks) != set(range(workload.ranks)) or max(Counter(ranks).values()) > 2:
        return None
    return LayoutArrays((*cuts, len(owner)), ranks, (again,) * len(ranks))
