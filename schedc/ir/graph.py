"""Stages as a graph, and microbatches in slices: what a Problem says where its stages are no chain of whole microbatches.

An `Edge` is a value of one stage that another takes; `share_bytes` is what a slice of a microbatch has of a size. Stages and slices
are counted from 0.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A value of one stage that another takes, for each microbatch; two stages have at most one edge.

    F of `destination` needs it from F of `source`. If it has a gradient, the backward of `source` needs that from the backward of
    `destination`. An op sends one transfer for each of its edges to another rank, in the order of the edges.
    """

    source: int
    destination: int
    message_bytes: int = 0
    """What F sends along it."""
    gradient_message_bytes: int | None = 0
    """What comes back for it; None: nothing does, as it carries integers, such as token ids."""
    value: int = 0
    """Edges of one source with the same number carry the same value; a rank gets that once, by the first of its edges. The
    gradients come back one by one."""

    def __post_init__(self) -> None:
        """Refuse negative numbers, and an edge from a stage to itself."""
        if min(self.source, self.destination, self.message_bytes, self.gradient_message_bytes or 0, self.value) < 0:
            raise ValueError(f"the stages, sizes and value of an edge must be at least 0, got {self}")
        if self.source == self.destination:
            raise ValueError(f"an edge must join two stages, got one from stage {self.source} to itself")

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient comes back for it."""
        return self.gradient_message_bytes is not None


def share_bytes(size_bytes: int, lengths: tuple[int, ...], index: int) -> int:
    """What a slice has of the size of a whole microbatch, by its length, rounded up to a whole byte.

    Args:
        size_bytes: of the whole microbatch.
        lengths: of its slices; none: it is whole.
        index: of the slice.
    """
    return -(-size_bytes * lengths[index] // sum(lengths)) if lengths else size_bytes


def shares_bytes(size_bytes: int, lengths: tuple[int, ...]) -> list[int]:
    """`share_bytes` of all slices; of a whole microbatch, its own size."""
    whole = sum(lengths)
    return [-(-size_bytes * length // whole) for length in lengths] if lengths else [size_bytes]
