"""The operators of sublayers: attention (full, grouped, windowed, latent), feed-forward layers, mixtures of experts, Mamba-2.

All go from the normed input to the projected output, without the collectives of tensor parallelism around them. Heads, widths and
groups are divided among the devices of a tensor-parallel group, experts among those of an expert-parallel group. Routing is
balanced: each device has the work of as many token-expert pairs as its own tokens have. With context parallelism each device has a
share of every sequence, balanced under the causal mask, and keys and values go round in a ring while the device computes. A Mamba
layer's scan works in chunks: within one, products over all pairs of its tokens; between them, a state for each head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.costs.operators.operator import (
    Engine,
    Operator,
    Operators,
    OperatorWork,
    collective,
    elementwise,
    matrix_product,
    share,
)
from schedc.errors import Unsupported

if TYPE_CHECKING:
    from schedc.costs.architecture import Attention, Experts, FeedForward, LatentAttention, Mamba, Setting

BACKWARD_PRODUCTS = 2.5
"""Fused attention: F computes two products (scores, output), B five (the scores again, and four gradients)."""
UNFUSED_FORWARD, UNFUSED_BACKWARD = 6, 8
"""How often the matrix of scores passes the memory without fusion: written, masked and normalized (read, written), dropped out
(read, written), read; in B the gradient likewise, with both operands read again."""
BACKWARD_SCANS = 3
"""Mamba: B computes the chunks' states again, and two gradients for each product."""
STATE_BYTES = 4
"""Of each element of the states between chunks."""
CUTS = 64
"""The number of places at which the work of a cut sequence is compared with what shares say of it."""
_HEADS, _WIDTH = "{} heads", "a feed-forward width of {}"


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
    heads, kv_heads = share(attention.heads, setting, _HEADS), max(1.0, attention.kv_heads / setting.tensor_parallel)
    if attention.kv_heads % setting.tensor_parallel and setting.tensor_parallel % attention.kv_heads:
        raise Unsupported(
            f"tensor parallel size {setting.tensor_parallel} does not divide {attention.kv_heads} heads of keys, nor they it"
        )
    dim, own = attention.head_dim, setting.own_tokens
    outer = (heads + 2 * kv_heads) * dim
    input_bias, output_bias = outer if attention.input_bias else 0.0, hidden if attention.output_bias else 0.0
    rotated = setting.tokens * (heads + kv_heads) * dim
    operators = [matrix_product("query, key, value", setting, hidden, outer, kept=own, bias=input_bias, recomputed=True)]
    if attention.head_norms:
        weights = 2 * dim if attention.head_norm_weights else 0
        operators.append(elementwise("head norms", setting, rotated, forward=2, backward=3, kept=1, parameters=weights))
    if attention.rotary:
        operators.append(elementwise("rotary embedding", setting, rotated, forward=2, backward=2))
    operators.append(_core(setting, heads, kv_heads, dim, dim, attention))
    operators.append(matrix_product("output", setting, heads * dim, hidden, bias=output_bias, summed=True))
    return operators


def latent_attention_operators(attention: LatentAttention, hidden: int, setting: Setting) -> Operators:
    """Of DeepSeek's; the projections down are the same on all devices of a tensor-parallel group, which share the tokens.

    Raises:
        Unsupported: the heads cannot be divided.
    """
    heads, own, rank = share(attention.heads, setting, _HEADS), setting.own_tokens, attention.query_rank
    query_dim, latent = attention.plain_dim + attention.rotary_dim, attention.kv_rank
    if rank is None:
        operators = [matrix_product("query", setting, hidden, heads * query_dim, kept=0)]
    else:
        operators = [
            matrix_product("query down", setting, hidden, rank, tokens=own, kept=0),
            elementwise("query norm", setting, own * rank, forward=2, backward=3, kept=1, parameters=rank),
            matrix_product("query up", setting, rank, heads * query_dim, kept=own),
        ]
    up = heads * (attention.plain_dim + attention.value_dim)
    return [
        *operators,
        matrix_product("key and value down", setting, hidden, latent + attention.rotary_dim, tokens=own, recomputed=True),
        elementwise("key and value norm", setting, own * latent, forward=2, backward=3, kept=1, parameters=latent),
        matrix_product("key and value up", setting, latent, up, kept=own),
        elementwise("rotary embedding", setting, setting.tokens * heads * query_dim, forward=4, backward=4),
        _core(setting, heads, heads, query_dim, attention.value_dim, None),
        matrix_product("output", setting, heads * attention.value_dim, hidden, summed=True),
    ]


