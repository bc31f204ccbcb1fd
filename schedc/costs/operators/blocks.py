"""The operators of a block: for each sublayer a norm, the sublayer between collectives of tensor parallelism, the residual sum."""

from __future__ import annotations

from schedc.costs.architecture import (
    Architecture,
    Attention,
    Block,
    Experts,
    FeedForward,
    LatentAttention,
    Mamba,
    Setting,
    Sublayer,
)
from schedc.costs.operators.attention import attention_operators, latent_attention_operators
from schedc.costs.operators.feed_forward import experts_operators, feed_forward_operators
from schedc.costs.operators.mamba import mamba_operators
from schedc.costs.operators.operator import Operator, Operators, collective, elementwise


def block_operators(block: Block, architecture: Architecture, setting: Setting) -> Operators:
    """All operators of a block, in the order of the forward.

    Raises:
        Unsupported: a dimension cannot be divided as the setting asks.
    """
    operators: Operators = []
    for sublayer in block.sublayers:
        operators.append(norm(architecture, setting))
        operators += sublayer_operators(sublayer, architecture.hidden, setting)
        if block.norms_after:
            operators.append(norm(architecture, setting))
        operators.append(elementwise("residual", setting, setting.own_tokens * architecture.hidden, forward=3, backward=3))
    return operators


def sublayer_operators(sublayer: Sublayer, hidden: int, setting: Setting) -> Operators:
    """Those of one sublayer, with its collectives, without the norm before it and the sum after it.

    Raises:
        Unsupported: a dimension cannot be divided as the setting asks.
    """
    gather, scatter = collective("gather", setting, hidden), collective("scatter", setting, hidden)
    match sublayer:
        case Attention():
            return [*gather, *attention_operators(sublayer, hidden, setting), *scatter]
        case LatentAttention():
            latent = sublayer.kv_rank + sublayer.rotary_dim + (hidden if sublayer.query_rank is None else sublayer.query_rank)
            return [*collective("gather", setting, latent), *latent_attention_operators(sublayer, hidden, setting), *scatter]
        case FeedForward():
            return [*gather, *feed_forward_operators(sublayer, hidden, setting), *scatter]
        case Experts():
            around = (gather, scatter) if sublayer.shared_width else ([], [])
            return [*around[0], *experts_operators(sublayer, hidden, setting), *around[1]]
        case Mamba():
            return [*gather, *mamba_operators(sublayer, hidden, setting), *scatter]


def kind_of(block: Block) -> str:
    """What a block is, for people: `attention + feed-forward`."""
    return " + ".join(_kind(sublayer) for sublayer in block.sublayers)


def _kind(sublayer: Sublayer) -> str:
    match sublayer:
        case Attention():
            return "attention" if sublayer.window is None else "windowed attention"
        case LatentAttention():
            return "latent attention"
        case FeedForward():
            return "feed-forward"
        case Experts():
            return "experts"
        case Mamba():
            return "mamba"


def norm(architecture: Architecture, setting: Setting) -> Operator:
    """A norm of the hidden state; keeps its input for B."""
    again = 2 if setting.selective_recompute else 0
    return elementwise(
        "norm",
        setting,
        setting.own_tokens * architecture.hidden,
        forward=2,
        backward=3 + again,
        kept=1,
        parameters=architecture.hidden * (2 if architecture.norm_bias else 1),
    )
