"""What rank processes run in the tests of shapes that change: steps on batches of other lengths and sizes, beside one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import nn

from runs.harness import TOKENS, Run, load, loss_fn, make_batch, make_stages, noting
from schedc.runtime.session import shapes as call_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan

Shape = tuple[int, int]
"""Samples and tokens."""


def made(number: int, shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    inputs, targets = torch.randint(TOKENS, (2, *shape), generator=torch.Generator().manual_seed(number))
    return inputs, targets


def train(
    rank: int, plan: Plan, batches: Sequence[Shape | list[Shape]], steady: int = call_shapes.STEADY, **options: Any
) -> tuple[list[float], list[int]]:
    """Train on batches of these shapes, or of microbatches of these, and the whole model on the same.

    `steady` is after how many steps of the same shapes receives are posted before those of the next are known.

    Returns:
        Of each step the largest relative error of its loss, of an evaluation's before it, and of all gradients; and for how many
        boundaries and shapes this rank has learnt in it what is exchanged.
    """
    run, errors, learnt = Run(plan), [], []
    with patch.object(call_shapes, "STEADY", steady), run.load(**options) as pipe:
        for number, shapes in enumerate(batches):
            known = len(pipe.steps.wiring.boundaries)
            run.clear()
            if isinstance(shapes, list):
                parts = [made(10 * number + at, shape) for at, shape in enumerate(shapes)]
                given: Any = [[part[side] for part in parts] for side in range(2)]
                right = torch.stack([loss_fn(run.outputs(x), y) for x, y in parts]).mean()
            else:
                inputs, targets = made(number, shapes)
                right = loss_fn(run.outputs(inputs), targets)
                given = run.share((inputs, targets))
            torch.autograd.backward(right)
            losses = [pipe.evaluate(*given).item()] if number % 2 else []
            losses.append(pipe.step(*given).item())
            errors.append(max(*(abs(loss - right.item()) / right.item() for loss in losses), *run.gradient_errors()))
            learnt.append(len(pipe.steps.wiring.boundaries) - known)
            run.descend()
    return errors, learnt


class Longer(nn.Module):
    """A first stage that gives one token more in each forward, whatever it takes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.cat([self.inner(x)] + [self.inner(x[:, :1])] * self.calls, dim=1)


def mean_square(output: torch.Tensor, _: object) -> torch.Tensor:
    """A loss without targets."""
    return output.pow(2).mean()


def vary(rank: int, plan: Plan, varying: bool) -> list[Any]:
    """Two steps of a first stage whose outputs' shapes do not follow from its inputs': what they say, or the largest error."""
    run, lines = Run(plan), list[Any]()
    inner, *others = run.whole
    run.whole = [Longer(inner), *others]
    if rank == 0:
        run.stages = {0: Longer(run.stages[0])}
    with noting(lines), run.load(loss_fn=mean_square, varying=varying) as pipe:
        for number in range(2):
            run.clear()
            inputs, targets = make_batch(plan, number)
            losses = [mean_square(run.outputs(part), None) for part in torch.chunk(inputs, plan.problem.microbatches)]
            torch.autograd.backward(torch.stack(losses).mean())
            pipe.step(inputs, targets)
            lines.append(max(run.gradient_errors()))
    return lines


def mistake(rank: int, plan: Plan, given: dict[str, Any]) -> tuple[list[str], bool]:
    """A step, one that all ranks call with a mistake in it, and another: what is said, and whether gradients are the first's."""
    stages, lines = make_stages(plan, rank), list[str]()
    weights = [*nn.ModuleList(stages.values()).parameters()]
    with load(plan, stages) as pipe:
        inputs, targets = make_batch(plan, 0)
        pipe.step(inputs, targets)
        first = [torch.as_tensor(weight.grad) for weight in weights]
        for weight in weights:
            weight.grad = None
        with noting(lines):
            pipe.step(**{"inputs": inputs, "targets": targets, **given})
        clean = all(weight.grad is None for weight in weights)
        pipe.step(inputs, targets)
    same = all(torch.equal(torch.as_tensor(weight.grad), other) for weight, other in zip(weights, first, strict=True))
    return lines, same and clean