def _core(setting: Setting, heads: float, kv_heads: float, key_dim: int, value_dim: int, attention: Attention | None) -> Operator:
    """Scores, softmax and the sum of values, causal and whole without an `attention`; all that comes in and out is kept for B."""
    limits = (None, None) if attention is None else (attention.window, attention.chunk)
    causal = attention is None or attention.causal
    ring, tokens, size = setting.context_parallel, setting.tokens, setting.element_bytes
    queries, outputs = tokens * heads * key_dim * size, tokens * heads * value_dim * size
    pairs_of_keys = tokens * kv_heads * (key_dim + value_dim) * size
    length = setting.sequence_length
    seen = visible_pairs(length, *limits, causal=causal) if setting.fused_attention else length**2
    pairs = setting.microbatch_size * heads * seen / ring
    flops = 2 * pairs * (key_dim + value_dim)
    touched, kept, passed = queries + pairs_of_keys + outputs, queries + pairs_of_keys, (ring - 1) * pairs_of_keys
    forward_bytes, backward_bytes, backward_flops = touched, 3 * touched, BACKWARD_PRODUCTS * flops
    if setting.fused_attention:
        kept += 4 * tokens * heads  # the logarithm of each row's sum
    else:
        scores = pairs * size
        kept += scores
        forward_bytes += UNFUSED_FORWARD * scores
        backward_bytes += UNFUSED_BACKWARD * scores
        backward_flops = 2 * flops

    def work(flops: float, memory_bytes: float, link_bytes: float) -> OperatorWork:
        group = {"collectives": 1 if ring > 1 else 0, "spans": ring * setting.tensor_parallel}
        return OperatorWork(flops=flops, memory_bytes=memory_bytes, link_bytes=link_bytes, overlapped=True, **group)

    return Operator(
        name="attention",
        engine=Engine.ATTENTION if setting.fused_attention else Engine.MATRIX,
        forward=work(flops, forward_bytes, passed),
        backward_input=work(backward_flops, backward_bytes, 2 * passed),
        kept_for_input_bytes=kept,
        quadratic=quadratic_share(length, *limits) if causal else 0.0,
        state_bytes=pairs_of_keys if causal else 0.0,
    )


def feed_forward_operators(feed_forward: FeedForward, hidden: int, setting: Setting) -> Operators:
    """Of a plain or gated layer.

    Raises:
        Unsupported: the width cannot be divided.
    """
    width = share(feed_forward.width, setting, _WIDTH)
    up = (2 if feed_forward.gated else 1) * width
    up_bias, down_bias = (up, hidden) if feed_forward.bias else (0.0, 0.0)
    return [
        matrix_product("up", setting, hidden, up, kept=setting.own_tokens, bias=up_bias, recomputed=True),
        _activation(setting, setting.tokens * width, gated=feed_forward.gated),
        matrix_product("down", setting, width, hidden, bias=down_bias, recomputed=True, summed=True),
    ]


def experts_operators(experts: Experts, hidden: int, setting: Setting) -> Operators:
    """Router, dispatch, experts, combine, and the shared experts.

    Raises:
        Unsupported: experts or widths cannot be divided.
    """
    if experts.count % setting.expert_parallel:
        raise Unsupported(f"expert parallel size {setting.expert_parallel} does not divide {experts.count} experts")
    width, own, chosen = share(experts.width, setting, _WIDTH), setting.own_tokens, experts.chosen
    count, pairs = experts.count / setting.expert_parallel, setting.tokens * chosen
    bias = experts.count if experts.router_bias else 0.0
    operators = [
        matrix_product("router", setting, hidden, experts.count, tokens=own, bias=bias),
        _exchange("dispatch", setting, own * chosen * hidden, own * hidden),
        *collective("gather", setting, chosen * hidden),
        matrix_product("experts up", setting, hidden, 2 * width, tokens=pairs, kept=own * chosen, matrices=count, routed=True),
        _activation(setting, pairs * width, gated=True),
        matrix_product("down", setting, width, hidden, tokens=pairs, matrices=count, recomputed=True, summed=True, routed=True),
        *collective("scatter", setting, chosen * hidden),
        _exchange("combine", setting, own * chosen * hidden, own * hidden),
    ]
    if experts.shared_width:
        shared = share(experts.shared_width, setting, _WIDTH)
        operators += [
            matrix_product("shared experts up", setting, hidden, 2 * shared, kept=0),
            _activation(setting, setting.tokens * shared, gated=True),
            matrix_product("down", setting, shared, hidden, recomputed=True, summed=True),
        ]
    return operators


