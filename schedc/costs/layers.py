"""What each layer of a model costs on a device: the one entry to this folder, a pure function.

The layers are those of a profile.json: the embedding, each block, each multi-token-prediction module, the head. Each is a list of
operators, in the order of the forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from schedc.costs.architecture import Architecture, Block, Experts, Setting
from schedc.costs.devices import ROOFLINE, Efficiency, duration_s
from schedc.costs.operators.blocks import (
    block_operators,
    embedding_operators,
    further_token_operators,
    head_operators,
    kind_of,
)
from schedc.errors import Unsupported
from schedc.formats.profile_file import LayerEntry
from schedc.units import MAX_QUANTITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.costs.devices import Accelerator
    from schedc.costs.operators.operator import Operators


def layers_of(
    architecture: Architecture,
    device: Accelerator,
    setting: Setting,
    efficiency: Efficiency = ROOFLINE,
    *,
    split_backward: bool = True,
) -> tuple[LayerEntry, ...]:
    """The costs of one microbatch in each layer, on one device of a tensor-, context- and expert-parallel group.

    Args:
        architecture: the model.
        device: what it runs on, and its links.
        setting: how the model is divided, and how long a microbatch is.
        efficiency: which share of the device's peaks is reached.
        split_backward: whether B and W may run apart, so that W needs gradients kept from B; False: nothing is kept for W, and the
            layers have the fused backward alone.

    Returns:
        One entry for each layer, in the order of the forward; times in nanoseconds, sizes in bytes. `parameters` are those that one
        device has, `expert_parameters` those of them that are of routed experts, `message` what one device sends.

    Raises:
        Unsupported: a dimension of the model cannot be divided as the setting asks, or the sequence is too long for it.
    """
    message = round(setting.own_tokens * architecture.hidden * setting.element_bytes)
    made: dict[int, LayerEntry] = {}
    layers = []
    parts = parts_of(architecture, setting)
    for part in parts:
        if id(part.operators) not in made:  # equal blocks share them, and `parts` keeps them
            made[id(part.operators)] = layer_of(
                part.name,
                part.kind,
                part.operators,
                device,
                efficiency,
                element_bytes=setting.element_bytes,
                message_bytes=part.states * message,
                split_backward=split_backward,
            )
        layers.append(replace(made[id(part.operators)], name=part.name))
    return tuple(layers)


def layer_of(
    name: str,
    kind: str,
    operators: Operators,
    device: Accelerator,
    efficiency: Efficiency = ROOFLINE,
    *,
    element_bytes: int = 2,
    message_bytes: int = 0,
    split_backward: bool = True,
) -> LayerEntry:
    """A profile's layer of its operators.

    Memory never grows in B in the cost model. Where the gradients that B keeps for W are more than what it frees, `activation` is
    therefore as high as `activation_after_input`: never too little.

    Raises:
        Unsupported: a number is larger than a profile can hold.
    """
    forward_s, input_s, weight_s = (
        sum(duration_s(work, operator.engine, device, efficiency, element_bytes=element_bytes) for operator, work in works)
        for works in (
            [(operator, operator.forward) for operator in operators],
            [(operator, operator.backward_input) for operator in operators],
            [(operator, operator.backward_weight) for operator in operators],
        )
    )
    kept = sum(operator.kept_for_input_bytes + operator.kept_for_weight_bytes for operator in operators)
    after = sum(operator.kept_for_weight_bytes + operator.gradient_bytes for operator in operators) if split_backward else 0.0
    if max(forward_s, input_s, weight_s) * 1e9 > MAX_QUANTITY or max(kept, after) > MAX_QUANTITY:
        raise Unsupported(f"the microbatch is too large: {name} takes or holds more than {MAX_QUANTITY} ns or B")
    return LayerEntry(
        name=name,
        kind=kind,
        parameters=round(sum(operator.parameters for operator in operators)),
        expert_parameters=round(sum(operator.parameters for operator in operators if operator.routed)) or None,
        forward_ns=round(forward_s * 1e9),
        backward_input_ns=round(input_s * 1e9) if split_backward else None,
        backward_weight_ns=round(weight_s * 1e9) if split_backward else None,
        backward_ns=None if split_backward else round(input_s * 1e9) + round(weight_s * 1e9),
        activation_bytes=round(max(kept, after)),
        activation_after_input_bytes=round(after) if split_backward else None,
        message_bytes=message_bytes,
    )


def merged(layers: Sequence[LayerEntry]) -> tuple[LayerEntry, ...]:
    """Layers in a row that differ in their names alone as one entry with `repeat`, named by the first and the last."""
    runs: list[list[LayerEntry]] = []
    for layer in layers:
        if runs and replace(runs[-1][0], name=layer.name) == layer:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return tuple(
        run[0]
        if len(run) == 1
        else replace(run[0], name=f"{run[0].name.replace('block', 'blocks')} to {run[-1].name.split()[-1]}", repeat=len(run))
        for run in runs
    )


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
