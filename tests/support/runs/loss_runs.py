"""What rank processes run in the tests of losses, beside the same model without a pipeline.

Losses with weights, evaluations, loss functions with weights of their own.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from runs.faults import Faults
from runs.harness import SAMPLES, Run, load, loss_fn, make_batch, make_stages, relative_error, weights_of, whole_model
from runs.retry_runs import on_failing
from runs.training_runs import clipping_error
from schedc.runtime.common.failure import NonFiniteLoss

if TYPE_CHECKING:
    from schedc.ir.plan import Plan

IGNORED = -100


def losses_of_microbatches(rank: int, plan: Plan) -> tuple[list[float], list[float]]:
    """The losses that the pipe says, and those of the model without a pipeline, by microbatch."""
    whole = whole_model(plan)
    inputs, targets = make_batch(plan, 0)
    with load(plan, make_stages(plan, rank)) as pipe:
        assert pipe.losses.shape == (0,)
        pipe.step(inputs, targets)
        assert (pipe.losses.dtype, pipe.losses.requires_grad) == (torch.float64, False)
        found = pipe.losses.tolist()
    both = zip(inputs.chunk(len(found)), targets.chunk(len(found)), strict=True)
    return found, [loss_fn(whole(x), y).item() for x, y in both]


def tokens_of(targets: torch.Tensor, microbatches: int) -> torch.Tensor:
    """How many targets of each microbatch count."""
    return torch.stack([(part != IGNORED).sum() for part in targets.chunk(microbatches)])


def sum_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum over the tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")


def averaged(rank: int, plan: Plan, way: str, scale: float = 1.0) -> dict[str, float]:
    """One step over all tokens of all pipelines: the errors of its loss, of an evaluation's and of the gradients.

    Args:
        rank: of the process.
        plan: over all processes, or half of them.
        way: `weights`: mean losses by tokens; `sums`: sums of losses, divided by all tokens; `later`: as sums, not divided.
        scale: of the gradients.
    """
    run = Run(plan)
    inputs, targets = make_batch(plan, 0, run.pipelines)
    for number, part in enumerate(targets.chunk(len(targets) // SAMPLES)):  # another number of each microbatch counts
        part.view(-1)[: number % (part.numel() - 1)] = IGNORED
    mine = run.share((inputs, targets))
    count = int((targets != IGNORED).sum())
    how: dict[str, Any] = {"divide_by": 1 if way == "later" else count}
    if way == "weights":
        how = {"weights": tokens_of(mine[1], plan.problem.microbatches)}
    expected = loss_fn(run.outputs(inputs), targets) * (count if way == "later" else 1)
    torch.autograd.backward(expected * scale)
    with run.load(loss_fn=loss_fn if way == "weights" else sum_loss) as pipe:
        evaluated = pipe.evaluate(*mine, **how)
        loss = pipe.step(*mine, **how, scale=scale)
        return {
            "loss": abs(loss.item() / expected.item() - 1),
            "evaluated": abs(evaluated.item() / expected.item() - 1),
            "gradients": max(run.gradient_errors()),
        }


def without_tokens(rank: int, plan: Plan) -> list[str]:
    """What a step raises in which a microbatch has no token, and what its losses are; then a step that is sound."""
    inputs, targets = make_batch(plan, 0)
    empty = targets.clone()
    empty[SAMPLES : 2 * SAMPLES] = IGNORED
    said = []
    with load(plan, make_stages(plan, rank)) as pipe:
        for given in (empty, targets):
            try:
                pipe.step(inputs, given, weights=tokens_of(given, plan.problem.microbatches))
            except NonFiniteLoss as error:
                said.append(str(error))
            said.append(str(pipe.losses.isnan().tolist()))
    return said


def call(rank: int, plan: Plan, given: list[dict[str, Any]], method: str = "step", before: int = 0) -> str:
    """Call this method of the pipe, where each pipeline, or each rank of the only one, is given something else, `before` steps on.

    `call` among it names another method, or `clip`, which adds up a number.
    """
    run = Run(plan)
    # A rank that is refused leaves a sum that nobody else has begun. Gloo's thread waits for it for as long as a rank may take, and
    # so does whoever collects the closed group as garbage: here a later call.
    with run.load(timeout_s=20) as pipe:
        for step in range(before):
            pipe.step(*make_batch(plan, step))
        own = dict(given[run.pipeline if run.pipelines > 1 else rank])
        method = own.pop("call", method)
        if method == "clip":
            pipe.hooks.total(torch.ones((), dtype=torch.float64))
        else:
            getattr(pipe, method)(*(() if method == "gather" else make_batch(plan, 0)), **own)
    return "accepted"


class Tempered(nn.Module):
    """Cross entropy at a temperature that is trained, with a buffer that is not."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        self.register_buffer("table", torch.ones((), dtype=torch.float64))

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss_fn(logits * self.temperature.exp() * self.table, targets) - self.temperature / 7


