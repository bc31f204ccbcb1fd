"""What rank processes run in the tests of loss functions with weights of their own, beside one model without a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

import schedc.runtime
from runs.evaluation_runs import whole_model
from runs.pipeline_runs import loss_fn, make_stages, piece_of, relative_error
from runs.replicated_runs import grid, whole_batch
from schedc.runtime.training.clipping import clip_grad_norm_

if TYPE_CHECKING:
    from schedc.ir.plan import Plan


class Tempered(nn.Module):
    """Cross entropy at a temperature that is trained, with a buffer that is not."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        self.register_buffer("table", torch.ones((), dtype=torch.float64))

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss_fn(logits * self.temperature.exp() * self.table, targets) - self.temperature / 7


def trained(rank: int, plan: Plan, recompute: bool = False) -> list[float]:
    """Two steps, clipped: the errors of losses, norms, gradients and weights, the loss function's among them."""
    pipelines = dist.get_world_size() // plan.problem.ranks
    number, own = divmod(rank, plan.problem.ranks)
    groups: Any = {}
    if pipelines > 1:
        groups = dict(zip(("pipeline_group", "data_parallel_group"), grid(pipelines, plan.problem.ranks), strict=True))
    stages, tempered = make_stages(plan, own), Tempered()
    whole, reference = whole_model(plan), Tempered()
    both = nn.ModuleList([whole, reference])
    errors = []
    with schedc.runtime.load(
        plan, stages=stages, loss_fn=tempered, timeout_s=60, grad_dtype=torch.float64, recompute=recompute, **groups
    ) as pipe:
        zero_one = plan.problem.data_parallel is not None and plan.problem.data_parallel.zero_stage == 1
        trained = [shard.weight for shard in pipe.shards()] if zero_one else [*nn.ModuleList(pipe.modules.values()).parameters()]
        for step in range(2):
            for weight in (*trained, *both.parameters()):
                weight.grad = None
            inputs, targets = whole_batch(plan, pipelines, step)
            loss = pipe.step(inputs.chunk(pipelines)[number], targets.chunk(pipelines)[number])
            expected = reference(whole(inputs), targets)
            torch.autograd.backward(expected)
            errors.append(abs(loss.item() - expected.item()))
            limit = torch.nn.utils.clip_grad_norm_(both.parameters(), 0.1)
            local = nn.ModuleList(
                pipe.modules.values()
            ).parameters()  # without a swap_group, whose processes have others, all count
            errors.append(relative_error(clip_grad_norm_(pipe, 0.1, local=local), limit))
            with torch.no_grad():
                for weight in (*trained, *both.parameters()):
                    weight.sub_(weight.grad, alpha=0.1)  # type: ignore[arg-type]
        pipe.gather()
        if plan.problem.paths[0][-1] in stages:
            errors.append(relative_error(tempered.temperature.detach(), reference.temperature.detach()))
        for stage, module in stages.items():
            same = whole[piece_of(plan, stage)].parameters()
            errors += [relative_error(one.detach(), two.detach()) for one, two in zip(module.parameters(), same, strict=True)]
    return errors
