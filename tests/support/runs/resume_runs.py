"""What rank processes run in the tests of resuming: steps with dropout and a schedule of the learning rate, and one process's."""

from __future__ import annotations

import warnings
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import schedc.runtime
from runs.harness import SAMPLES, TOKENS, WIDTH, Layer, grid, load, loss_fn
from schedc.runtime.training.checkpoint import load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan

COUNT, SEED, MICROBATCHES = 6, 7, 4


class Dropping(Layer):
    """A layer that draws random numbers, in two ways; it computes each token by itself."""

    takes_state = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noisy = nn.functional.dropout(super().forward(x), 0.2, self.training)
        return noisy + 0.1 * torch.rand_like(noisy) if self.training else noisy


def layers(seed: int) -> list[nn.Module]:
    """A whole model."""
    torch.manual_seed(seed)
    made = [nn.Embedding(TOKENS, WIDTH), *(Dropping() for _ in range(COUNT - 2)), nn.Linear(WIDTH, TOKENS)]
    return [layer.double() for layer in made]


def batch_of(step: int, microbatches: int = MICROBATCHES) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all microbatches."""
    generator = torch.Generator().manual_seed(step)
    batch = torch.randint(TOKENS, (2, SAMPLES * microbatches, 3), generator=generator)
    return batch[0], batch[1]


def trainers(weights: list[Any]) -> tuple[torch.optim.Optimizer, Any]:
    """An optimizer, and a schedule that goes on from what it has given last."""
    optimizer = torch.optim.AdamW(weights, lr=0.05)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)


def in_one_process(steps: int) -> list[float]:
    """The losses of a model that no pipeline has, and that never stops; each layer draws what its step and microbatch say."""
    whole = layers(0)
    optimizer, schedule = trainers([weight for layer in whole for weight in layer.parameters()])
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        total = 0.0
        batches = zip(*(one.chunk(MICROBATCHES) for one in batch_of(step)), strict=True)
        for microbatch, (x, targets) in enumerate(batches):
            for number, layer in enumerate(whole):
                torch.manual_seed(int(sha256(f"{SEED} {step} {number} {microbatch}".encode()).hexdigest()[:16], 16))
                x = layer(x)
            loss = loss_fn(x, targets) / MICROBATCHES
            torch.autograd.backward(loss)
            total += loss.item()
        optimizer.step()
        schedule.step()
        losses.append(total)
    return losses


def resumed(
    rank: int,
    plan: Plan,
    steps: range,
    *,
    after: Path | str | None = None,
    path: Path | str | None = None,
    fsdp: bool = False,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> list[float]:
    """The losses of these steps, from a checkpoint on, with another written beside the last but one; processes share the batch.

    With `fsdp` FSDP2 shards the layers over the processes that share the batch.
    """
    parallel = plan.problem.data_parallel
    pipelines, zero = dist.get_world_size() // plan.problem.ranks, parallel is not None and parallel.zero_stage == 1
    share = parallel.size if parallel is not None else pipelines if fsdp else 1  # of 1 all train the same, knowing of none
    pipeline, replicas = grid(pipelines, plan.problem.ranks)
    stages = dict(schedc.runtime.build_stages([layer.to(dtype) for layer in layers(int(after is not None))], plan, pipeline.rank()))
    given: dict[str, Any] = {"pipeline_group": pipeline, "seed": SEED, **options}
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    for layer in (layer for stage in stages.values() for layer in stage) if fsdp else ():
        fully_shard(layer, mesh=DeviceMesh.from_group(replicas, "cpu"))
    if share > 1:
        given["data_parallel_group"] = replicas
    losses = []
    with load(plan, stages, **given) as pipe:
        own = [shard.weight for shard in pipe.shards()] if zero else [*nn.ModuleList(stages.values()).parameters()]
        optimizer, schedule = trainers(own)
        if after is not None:
            torch.manual_seed(rank)
            assert load_checkpoint(pipe, after, optimizer, job={"schedule": schedule}, convert=True) == steps.start
        for step in steps:
            if step == steps[-2] and path is not None:
                writing = save_checkpoint(pipe, path, optimizer, job={"schedule": [schedule]}, beside=True)
            optimizer.zero_grad()
            inputs, targets = (one.chunk(share)[replicas.rank() % share] for one in batch_of(step))
            losses.append(pipe.step(inputs, targets).item())
            optimizer.step()
            schedule.step()
        if path is not None:
            writing.wait()
    return losses


def overlapping(rank: int, plan: Plan, path: Path) -> tuple[list[float], list[float]]:
    """The losses of a run of steps that overlap, after one and a checkpoint beside it; and after the checkpoint alone."""
    found: list[list[float]] = []
    for resumes in (False, True):
        stages = dict(schedc.runtime.build_stages(layers(int(resumes)), plan, rank))
        by_stage = {stage: trainers([*module.parameters()]) for stage, module in stages.items()}
        for optimizer, schedule in by_stage.values():
            optimizer.register_step_post_hook(lambda *_, schedule=schedule: schedule.step())
        given = schedc.runtime.StageOptimizers({stage: optimizer for stage, (optimizer, _) in by_stage.items()})
        job = {"schedule": [schedule for _, schedule in by_stage.values()]}
        batches = [batch_of(step, plan.problem.microbatches) for step in range(2)]
        with load(plan, stages, optimizers=given, seed=SEED) as pipe:
            if resumes:
                assert load_checkpoint(pipe, path, given.all, job=job) == given.updates > 0
            else:
                pipe.step(*batches[0])
                save_checkpoint(pipe, path, given.all, job=job, beside=True)
            found.append(pipe.step(*batches[1]).tolist())
    return found[0], found[1]
