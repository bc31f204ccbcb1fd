"""The operators of sublayers but attention: feed-forward layers, mixtures of experts, Mamba-2.

All go from the normed input to the projected output, without the collectives of tensor parallelism around them. Heads, widths and
groups are divided among the devices of a tensor-parallel group, experts among those of an expert-parallel group. Routing is
balanced: each device has the work of as many token-expert pairs as its own tokens have. A Mamba layer's scan works in chunks:
within one, products over all pairs of its tokens; between them, a state for each head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.costs.architecture import ExpertExchange
from schedc.costs.operators.attention import HEADS
from schedc.costs.operators.operator import (
    CollectiveKind,
    Engine,
    Operator,
    Operators,
    OperatorWork,
    collective,
    elementwise,
    in_node,
    matrix_product,
    share,
)
from schedc.errors import Unsupported

if TYPE_CHECKING:
    from schedc.costs.architecture import Experts, FeedForward, Mamba, Setting

BACKWARD_SCANS = 3
"""Mamba: B computes the chunks' states again, and two gradients for each product."""
STATE_BYTES = 4
"""Of each element of the states between chunks."""
_WIDTH = "a feed-forward width of {}"


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
    operators = [
        matrix_product("router", setting, hidden, experts.count, tokens=own, bias=bias),
        elementwise("scores", setting, own * experts.count * 2, forward=3, backward=3, kept=1),  # in 32 bits
        elementwise("choice", setting, own * experts.count * 2, forward=2, backward=2),
        *_exchange("dispatch", experts, hidden, setting),
        *collective("gather", setting, chosen * hidden, group=tensor),
        matrix_product(
            "experts up", setting, hidden, 2 * width, tokens=pairs, kept=own * chosen, matrices=count, gathered=True, routed=True
        ),
        _activation(setting, pairs * width, gated=True),
        matrix_product("down", setting, width, hidden, tokens=pairs, matrices=count, recomputed=True, summed=True, routed=True),
        *collective("scatter", setting, chosen * hidden, group=tensor),
        *_exchange("combine", experts, hidden, setting),
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


def _exchange(name: str, experts: Experts, hidden: int, setting: Setting) -> Operators:
    """Tokens copied for each expert that they take and sent there (`dispatch`), or brought back and summed: the same both ways.

    Where a device has several experts, what comes from each other device is sorted by expert, and back (Megatron-LM,
    `MoEAlltoAllTokenDispatcher`).
    """
    group, tokens_bytes = setting.expert_parallel, setting.own_tokens * hidden * setting.element_bytes
    copies_bytes, near = experts.chosen * tokens_bytes, in_node(setting, group, setting.expert_tensor)
    if group > 1 and setting.expert_exchange is ExpertExchange.HIERARCHICAL:
        operators = _through_nodes(name, experts, setting, tokens_bytes, group // near)
        return operators if name == "dispatch" else operators[::-1]
    moved, again = (OperatorWork(memory_bytes=copies_bytes + other) for other in (tokens_bytes, copies_bytes))
    sent = OperatorWork(
        link_bytes=copies_bytes * (group - 1) / group,
        network_bytes=copies_bytes * (group - near) / group,
        collectives=1,
        collective=CollectiveKind.EXCHANGE,
        spans=group * setting.expert_tensor,
    )
    operators = [Operator(name=name, engine=Engine.PERMUTE, forward=moved, backward_input=moved, working_bytes=moved.memory_bytes)]
    if group > 1:
        operators.append(Operator(name="all-to-all", forward=sent, backward_input=sent, working_bytes=again.memory_bytes))
    if experts.count > group:
        sort = Operator(name="sort", engine=Engine.PERMUTE, forward=again, backward_input=again, working_bytes=again.memory_bytes)
        operators.append(sort)
    return operators if name == "dispatch" else operators[::-1]


def _through_nodes(name: str, experts: Experts, setting: Setting, tokens_bytes: float, nodes: int) -> Operators:
    """A token sent once to each node that has some of its experts, and on to each device there; then copied for each expert.

    It comes to the device of the same place in a node, which sends it on; both go on at the same time (DeepEP, `internode.cu`).
    """
    group, per_node = setting.expert_parallel, setting.expert_parallel // nodes
    met = experts.reached(experts.count // group)  # by a token: a device, a node
    network_bytes = (nodes - 1) * experts.reached(experts.count // nodes) * tokens_bytes
    sent = OperatorWork(
        link_bytes=network_bytes + nodes * (per_node - 1) * met * tokens_bytes,
        network_bytes=network_bytes,
        collectives=1,
        collective=CollectiveKind.EXCHANGE,
        spans=group * setting.expert_tensor,
    )
    moved = OperatorWork(memory_bytes=(group * met + experts.chosen) * tokens_bytes)
    return [
        Operator(name="all-to-all", forward=sent, backward_input=sent, working_bytes=moved.memory_bytes),
        Operator(name=name, engine=Engine.PERMUTE, forward=moved, backward_input=moved, working_bytes=moved.memory_bytes),
    ]


def mamba_operators(mamba: Mamba, hidden: int, setting: Setting) -> Operators:
    """Of a Mamba-2 mixer: heads are divided, and B and C by their groups.

    Raises:
        Unsupported: heads or groups cannot be divided, or the sequence is.
    """
    if setting.context_parallel > 1:
        raise Unsupported("context parallelism of Mamba layers is not modelled")
    groups = share(mamba.groups, setting, "{} groups of a Mamba layer")
    heads, tokens = share(mamba.heads, setting, HEADS), setting.tokens
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
