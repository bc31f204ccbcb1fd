"""A head in parts and its join: torch's cross entropy of the whole head, in value and gradients, in one backward or in two."""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from runs.stage_blocks import WAYS, assert_equal, run_all
from torch import nn
from torch.multiprocessing import reductions
from torch.nn.functional import cross_entropy

from schedc.errors import InvalidInput
from schedc.runtime import HeadJoin, HeadPart, split_cross_entropy
from schedc.runtime.stage.block import StageBlock
from schedc.runtime.stage.recompute import Buffers

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, VOCABULARY = 5, 11
PARTS = {"one": (11,), "even": (6, 5), "uneven": (1, 7, 3), "padded": (4, 4, 4), "one all padding": (8, 8, 8), "four": (3, 3, 3, 3)}


def parts_of(weight: torch.Tensor, bias: torch.Tensor | None, rows: Sequence[int], **options: Any) -> list[HeadPart]:
    """The head in parts; rows beyond the vocabulary are random."""
    padding = sum(rows) - len(weight)
    firsts = [sum(rows[:at]) for at in range(len(rows))]
    weights = torch.split(torch.cat([weight.detach(), torch.randn(padding, WIDTH, dtype=weight.dtype)]), list(rows))
    biases = (
        [None] * len(rows) if bias is None else torch.split(torch.cat([bias.detach(), torch.randn(padding).to(bias)]), list(rows))
    )
    return [
        HeadPart(one.clone(), None if two is None else two.clone(), first=first, vocabulary=VOCABULARY, **options)
        for one, two, first in zip(weights, biases, firsts, strict=True)
    ]


def whole(parts: Sequence[HeadPart], name: str) -> torch.Tensor:
    """The gradient of the whole head's weight or bias; that of padding is 0."""
    found = torch.cat([getattr(part, name).grad for part in parts])
    assert not found[VOCABULARY:].any()
    return found[:VOCABULARY]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", PARTS.values(), ids=PARTS)
def test_a_split_head_is_exact_as_stages(rows: tuple[int, ...], way: str, recompute: bool) -> None:
    """Each V and J is a block of its own, as on ranks: what they exchange has no graph."""
    torch.manual_seed(0)
    weight, bias = torch.randn(VOCABULARY, WIDTH).double().requires_grad_(), torch.randn(VOCABULARY).double().requires_grad_()
    hidden, targets = torch.randn(2, 4, WIDTH).double().requires_grad_(), torch.randint(VOCABULARY, (2, 4))
    targets[0, 1] = -100
    expected = cross_entropy(nn.functional.linear(hidden, weight, bias).flatten(0, 1), targets.flatten())
    torch.autograd.backward(expected)
    parts = parts_of(weight, bias, list(rows))
    blocks = [
        StageBlock(
            lambda x, part=part: part(x, targets),
            [hidden.detach().clone().requires_grad_()],
            split=way != "BW",
            recompute=Buffers(part) if recompute else None,
        )
        for part in parts
    ]
    numbers = [one for block in blocks for one in block.take() if one is not None]
    assert [one.requires_grad for one in numbers] == [False, True, True] * len(parts)
    loss = partial(split_cross_entropy, targets=targets, vocabulary=VOCABULARY)
    join = StageBlock(lambda *values: loss(HeadJoin()(*values)), numbers, split=False)
    torch.testing.assert_close(join.take()[0], expected, rtol=1e-13, atol=1e-13)
    join.backward((torch.ones_like(expected),))
    back = join.take()
    given = [run_all(block, way, back[3 * at : 3 * at + 3])[0] for at, block in enumerate(blocks)]
    total = torch.stack([one for one in given if one is not None]).sum(0)
    assert_equal([total, whole(parts, "weight"), whole(parts, "bias")], [hidden.grad, weight.grad, bias.grad])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [-100, 3])
