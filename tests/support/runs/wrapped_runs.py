"""What rank processes run with stages that torch.distributed shards or synchronizes."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

import schedc.runtime
from runs.pipeline_runs import Layer, loss_fn, make_piece, make_stages, piece_of, relative_error
from runs.replicated_runs import whole_batch
from schedc.errors import SchedcError
from schedc.runtime.training.clipping import clip_grad_norm_

if TYPE_CHECKING:
    from schedc.ir.plan import Plan


def wrapped(kind: str, module: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    """The module as torch.distributed wraps it over a group."""
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh.from_group(group, "cpu")
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(module, process_group=group)
    if kind == "replicate":
        from torch.distributed._composable.replicate import replicate

        composable: Any = replicate
        composable(module, process_group=group)
    elif kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        with warnings.catch_warnings(action="ignore"):  # of the only process of a group
            return FullyShardedDataParallel(module, group, device_id=torch.device("cpu"), use_orig_params=True)
    elif kind.startswith("fsdp2"):
        from torch.distributed.fsdp import fully_shard

        fully_shard(module, mesh=mesh, reshard_after_forward=kind == "fsdp2")
    elif kind == "dtensor":
        from torch.distributed.tensor import distribute_module

        distribute_module(module, mesh)
    return module


def own_group(rank: int) -> dist.ProcessGroup:
    """A group of this process alone; both processes call it together."""
    groups = [dist.new_group([other]) for other in range(2)]
    group: dist.ProcessGroup = groups[rank]
    return group


def refused(rank: int, plan: Plan, kind: str, *, later: bool = False) -> str:
    """What is said of a pipeline over both ranks whose stages are wrapped, before `load` or after the first step."""
    group = own_group(rank)
    stages = make_stages(plan, rank)
    if not later:
        stages = {stage: wrapped(kind, module, group) for stage, module in stages.items()}
    try:
        with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60) as pipe:
            pipe.step(*whole_batch(plan, 1, 0))
            for module in stages.values():
                wrapped(kind, module, group)
            pipe.step(*whole_batch(plan, 1, 1))
    except SchedcError as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def refused_later(rank: int, plan: Plan, kind: str) -> str:
    """As `refused`, after the first step."""
    return refused(rank, plan, kind, later=True)


def fused(rank: int, plan: Plan, kind: str, recompute: bool) -> list[float]:
    """Two steps of two processes, each with all stages of the plan, wrapped over both: the errors of the mean's gradients."""
    group = own_group(rank)
    both: dist.ProcessGroup = dist.new_group([0, 1])
    count = len(plan.problem.stages)
    bare = make_stages(plan, 0)
    stages = {stage: wrapped(kind, module, both) for stage, module in bare.items()}
    whole = nn.Sequential(*(make_piece(index, count) for index in range(count)))
    errors = []
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, pipeline_group=group, recompute=recompute) as pipe:
        for step in range(2):
            inputs, targets = whole_batch(plan, 2, step)
            pipe.step(inputs.chunk(2)[rank], targets.chunk(2)[rank])
            torch.autograd.backward(loss_fn(whole(inputs), targets))
            for stage, module in bare.items():
                found: list[Any] = [parameter.grad for parameter in module.parameters()]
                for own, other in zip(found, whole[piece_of(plan, stage)].parameters(), strict=True):
                    errors.append(relative_error(own.full_tensor() if hasattr(own, "full_tensor") else own, other.grad))
        errors.append(clipping_error(pipe, whole))
    return errors


def clipping_error(pipe: schedc.runtime.Pipe, whole: nn.Module) -> float:
    """Clip both: the error of the norm before, and what the norm after is too large."""
    limit = 0.1
    expected = torch.nn.utils.clip_grad_norm_(whole.parameters(), limit)
    assert expected > limit
    return max(relative_error(clip_grad_norm_(pipe, limit), expected), clip_grad_norm_(pipe, math.inf).item() - limit)


def tensor_parallel(rank: int, plan: Plan, recompute: bool) -> list[float]:
    """Two steps of a pipeline whose layers are each cut over two processes: the errors of losses, gradients and clipping."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (plan.problem.ranks, 2), mesh_dim_names=("pipeline", "tensor"))
    stages = make_stages(plan, rank // 2)
    for module in stages.values():
        for layer in module.modules():
            if isinstance(layer, Layer):
                parallelize_module(layer, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    count = len(plan.problem.paths[0])
    whole = nn.Sequential(*(make_piece(index, count) for index in range(count)))
    errors = []
    group = mesh.get_group("pipeline")
    with schedc.runtime.load(
        plan,
        stages=stages,
        loss_fn=loss_fn,
        timeout_s=60,
        pipeline_group=group,
        swap_group=mesh.get_group("tensor"),
        recompute=recompute,
    ) as pipe:
        for step in range(2):
            inputs, targets = whole_batch(plan, 1, step)
            loss = pipe.step(inputs, targets)
            expected = loss_fn(whole(inputs), targets)
            torch.autograd.backward(expected)
            errors.append(abs(loss.item() - expected.item()))
            errors.append(abs(pipe.evaluate(inputs, targets).item() - expected.item()))
            for stage, module in stages.items():
                found: list[Any] = [parameter.grad for parameter in module.parameters()]
                for own, other in zip(found, whole[piece_of(plan, stage)].parameters(), strict=True):
                    errors.append(relative_error(own.full_tensor() if hasattr(own, "full_tensor") else own, other.grad))
        errors.append(clipping_error(pipe, whole))
    return errors


def compiled(rank: int, plan: Plan, backend: str) -> list[float]:
    """Steps and evaluations of stages that torch compiles, in turn: the errors of losses and gradients."""
    stages = make_stages(plan, rank)
    bare = dict(stages)
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")  # dynamo looks at it
    own: dict[int, Any] = {stage: torch.compile(module, backend=backend) for stage, module in stages.items()}
    count = len(plan.problem.paths[0])
    whole = nn.Sequential(*(make_piece(index, count) for index in range(count)))
    errors = []
    with schedc.runtime.load(plan, stages=own, loss_fn=loss_fn, timeout_s=120) as pipe:
        for step in range(2):
            inputs, targets = whole_batch(plan, 1, step)
            loss = pipe.step(inputs, targets)
            expected = loss_fn(whole(inputs), targets)
            torch.autograd.backward(expected)
            errors += [abs(loss.item() - expected.item()), abs(pipe.evaluate(inputs, targets).item() - expected.item())]
            for stage, module in bare.items():
                same = whole[piece_of(plan, stage)].parameters()
                errors += [relative_error(one.grad, other.grad) for one, other in zip(module.parameters(), same, strict=True)]
    return errors
