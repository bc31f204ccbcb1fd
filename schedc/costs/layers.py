"""What each layer of a model costs on a device, a pure function; and the model that a user names.

The layers are those of a profile.json: the embedding, each block, each multi-token-prediction module, the head. Each is a list of
operators, in the order of the forward. A user names a model by a known name or the path of a config.json; the architectures that
are known by name are in the file models.toml beside this one, in the keys of a Hugging Face config.json.
"""

from __future__ import annotations

import tomllib
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from schedc.costs.architecture import Architecture, Block, Experts, Setting
from schedc.costs.efficiency import PHASES, ROOFLINE, Efficiency, operator_s
from schedc.costs.hugging_face import architecture_of_config
from schedc.costs.operators.blocks import (
    TOKEN_BYTES,
    block_operators,
    embedding_operators,
    further_token_operators,
    head_operators,
    kind_of,
)
from schedc.costs.operators.operator import Engine, elementwise
from schedc.costs.operators.vision import image_setting, image_tokens, patch_operators, projector_operators
from schedc.errors import InvalidInput, Unsupported
from schedc.formats.graph_entries import LayerEdge, ModuleEntry
from schedc.formats.operator_table import MeasuredEngine, Product
from schedc.formats.profile_file import LayerEntry, QuadraticEntry
from schedc.io.input_file import read_bytes
from schedc.io.location import Location, show
from schedc.io.tables import parse_json
from schedc.spelling import nearest
from schedc.units import MAX_QUANTITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.costs.devices import Accelerator
    from schedc.costs.operators.operator import Operators


MEASURED: dict[Engine, MeasuredEngine] = {Engine.MATRIX: "matrix", Engine.GROUPED: "grouped", Engine.ATTENTION: "attention"}
"""Of these products a device's table has shares."""


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
                message_bytes=part.message_bytes,
                split_backward=split_backward,
            )
        layer = replace(made[id(part.operators)], name=part.name)
        if part.kind == "head":
            layer = replace(layer, split_message_bytes=round(setting.own_tokens * STATISTICS_BYTES))
        layers.append(layer)
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
    took_s = {
        phase: [operator_s(each, phase, device, efficiency, element_bytes=element_bytes) for each in operators] for phase in PHASES
    }
    forward_s, input_s, weight_s = map(sum, took_s.values())
    kept = sum(operator.kept_for_input_bytes + operator.kept_for_weight_bytes for operator in operators)
    after = sum(operator.kept_for_weight_bytes + operator.gradient_bytes for operator in operators) if split_backward else 0.0
    if max(forward_s, input_s, weight_s) * 1e9 > MAX_QUANTITY or max(kept, after) > MAX_QUANTITY:
        raise Unsupported(f"the microbatch is too large: {name} takes or holds more than {MAX_QUANTITY} ns or B")
    quadratic_s = [
        sum(each.quadratic * part_s for each, part_s in zip(operators, took_s[phase], strict=True)) for phase in PHASES[:2]
    ]
    shares = [round(part_s / all_s, 4) if part_s else 0.0 for part_s, all_s in zip(quadratic_s, (forward_s, input_s), strict=True)]
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
        state_gradient_bytes=round(sum(each.state_bytes for each in operators)) or None,
        quadratic=QuadraticEntry(forward=shares[0], backward_input=shares[1]) if any(shares) else None,
    )


def products_of(parts: Sequence[Part], batch: int) -> list[Product]:
    """The products of layers that a device's table has, each shape once: all but attention that does not see all before it.

    Args:
        parts: the layers.
        batch: sequences in a microbatch.
    """
    found = {}
    for operator in (each for part in parts for each in part.operators):
        engine = MEASURED.get(operator.engine)
        if operator.shape is None or engine is None or (operator.engine is Engine.ATTENTION and operator.quadratic != 1):
            continue
        number, tokens, inner, outer = (int(each) if float(each).is_integer() else each for each in operator.shape)
        flops = operator.forward.flops, operator.backward_input.flops, operator.backward_weight.flops
        found[operator.engine, operator.shape] = Product(engine, (number, tokens, inner, outer), batch, flops)
    return list(found.values())


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
    message_bytes: int
    """What it sends on."""


