"""Attention of a sequence in slices: what torch computes for the whole sequence, in value and gradients, in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from runs.stage_blocks import WAYS, assert_equal, gradients, run_all
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from schedc.errors import InvalidInput
from schedc.runtime import length_of, slice_attention
from schedc.runtime.stage.block import StageBlock
from schedc.runtime.stage.recompute import Buffers

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, LENGTH, OF_HEAD = 8, 12, 4
LENGTHS = {"whole": (12,), "two": (6, 6), "four": (3, 3, 3, 3), "unequal": (5, 1, 6)}


def turned(x: torch.Tensor, first: int) -> torch.Tensor:
    """Rotary positions, from `first` on."""
    angles = torch.arange(first, first + x.shape[-2]).double().unsqueeze(-1) / 10.0 ** torch.arange(OF_HEAD // 2)
    one, two = x.chunk(2, -1)
    return torch.cat([one * angles.cos() - two * angles.sin(), one * angles.sin() + two * angles.cos()], -1)


class Attention(nn.Module):
    """Attention with 2 heads of queries and `heads` of keys, in slices or, with None as the state, of a whole sequence."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.queries, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.both = nn.Linear(WIDTH, 2 * heads * OF_HEAD)

    def heads(self, x: torch.Tensor) -> list[torch.Tensor]:
        keys, values = self.both(x).chunk(2, -1)
        return [each.unflatten(-1, (-1, OF_HEAD)).transpose(1, 2) for each in (self.queries(x), keys, values)]

    def forward(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        q, k, v = self.heads(x)
        first = length_of(state)
        found, state = slice_attention(turned(q, first), turned(k, first), v, state)
        return x + self.out(found.transpose(1, 2).flatten(2)), state

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads(x)
        found = scaled_dot_product_attention(turned(q, 0), turned(k, 0), v, is_causal=True, enable_gqa=k.shape[1] == 1)
        result: torch.Tensor = x + self.out(found.transpose(1, 2).flatten(2))
        return result


def blocks_of(stage: Attention, x: torch.Tensor, lengths: Sequence[int], *, split: bool, recompute: bool) -> tuple[Any, Any]:
    """F of each slice; blocks and outputs. Of a state the tensors of a block are one after another."""
    blocks, outputs = [], []
    given: list[Any] = []
    for piece in torch.split(x, list(lengths), 1):

        def work(x: torch.Tensor, *flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y, state = stage(x, tuple(zip(flat[::2], flat[1::2], strict=True)) or None)
            return (y, *(one for pair in state for one in pair))

        inputs = [piece.detach().clone().requires_grad_(), *given]
        blocks.append(StageBlock(work, inputs, split=split, recompute=Buffers(stage) if recompute else None))
        y, *given = blocks[-1].take()
        outputs.append(y)
    return blocks, outputs


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_slices_are_exact(lengths: tuple[int, ...], way: str, recompute: bool, heads: int) -> None:
    torch.manual_seed(0)
    stage, x = Attention(heads).double(), torch.randn(2, LENGTH, WIDTH).double().requires_grad_()
    gradient = torch.randn(2, LENGTH, WIDTH).double()
    expected = stage.whole(x)
    torch.autograd.backward(expected, gradient)
    weights = gradients(stage)
    stage.zero_grad()
    blocks, outputs = blocks_of(stage, x, lengths, split=way != "BW", recompute=recompute)
    torch.testing.assert_close(torch.cat(outputs, 1), expected, rtol=1e-12, atol=1e-13)
    back: list[Any] = [None] * (2 * len(lengths))
    given: list[Any] = []
    for block, own in zip(reversed(blocks), reversed(torch.split(gradient, list(lengths), 1)), strict=True):
        first, *back = run_all(block, way, (own, *back))
        given.insert(0, first)
    assert_equal([torch.cat(given, 1), *gradients(stage)], [x.grad, *weights])


def test_a_state_copies_no_keys() -> None:
    state = None
    own = []
    for length in (3, 2, 4):
        keys, values = torch.ones(1, 2, length, OF_HEAD), torch.ones(1, 2, length, OF_HEAD)
        own += [keys, values]
        _, state = slice_attention(torch.ones(1, 2, length, OF_HEAD), keys, values, state)
    assert state is not None
    assert all(one is other for one, other in zip([one for pair in state for one in pair], own, strict=True))
    assert [length_of(state), length_of(None)] == [9, 0]


def test_a_state_that_does_not_fit_is_refused() -> None:
    some = torch.ones(1, 2, 3, OF_HEAD)
    with pytest.raises(
        InvalidInput, match=r"a slice has keys \[1, 2, 3, 4\] and queries \[1, 2, 3, 4\] behind keys \[2, 2, 3, 4\]"
    ):
        slice_attention(some, some, some, ((torch.ones(2, 2, 3, OF_HEAD),) * 2,))
    with pytest.raises(InvalidInput, match="as many queries as keys"):
        slice_attention(some[:, :, :2], some, some, None)
