"""The operators of attention: full, grouped, over a window, within chunks, latent.

They go from the normed input to the projected output, without the collectives of tensor parallelism around them; heads are divided
among the devices of a tensor-parallel group. With context parallelism each device has a share of every sequence, balanced under the
causal mask; keys and values go round in a ring while the device computes, or heads are exchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.costs.architecture import ContextExchange
from schedc.costs.operators.operator import (
    CollectiveKind,
    Engine,
    Operator,
    Operators,
    OperatorWork,
    ProductShape,
    elementwise,
    in_node,
    matrix_product,
    share,
)
from schedc.errors import Unsupported

if TYPE_CHECKING:
    from schedc.costs.architecture import Attention, LatentAttention, Setting

BACKWARD_OF_KEYS, BACKWARD_OF_VALUES = 3, 2
"""Fused attention: F computes a product over the elements of a key (scores) and one over those of a value (output). B computes the
scores again and the gradients of queries and keys; and the gradients of values and of the probabilities."""
UNFUSED_FORWARD, UNFUSED_BACKWARD = 6, 8
"""How often the matrix of scores passes the memory without fusion: written, masked and normalized (read, written), dropped out
(read, written), read; in B the gradient likewise, with both operands read again."""
CUTS = 64
"""The number of places at which the work of a cut sequence is compared with what shares say of it."""
HEADS = "{} heads"
"""What cannot be divided, for messages."""


def visible_pairs(sequence_length: int, window: int | None, chunk: int | None = None, *, causal: bool = True) -> int:
    """How many pairs of a token and one that it sees a sequence has; a window and the chunk's begin end what a token sees."""
    if chunk is not None and chunk < sequence_length:
        chunks, rest = divmod(sequence_length, chunk)
        return chunks * visible_pairs(chunk, window, causal=causal) + visible_pairs(rest, window, causal=causal)
    if not causal:
        return sequence_length**2
    seen = sequence_length if window is None else min(window, sequence_length)
    return seen * (seen + 1) // 2 + (sequence_length - seen) * seen


