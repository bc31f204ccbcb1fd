"""What rank processes run in the test of measured convergence: the pipeline's numbers beside those of the model without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from runs.harness import Descent, load, loss_fn, make_batch, make_stages, weights_of, whole_model
from schedc.runtime.measure.convergence import ConvergenceMeter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.formats.convergence_file import MeasuredUpdate
    from schedc.ir.plan import Plan

STEPS = 4


def measured_by_pipe(rank: int, plan: Plan) -> tuple[list[list[float]], list[list[float]]]:
    """Numbers of each step, of all ranks together, and of the whole model in this process."""
    whole, stages = whole_model(plan), make_stages(plan, rank)
    inputs, targets = make_batch(plan, 0)
    alone = ConvergenceMeter(whole.parameters(), steps=STEPS)
    optimizer = Descent(whole.parameters())
    for _ in range(STEPS):
        loss = loss_fn(whole(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        alone.observe(loss)
        optimizer.step()
        optimizer.zero_grad()
    with load(plan, stages) as pipe:
        together = ConvergenceMeter(weights_of(stages), steps=STEPS, group=dist.group.WORLD)
        optimizer = Descent(weights_of(stages))
        for _ in range(STEPS):
            together.observe(pipe.step(inputs, targets))
            optimizer.step()
            optimizer.zero_grad()
    return numbers_of(together.measured), numbers_of(alone.measured)


def numbers_of(measured: Sequence[MeasuredUpdate]) -> list[list[float]]:
    """Loss and squared norms of each step; 0 where there is none."""
    return [[each.loss, each.gradient_sq, each.gradient_change_sq or 0.0, each.weight_change_sq or 0.0] for each in measured]
