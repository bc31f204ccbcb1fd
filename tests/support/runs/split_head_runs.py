"""What rank processes run in the tests of a split head: blocks, parts and a join in a pipeline, beside the whole model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from runs.harness import SAMPLES, TOKENS, WIDTH, load, noting, relative_error
from runs.slice_runs import Causal
from schedc.runtime import HeadJoin, HeadPart, split_cross_entropy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan

VOCABULARY = 11
LENGTH = 6


class Whole(nn.Module):
    """A block of whole sequences."""

    def __init__(self, block: Causal) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block.whole(x)


def errors_of(
    rank: int, plans: Sequence[Plan], rows: Sequence[int], *, smoothing: float = 0.0, **options: Any
) -> float | list[Any]:
    """A step and an evaluation of each of the plans, which take over while the job trains.

    Args:
        rank: this one.
        plans: of one problem: a chain of blocks, then a part for each of `rows`, then the join.
        rows: how many rows of the head's weight each part has; those beyond the vocabulary are padding.
        smoothing: of labels.
        options: of `load`.

    Returns:
        The largest relative error of a loss or a gradient, or why a plan is refused.
    """
    problem = plans[0].problem
    join = len(problem.stages) - 1
    blocks = [Causal(stage, join + 1) for stage in range(join - len(rows))]
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(sum(rows), WIDTH).double())
    own: dict[int, nn.Module] = {}
    for stage in problem.stages_on(rank):
        if stage < len(blocks):
            own[stage] = Causal(stage, join + 1) if problem.slices else Whole(Causal(stage, join + 1))
        elif stage < join:
            first = sum(rows[: stage - len(blocks)])
            part = weight[first : first + rows[stage - len(blocks)]].detach().clone()
            own[stage] = HeadPart(part, first=first, vocabulary=VOCABULARY, label_smoothing=smoothing)
        else:
            own[stage] = HeadJoin()
    errors, lines = list[float](), list[Any]()
    loss_fn = partial(split_cross_entropy, vocabulary=VOCABULARY)
    with noting(lines), load(plans[0], own, loss_fn=loss_fn, **options) as pipe:
        for number, plan in enumerate(plans):
            if number:
                swap = pipe.swap(plan)
            while number and swap.state == "pending":
                pipe.step(*batch_of(plan, 0))
            for one in (weight, *nn.ModuleList([*blocks, *own.values()]).parameters()):
                one.grad = None
            inputs, targets = batch_of(plan, number)
            x = inputs
            for block in blocks:
                x = block.whole(x)
            logits = x @ weight[:VOCABULARY].T
            expected = cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=smoothing)
            torch.autograd.backward(expected)
            errors.append(relative_error(pipe.evaluate(inputs, targets), expected.detach()))
            errors.append(relative_error(pipe.step(inputs, targets), expected.detach()))
            for stage, module in own.items():
                if isinstance(module, HeadPart):
                    assert weight.grad is not None
                    errors.append(relative_error(module.weight.grad, weight.grad[module.first : module.first + len(module.weight)]))
                elif stage < join:
                    named = module.block if isinstance(module, Whole) else module
                    errors += [
                        relative_error(one.grad, blocks[stage].get_parameter(name).grad) for name, one in named.named_parameters()
                    ]
    largest: float = max(errors, default=1.0)
    return lines or largest


def batch_of(plan: Plan, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets: whole sequences."""
    generator, slices = torch.Generator().manual_seed(step), plan.problem.slices
    shape = SAMPLES * plan.problem.microbatches // max(1, len(slices)), sum(slices) or LENGTH
    return torch.randint(TOKENS, shape, generator=generator), torch.randint(VOCABULARY, shape, generator=generator)
