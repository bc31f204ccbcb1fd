"""What the rank processes run in torch's own pipeline runtime: an exported CSV, beside the same model without a pipeline."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import schedc.runtime
from runs.pipeline_runs import WIDTH, loss_fn, make_batch, make_piece, make_stages, relative_error

if TYPE_CHECKING:
    from schedc.ir.plan import Plan


def torch_schedule(plan: Plan, stages: dict[int, nn.Module], csv: str, layout: str) -> Any:
    """Torch's runtime with the CSV loaded."""
    from torch.distributed.pipelining import PipelineStage, schedules

    runtime: Any = schedules._PipelineScheduleRuntime
    device = torch.device("cpu")
    made = [PipelineStage(module, index, len(plan.problem.stages), device) for index, module in sorted(stages.items())]
    schedule = runtime(made, n_microbatches=plan.problem.microbatches, loss_fn=loss_fn)
    schedule._load_csv(csv, format=layout)
    return schedule


def torch_step(plan: Plan, schedule: Any, stages: dict[int, nn.Module], step: int) -> float | None:
    """One step; the mean of the losses where the last stage is."""
    inputs, targets = make_batch(plan, step)
    losses: list[torch.Tensor] = []
    last = len(plan.problem.stages) - 1
    schedule.step(*((inputs,) if 0 in stages else ()), target=targets if last in stages else None, losses=losses)
    return float(torch.stack(losses).detach().mean()) if last in stages else None


def train_in_torch(rank: int, plan: Plan, csv: str, layout: str = "compute_comms", steps: int = 2) -> dict[str, Any]:
    """Train in torch, without a pipeline, and in schedc's runtime: the largest relative errors of a gradient against the others."""
    count = len(plan.problem.stages)
    stages = make_stages(plan, rank)
    whole = nn.Sequential(*(make_piece(index, count) for index in range(count)))
    ours = make_stages(plan, rank)
    against_model, against_ours, losses, expected = [], [], [], []
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # torch's private runtime warns of its own doings
        schedule = torch_schedule(plan, stages, csv, layout)
        with schedc.runtime.load(plan, stages=ours, loss_fn=loss_fn, timeout_s=60) as pipe:
            for step in range(steps):
                for module in (*stages.values(), *ours.values(), whole):
                    module.zero_grad()
                losses.append(torch_step(plan, schedule, stages, step))
                inputs, targets = make_batch(plan, step)
                pipe.step(inputs, targets)
                loss = loss_fn(whole(inputs), targets)
                torch.autograd.backward(loss)
                expected.append(loss.item())
                for index, module in stages.items():
                    for mine, other, own in zip(
                        module.parameters(), whole[index].parameters(), ours[index].parameters(), strict=True
                    ):
                        against_model.append(relative_error(mine.grad, other.grad))
                        against_ours.append(relative_error(mine.grad, own.grad))
                with torch.no_grad():
                    for module in (*stages.values(), *ours.values(), whole):
                        for parameter in module.parameters():
                            if parameter.grad is not None:
                                parameter.sub_(parameter.grad, alpha=0.1)
    return {"model": max(against_model), "ours": max(against_ours), "losses": losses, "expected": expected}


def torch_alone(rank: int, plan: Plan, csv: str, layout: str) -> float | str:
    """One step in torch alone: the largest relative error of a gradient against the model without a pipeline."""
    count = len(plan.problem.stages)
    stages = make_stages(plan, rank)
    whole = nn.Sequential(*(make_piece(index, count) for index in range(count)))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        torch_step(plan, torch_schedule(plan, stages, csv, layout), stages, 0)
    inputs, targets = make_batch(plan, 0)
    torch.autograd.backward(loss_fn(whole(inputs), targets))
    pairs = [pair for index, module in stages.items() for pair in zip(module.parameters(), whole[index].parameters(), strict=True)]
    return max(relative_error(mine.grad, other.grad) for mine, other in pairs)


