"""A loss function that is a module with weights and buffers: they are the last stage's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.few_plans import few_plan
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import loss_runs
from torch import nn

from schedc.runtime.common.program import program_of
from schedc.runtime.stage.batches import Microbatches
from schedc.runtime.stage.training import Training, with_loss
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from runs.processes import Ranks


def assert_small(results: list[Any]) -> None:
    for errors in results:
        assert isinstance(errors, list), errors
        assert max(errors) < 1e-9, errors


@pytest.mark.parametrize("name", ["zb-v", "bidirectional"])
def test_weights_of_the_loss(two: Ranks, name: str) -> None:
    assert_small(two.run(loss_runs.tempered, few_plan(name), True))


@pytest.mark.parametrize("zero", [0, 1])
def test_weights_of_the_loss_over_pipelines(four: Ranks, zero: int) -> None:
    assert_small(four.run(loss_runs.tempered, few_plan("1f1b", zero)))


class Running(nn.Module):
    """A loss in units of its running mean, which each call changes."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        error = (output - target).square().mean()
        self.scale = (self.scale + error.detach()) / 2
        return error / self.scale


def test_buffers_of_a_loss_that_is_recomputed() -> None:
    """They change once for each microbatch, as without recomputation."""
    problem = make_problem(1, 3, costs_ns=(10, 12, 9))
    plan = plan_of(problem, constructive("zb-h1")(problem))
    program, found = program_of(plan, 0), []
    for recompute in (False, True):
        torch.manual_seed(0)
        stage, loss_fn = nn.Linear(4, 4), Running()
        training = Training(plan, program, {0: stage}, loss_fn, recompute=recompute)
        losses: Any = SimpleNamespace(add=lambda microbatch, loss: None)
        training.begin(Microbatches(torch.randn(3, 4).chunk(3), torch.randn(3, 4).chunk(3)), losses)
        for instruction in program.instructions:
            training.run(instruction, ())
        training.finish()
        found.append([stage.weight.grad, loss_fn.scale])
    for one, two in zip(*found, strict=True):
        assert one is not None and two is not None
        assert torch.equal(one, two)


def test_which_modules_are_trained() -> None:
    """Names of a stage's weights stay; a loss without weights and buffers, or no module at all, changes nothing."""
    problem = make_problem(2, 4)
    stages: Any = {1: nn.Sequential(nn.Linear(2, 2))}
    assert with_loss(problem, stages, nn.CrossEntropyLoss()) is stages
    assert with_loss(problem, stages, lambda y, t: y.mean()) is stages
    assert with_loss(problem, {0: stages[1]}, nn.Linear(1, 1)) == {0: stages[1]}
    loss = nn.Linear(1, 1)
    functions: Any = (loss, loss.forward)
    for loss_fn in functions:
        modules = with_loss(problem, stages, loss_fn)
        assert [name for name, _ in modules[1].named_parameters()] == ["0.weight", "0.bias", "loss_fn.weight", "loss_fn.bias"]
