"""A layout while it is searched for: three tuples, quick to change; one path."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from schedc.ir.layout import Layout
from schedc.lower.placement import placement_name


class LayoutArrays(NamedTuple):
    """Stages along the one path: where they begin, on which rank they are, and which recompute."""

    cuts: tuple[int, ...]
    """The first layer of each stage, and at last how many layers there are."""
    ranks: tuple[int, ...]
    again: tuple[bool, ...]
    """Whether the stage recomputes."""

    def layout(self, placement: str | None = None) -> Layout:
        """The same as a `Layout`; `placement` says what its placement is called; None: by the name of one with these ranks."""
        return Layout(
            rank_of_stage=self.ranks,
            paths=(tuple(range(len(self.ranks))),),
            layers_of_stage=tuple(pairwise(self.cuts)),
            recomputed=frozenset(stage for stage, again in enumerate(self.again) if again),
            placement=placement_name(self.ranks, len(set(self.ranks))) if placement is None else placement,
        )


def layout_arrays_of(layout: Layout) -> LayoutArrays:
    """The layout as a draft.

    Raises:
        ValueError: it has two paths, or its stages are not numbered along the path.
    """
    stages = len(layout.rank_of_stage)
    if layout.paths != (tuple(range(stages)),):
        raise ValueError(f"expected one path, of the stages 0 to {stages - 1} in order; found {layout.paths}")
    return LayoutArrays(
        cuts=(*(first for first, _ in layout.layers_of_stage), layout.layers_of_stage[-1][1]),
        ranks=layout.rank_of_stage,
        again=tuple(stage in layout.recomputed for stage in range(stages)),
    )