def sharded_in_torch(rank: int, plan: Plan, csv: str) -> list[float]:
    """Two pipelines of half of the processes, their stages sharded by FSDP over both: per step the largest error of a weight.

    The pipelines train on different batches; the model without a pipeline on both.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, schedules

    runtime: Any = schedules._PipelineScheduleRuntime
    ranks, count = plan.problem.ranks, len(plan.problem.stages)
    mesh = init_device_mesh("cpu", (2, ranks), mesh_dim_names=("dp", "pp"))
    replica, place = divmod(rank, ranks)
    stages = make_stages(plan, place)
    whole = nn.Sequential(*(make_piece(index, count) for index in range(count)))
    errors = []
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        for module in stages.values():
            fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
        made = [
            PipelineStage(module, index, count, torch.device("cpu"), group=mesh["pp"].get_group())
            for index, module in sorted(stages.items())
        ]
        schedule = runtime(made, n_microbatches=plan.problem.microbatches, loss_fn=loss_fn)
        schedule._load_csv(csv, format="compute_comms")
        for step in range(2):
            for module in (*stages.values(), whole):
                module.zero_grad()
            torch_step(plan, schedule, stages, 2 * step + replica)
            for both in (0, 1):
                inputs, targets = make_batch(plan, 2 * step + both)
                torch.autograd.backward(loss_fn(whole(inputs), targets) / 2)
            for index, module in stages.items():
                for mine, other in zip(module.parameters(), whole[index].parameters(), strict=True):
                    grad: Any = mine.grad
                    errors.append(relative_error(grad.full_tensor(), other.grad))
        dist.barrier()
    return errors


def what_each_half_does(rank: int, plan: Plan, csv: str) -> dict[str, tuple[bool, bool]]:
    """Of the first I and W of the rank's one stage in torch: whether it gave a gradient of the input, and of the weights."""
    ((index, module),) = make_stages(plan, rank).items()
    seen: dict[str, tuple[bool, bool]] = {}

    def watch(name: str, inner: Any) -> Any:
        def run(microbatch: int, *args: Any, **more: Any) -> None:
            before = [parameter.grad is not None for parameter in module.parameters()]
            inner(microbatch, *args, **more)
            after = [parameter.grad is not None for parameter in module.parameters()]
            grads = stage.bwd_cache.get(microbatch, ()) if name == "I" else ()
            seen.setdefault(name, (any(grad is not None for grad in grads), all(after) and not any(before)))

        return run

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        schedule = torch_schedule(plan, {index: module}, csv, "compute_comms")
        (stage,) = schedule._stages
        stage.backward_one_chunk = watch("I", stage.backward_one_chunk)
        stage.backward_weight_one_chunk = watch("W", stage.backward_weight_one_chunk)
        torch_step(plan, schedule, {index: module}, 0)
    return seen


def held_by_a_split_backward() -> tuple[int, int, int]:
    """Bytes of activations that autograd holds for a stage after F, after torch's I and after its W."""
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    stage = make_piece(1, 3)
    weights = {parameter.untyped_storage().data_ptr() for parameter in stage.parameters()}
    boxes: weakref.WeakSet[Box] = weakref.WeakSet()

    def pack(tensor: torch.Tensor) -> Box:
        boxes.add(box := Box(tensor.detach()))
        return box

    def held() -> int:
        gc.collect()
        storages = [box.tensor.untyped_storage() for box in boxes]
        return sum({one.data_ptr(): one.nbytes() for one in storages if one.data_ptr() not in weights}.values())

    inputs = torch.randn(4, WIDTH, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        output = stage(inputs)
    after_forward = held()
    _, groups = stage_backward_input([output], [torch.randn_like(output)], [inputs], stage.parameters())
    del output
    after_input = held()
    stage_backward_weight(stage.parameters(), groups)
    groups.clear()
    return after_forward, after_input, held()


class Box:
    """What autograd saved, so that it is seen when it is let go."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
