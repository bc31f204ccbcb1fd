"""What rank processes run in the tests of slices: a model in slices in a pipeline, beside whole sequences in one process."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from runs.harness import SAMPLES, TOKENS, WIDTH, grid, load, loss_fn, noting, relative_error, weights_of
from schedc.runtime import length_of, slice_attention
from schedc.runtime.session.online import ChoosingPipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

LONGEST = 32


class Causal(nn.Module):
    """A stage: positions and embeddings first, causal attention with one head of keys for two of queries, logits last."""

    def __init__(self, index: int, count: int) -> None:
        super().__init__()
        torch.manual_seed(index)
        self.table = nn.Embedding(TOKENS, WIDTH) if index == 0 else None
        self.places = nn.Embedding(LONGEST, WIDTH) if index == 0 else None
        self.norm, self.queries, self.keys = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS) if index == count - 1 else None
        self.double()

    def embedded(self, x: torch.Tensor, first: int) -> torch.Tensor:
        if self.table is None or self.places is None:
            return x
        found: torch.Tensor = self.table(x) + self.places(torch.arange(first, first + x.shape[1]))
        return found

    def heads(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.norm(x)
        keys, values = self.keys(x).chunk(2, -1)
        return [each.unflatten(-1, (-1, WIDTH // 2)).transpose(1, 2) for each in (self.queries(x), keys, values)]

    def ended(self, x: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x if self.head is None else self.head(x)

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        """A slice. The state has more in it than tensors."""
        attended = None if state is None else state["attended"]
        x = self.embedded(x, length_of(attended))
        queries, keys, values = self.heads(x)
        found, attended = slice_attention(queries, keys, values, attended)
        return self.ended(x, found), {"attended": attended, "number": 0 if state is None else state["number"] + 1}

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        """A whole sequence."""
        x = self.embedded(x, 0)
        queries, keys, values = self.heads(x)
        return self.ended(x, scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True))


def batch_of(problem: Problem, step: int, times: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets: whole sequences, `times` as long as the slices say."""
    generator = torch.Generator().manual_seed(step)
    samples = SAMPLES * problem.microbatches // len(problem.slices)
    found = torch.randint(TOKENS, (2, samples, times * sum(problem.slices)), generator=generator)
    return found[0], found[1]


def errors_of(rank: int, plans: Sequence[Plan], times: int = 1, left_out: int = 0, **options: Any) -> float | list[Any]:
    """A step and an evaluation of each of the plans of the same slices, which take over while the job trains.

    The batch is this many samples smaller than its microbatches.

    Returns:
        The largest relative error of a loss or a gradient, or why the plan is refused.
    """
    problem = plans[0].problem
    count = len(problem.stages)
    whole = [Causal(stage, count) for stage in range(count)]
    own = {stage: Causal(stage, count) for stage in problem.stages_on(rank)}
    errors, lines = list[float](), list[Any]()
    with noting(lines), load(plans[0], own, **options) as pipe:
        for number, plan in enumerate(plans):
            if number:
                swap = pipe.swap(plan)
                for again in range(2):  # the others learn of it
                    pipe.step(*batch_of(problem, again, times))
                assert swap.state == "done", swap.reason
            for weight in (*weights_of(dict(enumerate(whole))), *weights_of(own)):
                weight.grad = None
            inputs, targets = (each[left_out:] for each in batch_of(problem, number, times))
            x = inputs
            for stage in whole:
                x = stage.whole(x)
            expected = loss_fn(x, targets)
            torch.autograd.backward(expected)
            outputs: dict[int, torch.Tensor] = {}
            errors.append(relative_error(pipe.evaluate(inputs, targets, outputs=outputs), expected.detach()))
            if outputs:
                slices = [outputs[at] for at in range(problem.microbatches)]
                sequences = [
                    torch.cat(slices[at : at + len(problem.slices)], 1) for at in range(0, len(slices), len(problem.slices))
                ]
                errors.append(relative_error(torch.cat(sequences), x.detach()))
            errors.append(relative_error(pipe.step(inputs, targets), expected.detach()))
            left: Any = pipe.steps.training._called
            assert not any(states.given or states.back for states in left.values())
            for at, module in own.items():
                errors += [relative_error(one.grad, whole[at].get_parameter(name).grad) for name, one in module.named_parameters()]
    largest: float = max(errors, default=1.0)
    return lines or largest


def errors_of_pipelines(rank: int, plan: Plan) -> float:
    """Two pipelines of two ranks train together: the largest relative error of the loss or a gradient."""
    problem = plan.problem
    pipeline, own_rank = divmod(rank, problem.ranks)
    groups = dict(zip(("pipeline_group", "data_parallel_group"), grid(2, problem.ranks), strict=True))
    count = len(problem.stages)
    whole = [Causal(stage, count) for stage in range(count)]
    own = {stage: Causal(stage, count) for stage in problem.stages_on(own_rank)}
    batches = [batch_of(problem, number) for number in range(2)]
    x, targets = (torch.cat(each) for each in zip(*batches, strict=True))
    for stage in whole:
        x = stage.whole(x)
    expected = loss_fn(x, targets)
    torch.autograd.backward(expected)
    with load(plan, own, **groups) as pipe:
        errors = [relative_error(pipe.step(*batches[pipeline]), expected.detach())]
    for at, module in own.items():
        errors += [relative_error(one.grad, whole[at].get_parameter(name).grad) for name, one in module.named_parameters()]
    return max(errors)


def refusals(rank: int, plan: Plan, other: Plan) -> list[Any]:
    """What is said of stages without a state, of tensors of other lengths, of a plan of `other` slices, of ranks that choose."""
    problem, lines = plan.problem, list[Any]()
    own = {stage: Causal(stage, len(problem.stages)) for stage in problem.stages_on(rank)}
    plain = {stage: nn.Sequential(module) if rank else module for stage, module in own.items()}
    for stages, options in ((plain, {}), (own, {"sequence_dim": 0}), (own, {"kind": ChoosingPipe})):
        with noting(lines), load(plan, stages, **options):
            pass
    with noting(lines), load(plan, own) as pipe:
        inputs, targets = batch_of(problem, 0)
        for given in ((inputs[:, 1:], targets), (inputs, targets[:, :, None].expand(-1, -1, 2)[:, 1:]), (inputs[:0], targets)):
            with noting(lines):
                pipe.step(*given)
        with noting(lines):
            pipe.step(inputs, targets, weights=[1.0, 1.0])
        swap = pipe.swap(other)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3):
                pipe.step(inputs, targets)
        lines.append(str(swap.reason))
    for module in own.values():
        module.forward = lambda x, state: x  # type: ignore[method-assign]
    with noting(lines), load(plan, own) as pipe:
        pipe.step(inputs, targets)
    return lines
