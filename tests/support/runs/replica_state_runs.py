"""What rank processes run in the tests of what replicas have besides gradients: frozen and unused weights, and buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

import schedc.runtime
from runs.pipeline_runs import Layer, loss_fn, make_stages
from runs.replicated_runs import grid, whole_batch
from schedc.errors import SchedcError
from schedc.runtime.training.ties import tie_weights

if TYPE_CHECKING:
    from schedc.ir.plan import Plan


class Counting(nn.Module):
    """After a piece, a layer with statistics and a count that each forward changes, a table that is not saved, and two weights.

    One of these is used in some pipelines only, the other never.
    """

    count: torch.Tensor
    mean: torch.Tensor
    table: torch.Tensor

    def __init__(self, inner: nn.Module, *, uses: bool, start: float) -> None:
        super().__init__()
        self.inner = inner
        self.uses = uses
        self.some = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.never = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(False))
        self.register_buffer("mean", torch.full((), start, dtype=torch.float64))
        self.register_buffer("table", torch.full((), start, dtype=torch.float64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x)
        if self.training:
            self.count = torch.logical_not(self.count)
            self.mean = self.mean / 2 + result.detach().mean()
        return result * self.some if self.uses else result


def _groups(rank: int, plan: Plan) -> tuple[int, int, dict[str, Any]]:
    """The pipeline's number, the rank in it, and what `load` takes for several."""
    ranks = plan.problem.ranks
    pipelines = dist.get_world_size() // ranks
    names = ("pipeline_group", "data_parallel_group")
    return *divmod(rank, ranks), dict(zip(names, grid(pipelines, ranks), strict=True)) if pipelines > 1 else {}


def state(rank: int, plan: Plan) -> tuple[list[Any], list[bool]]:
    """Steps from buffers that differ: those of this rank's pieces afterwards, by piece.

    And of each weight whether it has no gradient though a replica has used it, or one though none has.
    """
    number, own, groups = _groups(rank, plan)
    stages = {
        stage: Counting(module, uses=stage % 2 == number, start=1.0 + rank) for stage, module in make_stages(plan, own).items()
    }
    with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, **groups) as pipe:
        for step in range(2):
            pipe.step(*whole_batch(plan, 1, 10 * number + step))
        for module in stages.values():
            module.eval()
        pipe.evaluate(*whole_batch(plan, 1, 0))
        zero_one = plan.problem.data_parallel is not None and plan.problem.data_parallel.zero_stage == 1
        if zero_one:
            grads = {(shard.stage, shard.name): shard.weight.grad for shard in pipe.shards()}
        else:
            grads = {(stage, name): weight.grad for stage, each in stages.items() for name, weight in each.named_parameters()}
    wrong = [(grad is None) is not name.endswith("never") for (_, name), grad in grads.items()]
    place = {stage: path.index(stage) for path in plan.problem.paths for stage in path}
    return [
        (place[stage], each.count.item(), each.mean.item(), each.table.item() == 1.0 + rank) for stage, each in stages.items()
    ], wrong


def unfrozen(rank: int, plan: Plan, way: str) -> str:
    """What a step says to a weight that is trained from the second step on: unfrozen, or new; in a tied one."""
    _, own, groups = _groups(rank, plan)
    stages = make_stages(plan, own)
    layers = [layer for module in stages.values() for layer in module.modules() if isinstance(layer, Layer)]
    biases = [layer.norm.get_parameter("bias") for layer in layers]
    for bias in biases:
        bias.requires_grad_(way == "new")
    try:
        with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, **groups) as pipe:
            if way == "tied":
                tie_weights(pipe, {"bias": biases[0]})
            pipe.step(*whole_batch(plan, 1, 0))
            for layer, bias in zip(layers, biases, strict=True):
                bias.requires_grad_()
                if way == "new":
                    layer.norm.bias = nn.Parameter(bias.detach().clone())
            pipe.step(*whole_batch(plan, 1, 0))
    except SchedcError as error:
        return f"{type(error).__name__}: {error}"
    return "trained"
