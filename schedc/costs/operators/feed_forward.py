"""The operators of feed-forward layers: plain, gated, and mixtures of experts.

Widths are divided among the devices of a tensor-parallel group, experts among those of an expert-parallel group. Routing is
balanced: each device has the work of as many token-expert pairs as its own tokens have.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from schedc.costs.operators.operator import Operator, Operators, OperatorWork, collective, elementwise, matrix_product
from schedc.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.costs.architecture import Experts, FeedForward, Setting


def feed_forward_operators(feed_forward: FeedForward, hidden: int, setting: Setting) -> Operators:
    """From the normed input to the projected output, without collectives of tensor parallelism.

    Raises:
        Unsupported: the width cannot be divided.
    """
    width = divided(feed_forward.width, setting)
    up = (2 if feed_forward.gated else 1) * width
    return [
        matrix_product(
            "up",
            setting,
            hidden,
            up,
            tokens=setting.tokens,
            bias=up if feed_forward.bias else 0.0,
            input_bytes=setting.own_tokens * hidden * setting.element_bytes,
            computed_again=setting.selective_recompute,
        ),
        _activation(setting, setting.tokens * width, gated=feed_forward.gated),
        _down(setting)(width, hidden, tokens=setting.tokens, bias=hidden if feed_forward.bias else 0.0),
    ]


def experts_operators(experts: Experts, hidden: int, setting: Setting) -> Operators:
    """Router, dispatch, experts, combine, and the shared experts, without the collectives of tensor parallelism around them.

    Raises:
        Unsupported: experts or widths cannot be divided.
    """
    if experts.count % setting.expert_parallel:
        raise Unsupported(f"expert parallel size {setting.expert_parallel} does not divide {experts.count} experts")
    width, own = divided(experts.width, setting), setting.own_tokens
    count, pairs = experts.count / setting.expert_parallel, setting.tokens * experts.chosen
    bias = experts.count if experts.router_bias else 0.0
    operators = [
        matrix_product("router", setting, hidden, experts.count, tokens=own, bias=bias),
        _exchange("dispatch", setting, own * experts.chosen * hidden, own * hidden),
        *collective("gather", setting, experts.chosen * hidden),
        matrix_product(
            "experts up",
            setting,
            hidden,
            2 * width,
            tokens=pairs,
            matrices=count,
            input_bytes=own * experts.chosen * hidden * setting.element_bytes,
            routed=True,
        ),
        _activation(setting, pairs * width, gated=True),
        _down(setting)(width, hidden, tokens=pairs, matrices=count, routed=True),
        *collective("scatter", setting, experts.chosen * hidden),
        _exchange("combine", setting, own * experts.chosen * hidden, own * hidden),
    ]
    if experts.shared_width:
        shared = divided(experts.shared_width, setting)
        operators += [
            matrix_product("shared experts up", setting, hidden, 2 * shared, tokens=setting.tokens, input_bytes=0),
            _activation(setting, setting.tokens * shared, gated=True),
            _down(setting)(shared, hidden, tokens=setting.tokens),
        ]
    return operators


def divided(width: int, setting: Setting) -> float:
    """What a device has of a width.

    Raises:
        Unsupported: it cannot be divided.
    """
    if width % setting.tensor_parallel:
        raise Unsupported(f"tensor parallel size {setting.tensor_parallel} does not divide a feed-forward width of {width}")
    return width / setting.tensor_parallel


def _activation(setting: Setting, elements: float, *, gated: bool) -> Operator:
    """The activation function, with the gate's product; keeps its inputs for B."""
    again = (3 if gated else 2) if setting.selective_recompute else 0
    return elementwise(
        "activation",
        setting,
        elements,
        forward=3 if gated else 2,
        backward=(5 if gated else 3) + again,
        kept=2 if gated else 1,
    )


def _down(setting: Setting) -> Callable[..., Operator]:
    """The projection back; its input is the activation function's output."""
    return partial(matrix_product, "down", setting, computed_again=setting.selective_recompute, summed=True)


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
