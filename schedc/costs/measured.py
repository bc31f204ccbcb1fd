"""Measured layers in the place of predicted ones: of those kinds that somebody has measured; the rest of a model stays predicted.

A measured layer counts for all layers of its kind: the kind that `schedc costs` writes, or, of a profile without kinds, what its
name begins with (embedding, block, further token, head). What counts of it is durations and activations; parameters and messages
follow from the model.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from schedc.errors import Unsupported
from schedc.formats.profile_file import LayerEntry, ProfileFile
from schedc.io.conform import conform
from schedc.io.input_file import read_bytes
from schedc.io.location import Location, show
from schedc.io.tables import parse_json
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from schedc.costs.devices import Accelerator

NAMED = re.compile(r"embedding|block|further token|head")
DURATIONS = ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns", "forward_again_ns")
SIZES = ("activation_bytes", "activation_after_input_bytes")


def with_measured(
    layers: Sequence[LayerEntry], path: Path, device: Accelerator, *, bias: float = 1.0, other_device: bool = False
) -> tuple[tuple[LayerEntry, ...], tuple[str, ...]]:
    """A model's layers, measured where a profile has their kind.

    Args:
        layers: predicted ones.
        path: of the profile.
        device: what they are predicted for.
        bias: what a layer takes in a model, of what it takes measured alone; durations are multiplied by it.
        other_device: whether the profile may be of another device.

    Returns:
        The layers, and for people what is measured, how it differs from the prediction, and what is not.

    Raises:
        InvalidInput: the file is no profile, or one of another device, or a layer of it is of no kind that the model has.
        Unsupported: B and W are asked for, and only both together were measured.
    """
    place = Location(str(path)) / "layers"
    file = conform(parse_json(read_bytes(path), str(path)), ProfileFile, Location(str(path)))
    measured, said_of = file.layers, file.device
    if said_of and not other_device and not _is_named(device, said_of):
        expected = f"{device.title}, whose costs are asked for, or --other-device"
        raise (Location(str(path)) / "device").refuse(show(said_of), expected)
    kinds = {_kind(layer, layers) for layer in layers}
    for index, entry in enumerate(measured):
        if _kind(entry, layers) not in kinds:
            known = ", ".join(sorted({layer.kind for layer in layers}))
            raise (place / index / "kind").refuse(show(entry.kind or entry.name), f"a kind of layer that the model has: {known}")
    made, said = [], [] if said_of else [f"{path.name} does not say which device it was measured on"]
    for layer in layers:
        of_kind = [entry for entry in measured if _kind(entry, layers) == _kind(layer, layers)]
        if not of_kind:
            said.append(f"{layer.name}: not measured, predicted")
            made.append(layer)
            continue
        if layer.backward_input_ns is not None and any(entry.is_fused for entry in of_kind):
            raise Unsupported(f"{layer.name}: B and W were measured together alone; expected --no-split-backward, or both apart")
        new = replace(layer, spread=None, **_means(of_kind, bias))
        if layer.backward_input_ns is None:
            new = replace(new, backward_ns=new.whole_ns, backward_input_ns=None, backward_weight_ns=None)
        ratio = (new.forward_ns + new.whole_ns) / max(1, layer.forward_ns + layer.whole_ns)
        took = f"F {format_duration_ns(new.forward_ns)}, BW {format_duration_ns(new.whole_ns)}"
        said.append(f"{layer.name}: measured{'' if bias == 1 else f' alone × {bias:g}'}, {took}: {ratio:.2f} × the prediction")
        made.append(new)
    return tuple(made), tuple(said)


def _is_named(device: Accelerator, said: str) -> bool:
    """Whether this may be the device: its name is one of the words, as of H100 in NVIDIA H100 80GB HBM3."""
    return re.search(rf"\b{re.escape(device.name.partition('-')[0])}\b", said, re.IGNORECASE) is not None


def _kind(layer: LayerEntry, model: Sequence[LayerEntry]) -> str:
    """A kind of the model's; of a layer without one, or of another's, what its name begins with, if the model has one such kind."""
    of_model = {each.kind: NAMED.match(each.name) for each in model}
    if layer.kind in of_model:
        return layer.kind
    named = NAMED.match(layer.kind or layer.name)
    alike = [kind for kind, match in of_model.items() if named and match and match[0] == named[0]]
    return alike[0] if len(alike) == 1 else ""


def _means(entries: Sequence[LayerEntry], bias: float) -> dict[str, int | None]:
    """Of each field that all of them have."""
    found: dict[str, int | None] = {}
    count = sum(entry.repeat for entry in entries)
    for names, factor in ((DURATIONS, bias), (SIZES, 1.0)):
        for name in names:
            values = [(getattr(entry, name), entry.repeat) for entry in entries]
            known = [value * repeat for value, repeat in values if value is not None]
            if len(known) == len(values):
                found[name] = round(factor * sum(known) / count)
            elif name in DURATIONS:
                found[name] = None
    return found
