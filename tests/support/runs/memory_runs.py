"""What rank processes run in the tests of counted memory: stages that hold what one can work out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from runs.harness import load
from schedc.runtime.measure.memory import MemoryMeter
from schedc.runtime.measure.recording import Recorder

if TYPE_CHECKING:
    from schedc.ir.plan import Plan

NARROW, WIDE, ROWS = 2, 4096, 16
UNIT = ROWS * WIDE * 4
"""Bytes of a wide tensor of a microbatch. Weights are half as large, and messages a two thousandth."""
HELD, HELD_AFTER_INPUT = 3 * UNIT, 2 * UNIT
"""Of a stage after F: what three tanh have given; after B: what the last linear layer has taken, and the gradient of what the first
has given."""


class Keeps(nn.Module):
    """A stage that holds as much as said above, and as many wide tensors more as it is asked for."""

    def __init__(self, copies: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(NARROW, WIDE), nn.Linear(WIDE, NARROW)
        self.copies = copies

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.first(x)
        for _ in range(3 + self.copies):
            wide = torch.tanh(wide)
        result: torch.Tensor = self.last(wide)
        return result


def measured(rank: int, plan: Plan, copies: int, *, asked: bool = True) -> tuple[int | None, str]:
    """The peak that a meter has found on this rank, if one is asked for, and the line of the run; stages of rank 1 keep copies."""
    meter, recorder = MemoryMeter(), Recorder()
    stages = {stage: Keeps(copies * rank) for stage in plan.problem.stages_on(rank)}
    batch = torch.ones(2, plan.problem.microbatches * ROWS, NARROW)
    with load(plan, stages, loss_fn=nn.functional.mse_loss, observe=[meter, recorder] if asked else recorder) as pipe:
        for _ in range(3):
            pipe.step(*batch)
            for module in stages.values():
                module.zero_grad()
        return meter.peak_bytes, pipe.summary()