def tempered(rank: int, plan: Plan, recompute: bool = False) -> list[float]:
    """Two steps, clipped, with a loss function that is trained: the errors of losses, norms and weights, its own among them."""
    run, own, reference = Run(plan), Tempered(), Tempered()
    run.whole_loss = reference
    errors = []
    with run.load(loss_fn=own, grad_dtype=torch.float64, recompute=recompute) as pipe:
        for step in range(2):
            run.clear()
            loss, expected = run.step(step)
            errors.append(abs(loss.item() - expected.item()))
            # without a swap_group, whose processes have others, all count
            errors.append(clipping_error(run, 0.1, local=weights_of(pipe.modules)))
            run.descend()
        pipe.gather()
        if plan.problem.paths[0][-1] in run.stages:
            errors.append(relative_error(own.temperature.detach(), reference.temperature.detach()))
        return errors + run.weight_errors()


def evaluated(rank: int, plan: Plan, recompute: bool = False) -> dict[str, Any]:
    """What is wrong with evaluations before the first step, between two, and with a smaller batch; nothing, if all is well."""
    stages = {stage: nn.Sequential(module, nn.Dropout(0.5)).eval() for stage, module in make_stages(plan, rank).items()}
    whole = whole_model(plan).eval()
    weights = weights_of(stages)
    wrong: dict[str, Any] = {}
    with load(plan, stages, recompute=recompute) as pipe:
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
            ends = [microbatch for microbatch in range(plan.problem.microbatches) if plan.problem.path(microbatch)[-1] in stages]
            if sorted(outputs) != ends or any(not close(output, expected[at][0]) for at, output in outputs.items()):
                wrong[f"outputs {number}"] = sorted(outputs)
            if not close(pipe.losses, torch.stack([one for _, one in expected])) or not close(loss, pipe.losses.mean()):
                wrong[f"losses {number}"] = loss
            for old, weight in zip(before, weights, strict=True):
                if (old is None) != (weight.grad is None) or (old is not None and not torch.equal(old, weight.grad)):  # type: ignore[arg-type]
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


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two tensors are equal but for rounding."""
    return torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def evaluated_over_pipelines(rank: int, plan: Plan) -> list[bool]:
    """An evaluation after an optimizer's step, over all pipelines: whether its loss is that of the model that was trained."""
    run = Run(plan)
    right = []
    with run.load() as pipe:
        for step in range(2):
            run.step(step)
            assert all(weight.grad is not None for weight in run.weights)
            run.descend()
            run.clear()
            inputs, targets = run.batch(step)
            with torch.no_grad():
                right.append(close(pipe.evaluate(*run.share((inputs, targets))), loss_fn(run.outputs(inputs), targets)))
    return right


def evaluated_on_failing(rank: int, plan: Plan) -> dict[str, Any]:
    """What is wrong with an evaluation in which rank 0's channel fails, and with the step and the evaluation after it."""
    whole = whole_model(plan)
    wrong: dict[str, Any] = {}
    faults = Faults(send={2: "raise"}) if rank == 0 else Faults()
    with (
        warnings.catch_warnings(record=True, action="always") as said,
        on_failing([faults]),
        load(plan, make_stages(plan, rank), timeout_s=20) as pipe,
    ):
        for number in range(3):
            inputs, targets = make_batch(plan, number)
            loss = pipe.step(inputs, targets) if number == 1 else pipe.evaluate(inputs, targets)
            if not close(loss, loss_fn(whole(inputs), targets).detach()):
                wrong[f"loss {number}"] = loss
    if not any("carries what they exchange from now on" in str(one.message) for one in said):
        wrong["warned"] = [str(one.message) for one in said]
    return wrong
