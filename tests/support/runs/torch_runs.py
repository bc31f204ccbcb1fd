"""What rank processes run in torch's own pipeline runtime: an exported CSV, beside the same model without a pipeline; traces of it.

Torch's private runtime warns of its own doings.
"""

from __future__ import annotations

import gc
import time
import warnings
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from runs.harness import SAMPLES, WIDTH, Descent, Run, loss_fn, make_batch, make_piece, make_stages, relative_error, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from schedc.ir.plan import Plan

MICROBATCHES = 3
ORDERS = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0RECV_B0,0I0,0W0,0RECV_B1,0I1,0W1,0RECV_B2,0I2,0W2,0REDUCE_GRAD",
    "1RECV_F0,1F0,1I0,1SEND_B0,1W0,1RECV_F1,1F1,1I1,1SEND_B1,1W1,1RECV_F2,1F2,1B2,1SEND_B2,1REDUCE_GRAD",
)
"""B and W apart; of the last microbatch on rank 1 together."""
TRACED_WIDTH = 16
SLOW_S = 0.05


def torch_schedule(plan: Plan, stages: dict[int, nn.Module], csv: str, layout: str = "compute_comms", group: Any = None) -> Any:
    """Torch's runtime with the CSV loaded."""
    from torch.distributed.pipelining import PipelineStage, schedules

    runtime: Any = schedules._PipelineScheduleRuntime
    count, device = len(plan.problem.stages), torch.device("cpu")
    made = [PipelineStage(module, index, count, device, group=group) for index, module in sorted(stages.items())]
    schedule = runtime(made, n_microbatches=plan.problem.microbatches, loss_fn=loss_fn)
    schedule._load_csv(csv, format=layout)
    return schedule


@contextmanager
def warnings_of_torch() -> Iterator[None]:
    """Warnings are no errors here."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def torch_step(plan: Plan, schedule: Any, stages: dict[int, nn.Module], step: int) -> float | None:
    """One step; the mean of the losses where the last stage is."""
    inputs, targets = make_batch(plan, step)
    losses: list[torch.Tensor] = []
    last = len(plan.problem.stages) - 1
    schedule.step(*((inputs,) if 0 in stages else ()), target=targets if last in stages else None, losses=losses)
    return float(torch.stack(losses).detach().mean()) if last in stages else None


def train_in_torch(rank: int, plan: Plan, csv: str, layout: str = "compute_comms", steps: int = 2) -> dict[str, Any]:
    """Train in torch, without a pipeline, and in schedc's runtime: the largest relative errors of a gradient against the others."""
    run, ours = Run(plan), make_stages(plan, rank)
    against_model, against_ours, losses, expected = [], [], [], []
    with warnings_of_torch():
        schedule = torch_schedule(plan, run.stages, csv, layout)
        with run.load(stages=ours):
            for step in range(steps):
                run.clear()
                for module in run.stages.values():
                    module.zero_grad()
                losses.append(torch_step(plan, schedule, run.stages, step))
                expected.append(run.step(step)[1].item())
                against_model += run.gradient_errors()
                for index, module in run.stages.items():
                    for mine, own in zip(module.parameters(), ours[index].parameters(), strict=True):
                        against_ours.append(relative_error(mine.grad, own.grad))
                run.descend()
                Descent(weights_of(run.stages)).step()
    return {"model": max(against_model), "ours": max(against_ours), "losses": losses, "expected": expected}


def torch_alone(rank: int, plan: Plan, csv: str) -> float:
    """One step in torch alone: the largest relative error of a gradient against the model without a pipeline."""
    run = Run(plan)
    with warnings_of_torch():
        torch_step(plan, torch_schedule(plan, run.stages, csv), run.stages, 0)
    inputs, targets = make_batch(plan, 0)
    torch.autograd.backward(loss_fn(run.outputs(inputs), targets))
    return max(run.gradient_errors())


def sharded_in_torch(rank: int, plan: Plan, csv: str) -> list[float]:
    """Two pipelines of half of the processes, their stages sharded by FSDP over both: per step the largest error of a weight.

    The pipelines train on different batches; the model without a pipeline on both.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, plan.problem.ranks), mesh_dim_names=("dp", "pp"))
    run, errors = Run(plan), []
    with warnings_of_torch():
        for module in run.stages.values():
            fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
        schedule = torch_schedule(plan, run.stages, csv, group=mesh["pp"].get_group())
        for step in range(2):
            for module in (*run.stages.values(), *run.whole):
                module.zero_grad()
            torch_step(plan, schedule, run.stages, 2 * step + run.pipeline)
            for both in (0, 1):
                inputs, targets = make_batch(plan, 2 * step + both)
                torch.autograd.backward(loss_fn(run.outputs(inputs), targets) / 2)
            errors += run.gradient_errors()
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

    with warnings_of_torch():
        schedule = torch_schedule(plan, {index: module}, csv)
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


class Slow(nn.Module):
    """A first stage whose forward takes a while, so that the second stage waits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(TRACED_WIDTH, TRACED_WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(SLOW_S)
        result: torch.Tensor = self.linear(x)
        return result


def record(rank: int, directory: Path, steps: int, shapes: bool) -> None:
    """Run some steps after one that is not recorded, and export the trace of this rank."""
    from torch.distributed.pipelining import PipelineStage, schedules
    from torch.profiler import ProfilerActivity, profile

    runtime: Any = schedules._PipelineScheduleRuntime
    stage: nn.Module = Slow() if rank == 0 else nn.Sequential(nn.Linear(TRACED_WIDTH, TRACED_WIDTH), nn.Linear(TRACED_WIDTH, 1))
    orders = directory / f"orders{rank}.csv"
    orders.write_text("\n".join(ORDERS) + "\n")
    batch = torch.randn(MICROBATCHES * SAMPLES, TRACED_WIDTH)
    with warnings_of_torch():
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
