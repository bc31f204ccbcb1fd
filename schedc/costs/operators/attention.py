"""The operators of attention: full, grouped and windowed, and DeepSeek's latent attention.

The projections are divided by heads among the devices of a tensor-parallel group. With context parallelism each device has a share
of every sequence, balanced under the causal mask, and keys and values go round in a ring while the device computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.costs.operators.operator import Engine, Operator, Operators, OperatorWork, elementwise, matrix_product
from schedc.errors import Unsupported

if TYPE_CHECKING:
    from schedc.costs.architecture import Attention, LatentAttention, Setting

BACKWARD_PRODUCTS = 2.5
"""Fused attention: F computes two products (scores, output), B five (the scores again, and four gradients)."""
UNFUSED_FORWARD, UNFUSED_BACKWARD = 6, 8
"""How often the matrix of scores passes the memory without fusion: written, masked and normalized (read, written), dropped out
(read, written), read; in B the gradient likewise, with both operands read again."""


def visible_pairs(sequence_length: int, window: int | None) -> int:
    """How many pairs of a token and one that it sees a causal sequence has; a window ends what a token sees."""
    seen = sequence_length if window is None else min(window, sequence_length)
    return seen * (seen + 1) // 2 + (sequence_length - seen) * seen


def attention_operators(attention: Attention, hidden: int, setting: Setting) -> Operators:
    """From the normed input to the projected output, without collectives of tensor parallelism.

    Raises:
        Unsupported: the heads cannot be divided.
    """
    heads, kv_heads = divided_heads(attention.heads, setting), max(1.0, attention.kv_heads / setting.tensor_parallel)
    if attention.kv_heads % setting.tensor_parallel and setting.tensor_parallel % attention.kv_heads:
        raise Unsupported(
            f"tensor parallel size {setting.tensor_parallel} does not divide {attention.kv_heads} heads of keys, nor they it"
        )
    dim, tokens = attention.head_dim, setting.tokens
    outer = (heads + 2 * kv_heads) * dim
    shared = setting.own_tokens * hidden * setting.element_bytes
    bias = outer if attention.input_bias else 0.0
    again = setting.selective_recompute
    operators = [
        matrix_product(
            "query, key, value", setting, hidden, outer, tokens=tokens, bias=bias, input_bytes=shared, computed_again=again
        )
    ]
    rotated = tokens * (heads + kv_heads) * dim
    if attention.head_norms:
        operators.append(elementwise("head norms", setting, rotated, forward=2, backward=3, kept=1, parameters=2 * dim))
    if attention.rotary:
        operators.append(elementwise("rotary embedding", setting, rotated, forward=2, backward=2))
    operators.append(_core(setting, heads, kv_heads, dim, dim, attention.window))
    output_bias = hidden if attention.output_bias else 0.0
    operators.append(matrix_product("output", setting, heads * dim, hidden, tokens=tokens, bias=output_bias, summed=True))
    return operators


def latent_attention_operators(attention: LatentAttention, hidden: int, setting: Setting) -> Operators:
    """Likewise; the projections down are the same on all devices of a tensor-parallel group, which share the tokens.

    Raises:
        Unsupported: the heads cannot be divided.
    """
    heads, own, tokens = divided_heads(attention.heads, setting), setting.own_tokens, setting.tokens
    query_dim, latent = attention.plain_dim + attention.rotary_dim, attention.kv_rank
    again = setting.selective_recompute
    operators: Operators = []
    if attention.query_rank is None:
        operators.append(matrix_product("query", setting, hidden, heads * query_dim, tokens=tokens, input_bytes=0))
    else:
        rank = attention.query_rank
        operators += [
            matrix_product("query down", setting, hidden, rank, tokens=own, input_bytes=0),
            elementwise("query norm", setting, own * rank, forward=2, backward=3, kept=1, parameters=rank),
            matrix_product(
                "query up", setting, rank, heads * query_dim, tokens=tokens, input_bytes=own * rank * setting.element_bytes
            ),
        ]
    up = heads * (attention.plain_dim + attention.value_dim)
    operators += [
        matrix_product("key and value down", setting, hidden, latent + attention.rotary_dim, tokens=own, computed_again=again),
        elementwise("key and value norm", setting, own * latent, forward=2, backward=3, kept=1, parameters=latent),
        matrix_product("key and value up", setting, latent, up, tokens=tokens, input_bytes=own * latent * setting.element_bytes),
        elementwise("rotary embedding", setting, tokens * heads * query_dim, forward=4, backward=4),
        _core(setting, heads, heads, query_dim, attention.value_dim, None),
        matrix_product("output", setting, heads * attention.value_dim, hidden, tokens=tokens, summed=True),
    ]
    return operators


def divided_heads(heads: int, setting: Setting) -> float:
    """How many of the heads a device has.

    Raises:
        Unsupported: they cannot be divided.
    """
    if heads % setting.tensor_parallel:
        raise Unsupported(f"tensor parallel size {setting.tensor_parallel} does not divide {heads} heads")
    return heads / setting.tensor_parallel


def _core(setting: Setting, heads: float, kv_heads: float, key_dim: int, value_dim: int, window: int | None) -> Operator:
    """Scores, softmax and the sum of values; queries, keys, values and the output are kept for B."""
    ring, tokens, size = setting.context_parallel, setting.tokens, setting.element_bytes
    queries, outputs = tokens * heads * key_dim * size, tokens * heads * value_dim * size
    pairs_of_keys = tokens * kv_heads * (key_dim + value_dim) * size
    seen = visible_pairs(setting.sequence_length, window) if setting.fused_attention else setting.sequence_length**2
    pairs = setting.microbatch_size * heads * seen / ring
    flops = 2 * pairs * (key_dim + value_dim)
    touched = queries + pairs_of_keys + outputs
    kept = queries + pairs_of_keys
    passed = (ring - 1) * pairs_of_keys
    forward_bytes, backward_bytes, backward_flops = touched, 3 * touched, BACKWARD_PRODUCTS * flops
    if setting.fused_attention:
        kept += 4 * tokens * heads  # the logarithm of each row's sum
    else:
        scores = pairs * size
        kept += scores
        forward_bytes += UNFUSED_FORWARD * scores
        backward_bytes += UNFUSED_BACKWARD * scores
        backward_flops = 2 * flops
    rounds = 1 if ring > 1 else 0
    spans = ring * setting.tensor_parallel
    return Operator(
        name="attention",
        engine=Engine.ATTENTION if setting.fused_attention else Engine.MATRIX,
        forward=OperatorWork(
            flops=flops, memory_bytes=forward_bytes, link_bytes=passed, collectives=rounds, spans=spans, overlapped=True
        ),
        backward_input=OperatorWork(
            flops=backward_flops,
            memory_bytes=backward_bytes,
            link_bytes=2 * passed,
            collectives=rounds,
            spans=spans,
            overlapped=True,
        ),
        kept_for_input_bytes=kept,
    )
