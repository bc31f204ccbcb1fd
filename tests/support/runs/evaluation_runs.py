"""What rank processes run in the tests of evaluations: forwards alone, beside the same model without a pipeline."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import schedc.runtime
from runs.faults import Faults
from runs.pipeline_runs import loss_fn, make_batch, make_piece, make_stages
from runs.replicated_runs import grid, whole_batch
from runs.retry_runs import on_failing

if TYPE_CHECKING:
    from schedc.ir.plan import Plan


class Noisy(nn.Module):
    """Dropout after a piece."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.dropout(self.inner(x))
        return result


def whole_model(plan: Plan) -> nn.Sequential:
    """The model without a pipeline."""
    count = len(plan.problem.paths[0])
    return nn.Sequential(*(make_piece(index, count) for index in range(count)))


def evaluated(rank: int, plan: Plan, recompute: bool = False) -> dict[str, Any]:
    """What is wrong with evaluations before the first step, between two, and with a smaller batch; nothing, if all is well."""
    stages: dict[int, nn.Module] = {stage: Noisy(module) for stage, module in make_stages(plan, rank).items()}
    for module in stages.values():
        module.eval()
    whole = whole_model(plan).eval()
    weights = [weight for module in stages.values() for weight in module.parameters()]
    wrong: dict[str, Any] = {}
    with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, recompute=recompute) as pipe:
        for number in range(3):
            inputs, targets = (part[: len(part) // 2] if number == 2 else part for part in make_batch(plan, number))
            before = [None if weight.grad is None else weight.grad.clone() for weight in weights]
            random = torch.get_rng_state()
            outputs: dict[int, torch.Tensor] = {}
            loss = pipe.evaluate(inputs, targets, outputs=outputs)
            with torch.no_grad():
                expected = [
                    (whole(part), loss_fn(whole(part), target))
                    for part, target in zip(*(one.chunk(plan.problem.microbatches) for one in (inputs, targets)), strict=True)
                ]
            ends = [microbatch for microbatch, stage in last_stages(plan) if stage in stages]
            if sorted(outputs) != ends or any(not close(output, expected[at][0]) for at, output in outputs.items()):
                wrong[f"outputs {number}"] = sorted(outputs)
            if not close(pipe.losses, torch.stack([one for _, one in expected])) or not close(loss, pipe.losses.mean()):
                wrong[f"losses {number}"] = loss
            for old, weight in zip(before, weights, strict=True):
                if not (old is None and weight.grad is None) and not torch.equal(some(old), some(weight.grad)):
                    wrong[f"gradients {number}"] = True
            if not torch.equal(random, torch.get_rng_state()):
                wrong[f"random numbers {number}"] = True
            without = pipe.evaluate(inputs, outputs={})
            if not without.isnan():
                wrong[f"no targets {number}"] = without
            trained = pipe.step(*make_batch(plan, 7))
            same = loss_fn(whole(make_batch(plan, 7)[0]), make_batch(plan, 7)[1])
            if not close(trained, same.detach()):
                wrong[f"step {number}"] = trained
    return wrong


def last_stages(plan: Plan) -> list[tuple[int, int]]:
    """Of each microbatch, its last stage."""
    return [(microbatch, plan.problem.path(microbatch)[-1]) for microbatch in range(plan.problem.microbatches)]


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two tensors are equal but for rounding."""
    return torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def some(gradient: torch.Tensor | None) -> torch.Tensor:
    """A gradient that must be there."""
    assert gradient is not None
    return gradient


def evaluated_over_pipelines(rank: int, plan: Plan, pipelines: int) -> list[bool]:
    """An evaluation after an optimizer's step, over all pipelines: whether its loss is that of the model that was trained."""
    pipeline_group, data_group = grid(pipelines, plan.problem.ranks)
    number, own = divmod(rank, plan.problem.ranks)
    stages = make_stages(plan, own)
    whole = whole_model(plan)
    sharded = plan.problem.data_parallel is not None and plan.problem.data_parallel.zero_stage == 1
    right = []
    with schedc.runtime.load(
        plan, stages=stages, loss_fn=loss_fn, timeout_s=60, pipeline_group=pipeline_group, data_parallel_group=data_group
    ) as pipe:
        for step in range(2):
            batch = whole_batch(plan, pipelines, step)
            mine = [part.chunk(pipelines)[number] for part in batch]
            pipe.step(*mine)
            torch.autograd.backward(loss_fn(whole(batch[0]), batch[1]))
            weights = [one.weight for one in pipe.shards()] if sharded else [w for one in stages.values() for w in one.parameters()]
            with torch.no_grad():
                for weight in dict.fromkeys((*weights, *whole.parameters())):
                    assert weight.grad is not None
                    weight.sub_(weight.grad, alpha=0.1)
                    weight.grad = None
                loss = pipe.evaluate(*mine)
                right.append(close(loss, loss_fn(whole(batch[0]), batch[1])))
    return right


def evaluated_on_failing(rank: int, plan: Plan) -> dict[str, Any]:
    """What is wrong with an evaluation in which rank 0's channel fails, and with the step and the evaluation after it."""
    whole = whole_model(plan)
    wrong: dict[str, Any] = {}
    faults = Faults(send={2: "raise"}) if rank == 0 else Faults()
    with (
        warnings.catch_warnings(record=True, action="always") as said,
        on_failing([faults]),
        schedc.runtime.load(plan, stages=make_stages(plan, rank), loss_fn=loss_fn, timeout_s=20) as pipe,
    ):
        for number in range(3):
            inputs, targets = make_batch(plan, number)
            loss = pipe.step(inputs, targets) if number == 1 else pipe.evaluate(inputs, targets)
            if not close(loss, loss_fn(whole(inputs), targets).detach()):
                wrong[f"loss {number}"] = loss
    if not any("carries what they exchange from now on" in str(one.message) for one in said):
        wrong["warned"] = [str(one.message) for one in said]
    return wrong
