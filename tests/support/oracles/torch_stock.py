"""The CSVs that torch's own generators and lowering give, made without processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from torch.distributed.pipelining import schedules

from oracles.pytorch_orders import bare

if TYPE_CHECKING:
    from pathlib import Path

STOCK = {
    "ScheduleLoopedBFS": ("loop", (2, 3)),
    "ScheduleInterleaved1F1B": ("loop", (2, 4)),
    "ScheduleInterleavedZeroBubble": ("loop", (1, 2, 3)),
    "ScheduleZBVZeroBubble": ("wave", (2,)),
    "ScheduleDualPipeV": ("wave", (2,)),
}
"""The schedules that torch's runtime executes by their action lists: placement, and chunks to try."""


def dump(name: str, ranks: int, microbatches: int, chunks: int, layout: str, directory: Path, *, defer_recv: bool = False) -> Path:
    """The file that `_dump_csv` of the schedule writes."""
    made = bare(getattr(schedules, name), ranks, microbatches, chunks)
    made._stages = [SimpleNamespace() for _ in range(chunks)]
    made._defer_pp_recv = defer_recv
    made.pipeline_order = {rank: made._calculate_single_rank_operations(rank) for rank in range(ranks)}
    made._prepare_schedule_with_comms(made.pipeline_order)
    path = directory / f"{name}.csv"
    made._dump_csv(str(path), layout)
    return path
