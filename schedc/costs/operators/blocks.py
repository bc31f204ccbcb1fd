"""The operators of a model's layers: blocks, embedding, head with the loss, and the modules that predict further tokens.

A block has for each sublayer a norm, the sublayer between collectives of tensor parallelism, and the residual sum.
"""

from __future__ import annotations

from dataclasses import replace

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
    Vision,
)
from schedc.costs.operators.attention import attention_operators, latent_attention_operators
from schedc.costs.operators.operator import (
    GRADIENT_BYTES,
    Engine,
    Operator,
    Operators,
    OperatorWork,
    collective,
    elementwise,
    matrix_product,
)
from schedc.costs.operators.sublayers import experts_operators, feed_forward_operators, mamba_operators

TOKEN_BYTES = 8
"""Of a token's number."""
LOSS_BYTES = 4
"""The loss is computed from logits of 32 bits."""


def block_operators(block: Block, architecture: Architecture | Vision, setting: Setting) -> Operators:
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
            inner = attention_operators(sublayer, hidden, setting)
        case LatentAttention():
            latent = sublayer.kv_rank + sublayer.rotary_dim + (hidden if sublayer.query_rank is None else sublayer.query_rank)
            gather, inner = collective("gather", setting, latent), latent_attention_operators(sublayer, hidden, setting)
        case FeedForward():
            inner = feed_forward_operators(sublayer, hidden, setting)
        case Experts():
            inner = experts_operators(sublayer, hidden, setting)
            if not sublayer.shared_width:
                return inner
        case Mamba():
            inner = mamba_operators(sublayer, hidden, setting)
    return [*gather, *inner, *scatter]


def kind_of(block: Block) -> str:
    """What a block is, for people: `attention + feed-forward`."""
    return " + ".join(sublayer.kind for sublayer in block.sublayers)


def norm(architecture: Architecture | Vision, setting: Setting) -> Operator:
    """A norm of the hidden state; keeps its input for B."""
    backward = 3 + (2 if setting.selective_recompute else 0)
    parameters = architecture.hidden * (2 if architecture.norm_bias else 1)
    elements = setting.own_tokens * architecture.hidden
    return elementwise("norm", setting, elements, forward=2, backward=backward, kept=1, parameters=parameters)


def embedding_operators(architecture: Architecture, setting: Setting, *, held: bool = True, positions: bool = True) -> Operators:
    """Each device looks its part of the vocabulary up; then the devices of a tensor-parallel group sum their results.

    The matrix is `held`, or counted elsewhere; `positions` have one of their own, where the model learns them.
    """
    hidden, size, tokens = architecture.hidden, setting.element_bytes, setting.tokens
    moved, weights = tokens * hidden, setting.rows(architecture.vocabulary) * hidden
    look_up = Operator(
        name="embedding",
        forward=OperatorWork(memory_bytes=2 * moved * size),
        # The gradient is a matrix as large as the weights, written with zeros, then added to the sum: torch's
        # `embedding_dense_backward`.
        backward_weight=OperatorWork(memory_bytes=2 * moved * size + weights * (2 * size + 2 * GRADIENT_BYTES)),
        parameters=weights * held + architecture.positions * hidden * positions,
        kept_for_weight_bytes=tokens * TOKEN_BYTES,
        gradient_bytes=setting.own_tokens * hidden * size,
        working_bytes=(moved + weights) * size,
    )
    return [look_up, *collective("scatter", setting, hidden)]


def head_operators(architecture: Architecture, setting: Setting, *, held: bool = True) -> Operators:
    """The last norm, the logits, and their loss; the matrix is `held`, or counted elsewhere.

    Where the model shares one matrix between embedding and head, each of the two still has a copy: they are on different ranks.
    """
    rows, size = setting.rows(architecture.vocabulary), setting.element_bytes
    logits = setting.tokens * rows
    if setting.is_megatron:
        # Read for the sum, read again, and their gradient written in their place; B scales it (Transformer Engine,
        # cross_entropy.py).
        forward, backward, kept, working = 3 * size, 2 * size, size, 0
    else:
        # Converted, then read for the largest, for the sum, and written normalized.
        forward, backward, kept, working = size + 4 * LOSS_BYTES, size + LOSS_BYTES, LOSS_BYTES, size + LOSS_BYTES
    loss = Operator(
        name="loss",
        engine=Engine.LOSS,
        forward=OperatorWork(memory_bytes=logits * forward),
        backward_input=OperatorWork(memory_bytes=logits * backward),
        kept_for_input_bytes=logits * kept,
        working_bytes=logits * working,
    )
    matrix = matrix_product("logits", setting, architecture.hidden, rows, kept=setting.own_tokens, held=held, gathered=True)
    if setting.is_megatron:
        # Its product adds to the sum of gradients, and hands autograd an empty one (`LinearWithGradAccumulation`).
        matrix = replace(matrix, working_bytes=matrix.working_bytes + rows * architecture.hidden * size)
    return [
        norm(architecture, setting),
        *collective("gather", setting, architecture.hidden),
        matrix,
        loss,
    ]


def further_token_operators(block: Block, architecture: Architecture, setting: Setting, *, held: bool) -> Operators:
    """A multi-token-prediction module.

    The next token's embedding, whose matrix is `held` as a copy (`second_embedding`) or counted elsewhere, norms of it and of the
    hidden state, a projection of both, a block, and logits with their loss by the model's own head, whose parameters are not
    counted again.
    """
    hidden, own = architecture.hidden, setting.own_tokens
    return [
        *embedding_operators(architecture, setting, held=held, positions=False),
        norm(architecture, setting),
        norm(architecture, setting),
        *collective("gather", setting, 2 * hidden),
        matrix_product("joint projection", setting, 2 * hidden, hidden / setting.tensor_parallel, kept=own, gathered=True),
        *collective("scatter", setting, hidden),
        *block_operators(block, architecture, setting),
        *head_operators(architecture, setting, held=False),
    ]
