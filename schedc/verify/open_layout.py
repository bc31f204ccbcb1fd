"""Does a Layout keep what a job gives where it leaves the rest open? Gives every violation, none if it is one of the job's."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from schedc.verify.layout import verify_layout
from schedc.verify.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir.layout import Layout, OpenLayout
    from schedc.ir.workload import Workload


def verify_open_layout(workload: Workload, open_layout: OpenLayout, layout: Layout) -> tuple[Violation, ...]:
    """Every rule that is broken: those of a layout of the workload, then what is given."""
    unsound = verify_layout(workload, layout)
    return unsound or tuple(_differences(workload, open_layout, layout))


def _differences(workload: Workload, open_layout: OpenLayout, layout: Layout) -> Iterator[Violation]:
    stages = len(layout.rank_of_stage)
    if layout.paths != (tuple(range(stages)),):
        yield Violation("open-layout", "paths", f"expected one, the stages 0 to {stages - 1} in order; found {layout.paths}")
    if open_layout.placement is not None:
        given = open_layout.placement.rank_of_stage
        if layout.rank_of_stage != given:
            yield Violation("open-layout", "rank_of_stage", f"found {list(layout.rank_of_stage)}, the job gives {list(given)}")
    else:
        for rank, count in sorted(Counter(layout.rank_of_stage).items()):
            if count > open_layout.chunks:
                message = f"rank {rank} has {count} stages, expected at most {open_layout.chunks}, the job's chunks"
                yield Violation("open-layout", "rank_of_stage", message)
    bounds = open_layout.layers_of_stage
    if bounds is not None and layout.layers_of_stage != bounds:
        yield Violation("open-layout", "layers_of_stage", f"found {list(layout.layers_of_stage)}, the job gives {list(bounds)}")
    if not open_layout.recompute_is_open:
        if len(open_layout.recompute) not in (1, stages):
            message = f"found {stages} stages, the job gives {len(open_layout.recompute)} values of recompute"
            yield Violation("open-layout", "recomputed", message)
        elif layout.recomputed != {stage for stage in range(stages) if open_layout.recomputes(stage)}:
            message = f"found {sorted(layout.recomputed)}, which are not the stages that the job gives"
            yield Violation("open-layout", "recomputed", message)
