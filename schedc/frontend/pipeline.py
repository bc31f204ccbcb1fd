"""[pipeline] read: the placement and which stages recompute; and [data_parallel]: the collectives beside the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.frontend.job_file import AUTO, DataParallelSection, PipelineSection
from schedc.frontend.profile import per_stage
from schedc.io.location import Location, show
from schedc.ir.problem import DataParallel
from schedc.ir.workload import Semantics, trunk_name
from schedc.lower.placement import place

if TYPE_CHECKING:
    from collections.abc import Collection

    from schedc.ir.layout import Placement

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


def read_data_parallel(
    section: DataParallelSection | None, placed: Placement | None, trunks: Collection[str | None], location: Location
) -> DataParallel | None:
    """The collectives of each stage, or None where the job has no such section.

    Args:
        section: the section.
        placed: for the stages; None: the placement is open.
        trunks: those that the pipeline's transfers may cross; None among them counts for nothing.
        location: the section's place.

    Raises:
        InvalidInput: a list of a wrong length, an all-gather that does not go with the ZeRO stage, or a trunk that no
            transfer crosses.
    """
    if section is None:
        return None
    at = location / "all_gather"
    if section.zero_stage == 0 and section.all_gather_ns is not None:
        raise at.refuse("a value where zero_stage is 0", "none, as its all-reduce leaves nothing to gather")
    if section.zero_stage == 1 and section.all_gather_ns is None:
        raise at.refuse("nothing", 'a duration such as "60 ms" or a list of them, as zero_stage is 1')
    trunk = None if section.trunk is None else trunk_name(*section.trunk)
    if trunk is not None and trunk not in trunks:
        known = ", ".join(sorted(name for name in trunks if name is not None))
        expected = (
            f"two sites whose trunk the pipeline's transfers cross ({known})" if known else "none, as no transfer crosses one"
        )
        raise (location / "trunk").refuse(show(section.trunk), expected)
    return DataParallel(
        size=section.size,
        zero_stage=section.zero_stage,
        reduce_scatter_ns=per_stage(section.reduce_scatter_ns, placed, location / "reduce_scatter"),
        all_gather_ns=() if section.all_gather_ns is None else per_stage(section.all_gather_ns, placed, at),
        trunk=trunk,
    )
