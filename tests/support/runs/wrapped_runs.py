"""What rank processes run with stages that torch.distributed shards or synchronizes."""

from __future__ import annotations

import copy
import math
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from runs.faults import Faults
from runs.harness import Layer, Run, cannot_go_on, grid, load, make_stages, on_forward, piece_of, relative_error
from runs.retry_runs import on_failing
from runs.training_runs import clipping_error
from schedc.ir.ops import Kind
from schedc.runtime.common.hooks import Observer, OpTimes
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
        inner = [layer for layer in module.modules() if isinstance(layer, Layer)] if kind.endswith("by layer") else []
        for one in (*inner, module):
            fully_shard(one, mesh=mesh, reshard_after_forward=not kind.endswith("weights"))
    return module


def may_run_again(rank: int, plan: Plan, around: str) -> bool:
    """Whether a step may, over channels that can fail, with FSDP2 around the stages, around the loss function, or not at all."""
    group, stages = own_group(rank), make_stages(plan, rank)
    loss: Any = nn.Bilinear(4, 4, 1)
    for module in {"stages": [*stages.values()], "loss": [loss]}.get(around, []):
        wrapped("fsdp2", module, group)
    with on_failing([Faults()]), load(plan, stages, loss_fn=loss) as pipe:
        return pipe.steps.retries


def own_group(rank: int) -> dist.ProcessGroup:
    """A group of this process alone; both processes call it together."""
    groups = [dist.new_group([other]) for other in range(2)]
    group: dist.ProcessGroup = groups[rank]
    return group


def refused(rank: int, plan: Plan, kind: str, *, later: bool = False) -> str:
    """What is said of a pipeline over both ranks whose stages are wrapped, before `load` or after the first step."""
    run, group = Run(plan), own_group(rank)
    if not later:
        run.stages = {stage: wrapped(kind, module, group) for stage, module in run.stages.items()}
    with run.load() as pipe:
        pipe.step(*run.batch(0))
        for module in run.stages.values():
            wrapped(kind, module, group)
        pipe.step(*run.batch(1))
    return "accepted"