def _activation(setting: Setting, elements: float, *, gated: bool) -> Operator:
    """The activation function, with the gate's product; keeps its inputs for B."""
    forward, backward, kept = (3, 5, 2) if gated else (2, 3, 1)
    again = forward if setting.selective_recompute else 0
    return elementwise("activation", setting, elements, forward=forward, backward=backward + again, kept=kept)


def _exchange(name: str, setting: Setting, copies: float, tokens: float) -> Operator:
    """Tokens copied for each expert that they take and sent there, or brought back and summed: the same both ways.

    Copies and tokens are elements of one device.
    """
    group, size = setting.expert_parallel, setting.element_bytes
    work = OperatorWork(
        memory_bytes=(2 * copies + tokens) * size,
        link_bytes=copies * size * (group - 1) / group,
        collectives=1 if group > 1 else 0,
        spans=group * setting.tensor_parallel,
    )
    return Operator(name=name, forward=work, backward_input=work)


def mamba_operators(mamba: Mamba, hidden: int, setting: Setting) -> Operators:
    """Of a Mamba-2 mixer: heads are divided, and B and C by their groups.

    Raises:
        Unsupported: heads or groups cannot be divided, or the sequence is.
    """
    if setting.context_parallel > 1:
        raise Unsupported("context parallelism of Mamba layers is not modelled")
    groups = share(mamba.groups, setting, "{} groups of a Mamba layer")
    heads, tokens = share(mamba.heads, setting, _HEADS), setting.tokens
    inner, convolved = heads * mamba.head_dim, heads * mamba.head_dim + 2 * groups * mamba.state
    weights = convolved * (mamba.convolution + 1)
    return [
        matrix_product("projection in", setting, hidden, inner + convolved + heads, kept=setting.own_tokens, recomputed=True),
        elementwise("convolution", setting, tokens * convolved, forward=2, backward=3, kept=1, parameters=weights),
        _scan(mamba, setting, heads, groups),
        elementwise("gated norm", setting, tokens * inner, forward=3, backward=5, kept=2, parameters=inner),
        matrix_product("projection out", setting, inner, hidden, summed=True),
    ]


def _scan(mamba: Mamba, setting: Setting, heads: float, groups: float) -> Operator:
    """Products within chunks (half of a chunk's pairs are masked) and with the states; the convolved inputs are kept for B."""
    tokens, chunk = setting.tokens, min(mamba.chunk, setting.sequence_length)
    pairs = tokens * (chunk + 1) / 2
    within = 2 * pairs * (groups * mamba.state + heads * mamba.head_dim)
    across = 4 * tokens * heads * mamba.head_dim * mamba.state
    convolved = tokens * (heads * mamba.head_dim + 2 * groups * mamba.state) * setting.element_bytes
    outputs = tokens * heads * mamba.head_dim * setting.element_bytes
    states = tokens / chunk * heads * mamba.head_dim * mamba.state * STATE_BYTES
    flops, moved = within + across, convolved + outputs + 4 * states
    return Operator(
        name="scan",
        engine=Engine.SCAN,
        forward=OperatorWork(flops=flops, memory_bytes=moved),
        backward_input=OperatorWork(flops=BACKWARD_SCANS * flops, memory_bytes=BACKWARD_SCANS * moved),
        parameters=3 * heads,
        kept_for_input_bytes=convolved,
        state_bytes=setting.microbatch_size * heads * mamba.head_dim * mamba.state * STATE_BYTES,
    )