def test_options_mean_what_they_mean_in_torch(smoothing: float, reduction: Any, ignored: int) -> None:
    torch.manual_seed(1)
    weight, hidden = torch.randn(VOCABULARY, WIDTH).double().requires_grad_(), torch.randn(9, WIDTH).double()
    targets = torch.tensor([0, 3, 5, 3, 10, ignored, 7, 2, 1])
    expected = cross_entropy(hidden @ weight.T, targets, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing)
    torch.autograd.backward(expected.sum())
    parts = parts_of(weight, None, (4, 4, 4), label_smoothing=smoothing)
    joined = HeadJoin()(*(number for part in parts for number in part(hidden, targets)))
    loss = split_cross_entropy(joined, targets, vocabulary=VOCABULARY, ignore_index=ignored, reduction=reduction)
    torch.autograd.backward(loss.sum())
    assert_equal([loss, whole(parts, "weight")], [expected, weight.grad])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_large_logits_and_few_digits(dtype: torch.dtype, size: float) -> None:
    """The loss is float32; the logits are rounded once, to their type, as those of a whole head are."""
    torch.manual_seed(2)
    weight, hidden = (size * torch.randn(VOCABULARY, WIDTH)).to(dtype).requires_grad_(), torch.randn(9, WIDTH).to(dtype)
    targets = torch.randint(VOCABULARY, (9,))
    expected = cross_entropy((hidden @ weight.T).float(), targets)
    torch.autograd.backward(expected)
    parts = parts_of(weight, None, (2, 6, 3))
    loss = split_cross_entropy(
        HeadJoin()(*(number for part in parts for number in part(hidden, targets))), targets, vocabulary=VOCABULARY
    )
    torch.autograd.backward(loss)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(whole(parts, "weight"), weight.grad, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


class Capped(HeadPart):
    """Gemma's logits."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return 2 * torch.tanh(super().logits(hidden) / 2)


def test_what_follows_the_logits_is_overridden() -> None:
    torch.manual_seed(3)
    weight, hidden, targets = (
        torch.randn(VOCABULARY, WIDTH).double(),
        torch.randn(9, WIDTH).double(),
        torch.randint(VOCABULARY, (9,)),
    )
    parts = [Capped(weight[:7].clone(), first=0, vocabulary=VOCABULARY), Capped(weight[7:].clone(), first=7, vocabulary=VOCABULARY)]
    joined = HeadJoin()(*(number for part in parts for number in part(hidden, targets)))
    found = split_cross_entropy(joined, targets, vocabulary=VOCABULARY)
    torch.testing.assert_close(found, cross_entropy(2 * torch.tanh(hidden @ weight.T / 2), targets))


class Watched(HeadPart):
    """Says where its logits lie."""

    seen: Any

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        found = super().logits(hidden)
        kind: Any = reductions.StorageWeakRef
        self.seen = kind(found.untyped_storage())
        return found


@pytest.mark.parametrize("split", [False, True])
def test_a_part_keeps_hidden_states_and_logits_once(split: bool) -> None:
    """Without the garbage collector: no cycles keep anything."""
    part = Watched(torch.randn(64, WIDTH), first=0, vocabulary=64)
    targets = torch.randint(64, (9,))
    kept: list[torch.Tensor] = []
    gc.disable()
    try:
        block = StageBlock(lambda x: part(x, targets), [torch.randn(9, WIDTH).requires_grad_()], split=split)
        block.take()
        assert not part.seen.expired()
        of_sums, of_own = torch.ones(9), -torch.ones(9)
        if split:
            block.backward_input((None, of_sums, of_own))
            block.take()
            assert part.seen.expired()
            block.backward_weight()
        else:
            block.backward((None, of_sums, of_own))
        assert part.seen.expired()
    finally:
        gc.enable()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, keep):
        part(torch.randn(9, WIDTH).requires_grad_(), targets)
    weights = part.weight.untyped_storage().data_ptr()
    own = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in kept}
    own.pop(weights)
    assert sum(own.values()) == 4 * 9 * WIDTH + 4 * 9 * 64 + 9 * (4 + 8 + 1)  # hidden, logits; largest, place and part of a token


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="first=-1, vocabulary=11 and label_smoothing=0; expected 0 or more"):
        HeadPart(torch.ones(2, 2), first=-1, vocabulary=11)
    with pytest.raises(InvalidInput, match="got 4 tensors; expected three of each HeadPart"):
        HeadJoin()(*torch.ones(4, 2))
    joined = torch.ones(2), torch.zeros(2)
    with pytest.raises(InvalidInput, match="reduction 'max' of a split head's loss, expected mean, sum or none"):
        split_cross_entropy(joined, torch.tensor([0, 1]), vocabulary=3, reduction="max")  # type: ignore[arg-type]
    assert split_cross_entropy(joined, torch.tensor([0, 3]), vocabulary=3).isnan()
