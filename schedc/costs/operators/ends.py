"""The operators of what is not a block: embedding, head with the loss, and the modules that predict further tokens."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from schedc.costs.operators.blocks import block_operators, norm
from schedc.costs.operators.operator import (
    GRADIENT_BYTES,
    Operator,
    Operators,
    OperatorWork,
    collective,
    elementwise,
    matrix_product,
)

if TYPE_CHECKING:
    from schedc.costs.architecture import Architecture, Block, Setting

TOKEN_BYTES = 8
"""Of a token's number."""
LOSS_BYTES = 4
"""The loss is computed from logits of 32 bits."""


def embedding_operators(architecture: Architecture, setting: Setting) -> Operators:
    """Each device looks its part of the vocabulary up; then the devices of a tensor-parallel group sum their results."""
    hidden, size, tokens = architecture.hidden, setting.element_bytes, setting.tokens
    rows = ceil(architecture.vocabulary / setting.tensor_parallel)
    moved = tokens * hidden
    look_up = Operator(
        name="embedding",
        forward=OperatorWork(memory_bytes=2 * moved * size),
        backward_weight=OperatorWork(memory_bytes=moved * (size + 2 * GRADIENT_BYTES)),
        parameters=rows * hidden + architecture.positions * hidden,
        kept_for_weight_bytes=tokens * TOKEN_BYTES,
        gradient_bytes=setting.own_tokens * hidden * size,
    )
    return [look_up, *collective("scatter", setting, hidden)]


def head_operators(architecture: Architecture, setting: Setting) -> Operators:
    """The last norm, the logits, and their loss.

    Where the model shares one matrix between embedding and head, each of the two still has a copy: they are on different ranks.
    """
    return [
        norm(architecture, setting),
        *collective("gather", setting, architecture.hidden),
        *_logits(architecture, setting, parameters=True),
    ]


def further_token_operators(block: Block, architecture: Architecture, setting: Setting) -> Operators:
    """A multi-token-prediction module.

    Norms of the hidden state and of the next token's embedding, a projection of both, a block, and logits with their loss by the
    model's own head, whose parameters are not counted again.
    """
    hidden, own, size = architecture.hidden, setting.own_tokens, setting.element_bytes
    looked_up = elementwise("embedding", setting, own * hidden, forward=2, backward=3)
    return [
        looked_up,
        norm(architecture, setting),
        norm(architecture, setting),
        *collective("gather", setting, 2 * hidden),
        matrix_product(
            "joint projection",
            setting,
            2 * hidden,
            hidden / setting.tensor_parallel,
            tokens=setting.tokens,
            input_bytes=2 * own * hidden * size,
        ),
        *collective("scatter", setting, hidden),
        *block_operators(block, architecture, setting),
        norm(architecture, setting),
        *collective("gather", setting, hidden),
        *_logits(architecture, setting, parameters=False),
    ]


def _logits(architecture: Architecture, setting: Setting, *, parameters: bool) -> Operators:
    hidden, rows = architecture.hidden, ceil(architecture.vocabulary / setting.tensor_parallel)
    kept = setting.own_tokens * hidden * setting.element_bytes
    product = matrix_product("logits", setting, hidden, rows, tokens=setting.tokens, input_bytes=kept, held=parameters)
    logits = setting.tokens * rows
    loss = Operator(
        name="loss",
        # Converted, then read for the largest, for the sum, and written normalized.
        forward=OperatorWork(memory_bytes=logits * (setting.element_bytes + 4 * LOSS_BYTES)),
        backward_input=OperatorWork(memory_bytes=logits * (setting.element_bytes + LOSS_BYTES)),
        kept_for_input_bytes=logits * LOSS_BYTES,
    )
    return [product, loss]
