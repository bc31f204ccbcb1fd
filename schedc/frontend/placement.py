"""Placements: which rank each stage sits on, and which stages a microbatch visits (CrossPipe, figure 5).

Takes the placement's name, or an explicit list with the rank of each stage; gives stages, paths and the model piece of each stage.
A *piece* is a consecutive part of the model; only a bidirectional placement holds each piece twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PLACEMENTS", "Placed", "place"]

PLACEMENTS = ("unidirectional", "loop", "wave", "bidirectional")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Stages on ranks, and the paths through them."""

    rank_of_stage: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]
    piece_of_stage: tuple[int, ...]
    """The model piece of each stage; replicas of one piece share its weights."""

    @property
    def pieces(self) -> int:
        """Into how many pieces the model is cut."""
        return max(self.piece_of_stage) + 1

    def path_of(self, microbatches: int) -> tuple[int, ...]:
        """The path of each microbatch: the paths in turn, so that both directions start at once (Chimera)."""
        return tuple(microbatch % len(self.paths) for microbatch in range(microbatches))


def place(placement: str | Sequence[int], ranks: int, chunks: int = 1) -> Placed:
    """The stages and paths of a placement.

    Args:
        placement: one of `PLACEMENTS`, or the rank of each stage in path order.
        ranks: how many ranks the pipeline has.
        chunks: model chunks per rank: 1 for unidirectional and bidirectional, 2 or more for loop and wave; ignored for a list.

    Raises:
        ValueError: the name is unknown, or the chunks do not fit the placement, or a rank is out of range or has no stage.
    """
    if not isinstance(placement, str):
        return _explicit(tuple(placement), ranks)
    forth, back = tuple(range(ranks)), tuple(reversed(range(ranks)))
    if placement in ("unidirectional", "bidirectional"):
        if chunks != 1:
            raise ValueError(f"a {placement} placement has 1 chunk per rank, got {chunks}; loop and wave take more")
        if placement == "unidirectional":
            return _single_path(forth)
        down, up = tuple(range(ranks)), tuple(range(ranks, 2 * ranks))
        return Placed(rank_of_stage=forth + back, paths=(down, up), piece_of_stage=2 * forth)
    if placement not in PLACEMENTS:
        raise ValueError(f"unknown placement {placement!r}; expected {', '.join(PLACEMENTS)} or a list with the rank of each stage")
    if chunks < 2:
        raise ValueError(f"a {placement} placement has 2 or more chunks per rank, got {chunks}; with 1 it is unidirectional")
    passes = [back if placement == "wave" and chunk % 2 else forth for chunk in range(chunks)]
    return _single_path(tuple(rank for one_pass in passes for rank in one_pass))


def _explicit(rank_of_stage: tuple[int, ...], ranks: int) -> Placed:
    for stage, rank in enumerate(rank_of_stage):
        if not 0 <= rank < ranks:
            raise ValueError(f"stage {stage} is on rank {rank}, but the ranks are 0 to {ranks - 1}")
    idle = sorted(set(range(ranks)) - set(rank_of_stage))
    if idle:
        raise ValueError(f"rank {idle[0]} has no stage; every rank from 0 to {ranks - 1} needs one")
    return _single_path(rank_of_stage)


def _single_path(rank_of_stage: tuple[int, ...]) -> Placed:
    stages = tuple(range(len(rank_of_stage)))
    return Placed(rank_of_stage=rank_of_stage, paths=(stages,), piece_of_stage=stages)
