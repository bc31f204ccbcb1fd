"""The operators of sublayers: attention (full, grouped, windowed, latent), feed-forward layers, mixtures of experts, Mamba-2.

All go from the normed input to the projected output, without the collectives of tensor parallelism around them. Heads, widths and
groups are divided among the devices of a tensor-parallel group, experts among those of an expert-parallel group. Routing is
balanced: each device has the work of as many token-expert pairs as its own tokens have. With context parallelism each device has a
share of every sequence, balanced under the causal mask, and keys and values go round in a ring while the device computes. A Mamba
layer's scan works in chunks: within one, products over all pairs of its tokens; between them, a state for each head.
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
    collective,
    elementwise,
    matrix_product,
    share,
)
from schedc.errors import Unsupported

if TYPE_CHECKING:
    from schedc.costs.architecture import Attention, Experts, FeedForward, LatentAttention, Mamba, Setting

BACKWARD_OF_KEYS, BACKWARD_OF_VALUES = 3, 2
"""Fused attention: F computes a product over the elements of a key (scores) and one over those of a value (output). B computes the
scores again and the gradients of queries and keys; and the gradients of values and of the probabilities."""
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
    heads, own, rank = share(attention.heads, setting, _HEADS), setting.own_tokens, attention.query_rank
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
    if setting.context_exchange is ContextExchange.RING:
        work = OperatorWork(
            link_bytes=(devices - 1) * pairs_of_keys,
            collectives=devices - 1,
            collective=CollectiveKind.RING,
            spans=devices * setting.tensor_parallel,
            overlapped=True,
        )
        return work, replace(work, link_bytes=2 * work.link_bytes)
    if heads % devices or kv_heads % devices:
        raise Unsupported(
            f"context parallel size {devices} does not divide the {heads:g} heads and {kv_heads:g} heads of keys of a device,"
            " as an all-to-all needs"
        )
    work = OperatorWork(
        link_bytes=touched * (devices - 1) / devices,
        collectives=4,
        collective=CollectiveKind.EXCHANGE,
        spans=devices * setting.tensor_parallel,
    )
    return work, work


def feed_forward_operators(feed_forward: FeedForward, hidden: int, setting: Setting) -> Operators:
    """Of a plain or gated layer.

    Raises:
        Unsupported: the width cannot be divided.
    """
    width = share(feed_forward.width, setting, _WIDTH)
    up = (2 if feed_forward.gated else 1) * width
    up_bias, down_bias = (up, hidden) if feed_forward.bias else (0.0, 0.0)
    return [
        matrix_product("up", setting, hidden, up, kept=setting.own_tokens, bias=up_bias, recomputed=True, gathered=True),
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
    tensor, own, chosen = setting.expert_tensor, setting.own_tokens, experts.chosen
    if experts.width % tensor:
        raise Unsupported(f"expert tensor parallel size {tensor} does not divide a feed-forward width of {experts.width}")
    width, count, pairs = experts.width / tensor, experts.count / setting.expert_parallel, own * tensor * chosen
    bias = experts.count if experts.router_bias else 0.0
    sides = own * chosen * hidden, own * hidden, count > 1
    operators = [
        matrix_product("router", setting, hidden, experts.count, tokens=own, bias=bias),
        elementwise("scores", setting, own * experts.count * 2, forward=3, backward=3, kept=1),  # in 32 bits
        elementwise("choice", setting, own * experts.count * 2, forward=2, backward=2),
        *_exchange("dispatch", setting, *sides),
        *collective("gather", setting, chosen * hidden, group=tensor),
        matrix_product(
            "experts up", setting, hidden, 2 * width, tokens=pairs, kept=own * chosen, matrices=count, gathered=True, routed=True
        ),
        _activation(setting, pairs * width, gated=True),
        matrix_product("down", setting, width, hidden, tokens=pairs, matrices=count, recomputed=True, summed=True, routed=True),
        *collective("scatter", setting, chosen * hidden, group=tensor),
        *_exchange("combine", setting, *sides),
    ]
    if experts.shared_width:
        shared = share(experts.shared_width, setting, _WIDTH)
        operators += [
            matrix_product("shared experts up", setting, hidden, 2 * shared, kept=0, gathered=True),
            _activation(setting, setting.tokens * shared, gated=True),
            matrix_product("down", setting, shared, hidden, recomputed=True, summed=True),
        ]
    return operators


def _activation(setting: Setting, elements: float, *, gated: bool) -> Operator:
    """The activation function, with the gate's product; keeps its inputs for B."""
    forward, backward, kept = (3, 5, 2) if gated else (2, 3, 1)
    again = forward if setting.selective_recompute else 0
    return elementwise("activation", setting, elements, forward=forward, backward=backward + again, kept=kept)


def _exchange(name: str, setting: Setting, copies: float, tokens: float, sorted_again: bool) -> Operators:
    """Tokens copied for each expert that they take and sent there, or brought back and summed: the same both ways.

    Where a device has several experts, what comes from each other device is sorted by expert, and back (Megatron-LM,
    `MoEAlltoAllTokenDispatcher`). Copies and tokens are elements of one device.
    """
    group, size = setting.expert_parallel, setting.element_bytes
    reach = group * setting.expert_tensor
    moved = OperatorWork(memory_bytes=(copies + tokens) * size)
    again = OperatorWork(memory_bytes=2 * copies * size if sorted_again else 0.0)
    sent = OperatorWork(
        link_bytes=copies * size * (group - 1) / group,
        collectives=min(1, group - 1),
        collective=CollectiveKind.EXCHANGE,
        spans=reach,
    )
    operators = [
        Operator(name=name, engine=Engine.PERMUTE, forward=moved, backward_input=moved, working_bytes=(copies + tokens) * size),
        Operator(name="all-to-all", forward=sent, backward_input=sent, working_bytes=2 * copies * size),
        Operator(name="sort", engine=Engine.PERMUTE, forward=again, backward_input=again, working_bytes=2 * copies * size),
    ]
    some = [each for each in operators if not each.forward.is_nothing]
    return some if name == "dispatch" else some[::-1]


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
        matrix_product(
            "projection in", setting, hidden, inner + convolved + heads, kept=setting.own_tokens, recomputed=True, gathered=True
        ),
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
