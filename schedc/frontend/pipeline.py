"""[pipeline] read: the placement, and which stages recompute.

Where a key says that schedc chooses, and schedc cannot yet, it is refused here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.files.location import show
from schedc.frontend.job_file import AUTO
from schedc.frontend.profile import per_stage
from schedc.ir.workload import Semantics
from schedc.lower.placement import place

if TYPE_CHECKING:
    from schedc.files.location import Location
    from schedc.frontend.job_file import PipelineSection
    from schedc.ir.layout import Placement

__all__ = ["read_placement", "read_recomputed"]

_MOST_STAGES = 2**14


def read_placement(pipeline: PipelineSection, location: Location) -> Placement:
    """The placement, with `chunks` checked against it, as an explicit one already says how many stages each rank has.

    Raises:
        InvalidInput: the placement does not exist for these ranks, has too many stages, or is to be chosen.
    """
    for key, instead in (
        ("placement", "a name or the rank of each stage"),
        ("recompute", '"none", "full", or true or false for each stage'),
        ("microbatch_order", '"given"'),
    ):
        if getattr(pipeline, key) == AUTO:
            raise (location / key).refuse('"auto", which is not available yet', instead)
    placement, ranks, chunks = pipeline.placement, pipeline.ranks, pipeline.chunks
    count = ranks * (chunks or 1) if isinstance(placement, str) else len(placement)
    if count > _MOST_STAGES:
        raise location.refuse(f"{count} stages", f"at most {_MOST_STAGES}")
    try:
        placed = place(placement, ranks, chunks or 1)
    except ValueError as error:
        key, found = ("chunks", chunks or 1) if isinstance(placement, str) else ("placement", placement)
        raise (location / key).error(f"found {show(found)}; {error}") from error
    if not isinstance(placement, str) and chunks is not None:
        for rank in range(ranks):
            if placement.count(rank) != chunks:
                raise (location / "chunks").refuse(
                    show(chunks), f"the {placement.count(rank)} stages that pipeline.placement puts on rank {rank}, or no such key"
                )
    return placed


def read_recomputed(pipeline: PipelineSection, placed: Placement, location: Location) -> frozenset[int]:
    """The stages that recompute.

    Raises:
        InvalidInput: a list of a wrong length, or torch's semantics.
    """
    given = pipeline.recompute
    wanted = per_stage(given == "full" if isinstance(given, str) else given, placed, location / "recompute")
    recomputed = frozenset(stage for stage, recompute in enumerate(wanted) if recompute)
    if recomputed and pipeline.semantics is Semantics.TORCH:
        raise (location / "recompute").refuse(
            f'{show(given)} where pipeline.semantics is "torch"',
            '"none", as torch recomputes inside of layers only; such layers have longer durations in the profile',
        )
    return recomputed
