"""How many weights a model has, from its dimensions alone: the numbers that are published beside a model's name.

`schedc.costs.operators` counts what a device holds of them, operator by operator; the tests compare the two.
"""

from __future__ import annotations

from schedc.costs.architecture import Architecture, Attention, Block, Experts, FeedForward, LatentAttention, Mamba, Sublayer


def parameters(architecture: Architecture) -> int:
    """Of the whole model without its multi-token-prediction modules; a matrix that embedding and head share counts once."""
    hidden, vocabulary = architecture.hidden, architecture.vocabulary
    ends = vocabulary * hidden * (1 if architecture.tied else 2) + architecture.positions * hidden
    return ends + _norm(architecture) + sum(block_parameters(block, architecture) for block in architecture.blocks)


def further_token_parameters(architecture: Architecture) -> int:
    """Of the multi-token-prediction modules, without the embedding and the head that they share with the model.

    A module has two norms, a projection of two hidden vectors to one, a block and a last norm.
    """
    hidden = architecture.hidden
    return sum(
        2 * hidden**2 + 3 * _norm(architecture) + block_parameters(block, architecture) for block in architecture.further_tokens
    )


def expert_parameters(architecture: Architecture) -> int:
    """Of all routed experts, those of multi-token-prediction modules included."""
    blocks = (*architecture.blocks, *architecture.further_tokens)
    experts = (sublayer for block in blocks for sublayer in block.sublayers if isinstance(sublayer, Experts))
    return sum(3 * architecture.hidden * each.count * each.width for each in experts)


def matrix_parameters(architecture: Architecture) -> int:
    """Those of the model, without further tokens, that each token is multiplied with; it takes two FLOPs for each in a forward."""
    hidden = architecture.hidden
    idle = architecture.positions * hidden + (0 if architecture.tied else architecture.vocabulary * hidden) + _norm(architecture)
    for block in architecture.blocks:
        idle += len(block.sublayers) * (2 if block.norms_after else 1) * _norm(architecture)
        experts = (sublayer for sublayer in block.sublayers if isinstance(sublayer, Experts))
        idle += sum(3 * hidden * (each.count - each.chosen) * each.width for each in experts)
    return parameters(architecture) - idle


def block_parameters(block: Block, architecture: Architecture) -> int:
    """Of one block, its norms included."""
    norms = len(block.sublayers) * (2 if block.norms_after else 1) * _norm(architecture)
    return norms + sum(sublayer_parameters(sublayer, architecture.hidden) for sublayer in block.sublayers)


def sublayer_parameters(sublayer: Sublayer, hidden: int) -> int:
    """Of one sublayer without the norm before it."""
    match sublayer:
        case Attention():
            queries, keys = sublayer.heads * sublayer.head_dim, sublayer.kv_heads * sublayer.head_dim
            weights = hidden * (queries + 2 * keys) + queries * hidden
            biases = (queries + 2 * keys) * sublayer.input_bias + hidden * sublayer.output_bias
            return weights + biases + 2 * sublayer.head_dim * sublayer.head_norms
        case LatentAttention():
            queries, rank = sublayer.heads * (sublayer.plain_dim + sublayer.rotary_dim), sublayer.query_rank
            to_queries = hidden * queries if rank is None else hidden * rank + rank + rank * queries
            down = hidden * (sublayer.kv_rank + sublayer.rotary_dim) + sublayer.kv_rank
            up = sublayer.kv_rank * sublayer.heads * (sublayer.plain_dim + sublayer.value_dim)
            return to_queries + down + up + sublayer.heads * sublayer.value_dim * hidden
        case FeedForward():
            matrices = (3 if sublayer.gated else 2) * hidden * sublayer.width
            return matrices + (((2 if sublayer.gated else 1) * sublayer.width + hidden) if sublayer.bias else 0)
        case Experts():
            router = sublayer.count * (hidden + sublayer.router_bias)
            return router + 3 * hidden * (sublayer.count * sublayer.width + sublayer.shared_width)
        case Mamba():
            projection = hidden * (sublayer.inner + sublayer.convolved + sublayer.heads)
            convolution = sublayer.convolved * (sublayer.convolution + 1)
            return projection + convolution + 3 * sublayer.heads + sublayer.inner + sublayer.inner * hidden


def _norm(architecture: Architecture) -> int:
    return architecture.hidden * (2 if architecture.norm_bias else 1)
