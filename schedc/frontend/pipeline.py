"""[pipeline] read: the placement, which stages recompute, and what of the layout schedc is to choose."""

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


def read_placement(pipeline: PipelineSection, location: Location) -> Placement | None:
    """The placement, with `chunks` checked against it, as an explicit one already says how many stages each rank has.

    Returns:
        The placement; None: it is to be chosen.

    Raises:
        InvalidInput: the placement does not exist for these ranks, or has too many stages.
    """
    placement, ranks, chunks = pipeline.placement, pipeline.ranks, pipeline.chunks
    if placement == AUTO:
        return None
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


def read_recomputed(pipeline: PipelineSection, placed: Placement | None, location: Location) -> tuple[bool, ...]:
    """Whether each stage recomputes; where the placement is open, perhaps one value for all. Where schedc chooses, none does.

    Raises:
        InvalidInput: a list of a wrong length, or torch's semantics.
    """
    given = pipeline.recompute
    wanted = per_stage(given == "full" if isinstance(given, str) else given, placed, location / "recompute")
    if (any(wanted) or given == AUTO) and pipeline.semantics is Semantics.TORCH:
        raise (location / "recompute").refuse(
            f'{show(given)} where pipeline.semantics is "torch"',
            '"none", as torch recomputes inside of layers only; such layers have longer durations in the profile',
        )
    return wanted
