"""[data_parallel] read: the collectives beside the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.files.location import show
from schedc.frontend.profile import per_stage
from schedc.ir.problem import DataParallel
from schedc.ir.workload import trunk_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from schedc.files.location import Location
    from schedc.frontend.job_file import DataParallelSection
    from schedc.ir.layout import Placement

__all__ = ["read_data_parallel"]


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
