"""Placements by name: which rank each stage is on, and which stages a microbatch visits (CrossPipe, figure 5).

Takes the placement's name, or an explicit list with the rank of each stage; gives a `Placement`. Only a bidirectional one has two
paths, and each piece of the model twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

PLACEMENTS = ("unidirectional", "loop", "wave", "bidirectional")


def place(placement: str | Sequence[int], ranks: int, chunks: int = 1) -> Placement:
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
            return _single_path(forth, placement)
        down, up = tuple(range(ranks)), tuple(range(ranks, 2 * ranks))
        return Placement(rank_of_stage=forth + back, paths=(down, up), placement=placement)
    if placement not in PLACEMENTS:
        raise ValueError(f"unknown placement {placement!r}; expected {', '.join(PLACEMENTS)} or a list with the rank of each stage")
    if chunks < 2:
        raise ValueError(f"a {placement} placement has 2 or more chunks per rank, got {chunks}; with 1 it is unidirectional")
    passes = [back if placement == "wave" and chunk % 2 else forth for chunk in range(chunks)]
    return _single_path(tuple(rank for one_pass in passes for rank in one_pass), placement)


def _explicit(rank_of_stage: tuple[int, ...], ranks: int) -> Placement:
    for stage, rank in enumerate(rank_of_stage):
        if not 0 <= rank < ranks:
            raise ValueError(f"stage {stage} is on rank {rank}, but the ranks are 0 to {ranks - 1}")
    idle = sorted(set(range(ranks)) - set(rank_of_stage))
    if idle:
        raise ValueError(f"rank {idle[0]} has no stage; every rank from 0 to {ranks - 1} needs one")
    return _single_path(rank_of_stage, "explicit")


def _single_path(rank_of_stage: tuple[int, ...], name: str) -> Placement:
    return Placement(rank_of_stage=rank_of_stage, paths=(tuple(range(len(rank_of_stage))),), placement=name)


def placement_name(rank_of_stage: Sequence[int], ranks: int) -> str:
    """The name of the placement with one path that puts the stages on these ranks; `explicit` if it has none."""
    chunks, rest = divmod(len(rank_of_stage), ranks)
    names = ("unidirectional",) if chunks == 1 else ("loop", "wave")
    for name in () if rest else names:
        if place(name, ranks, chunks).rank_of_stage == tuple(rank_of_stage):
            return name
    return "explicit"
