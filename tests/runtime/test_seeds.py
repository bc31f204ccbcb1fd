"""The share of a microbatch's loss in half precision: no gradient is off by what 1/12 is off in that type."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.plans import plan_of
from inputs.problems import make_problem
from torch import nn

from schedc.errors import Unsupported
from schedc.runtime.common.program import program_of
from schedc.runtime.stage.batches import Microbatches
from schedc.runtime.stage.training import Training
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 64
HALF = (torch.bfloat16, torch.float16)


Batch = tuple[torch.Tensor, torch.Tensor]


def step(stage: nn.Module, loss_fn: Callable[..., Any], microbatches: int, method: str, batch: Batch, recompute: bool) -> None:
    """One step of one rank that has the whole model."""
    problem = make_problem(1, microbatches, costs_ns=(10, 12, 9))
    plan = plan_of(problem, constructive(method)(problem))
    program = program_of(plan, 0)
    training = Training(plan, program, {0: stage}, loss_fn, recompute={0} if recompute else ())
    losses: Any = SimpleNamespace(add=lambda microbatch, loss: None)
    inputs, targets = (part.chunk(microbatches) for part in batch)
    training.begin(Microbatches(inputs, targets), losses)
    for instruction in program.instructions:
        training.run(instruction, ())
    training.finish()


def product(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A loss in the type of the output, whose gradient is the target."""
    return (output * target).sum()


def widened(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The same, cast when it is too late."""
    return product(output, target).float() * 1.0


def in_place(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A loss that changes what it gets."""
    before = output.sum() * 0
    return output.mul_(target).sum() + before


def wide(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """As it should be."""
    return product(output.float(), target.float())


def error(stage: nn.Module, loss_fn: Callable[..., Any], microbatches: int, method: str, recompute: bool = False) -> float:
    """By how much all gradients of a weight are too large, found in half precision and added up in float64."""
    torch.manual_seed(0)
    dtype = next(stage.parameters()).dtype
    inputs = torch.eye(WIDTH, dtype=dtype).repeat(microbatches, 1)  # so that no sum in a layer is rounded
    targets = torch.randn(microbatches * WIDTH, WIDTH).to(dtype)
    for weight in stage.parameters():
        weight.grad = None
        weight.grad_dtype = torch.float64
    step(stage, loss_fn, microbatches, method, (inputs, targets), recompute)
    (grad,) = (weight.grad for weight in stage.parameters())
    expected = targets.double().view(microbatches, WIDTH, WIDTH).sum(0).t() / microbatches
    assert grad is not None
    return float((grad * expected).sum() / expected.square().sum()) - 1


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("loss_fn", [product, widened, in_place, wide])
@pytest.mark.parametrize(("method", "recompute"), [("1f1b", False), ("zb-h1", False), ("zb-h1", True)])
def test_no_gradient_has_the_error_of_the_share(dtype: torch.dtype, loss_fn: Any, method: str, recompute: bool) -> None:
    """1/12 is 0.195 % too large in bfloat16, 0.024 % too small in float16."""
    stage = nn.Linear(WIDTH, WIDTH, bias=False).to(dtype)
    limit = abs(float(torch.tensor(1 / 12, dtype=dtype)) * 12 - 1) / 4
    assert abs(error(stage, loss_fn, 12, method, recompute)) < limit


@pytest.mark.parametrize("dtype", [*HALF, torch.float32, torch.float64])
def test_shares_that_are_powers_of_two_are_exact(dtype: torch.dtype) -> None:
    stage = nn.Linear(WIDTH, WIDTH, bias=False).to(dtype)
    assert abs(error(stage, product, 8, "zb-h1")) < (1e-6 if dtype == torch.float16 else 1e-15)  # float16 underflows


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-7), (torch.float64, 1e-15)])
def test_wider_losses(dtype: torch.dtype, limit: float) -> None:
    assert abs(error(nn.Linear(WIDTH, WIDTH, bias=False).to(dtype), product, 12, "zb-h1")) < limit


def test_a_loss_with_weights_of_its_own() -> None:
    """They would miss what the stage's gradients get; in float32 all is well."""
    stage = nn.Linear(WIDTH, WIDTH, bias=False).bfloat16()
    own = torch.ones((), dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(Unsupported, match=r"torch.bfloat16 loss .* 1/12, .* compute the loss in float32$"):
        error(stage, lambda output, target: product(output, target) * own, 12, "zb-h1")
    assert abs(error(stage, lambda output, target: wide(output, target) * own.float(), 12, "zb-h1")) < 5e-4
    assert abs(error(stage, lambda output, target: product(output, target) * own, 8, "zb-h1")) < 1e-15


def test_a_stage_that_gives_its_weight() -> None:
    """What the loss does to the gradient stays with the loss: the weight itself keeps no hook."""
    weight = nn.Parameter(torch.randn(WIDTH, WIDTH).bfloat16())

    class Weight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight

    inputs, targets = torch.zeros(12, 1), torch.randn(12 * WIDTH, WIDTH).bfloat16()
    step(Weight(), product, 12, "zb-h1", (inputs, targets), False)
    assert not weight._backward_hooks
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad.double(), targets.double().view(12, WIDTH, WIDTH).mean(0), rtol=0.02, atol=0.02)
