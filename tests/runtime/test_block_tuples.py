"""Stages that take and give several tensors: exact gradients, whichever of them have any, in one backward or in two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from runs.stage_blocks import WAYS, WIDTH, Attention, Residual, assert_equal, gradients, run_all
from torch import nn

from schedc.runtime.stage.block import StageBlock
from schedc.runtime.stage.recompute import Buffers

if TYPE_CHECKING:
    from collections.abc import Callable


class Masked(nn.Module):
    """An activation and a mask, which goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Residual()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.inner(x).masked_fill(mask, 0.0), mask


class Skipping(nn.Module):
    """An activation, and one that goes past the stage and is used on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Residual()

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.inner(x) + skip, skip


class Streams(nn.Module):
    """Two activations that meet, with one layer used for both and one for each."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.left, self.right = nn.Linear(WIDTH, WIDTH), Residual(), Attention()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.left(self.both(x)) * torch.sigmoid(y), self.right(self.both(y))


class Halves(nn.Module):
    """Two outputs of one operation, the first of them twice, and a number without a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor, unused: torch.Tensor) -> list[torch.Tensor]:
        left, right = self.inner(x).chunk(2, -1)
        return [left, right, left, x.detach().mean()]


class Apart(nn.Module):
    """Two outputs with nothing in common but the order of the tensors; the second does not depend on an input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Residual()
        self.direction, self.length = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.rand(1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.inner(x), torch.tanh(self.direction * self.length) * self.length, y.sin()


class Crossed(nn.Module):
    """An output that hangs off the way of the other: a weight, and something computed of weights that both use."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = torch.tanh(self.weight @ self.weight)
        return self.other(x) @ made.t() + y, made, self.weight


class Embedded(nn.Module):
    """A first stage: tokens and a mask to an activation, a number type for the mask, and the embedding's weight for a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.kinds = nn.Embedding(10, WIDTH), nn.Embedding(2, WIDTH)
        self.rest = nn.Sequential(Residual(), Attention())

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.rest(self.tokens(tokens) + self.kinds(mask)), mask.to(torch.int8), self.tokens.weight


class TwoTables(nn.Module):
    """A first stage of two look-ups that never meet."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.kinds = nn.Embedding(10, WIDTH), nn.Sequential(nn.Embedding(2, WIDTH), Residual())

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.tokens(tokens), self.kinds(mask)


def floats(*wanted: bool) -> list[torch.Tensor]:
    return [torch.randn(2, 5, WIDTH).double().requires_grad_(one) for one in wanted]


def tokens() -> list[torch.Tensor]:
    return [torch.randint(10, (2, 5)), torch.randint(2, (2, 5))]


STAGES: dict[str, tuple[Callable[[], nn.Module], Callable[[], list[torch.Tensor]]]] = {
    "masked": (Masked, lambda: [*floats(True), torch.rand(2, 5, WIDTH) < 0.5]),
    "skipping": (Skipping, lambda: floats(True, True)),
    "skipping without gradient": (Skipping, lambda: floats(True, False)),
    "streams": (Streams, lambda: floats(True, True)),
    "streams, one without gradient": (Streams, lambda: floats(False, True)),
    "first streams": (Streams, lambda: floats(False, False)),
    "halves": (Halves, lambda: floats(True, True)),
    "apart": (Apart, lambda: floats(True, True)),
    "first apart": (Apart, lambda: floats(False, False)),
    "crossed": (Crossed, lambda: floats(True, True)),
    "first crossed": (Crossed, lambda: floats(False, False)),
    "embedded": (Embedded, tokens),
    "two tables": (TwoTables, tokens),
}


def own(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", STAGES)
def test_gradients(name: str, way: str, recompute: bool) -> None:
    torch.manual_seed(0)
    make, make_inputs = STAGES[name]
    stage, inputs = make().double(), make_inputs()
    leaves = own(inputs)
    outputs = stage(*leaves)
    seeds = [torch.randn_like(output) if output.is_floating_point() else None for output in outputs]
    roots = [output for output in outputs if output.requires_grad]
    torch.autograd.backward(roots, [seed for output, seed in zip(outputs, seeds, strict=True) if output.requires_grad])
    wanted: list[torch.Tensor | None] = []
    for leaf in leaves:
        wanted.append(torch.zeros_like(leaf) if leaf.requires_grad and leaf.grad is None else leaf.grad)
    expected = [*wanted, *gradients(stage)]
    stage.zero_grad()
    block = StageBlock(stage, own(inputs), split=way != "BW", recompute=Buffers(stage) if recompute else None)
    given = block.take()
    for one, other in zip(given, outputs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert one is not None
        assert one.requires_grad == other.requires_grad
    assert_equal([*run_all(block, way, tuple(seeds)), *gradients(stage)], expected)


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_that_does_not_come_is_none(way: str) -> None:
    """Without a gradient for the second output, only the first counts; without any, the weights have none."""
    torch.manual_seed(0)
    stage = Streams().double()
    x, y = floats(True, True)
    stage(x, y)[0].sum().backward()
    expected = [x.grad, y.grad, *gradients(stage)]
    stage.zero_grad()
    block = StageBlock(stage, own([x, y]), split=way != "BW")
    seed, _ = block.take()
    assert seed is not None
    assert_equal([*run_all(block, way, (torch.ones_like(seed), None)), *gradients(stage)], expected)
    stage.zero_grad()
    block = StageBlock(stage, own([x, y]), split=way != "BW")
    block.take()
    found: list[Any] = list(run_all(block, way, ()))
    assert_equal([*found, *gradients(stage)], [torch.zeros_like(x), torch.zeros_like(y), *[None] * len(list(stage.parameters()))])


@pytest.mark.parametrize(
    ("name", "left_to_b"),
    [
        ("masked", set()),
        ("skipping", set()),
        ("halves", set()),
        ("apart", set()),
        ("streams", {"both.weight", "both.bias"}),
        ("crossed", {"weight"}),
        ("embedded", {"tokens.weight"}),
        ("two tables", set()),
    ],
)
def test_b_leaves_the_weights_to_w(name: str, left_to_b: set[str]) -> None:
    """But those that it uses in several places or gives to the next stage; a first stage is split like the others."""
    torch.manual_seed(0)
    make, make_inputs = STAGES[name]
    stage = make().double()
    block = StageBlock(stage, make_inputs(), split=True)
    outputs = block.take()
    block.backward_input(tuple(torch.ones_like(one) if one is not None and one.requires_grad else None for one in outputs))
    assert {key for key, weight in stage.named_parameters() if weight.grad is not None} == left_to_b
    block.backward_weight()
    assert all(weight.grad is not None for weight in stage.parameters())


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("first", [False, True])
def test_a_weight_that_is_frozen_after_its_forward(first: bool, parts: int) -> None:
    """Before B or before W: it has no gradient, as with one backward, and the others have theirs."""
    stage = nn.Sequential(Residual(), nn.Linear(WIDTH, WIDTH)).double()
    value = torch.randn(2, 5, WIDTH).double()
    for frozen in stage.parameters():
        found = []
        for way in ("BW", "before B", "before W"):
            stage.zero_grad()
            stage.requires_grad_(True)
            block = StageBlock(stage, [value.detach().requires_grad_(not first)], split=way != "BW")
            seeds = tuple(None if one is None else torch.ones_like(one) for one in block.take())
            frozen.requires_grad_(way == "before W")
            if way == "BW":
                block.backward(seeds)
            else:
                block.backward_input(seeds)
                frozen.requires_grad_(False)
                for part in range(parts):
                    block.backward_weight(part, (1,) * parts)
            found.append(gradients(stage))
        assert frozen.grad is None
        for other in found[1:]:
            assert_equal(other, found[0])
