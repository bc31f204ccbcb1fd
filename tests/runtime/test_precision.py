"""Autocast around a step, and gradients that add up in a wider type than the weights'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.few_plans import made_by
from runs import feature_runs
from runs.stage_blocks import WAYS, WIDTH, gradients, run_all
from torch import nn

from schedc.runtime.replicas.buckets import set_gradient_type
from schedc.runtime.stage.block import StageBlock

if TYPE_CHECKING:
    from runs.processes import Ranks


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("method", "options"), [("1f1b", {}), ("zb-h1", {}), ("zb-v", {"placement": "wave", "chunks": 2})], ids=str
)
def test_autocast(two: Ranks, method: str, options: dict[str, Any], recompute: bool) -> None:
    """The forwards are autocast, the backwards are not; what comes out is what the model gives without a pipeline.

    Nearly bit by bit: sums of several terms may add them up in another order.
    """
    results = two.run(feature_runs.autocast, made_by(method, **options), recompute)
    for result in results:
        assert isinstance(result, dict), result
        assert result["seen"] == {("forward", True), ("backward", False)}
        assert result["losses"] == pytest.approx(result["expected"], rel=1e-6)
        assert result["error"] < 1e-5
    assert set.union(*(result["dtypes"] for result in results)) == {"torch.float32", "torch.bfloat16"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "placement"), [("1f1b", "unidirectional"), ("zb-h1", "unidirectional"), ("chimera", "bidirectional")]
)
def test_gradients_add_up_in_float32(two: Ranks, method: str, placement: str) -> None:
    """Those that replicas inside a pipeline sum, too."""
    made = made_by(method, microbatches=64, placement=placement)
    narrow = two.run(feature_runs.accumulated, made, None)
    wide = two.run(feature_runs.accumulated, made, torch.float32)
    for (narrow_error, narrow_type), (wide_error, wide_type) in zip(narrow, wide, strict=True):
        assert (narrow_type, wide_type) == ("torch.bfloat16", "torch.float32")
        assert wide_error < 0.8 * narrow_error


class Shared(nn.Module):
    """A weight that B computes the gradient of, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.layer = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x @ self.weight)) @ self.weight.t()


@pytest.mark.parametrize("way", WAYS)
def test_every_weight_of_a_block_adds_up_in_the_wider_type(way: str) -> None:
    torch.manual_seed(0)
    stage = Shared().bfloat16()
    before = torch.randn(WIDTH, WIDTH).bfloat16()
    stage.weight.grad = before.clone()
    set_gradient_type([stage], torch.float32)
    sums: list[torch.Tensor] = []
    for _ in range(3):
        block = StageBlock(stage, [torch.randn(2, 5, WIDTH).bfloat16().requires_grad_()], split=way != "BW")
        block.take()
        (given,) = run_all(block, way, (torch.randn(2, 5, WIDTH).bfloat16(),))
        assert given is not None
        assert given.dtype == torch.bfloat16
        sums = [one.clone() for one in gradients(stage) if one is not None]
        assert [one.dtype for one in sums] == [torch.float32] * 3
    assert any(bool((one != one.bfloat16()).any()) for one in sums)  # more digits than bf16 has
    assert float((sums[0] - before).norm()) > 0