def quadratic_share(sequence_length: int, window: int | None, chunk: int | None = None) -> float:
    """The q with which (1 − q)u + qu² is nearest to the share of all visible pairs that the first u of the sequence has.

    1 where a token sees all before it, near 0 where a window or a chunk is a small part of the sequence; by least squares.
    """
    cuts = [sequence_length * step // CUTS for step in range(CUTS + 1)]
    part, whole = [cut / sequence_length for cut in cuts], visible_pairs(sequence_length, window, chunk)
    if window is None and chunk is None:
        return 1.0
    bent = [u - u * u for u in part]
    below = [u - visible_pairs(cut, window, chunk) / whole for u, cut in zip(part, cuts, strict=True)]
    square = sum(each * each for each in bent)
    return min(1.0, max(0.0, sum(a * b for a, b in zip(bent, below, strict=True)) / square)) if square else 1.0


def attention_operators(attention: Attention, hidden: int, setting: Setting) -> Operators:
    """Of full, grouped, windowed and chunked attention.

    Raises:
        Unsupported: the heads cannot be divided.
    """
    heads, kv_heads = share(attention.heads, setting, HEADS), max(1.0, attention.kv_heads / setting.tensor_parallel)
    if attention.kv_heads % setting.tensor_parallel and setting.tensor_parallel % attention.kv_heads:
        raise Unsupported(
            f"tensor parallel size {setting.tensor_parallel} does not divide {attention.kv_heads} heads of keys, nor they it"
        )
    dim, own = attention.head_dim, setting.own_tokens
    outer = (heads + 2 * kv_heads) * dim
    input_bias, output_bias = outer if attention.input_bias else 0.0, hidden if attention.output_bias else 0.0
    rotated = setting.tokens * (heads + kv_heads) * dim
    operators = [
        matrix_product("query, key, value", setting, hidden, outer, kept=own, bias=input_bias, recomputed=True, gathered=True)
    ]
    if attention.head_norms:
        weights = 2 * dim if attention.head_norm_weights else 0
        operators.append(elementwise("head norms", setting, rotated, forward=2, backward=3, kept=1, parameters=weights))
    if attention.rotary:
        operators.append(elementwise("rotary embedding", setting, rotated, forward=2, backward=2))
    operators += _core(setting, heads, kv_heads, dim, dim, attention)
    operators.append(matrix_product("output", setting, heads * dim, hidden, bias=output_bias, summed=True))
    return operators


def latent_attention_operators(attention: LatentAttention, hidden: int, setting: Setting) -> Operators:
    """Of DeepSeek's; the projections down are the same on all devices of a tensor-parallel group, which share the tokens.

    Raises:
        Unsupported: the heads cannot be divided.
    """
    heads, own, rank = share(attention.heads, setting, HEADS), setting.own_tokens, attention.query_rank
    query_dim, latent = attention.plain_dim + attention.rotary_dim, attention.kv_rank
    if rank is None:
        operators = [matrix_product("query", setting, hidden, heads * query_dim, kept=0, gathered=True)]
    else:
        operators = [
            matrix_product("query down", setting, hidden, rank, tokens=own, kept=0),
            elementwise("query norm", setting, own * rank, forward=2, backward=3, kept=1, parameters=rank),
            matrix_product("query up", setting, rank, heads * query_dim, kept=own, gathered=True),
        ]
    up = heads * (attention.plain_dim + attention.value_dim)
    return [
        *operators,
        matrix_product("key and value down", setting, hidden, latent + attention.rotary_dim, tokens=own, recomputed=True),
        elementwise("key and value norm", setting, own * latent, forward=2, backward=3, kept=1, parameters=latent),
        matrix_product("key and value up", setting, latent, up, kept=own, gathered=True),
        elementwise("rotary embedding", setting, setting.tokens * heads * query_dim, forward=4, backward=4),
        *_core(setting, heads, heads, query_dim, attention.value_dim, None),
        matrix_product("output", setting, heads * attention.value_dim, hidden, summed=True),
    ]


def _core(setting: Setting, heads: float, kv_heads: float, key_dim: int, value_dim: int, attention: Attention | None) -> Operators:
    """Scores, softmax and the sum of values, causal and whole without an `attention`; all that comes in and out is kept for B."""
    limits = (None, None) if attention is None else (attention.window, attention.chunk)
    causal = attention is None or attention.causal
    ring, tokens, size = setting.context_parallel, setting.tokens, setting.element_bytes
    queries, outputs = tokens * heads * key_dim * size, tokens * heads * value_dim * size
    pairs_of_keys = tokens * kv_heads * (key_dim + value_dim) * size
    length = setting.sequence_length
    seen = visible_pairs(length, *limits, causal=causal) if setting.fused_attention else length**2
    pairs = setting.microbatch_size * heads * seen / ring
    flops, backward_flops = (
        2 * pairs * (key_dim + value_dim),
        2 * pairs * (BACKWARD_OF_KEYS * key_dim + BACKWARD_OF_VALUES * value_dim),
    )
    touched, kept = queries + pairs_of_keys + outputs, queries + pairs_of_keys
    forward_bytes, backward_bytes = touched, 3 * touched
    if setting.fused_attention:
        kept += 4 * tokens * heads  # the logarithm of each row's sum
    else:
        scores = pairs * size
        kept += scores
        forward_bytes += UNFUSED_FORWARD * scores
        backward_bytes += UNFUSED_BACKWARD * scores
        backward_flops = 2 * flops
    reordered: Operators = []
    links, shape = _exchanged(setting, heads, kv_heads, touched, pairs_of_keys), ProductShape(heads, length, key_dim, value_dim)
    if setting.context_exchange is ContextExchange.ALL_TO_ALL and ring > 1:
        shape = shape._replace(number=heads / ring)
        kept += outputs  # as it is computed, beside what the next product keeps
        # Copied to be sent, and put in the order of the sequence behind it (Transformer Engine, `flash_attn_a2a_communicate`).
        copies = OperatorWork(memory_bytes=4 * touched)
        reordered = [
            Operator(name="reorder", engine=Engine.PERMUTE, forward=copies, backward_input=copies, working_bytes=2 * touched)
        ]
    core = Operator(
        name="attention",
        engine=Engine.ATTENTION if setting.fused_attention else Engine.MATRIX,
        shape=shape if setting.fused_attention else None,
        forward=replace(links[0], flops=flops, memory_bytes=forward_bytes),
        backward_input=replace(links[1], flops=backward_flops, memory_bytes=backward_bytes),
        kept_for_input_bytes=kept,
        working_bytes=touched,
        quadratic=quadratic_share(length, *limits) if causal else 0.0,
        state_bytes=pairs_of_keys if causal else 0.0,
    )
    return [*reordered, core]


def _exchanged(
    setting: Setting, heads: float, kv_heads: float, touched: float, pairs_of_keys: float
) -> tuple[OperatorWork, OperatorWork]:
    """What F and B of attention send so that the tokens of all devices of a sequence meet.

    In a ring, F sends keys and values on, and B their gradients, too. All-to-all: queries, keys and values there, the output back;
    in B their gradients the same ways.

    Raises:
        Unsupported: there are too few heads.
    """
    devices = setting.context_parallel
    if devices == 1:
        return OperatorWork(), OperatorWork()
    near = in_node(setting, devices, setting.tensor_parallel)
    if setting.context_exchange is ContextExchange.RING:
        sent_bytes = (devices - 1) * pairs_of_keys
        work = OperatorWork(
            link_bytes=sent_bytes,
            network_bytes=0.0 if near == devices else sent_bytes,  # from the last of a node, for which the others wait
            collectives=devices - 1,
            collective=CollectiveKind.RING,
            spans=devices * setting.tensor_parallel,
            overlapped=True,
        )
        return work, replace(work, link_bytes=2 * work.link_bytes, network_bytes=2 * work.network_bytes)
    if heads % devices or kv_heads % devices:
        raise Unsupported(
            f"context parallel size {devices} does not divide the {heads:g} heads and {kv_heads:g} heads of keys of a device,"
            " as an all-to-all needs"
        )
    work = OperatorWork(
        link_bytes=touched * (devices - 1) / devices,
        network_bytes=touched * (devices - near) / devices,
        collectives=4,
        collective=CollectiveKind.EXCHANGE,
        spans=devices * setting.tensor_parallel,
    )
    return work, work
