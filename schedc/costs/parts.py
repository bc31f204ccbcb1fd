"""A model's layers as lists of operators, in the order of the forward: embedding, blocks, modules for further tokens, head."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from schedc.costs.architecture import Experts
from schedc.costs.operators.blocks import block_operators, kind_of
from schedc.costs.operators.ends import embedding_operators, further_token_operators, head_operators
from schedc.errors import Unsupported

if TYPE_CHECKING:
    from schedc.costs.architecture import Architecture, Block
    from schedc.costs.operators.operator import Operators
    from schedc.costs.setting import Setting


class Part(NamedTuple):
    """One layer; equal ones share their operators."""

    name: str
    kind: str
    operators: Operators
    states: int
    """How many hidden states of its tokens it sends on."""


def parts_of(architecture: Architecture, setting: Setting) -> tuple[Part, ...]:
    """All layers, as one device of a tensor-, context- and expert-parallel group has them.

    Raises:
        Unsupported: a dimension of the model cannot be divided as the setting asks, or the sequence is too long for it.
    """
    parallel = setting.context_parallel * setting.tensor_parallel
    if setting.sequence_length % parallel:
        raise Unsupported(
            f"tensor × context parallel size {parallel} does not divide {setting.sequence_length} tokens of a sequence"
        )
    sublayers = (sublayer for block in architecture.blocks for sublayer in block.sublayers)
    if setting.expert_parallel > 1 and not any(isinstance(sublayer, Experts) for sublayer in sublayers):
        raise Unsupported(f"expert parallel size {setting.expert_parallel}: {architecture.name} has no experts, expected 1")
    if architecture.positions and setting.sequence_length > architecture.positions:
        room = f"the model's {architecture.positions} position embeddings"
        raise Unsupported(f"a sequence of {setting.sequence_length} tokens is longer than {room}")
    of_block: dict[Block, Operators] = {}
    parts = [Part("embedding", "embedding", embedding_operators(architecture, setting), 1)]
    for number, block in enumerate(architecture.blocks):
        if block not in of_block:
            of_block[block] = block_operators(block, architecture, setting)
        parts.append(Part(f"block {number}", kind_of(block), of_block[block], 1))
    for number, block in enumerate(architecture.further_tokens):
        operators = further_token_operators(block, architecture, setting)
        # The state that the head reads goes on beside that of the module.
        parts.append(Part(f"further token {number}", f"further token, {kind_of(block)}", operators, 2))
    parts.append(Part("head", "head", head_operators(architecture, setting), 0))
    return tuple(parts)