@lru_cache(maxsize=1024)
def parts_of(architecture: Architecture, setting: Setting) -> tuple[Part, ...]:
    """All layers, as one device of a tensor-, context- and expert-parallel group has them; callers share them.

    Raises:
        Unsupported: a dimension of the model cannot be divided as the setting asks, or the sequence is too long for it.
    """
    parallel = setting.context_parallel * setting.tensor_parallel
    if setting.sequence_length % parallel:
        raise Unsupported(
            f"tensor × context parallel size {parallel} does not divide {setting.sequence_length} tokens of a sequence"
        )
    sublayers = (sublayer for block in architecture.blocks for sublayer in block.sublayers)
    if not any(isinstance(sublayer, Experts) for sublayer in sublayers):
        for name, size, expected in (
            ("expert parallel", setting.expert_parallel, 1),
            ("expert tensor parallel", setting.expert_tensor, setting.tensor_parallel),
        ):
            if size != expected:
                raise Unsupported(f"{name} size {size}: {architecture.name} has no experts, expected {expected}")
    if architecture.positions and setting.sequence_length > architecture.positions:
        room = f"the model's {architecture.positions} position embeddings"
        raise Unsupported(f"a sequence of {setting.sequence_length} tokens is longer than {room}")
    state = round(setting.own_tokens * architecture.hidden * setting.element_bytes)
    of_block: dict[Block, Operators] = {}
    parts, embedding = _vision_parts(architecture, setting), embedding_operators(architecture, setting)
    if parts:
        taken = parts[-1].message_bytes / setting.element_bytes
        embedding = [*embedding, elementwise("tokens of images", setting, taken, forward=2, backward=2)]
    parts.append(Part("embedding", "embedding", embedding, state))
    for number, block in enumerate(architecture.blocks):
        if block not in of_block:
            of_block[block] = block_operators(block, architecture, setting)
        parts.append(Part(f"block {number}", kind_of(block), of_block[block], state))
    for number, block in enumerate(architecture.further_tokens):
        operators = further_token_operators(block, architecture, setting, held=not (number or architecture.tied))
        # The state that the head reads goes on beside that of the module.
        parts.append(Part(f"further token {number}", f"further token, {kind_of(block)}", operators, 2 * state))
    parts.append(Part("head", "head", head_operators(architecture, setting), 0))
    return tuple(parts)


def _vision_parts(architecture: Architecture, setting: Setting) -> list[Part]:
    """Those of the encoder of images, if there are images.

    Raises:
        Unsupported: there is no encoder, or its images cannot be so.
    """
    vision = architecture.vision
    if not setting.images:
        return []
    if vision is None:
        raise Unsupported(f"{setting.images} images: {architecture.name} takes none, expected 0")
    tokens, images = image_tokens(vision, setting), image_setting(vision, setting)
    state, own = round(images.own_tokens * vision.hidden * setting.element_bytes), tokens / setting.tensor_parallel
    of_block = {block: block_operators(block, vision, images) for block in dict.fromkeys(vision.blocks)}
    blocks = [Part(f"vision block {at}", kind_of(block), of_block[block], state) for at, block in enumerate(vision.blocks)]
    sent = round(own * architecture.hidden * setting.element_bytes)
    return [
        Part("patches", "patches", patch_operators(vision, images), state),
        *blocks,
        Part("projector", "projector", projector_operators(vision, images), sent),
    ]


def graph_of(architecture: Architecture, setting: Setting) -> tuple[tuple[ModuleEntry, ...], tuple[LayerEdge, ...]]:
    """The modules and the edges of the layers: none without images, as the layers are a chain then.

    The encoder begins with the batch; what it gives goes to the decoder's embedding, and token ids go past it.
    """
    vision = architecture.vision
    if not setting.images or vision is None:
        return (), ()
    text = len(architecture.blocks) + len(architecture.further_tokens) + 2
    modules = (
        ModuleEntry(name="vision", layers=len(vision.blocks) + 2, inputs=()),
        ModuleEntry(name="text", layers=text, inputs=("vision",)),
    )
    ids = setting.microbatch_size * setting.sequence_length * TOKEN_BYTES
    return modules, (LayerEdge(source="vision.0", destination="text", value="ids", message_bytes=ids, gradient=False),)


STATISTICS_BYTES = 12
"""Of a token, between a part of a split head and the join: the largest logit, the sum of exponentials, the target's logit."""


def architecture_of(model: str) -> Architecture:
    """The architecture of that name, or of that file.

    Raises:
        InvalidInput: there is neither, or the file cannot be used.
    """
    path = Path(model)
    if is_known(model) or not (path.suffix == ".json" or path.exists()):
        return architecture_named(model)
    name = path.stem if path.stem != "config" else path.resolve().parent.name
    return architecture_of_config(parse_json(read_bytes(path), model), name, Location(model))


FILE = "models.toml"


def is_known(name: str) -> bool:
    """Whether there is an architecture of that name."""
    return name in known_models() or name in _others()


@cache
def architecture_named(name: str) -> Architecture:
    """The architecture of that name.

    Raises:
        InvalidInput: no such name.
    """
    full, models = _others().get(name, name), known_models()
    if full not in models:
        expected = f"one of {', '.join(models)}, or the path of a config.json{nearest(full, models)}"
        raise InvalidInput(f"found the model name {show(full)}, expected {expected}")
    return architecture_of_config(models[full]["config"], full, Location(FILE) / full / "config")


@cache
def _others() -> dict[str, str]:
    """The full name of each other one."""
    return {other: name for name, model in known_models().items() for other in model.get("also", ())}


@cache
def known_models() -> dict[str, Any]:
    """What the file says of each model, by its full name, in the file's order."""
    return tomllib.loads(resources.files("schedc.costs").joinpath(FILE).read_text(encoding="utf-8"))
