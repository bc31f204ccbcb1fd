"""The operators of a Mamba-2 mixer: heads are divided among the devices of a tensor-parallel group, B and C by their groups.

The scan works in chunks: within one, products over all pairs of its tokens; between them, a state for each head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.costs.operators.attention import divided_heads
from schedc.costs.operators.operator import Engine, Operator, Operators, OperatorWork, elementwise, matrix_product
from schedc.errors import Unsupported

if TYPE_CHECKING:
    from schedc.costs.architecture import Mamba, Setting

BACKWARD_SCANS = 3
"""B computes the chunks' states again, and two gradients for each product."""
STATE_BYTES = 4
"""Of each element of the states between chunks."""


def mamba_operators(mamba: Mamba, hidden: int, setting: Setting) -> Operators:
    """From the normed input to the projected output, without the collectives of tensor parallelism.

    Raises:
        Unsupported: heads or groups cannot be divided, or the sequence is.
    """
    if setting.context_parallel > 1:
        raise Unsupported("context parallelism of Mamba layers is not modelled")
    if mamba.groups % setting.tensor_parallel:
        raise Unsupported(f"tensor parallel size {setting.tensor_parallel} does not divide {mamba.groups} groups of a Mamba layer")
    heads, groups, tokens = divided_heads(mamba.heads, setting), mamba.groups / setting.tensor_parallel, setting.tokens
    inner, convolved = heads * mamba.head_dim, heads * mamba.head_dim + 2 * groups * mamba.state
    shared = setting.own_tokens * hidden * setting.element_bytes
    return [
        matrix_product(
            "projection in",
            setting,
            hidden,
            inner + convolved + heads,
            tokens=tokens,
            input_bytes=shared,
            computed_again=setting.selective_recompute,
        ),
        elementwise(
            "convolution",
            setting,
            tokens * convolved,
            forward=2,
            backward=3,
            kept=1,
            parameters=convolved * (mamba.convolution + 1),
        ),
        _scan(mamba, setting, heads, groups),
        elementwise("gated norm", setting, tokens * inner, forward=3, backward=5, kept=2, parameters=inner),
        matrix_product("projection out", setting, inner, hidden, tokens=tokens, summed=True),
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
    )
