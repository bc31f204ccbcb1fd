"""What rank processes run in the tests of averaging: losses with weights, beside the same model without a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

import schedc.runtime
from runs.evaluation_runs import whole_model
from runs.pipeline_runs import SAMPLES, loss_fn, make_stages, piece_of, relative_error
from runs.replicated_runs import grid, whole_batch
from schedc.errors import SchedcError
from schedc.runtime.common.failure import NonFiniteLoss

if TYPE_CHECKING:
    from schedc.ir.plan import Plan

IGNORED = -100


def tokens_of(targets: torch.Tensor, microbatches: int) -> torch.Tensor:
    """How many targets of each microbatch count."""
    return torch.stack([(part != IGNORED).sum() for part in targets.chunk(microbatches)])


def sum_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum over the tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")


def batch_with_gaps(plan: Plan, pipelines: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and targets of which each microbatch has another number that counts."""
    inputs, targets = whole_batch(plan, pipelines, step)
    targets = targets.clone()
    for number, part in enumerate(targets.chunk(len(targets) // SAMPLES)):
        part.view(-1)[: number % (part.numel() - 1)] = IGNORED
    return inputs, targets


def averaged(rank: int, plan: Plan, way: str, scale: float = 1.0) -> dict[str, float]:
    """One step over all tokens of all pipelines: the errors of its loss, of an evaluation's and of the gradients.

    Args:
        rank: of the process.
        plan: over all processes, or half of them.
        way: `weights`: mean losses by tokens; `sums`: sums of losses, divided by all tokens; `later`: as sums, not divided.
        scale: of the gradients.
    """
    microbatches = plan.problem.microbatches
    pipelines = dist.get_world_size() // plan.problem.ranks
    groups: Any = dict(zip(("pipeline_group", "data_parallel_group"), grid(pipelines, plan.problem.ranks), strict=True))
    number, own = divmod(rank, plan.problem.ranks)
    stages = make_stages(plan, own)
    whole = whole_model(plan)
    inputs, targets = batch_with_gaps(plan, pipelines, 0)
    mine = [part.chunk(pipelines)[number] for part in (inputs, targets)]
    count = int((targets != IGNORED).sum())
    how: dict[str, Any] = {"divide_by": 1 if way == "later" else count}
    if way == "weights":
        how = {"weights": tokens_of(mine[1], microbatches)}
    expected = loss_fn(whole(inputs), targets) * (count if way == "later" else 1)
    torch.autograd.backward(expected * scale)
    with schedc.runtime.load(
        plan,
        stages=stages,
        loss_fn=loss_fn if way == "weights" else sum_loss,
        timeout_s=60,
        **(groups if pipelines > 1 else {}),
    ) as pipe:
        evaluated = pipe.evaluate(*mine, **how)
        loss = pipe.step(*mine, **how, scale=scale)
        sharded = plan.problem.data_parallel is not None and plan.problem.data_parallel.zero_stage == 1
        same = {(stage, name): w.grad for stage in stages for name, w in whole[piece_of(plan, stage)].named_parameters()}
        errors = []
        if sharded:
            for one in pipe.shards():
                right = same[one.stage, one.name]
                assert right is not None
                errors.append(relative_error(one.weight.grad, right.flatten()[one.start : one.stop]))
        else:
            errors += [
                relative_error(w.grad, same[stage, name]) for stage in stages for name, w in stages[stage].named_parameters()
            ]
    return {
        "loss": abs(loss.item() / expected.item() - 1),
        "evaluated": abs(evaluated.item() / expected.item() - 1),
        "gradients": max(errors),
    }


def not_finite(rank: int, plan: Plan) -> list[str]:
    """What a step raises in which a microbatch has no token, and what its losses are; then a step that is sound."""
    inputs, targets = whole_batch(plan, 1, 0)
    empty = targets.clone()
    empty[SAMPLES : 2 * SAMPLES] = IGNORED
    said = []
    with schedc.runtime.load(plan, stages=make_stages(plan, rank), loss_fn=loss_fn, timeout_s=60) as pipe:
        for given in (empty, targets):
            try:
                pipe.step(inputs, given, weights=tokens_of(given, plan.problem.microbatches))
            except NonFiniteLoss as error:
                said.append(str(error))
            said.append(str(pipe.losses.isnan().tolist()))
    return said


def refused(rank: int, plan: Plan, **how: Any) -> str:
    """What `step` says to weights that make no sense."""
    try:
        with schedc.runtime.load(plan, stages=make_stages(plan, rank), loss_fn=loss_fn, timeout_s=60) as pipe:
            pipe.step(*whole_batch(plan, 1, 0), **how)
    except SchedcError as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def refused_weights(rank: int, plan: Plan, weights: list[float]) -> str:
    """As `refused`."""
    return refused(rank, plan, weights=weights)


def refused_divisor(rank: int, plan: Plan, divide_by: float) -> str:
    """As `refused`."""
    return refused(rank, plan, divide_by=divide_by)


def refused_step(rank: int, plan: Plan, given: list[dict[str, Any]], evaluate: bool = False) -> str:
    """What a step, or an evaluation, says where each pipeline, or each rank of the only one, is given something else.

    `call` among it names another method, or `clip`, which adds up a number.
    """
    ranks = plan.problem.ranks
    pipelines = dist.get_world_size() // ranks
    groups: Any = {}
    if pipelines > 1:
        groups = dict(zip(("pipeline_group", "data_parallel_group"), grid(pipelines, ranks), strict=True))
    try:
        with schedc.runtime.load(plan, stages=make_stages(plan, rank % ranks), loss_fn=loss_fn, timeout_s=60, **groups) as pipe:
            own = dict(given[rank // ranks if pipelines > 1 else rank])
            call = own.pop("call", "evaluate" if evaluate else "step")
            if call == "clip":
                pipe.hooks.total(torch.ones((), dtype=torch.float64))
            else:
                getattr(pipe, call)(*(() if call == "gather" else whole_batch(plan, 1, 0)), **own)
    except SchedcError as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"
