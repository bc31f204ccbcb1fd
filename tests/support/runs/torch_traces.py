"""What the rank processes of the tests of traces run: torch's own pipeline runtime under its profiler."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from pathlib import Path

MICROBATCHES, SAMPLES, WIDTH = 3, 2, 16
ORDERS = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0RECV_B0,0I0,0W0,0RECV_B1,0I1,0W1,0RECV_B2,0I2,0W2,0REDUCE_GRAD",
    "1RECV_F0,1F0,1I0,1SEND_B0,1W0,1RECV_F1,1F1,1I1,1SEND_B1,1W1,1RECV_F2,1F2,1B2,1SEND_B2,1REDUCE_GRAD",
)
"""B and W apart; of the last microbatch on rank 1 together."""
SLOW_S = 0.05


class Slow(nn.Module):
    """A first stage whose forward takes a while, so that the second stage waits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(SLOW_S)
        result: torch.Tensor = self.linear(x)
        return result


def record(rank: int, directory: Path, steps: int, shapes: bool) -> None:
    """Run some steps after one that is not recorded, and export the trace of this rank."""
    from torch.distributed.pipelining import PipelineStage, schedules
    from torch.profiler import ProfilerActivity, profile

    runtime: Any = schedules._PipelineScheduleRuntime
    stage: nn.Module = Slow() if rank == 0 else nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    orders = directory / f"orders{rank}.csv"
    orders.write_text("\n".join(ORDERS) + "\n")
    batch = torch.randn(MICROBATCHES * SAMPLES, WIDTH)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # torch's private runtime warns of its own doings
        stages = [PipelineStage(stage, rank, 2, torch.device("cpu"))]
        schedule = runtime(stages, MICROBATCHES, loss_fn=lambda output, target: (output - target).square().mean())
        schedule._load_csv(str(orders), format="compute_comms")

        def step() -> None:
            schedule.step(*((batch,) if rank == 0 else ()), target=None if rank == 0 else batch[:, :1])

        step()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=shapes) as profiler:
            for _ in range(steps):
                step()
        profiler.export_chrome_trace(str(directory / f"trace{rank}.json.gz"))
