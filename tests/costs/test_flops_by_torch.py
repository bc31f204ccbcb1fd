"""FLOPs against torch's counter, on tiny models with every kind of sublayer but Mamba (whose scan torch has no operator for)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn.functional import gelu, linear, silu
from torch.utils.flop_counter import FlopCounterMode

from schedc.costs.architecture import Architecture, Attention, Block, Experts, FeedForward, LatentAttention, Setting
from schedc.costs.operators.blocks import block_operators, head_operators

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.costs.operators.operator import Operators

pytestmark = pytest.mark.slow  # loading the counter takes seconds

TOKENS, HIDDEN = 12, 48


def weight(inner: int, outer: int) -> torch.Tensor:
    """A matrix whose gradient is sought."""
    return torch.randn(outer, inner, requires_grad=True)


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention over all pairs; shapes (heads, tokens, size), with fewer heads of keys repeated."""
    keys, values = (each.repeat_interleave(len(queries) // len(each), dim=0) for each in (keys, values))
    return (torch.matmul(queries, keys.transpose(1, 2)).softmax(dim=-1)) @ values


def by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(tokens, heads × size) as (heads, tokens, size)."""
    return x.view(len(x), heads, -1).transpose(0, 1)


def joined(x: torch.Tensor) -> torch.Tensor:
    """(heads, tokens, size) as (tokens, heads × size)."""
    return x.transpose(0, 1).reshape(x.shape[1], -1)


def grouped(x: torch.Tensor) -> torch.Tensor:
    """8 heads of 6 with 2 heads of keys, then a gated layer of 80."""
    queries, keys, values = (by_head(linear(x, weight(HIDDEN, heads * 6)), heads) for heads in (8, 2, 2))
    x = linear(joined(attend(queries, keys, values)), weight(48, HIDDEN))
    return linear(silu(linear(x, weight(HIDDEN, 80))) * linear(x, weight(HIDDEN, 80)), weight(80, HIDDEN))


def plain(x: torch.Tensor) -> torch.Tensor:
    """4 heads of 12, then a plain layer of 100."""
    queries, keys, values = (by_head(linear(x, weight(HIDDEN, 48)), 4) for _ in range(3))
    x = linear(joined(attend(queries, keys, values)), weight(48, HIDDEN))
    return linear(gelu(linear(x, weight(HIDDEN, 100))), weight(100, HIDDEN))


def latent(x: torch.Tensor) -> torch.Tensor:
    """4 heads of 6 + 2 with values of 5, ranks 20 and 10, then 6 experts of 16 of which a token takes 2, and a shared one of 32."""
    queries = by_head(linear(linear(x, weight(HIDDEN, 20)), weight(20, 4 * 8)), 4)
    down = linear(x, weight(HIDDEN, 10 + 2))
    up = by_head(linear(down[:, :10], weight(10, 4 * 11)), 4)
    rotary = down[:, 10:].expand(4, TOKENS, 2)
    x = linear(joined(attend(queries, torch.cat((up[..., :6], rotary), dim=-1), up[..., 6:])), weight(4 * 5, HIDDEN))
    chances = linear(x, weight(HIDDEN, 6)).softmax(dim=-1)
    shared = linear(silu(linear(x, weight(HIDDEN, 32))) * linear(x, weight(HIDDEN, 32)), weight(32, HIDDEN))
    outputs = [shared]
    for expert in range(6):  # balanced: each has 12 × 2 / 6 tokens
        taken = x[torch.arange(4) * 3 + expert % 3]
        out = linear(silu(linear(taken, weight(HIDDEN, 16))) * linear(taken, weight(HIDDEN, 16)), weight(16, HIDDEN))
        outputs.append(out * chances[:4, expert : expert + 1])
    return torch.cat(outputs)


MODELS: dict[str, tuple[Block, Callable[[torch.Tensor], torch.Tensor]]] = {
    "grouped": (Block((Attention(heads=8, kv_heads=2, head_dim=6), FeedForward(width=80, gated=True))), grouped),
    "plain": (Block((Attention(heads=4, kv_heads=4, head_dim=12), FeedForward(width=100, gated=False))), plain),
    "latent": (
        Block(
            (
                LatentAttention(heads=4, query_rank=20, kv_rank=10, plain_dim=6, rotary_dim=2, value_dim=5),
                Experts(count=6, chosen=2, width=16, shared_width=32),
            )
        ),
        latent,
    ),
}


def flops(operators: Operators) -> tuple[float, float]:
    """Of F, and of B and W together."""
    forward = sum(operator.forward.flops for operator in operators)
    return forward, sum(operator.backward_input.flops + operator.backward_weight.flops for operator in operators)


@pytest.mark.parametrize("name", MODELS)
def test_torch_counts_the_same_flops(name: str) -> None:
    block, forward = MODELS[name]
    architecture = Architecture(name=name, hidden=HIDDEN, vocabulary=64, blocks=(block,))
    setting = Setting(sequence_length=TOKENS, fused_attention=False)
    x = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    with FlopCounterMode(display=False) as of_forward:
        y = forward(x)
    with FlopCounterMode(display=False) as of_backward:
        torch.autograd.backward(y.sum())
    assert (of_forward.get_total_flops(), of_backward.get_total_flops()) == flops(block_operators(block, architecture, setting))


def test_torch_counts_the_same_flops_of_the_head() -> None:
    architecture = Architecture(name="", hidden=HIDDEN, vocabulary=64, blocks=())
    x = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    with FlopCounterMode(display=False) as counted:
        torch.autograd.backward(linear(x, weight(HIDDEN, 64)).logsumexp(dim=-1).sum())
    assert counted.get_total_flops() == sum(flops(head_operators(architecture, Setting(sequence_length=TOKENS))))
