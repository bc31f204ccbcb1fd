"""Stages, and their backwards in all the ways that a plan may have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.multiprocessing import reductions

if TYPE_CHECKING:
    from schedc.runtime.common.boundary import Value
    from schedc.runtime.stage.block import StageBlock

WIDTH = 6
WAYS = ("BW", "B W", "B W/0 W/1 W/2")


class Residual(nn.Module):
    """Norm, two linear layers with an activation between, and the way around them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return result


class Watching(nn.Module):
    """Layers whose inputs and outputs are watched: `live()` says which of them are still in memory."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.seen: list[Any] = []
        self.watch: Any = reductions.StorageWeakRef

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = [self.watch(x.untyped_storage())]
        for layer in self.layers:
            x = layer(x)
            self.seen.append(self.watch(x.untyped_storage()))
        return x

    def live(self) -> list[int]:
        return [index for index, storage in enumerate(self.seen) if not storage.expired()]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        result: torch.Tensor = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return result


def run_all(block: StageBlock, way: str, gradients: Value) -> Value:
    """The backward of a block in one of the `WAYS`; the inputs' gradients."""
    if way == "BW":
        block.backward(gradients)
        return block.take()
    block.backward_input(gradients)
    given = block.take()
    if way == "B W":
        block.backward_weight()
    else:
        for part in range(3):
            block.backward_weight(part, (1, 2, 1))
    return given


def gradients(stage: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in stage.parameters()]


def assert_equal(found: list[torch.Tensor | None], expected: list[torch.Tensor | None]) -> None:
    assert [one is None for one in found] == [one is None for one in expected]
    for one, other in zip(found, expected, strict=True):
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