class Scaled(nn.Module):
    """A piece of the model that takes a factor."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, *, factor: float = 1.0) -> torch.Tensor:
        found: torch.Tensor = self.inner(x) * factor
        return found


def smoothed(logits: torch.Tensor, targets: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
    """Cross entropy, smoothed."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), label_smoothing=smoothing)


def mistake_alone(rank: int, plan: Plan, mistakes: list[dict[str, Any]]) -> list[Any]:
    """Steps in which rank 1 alone is given something by name: rightly, with each of these mistakes, rightly, and nothing.

    Returns:
        Of each the largest error, or what is said.
    """
    run, found = Run(plan), list[Any]()
    run.stages = {stage: Scaled(module) for stage, module in run.stages.items()}
    run.whole = [Scaled(module) for module in run.whole]
    right = {"kwargs": {"factor": 1.0}, "loss_kwargs": {"smoothing": 0.0}}
    with run.load(loss_fn=smoothed) as pipe:
        for number, given in enumerate((right, *mistakes, right, {})):
            run.clear()
            pipe.evaluate(*make_batch(plan, 0))
            with noting(found):
                loss, expected = run.step(number, **(given if rank else {}))
                found.append(max(abs(loss.item() - expected.item()), *run.gradient_errors()))
    return found


class Shifted(nn.Module):
    """A piece of the model that adds a number of each sample, and takes a factor."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, shift: torch.Tensor, *, factor: float = 1.0) -> torch.Tensor:
        found: torch.Tensor = self.inner(x) * factor + shift[:, None, None]
        return found


def masked(logits: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor, *, smoothing: float) -> torch.Tensor:
    """A loss that takes more by name: the mean over a mask that has as much in each sample."""
    each = nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), label_smoothing=smoothing, reduction="none")
    return each[mask.flatten()].mean()


def named(rank: int, plan: Plan, sizes: Sequence[int], **options: Any) -> list[Any]:
    """Steps and evaluations with keyword arguments and outputs: the largest errors of losses, outputs and gradients."""
    run, found = Run(plan), list[Any]()
    run.stages = {stage: Shifted(module) for stage, module in run.stages.items()}
    run.whole = [Shifted(module) for module in run.whole]
    with noting(found), run.load(loss_fn=masked, **options) as pipe:
        for number, samples in enumerate(sizes):
            run.clear()
            inputs, targets = made(number, (samples, 3))
            shift, mask = torch.arange(samples).double() / 8, torch.tensor([[True, False, True]]).expand(samples, -1)
            y: Any = inputs
            for piece in run.whole:
                y = piece(y, shift, factor=0.5)
            right = masked(y, targets, mask, smoothing=0.1)
            torch.autograd.backward(right)
            kwargs: Any = {"shift": shift, "factor": 0.5}
            if number == 1:  # by stage, of all ranks alike
                kwargs = dict.fromkeys(range(len(plan.problem.stages)), kwargs)
            outputs: list[dict[int, Any]] = [{}, {}]
            given = {"kwargs": kwargs, "loss_kwargs": {"mask": mask, "smoothing": 0.1}}
            losses = [
                pipe.step(inputs, targets, outputs=outputs[0], **given),
                pipe.evaluate(inputs, targets, outputs=outputs[1], **given),
            ]
            errors = [abs(loss.item() - right.detach().item()) for loss in losses]
            if len(plan.problem.paths) == 1:
                errors += [float((pipe.merged(one) - y.detach()).abs().max()) for one in outputs if one]
            found.append(max(*errors, *run.gradient_errors()))
        with noting(found):
            pipe.step(inputs, targets, kwargs={"shift": shift, "fator": 2}, loss_kwargs=given["loss_kwargs"])
        with noting(found):
            pipe.step(inputs, targets, kwargs={"shift": [shift] * 3}, loss_kwargs=given["loss_kwargs"])
    return found