def sharded(rank: int, plan: Plan, kind: str, recompute: bool) -> list[float]:
    """Steps and evaluations of two processes, each with all stages of the plan, wrapped over both: the errors of gradients.

    First as a job whose pipelines know nothing of each other, then with both as its replicas, and with their losses.
    """
    group, errors = own_group(rank), list[float]()
    both: dist.ProcessGroup = dist.new_group([0, 1])
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    for replicas in (None, both):
        run = Run(plan)
        stages = {stage: wrapped(kind, module, both) for stage, module in run.stages.items()}
        with run.load(stages=stages, pipeline_group=group, data_parallel_group=replicas, recompute=recompute):
            found = steps_and_evaluations(run)
            if replicas is None:  # a step's loss is then that of its half of the batch
                del found[:: len(found) // 2]
            errors += found
            errors += clipped_to(run)
    return errors


def gathered_as_planned(rank: int, plan: Plan) -> list[Any]:
    """Steps of two pipelines by a plan that gathers and releases: the largest error; of each op the stages held, as planned."""
    run, found = Run(plan), list[Any]()
    _, replicas = grid(2, 2)
    for module in run.stages.values():
        wrapped("fsdp2", module, replicas)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")

    class Held(Observer):
        """Which stages' weights are gathered, or on their way, when an op ends; and the bytes of these, and of gradients."""

        def op(self, times: OpTimes) -> None:
            own: Any = run.stages
            groups = {stage: one._get_fsdp_state()._fsdp_param_group for stage, one in own.items()}
            held = [stage for stage, one in groups.items() if one.is_unsharded or one._all_gather_result is not None]
            found.append((held, sum(map(bytes_of, groups.values()))))

    sizes = {stage: sum(one.numel() * 8 for one in module.parameters()) for stage, module in run.stages.items()}
    with run.load(observe=Held()):
        loss, expected = run.step(0)
        errors = [abs(loss.item() - expected.item()), *run.gradient_errors()]
        first, order = list(found), plan.ranks[run.rank]
        run.step(1)
        errors += [*run.gradient_errors(), *clipped_to(run)]
    planned: list[tuple[list[int], int]] = []
    for at in range(len(order.compute)):
        whole = sorted({one.stage for one in order.collectives if one.kind == "AG" and one.before <= at < one.until})
        summing = {op.stage for op in order.compute[: at + 1] if op.kind in (Kind.W, Kind.BW)}
        summing -= {one.stage for one in order.collectives if one.kind == "RS" and one.before <= at}
        planned.append((whole, sum(sizes[stage] for stage in (*whole, *summing))))
    return [max(errors), first, planned]


def bytes_of(group: Any) -> int:
    """What a group of FSDP holds of whole weights, or of those that are on their way, and of gradients."""
    held = [] if group._all_gather_result is None else [group._all_gather_result.all_gather_output]
    for weight in group.fsdp_params:
        whole = getattr(weight, "_unsharded_param", None)
        held += [*weight.all_gather_outputs, weight.unsharded_accumulated_grad, None if whole is None else whole.grad]
    return sum(one.untyped_storage().nbytes() for one in held if one is not None)


def goes_on_after_a_failure(rank: int, plan: Plan) -> list[float]:
    """A step that fails in the middle on both processes, then the plan loaded again: the errors of its gradients."""
    group, both = own_group(rank), dist.new_group([0, 1])
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    run = Run(plan)
    for module in run.stages.values():
        wrapped("fsdp2", module, both)
    groups = {"pipeline_group": group, "data_parallel_group": both}
    with run.load(**groups), suppress(ValueError):
        failing = {max(run.stages): run.stages[max(run.stages)]}
        on_forward(failing, 3, cannot_go_on)
        run.pipe.step(*run.share(run.batch(0)))
    for weight in run.weights:
        weight.grad = None
    with run.load(**groups):
        return steps_and_evaluations(run)


def clipped_to(run: Run, limit: float = 0.1) -> list[float]:
    """Clip both: the error of the norm before, and what the norm after is too large."""
    assert torch.nn.utils.get_total_norm([one.grad for one in run.whole_weights if one.grad is not None]) > limit
    return [clipping_error(run, limit), clip_grad_norm_(run.pipe, math.inf).item() - limit]


def tensor_parallel(rank: int, plan: Plan, recompute: bool) -> list[float]:
    """Two steps of a pipeline whose layers are each cut over two processes: the errors of losses, gradients and clipping."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (plan.problem.ranks, 2), mesh_dim_names=("pipeline", "tensor"))
    run = Run(plan)
    run.pipelines, run.pipeline, run.stages = 1, 0, make_stages(plan, rank // 2)
    for module in run.stages.values():
        for layer in module.modules():
            if isinstance(layer, Layer):
                parallelize_module(layer, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    groups = {"pipeline_group": mesh.get_group("pipeline"), "swap_group": mesh.get_group("tensor")}
    with run.load(recompute=recompute, **groups):
        return steps_and_evaluations(run) + clipped_to(run)


def compiled(rank: int, plan: Plan, backend: str) -> list[float]:
    """Steps and evaluations of stages that torch compiles, in turn: the errors of losses and gradients."""
    run = Run(plan)
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")  # dynamo looks at it
    own: dict[int, Any] = {stage: torch.compile(module, backend=backend) for stage, module in run.stages.items()}
    with run.load(stages=own, timeout_s=120):
        return steps_and_evaluations(run)


def steps_and_evaluations(run: Run) -> list[float]:
    """Two of each, in turn: the errors of losses and gradients."""
    errors = []
    for step in range(2):
        loss, expected = run.step(step)
        evaluated = run.pipe.evaluate(*run.batch(step))
        errors += [abs(one.item() - expected.item()) for one in (loss, evaluated)]
        errors += run.gradient_errors()
    return errors


def dtensors(rank: int, plan: Plan, between: str, recompute: bool) -> float | str:
    """Tensor parallelism with DTensors between stages, two pipelines of two ranks: the largest error of a loss or a gradient."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    placed: Placement = {"sharded": Shard(1), "replicated": Replicate(), "summed": Partial()}[between]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "tensor"))
    torch.manual_seed(0)
    pieces = range(len(plan.problem.paths[0]))
    whole = [nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False)).double() for _ in pieces]
    stages: dict[int, Any] = {}
    for stage in plan.problem.stages_on(rank // 2):
        stages[stage] = copy.deepcopy(whole[piece_of(plan, stage)])
        ways = {"0": ColwiseParallel(), "2": RowwiseParallel(output_layouts=placed, use_local_output=False)}
        parallelize_module(stages[stage], mesh["tensor"], ways)

    def loss_fn(y: Any, t: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = ((y.full_tensor() if isinstance(y, DTensor) else y) - t).pow(2).mean()
        return found

    errors = [0.0]
    groups = {"pipeline_group": mesh.get_group("pipeline"), "swap_group": mesh.get_group("tensor")}
    with load(plan, stages, loss_fn=loss_fn, recompute=recompute, **groups) as pipe:
        for step, samples in enumerate((8, 8, 12)):
            for weight in (*nn.ModuleList(stages.values()).parameters(), *nn.ModuleList(whole).parameters()):
                weight.grad = None
            torch.manual_seed(step)
            x, t = torch.randn(2, samples, 6, 4, dtype=torch.float64)
            right = loss_fn(nn.Sequential(*whole)(x), t)
            torch.autograd.backward(right)
            losses = [pipe.step(x, t), pipe.evaluate(x, t)]
            errors += [abs(loss.item() - right.detach().item()) for loss in losses]
            errors += [
                relative_error(one.grad, other.grad)
                for stage, module in stages.items()
                for one, other in zip(module.parameters(), whole[piece_of(plan, stage)].parameters(), strict=True)
            ]
    return max(errors)
