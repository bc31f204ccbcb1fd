"""The Layout: which rank has which layers of a Workload, and the paths of microbatches through them.

Stages, ranks, layers and paths are counted from 0. What must hold of it, with its Workload, is in `schedc.verify.layout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

SPLIT_HEAD = " + split head"
"""After the name of a placement whose last stages are parts of the head, one on each rank, and the join of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Stages on ranks, and the paths through them."""

    rank_of_stage: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]
    """The stages in the order in which a microbatch's forward visits them; one path, or two (bidirectional)."""
    placement: str = "explicit"
    """What the job calls it; for people."""

    @property
    def pieces(self) -> int:
        """Into how many consecutive pieces the model is cut."""
        return max(map(len, self.paths))

    @property
    def piece_of_stage(self) -> tuple[int, ...]:
        """The piece of the model that each stage has; replicas have the same one, and share its weights."""
        piece = {stage: position for path in self.paths for position, stage in enumerate(path)}
        return tuple(piece[stage] for stage in range(len(self.rank_of_stage)))

    def path_of(self, microbatches: int) -> tuple[int, ...]:
        """The path of each microbatch: the paths in turn, so that both directions start at once (Chimera)."""
        return tuple(microbatch % len(self.paths) for microbatch in range(microbatches))

    def crossed(self) -> list[tuple[int, int]]:
        """The directed pairs of ranks that activations, and on the way back gradients, cross; ascending."""
        rank = self.rank_of_stage
        forth = {(rank[a], rank[b]) for path in self.paths for a, b in pairwise(path) if rank[a] != rank[b]}
        return sorted(forth | {(b, a) for a, b in forth})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(Placement):
    """Placement, partition, and which stages recompute."""

    layers_of_stage: tuple[tuple[int, int], ...]
    """The partition: per stage, its layers [first, last) of the Workload."""
    recomputed: frozenset[int] = frozenset()
    """The stages that keep only their input from F, and run F again before their backward."""
    split_head: bool = False
    """Whether the last layer, the head, is in parts, a stage on each rank (`schedc.lower.split_head`); the rest is of others."""
    slices: tuple[int, ...] = ()
    """The lengths of the slices of each microbatch; none: as the Workload has them, which is whole where they are open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSlices:
    """Microbatches may be cut along their sequence, all alike, behind any multiple of `granularity` tokens."""

    tokens: int
    """Of the sequence of a microbatch."""
    granularity: int
    least: int
    """The fewest slices; 1: a microbatch may stay whole."""
    most: int
    """The most slices; no more than there are multiples of the granularity."""

    def has(self, lengths: tuple[int, ...]) -> bool:
        """Whether these are slices that may be chosen; none are those of a whole microbatch."""
        if len(lengths) < 2:
            return not lengths and self.least == 1
        cuts = all(length > 0 and length % self.granularity == 0 for length in lengths[:-1])
        return cuts and lengths[-1] > 0 and sum(lengths) == self.tokens and self.least <= len(lengths) <= self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLayout:
    """What a search over layouts may choose, and what is given. Microbatches take one path, and every rank has a stage."""

    chunks: int = 4
    """Where the placement is open: at most this many stages on a rank."""
    placement: Placement | None = None
    """None: the rank of each stage is open."""
    layers_of_stage: tuple[tuple[int, int], ...] | None = None
    """None: the partition is open."""
    recompute: tuple[bool, ...] = (False,)
    """Which stages recompute: one value for all stages, or one for each."""
    recompute_is_open: bool = False
    """Whether any stage may recompute; then none does in the layouts that a search begins with."""
    heads: tuple[bool, ...] = (False,)
    """Whether the head is split over the ranks; both: that is open, too. What else is given is then for the layers before it."""
    slices: OpenSlices | None = None
    """None: as the Workload has them; else it has whole microbatches."""

    def __post_init__(self) -> None:
        """Refuse several paths, numbers of stages that differ, and recomputation that is both given and open."""
        if self.recompute_is_open and any(self.recompute):
            raise ValueError(f"recomputation is open, but given as {self.recompute}")
        if self.chunks < 1:
            raise ValueError(f"chunks must be at least 1, got {self.chunks}")
        if self.placement is not None and self.placement.paths != (tuple(range(len(self.placement.rank_of_stage))),):
            raise ValueError(f"expected a placement with one path, its stages in order, got {self.placement.paths}")
        given = (self.placement and self.placement.rank_of_stage, self.layers_of_stage, self.recompute[1:] and self.recompute)
        counts = {len(values) for values in given if values}
        if len(counts) > 1:
            raise ValueError(f"placement, partition and recomputation are for different numbers of stages: {sorted(counts)}")

    @property
    def stages(self) -> int | None:
        """How many stages there are, where something says it; else None."""
        if self.placement is not None:
            return len(self.placement.rank_of_stage)
        if self.layers_of_stage is not None:
            return len(self.layers_of_stage)
        return len(self.recompute) if len(self.recompute) > 1 else None

    @property
    def placement_name(self) -> str | None:
        """What the placement is called that is given; None: it is open."""
        return None if self.placement is None else self.placement.placement

    def recomputes(self, stage: int) -> bool:
        """Whether the stage recomputes."""
        return self.recompute[stage if len(self.recompute) > 1 else 0]
