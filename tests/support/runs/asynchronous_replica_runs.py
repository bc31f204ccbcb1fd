"""What rank processes run in the tests of steps that overlap, of several pipelines and of ranks that share weights.

`errors` is in `asynchronous_runs`.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

import schedc.runtime
from runs.asynchronous_runs import Way, optimizers_of, oracle_of, weight_errors
from runs.harness import (
    cannot_go_on,
    grid,
    load,
    loss_fn,
    make_batch,
    make_stages,
    noting,
    on_forward,
    relative_error,
    weights_of,
    whole_model,
)
from schedc.lower.run import run_of
from schedc.runtime.replicas.copies import digest_of
from schedc.runtime.training.ties import tie_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir import Plan


def replicated(
    rank: int, plan: Plan, way: Way, steps: Sequence[int], size: int = 2, slow_s: float = 0, infinite: int | None = None
) -> list[float]:
    """As `errors`, of pipelines that each have a part of each microbatch: errors of the steps' losses and of weights.

    Args:
        rank: of the process.
        plan: of one pipeline.
        way: how it is run.
        steps: of each run.
        size: how many ranks a pipeline has.
        slow_s: by how much the last rank of the last pipeline is slower in each forward.
        infinite: the step of the first run that has an infinite loss, in that pipeline alone, and makes no update.
    """
    pipelines, number, own = dist.get_world_size() // size, rank // size, rank % size
    pipeline_group, data_group = grid(pipelines, size)
    groups = {"pipeline_group": pipeline_group, "data_parallel_group": data_group}
    run = run_of(plan, steps[0])
    stages, found = make_stages(run, own), list[float]()
    optimizers, oracle = optimizers_of(stages, way, skip_nonfinite=infinite is not None), oracle_of(run, way)
    counted = iter(range(sum(steps) * plan.problem.microbatches))

    def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        at = next(counted) // plan.problem.microbatches
        return loss_fn(logits, targets) * (math.inf if at == infinite and number == pipelines - 1 else 1)

    oracle.skipped = [] if infinite is None else [infinite]
    if slow_s and rank == dist.get_world_size() - 1:
        for module in stages.values():
            module.register_forward_pre_hook(lambda *_: time.sleep(slow_s))
    for seed, count in enumerate(steps):
        with load(
            plan,
            stages,
            steps=count,
            optimizers=optimizers,
            recompute=way.recompute,
            loss_fn=loss_fn if infinite is None else loss_of,
            **groups,
        ) as pipe:
            oracle.plan, microbatches = pipe.plan, pipe.plan.problem.microbatches
            parts = [[part.chunk(microbatches) for part in one.chunk(pipelines)] for one in make_batch(pipe.plan, seed, pipelines)]
            losses = pipe.step(*(torch.cat(one[number]) for one in parts))
            expected = oracle.run(*([torch.cat(of_all) for of_all in zip(*one, strict=True)] for one in parts))
            good = torch.isfinite(losses)
            assert good.logical_not().nonzero().flatten().tolist() == ([infinite] if seed == 0 and infinite is not None else [])
            found.append(relative_error(losses[good], expected.reshape(count, -1).mean(1)[good]))
            found += weight_errors(stages, oracle.pieces)
            own_digest, digests = digest_of(weights_of(stages)), [""] * dist.get_world_size()
            dist.all_gather_object(digests, own_digest)
            assert {*digests[own::size]} == {own_digest}  # replicas are the same to the last bit
    return found


def tied(rank: int, plan: Plan, way: Way, size: int) -> list[float]:
    """As `errors`, of a model whose head has the embedding's table, on the first rank and the last; also of two pipelines."""
    stages_of = tuple(replace(stage, layers=(at, at + 1)) for at, stage in enumerate(plan.problem.stages))
    plan = replace(plan, problem=replace(plan.problem, stages=stages_of))
    pipelines, own, last = dist.get_world_size() // size, rank % size, len(stages_of) - 1
    run, groups = run_of(plan, 4), {}
    if pipelines > 1:
        groups = dict(zip(("pipeline_group", "data_parallel_group"), grid(pipelines, size), strict=True))
    layers: list[Any] = [*whole_model(run)]
    layers[last][-1].weight = layers[0][0].weight
    stages: dict[int, nn.Module] = {**schedc.runtime.build_stages(layers, run, own)}
    optimizers, oracle, found = optimizers_of(stages, way), oracle_of(run, way), list[float]()
    head: Any = oracle.pieces[last][-1]  # type: ignore[index]
    with torch.no_grad():
        head.weight.copy_(oracle.pieces[0][0].weight)  # type: ignore[index]
    oracle.ties = [((0, "0.weight"), (last, f"{len(oracle.pieces[last]) - 1}.weight"))]  # type: ignore[arg-type]
    with load(run, stages, optimizers=optimizers, **groups) as pipe:
        for number in range(2):
            parts = [
                [part.chunk(run.problem.microbatches) for part in one.chunk(pipelines)]
                for one in make_batch(run, number, pipelines)
            ]
            pipe.step(*(torch.cat(one[rank // size]) for one in parts))
            oracle.run(*([torch.cat(of_all) for of_all in zip(*one, strict=True)] for one in parts))
            found += weight_errors(stages, oracle.pieces)
    return found


def tied_later(rank: int, plan: Plan, per_stage: bool) -> str:
    """Ties that `load` has not found are refused where they cannot be kept."""
    run, lines = run_of(plan, 3), list[str]()
    stages = make_stages(run, rank)
    table = stages[0][0].weight if rank == 0 else stages[1][-1].weight  # type: ignore[index]
    with torch.no_grad():
        table.fill_(0.1)
    given = optimizers_of(stages, Way(max_norm=0.1 if per_stage else math.inf, per_stage=per_stage))
    with noting(lines), load(run, stages, optimizers=given) as pipe:
        tie_weights(pipe, {"table": table})
        pipe.step(*make_batch(run, 0))
    return lines[0]


def refused_with_replicas(rank: int, plan: Plan, synchronous: Plan, other: Plan) -> list[str]:
    """What pipelines say that do not fit each other, or would move."""
    lines, (pipeline_group, data_group) = list[str](), grid(2, 2)
    groups = {"pipeline_group": pipeline_group, "data_parallel_group": data_group}
    run = run_of(plan, 3)
    stages = make_stages(run, rank % 2)
    given = optimizers_of(stages, Way())
    for options in (
        {"optimizers": given, "plan": plan if rank < 2 else other},
        {"optimizers": optimizers_of(stages, Way(max_norm=1.0 if rank < 2 else 2.0, per_stage=True))},
    ):
        with noting(lines):
            load(options.pop("plan", plan), stages, steps=3, **options, **groups)
    with load(run, stages, optimizers=given, **groups) as pipe:
        swap = pipe.swap(synchronous)
        with warnings.catch_warnings(action="ignore"):
            for number in range(2):
                pipe.step(*make_batch(run, number))
        lines.append(str(swap.reason))
    return lines


def stopped(rank: int, plan: Plan) -> str:
    """The last rank of the last pipeline fails in a run: what is said."""
    lines, (pipeline_group, data_group) = list[str](), grid(2, 2)
    run = run_of(plan, 8)
    stages = make_stages(run, rank % 2)
    if rank == 3:
        on_forward(stages, 4, cannot_go_on)
    groups = {"pipeline_group": pipeline_group, "data_parallel_group": data_group}
    with noting(lines, Exception), load(run, stages, optimizers=optimizers_of(stages, Way()), **groups) as pipe:
        pipe.step(*make_batch(run, 0))
    return lines[0]
