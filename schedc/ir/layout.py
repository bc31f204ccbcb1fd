"""The Layout: which rank has which layers of a Workload, and the paths of microbatches through them.

Stages, ranks, layers and paths are counted from 0. What must hold of it, with its Workload, is in `schedc.verify.layout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Layout", "Placement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Stages on ranks, and the paths through them."""

    rank_of_stage: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]
    """The stages in the order in which a microbatch's forward visits them; one path, or two (bidirectional)."""

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
    placement: str = "explicit"
    """What the job calls the placement; for people."""
