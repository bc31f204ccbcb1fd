"""Which layer of a plan's model is the embedding, a decoder block, a module for further tokens or the head.

A plan has the numbers of layers alone. The profile that its job names has their kinds, as `schedc costs` writes them, or names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from schedc.errors import Unsupported
from schedc.formats.megatron_layout import ModelLayer
from schedc.formats.profile_file import ProfileFile
from schedc.io.conform import conform
from schedc.io.input_file import read_bytes
from schedc.io.location import Location
from schedc.io.tables import parse_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from schedc.formats.profile_file import LayerEntry
    from schedc.ir.plan import Plan

_DECODER = re.compile(r"(windowed |latent )?attention( \+ (feed-forward|experts))*")
"""The kinds of blocks that are Megatron's decoder layers, as `schedc costs` writes them."""


def read_model_layers(path: Path) -> tuple[ModelLayer, ...]:
    """What the layers of a profile are, in the order of the forward.

    Raises:
        InvalidInput: the file is no profile, or a layer is none of these.
    """
    place = Location(str(path))
    entries = conform(parse_json(read_bytes(path), str(path)), ProfileFile, place).layers
    return tuple(layer for index, entry in enumerate(entries) for layer in [_layer(entry, place / "layers" / index)] * entry.repeat)


def _layer(entry: LayerEntry, place: Location) -> ModelLayer:
    named = re.match("embedding|block|further token|head", entry.name)  # without kinds: "block.3", "blocks 0 to 31"
    kind = entry.kind or (named[0] if named else "")
    if kind in ("embedding", "head"):
        return ModelLayer.EMBEDDING if kind == "embedding" else ModelLayer.HEAD
    if kind.startswith("further token"):
        return ModelLayer.FURTHER_TOKEN
    if kind == "block" or _DECODER.fullmatch(kind):
        return ModelLayer.BLOCK
    found = f"{entry.kind!r} of a layer with the name {entry.name!r}"
    raise (place / "kind").refuse(
        found, "embedding, head, block, or a kind that schedc costs writes for a block of attention and feed-forward"
    )


def layers_of_stages(plan: Plan, layers: Sequence[ModelLayer]) -> tuple[tuple[ModelLayer, ...], ...]:
    """What the layers of each stage are, along the one path of the plan.

    Raises:
        Unsupported: the plan's stages do not have these layers, or they are not an embedding, then blocks, then modules for further
            tokens, then a head.
    """
    problem = plan.problem
    if problem.paths != (tuple(range(len(problem.stages))),):
        raise Unsupported(f"{plan.name}: its stages are not one path in their order (a bidirectional placement, say)")
    bounds = [stage.layers for stage in problem.stages if stage.layers is not None]
    if len(bounds) < len(problem.stages):
        raise Unsupported(f"{plan.name}: the plan does not know the layers of its stages; compile it from a profile.json")
    if bounds[-1][1] != len(layers):
        raise Unsupported(f"{plan.name}: the plan has {bounds[-1][1]} layers and the profile {len(layers)}; name the job's profile")
    order = (ModelLayer.EMBEDDING, ModelLayer.BLOCK, ModelLayer.FURTHER_TOKEN, ModelLayer.HEAD)
    ends = (layers.count(ModelLayer.EMBEDDING), layers.count(ModelLayer.HEAD))
    if ends != (1, 1) or sorted(layers, key=order.index) != list(layers):
        expected = "one embedding, then blocks, then modules for further tokens, then one head"
        raise Unsupported(f"{plan.name}: its layers are {''.join(layers)}, expected {expected}")
    return tuple(tuple(layers[first:last]) for first, last in bounds)
