"""Measured layers as the text of a profile.json, with the units that people read, to four digits or more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.files.pretty_json import pretty_json
from schedc.frontend.profile_file import LayerEntry
from schedc.units import format_bytes, format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.files.pretty_json import JsonValue

__all__ = ["LayerEntry", "layers_json"]

DIGITS = 4
"""What is kept of a duration. Measured times are rarely good to more, and fewer read better in a review."""


def layers_json(layers: Sequence[LayerEntry], *, model: str = "") -> str:
    """The text of the file.

    Args:
        layers: in the order of the forward, at least one. What is not known of them is left out.
        model: a name for people.
    """
    file: dict[str, JsonValue] = {"format": "schedc.profile", "version": 1}
    if model:
        file["model"] = model
    return pretty_json({**file, "layers": [_layer(layer) for layer in layers]})


def _layer(layer: LayerEntry) -> dict[str, JsonValue]:
    entry: dict[str, JsonValue] = {}
    if layer.name:
        entry["name"] = layer.name
    if layer.repeat > 1:
        entry["repeat"] = layer.repeat
    entry["forward"] = _duration(layer.forward_ns)
    entry["backward_input"] = _duration(layer.backward_input_ns)
    entry["backward_weight"] = _duration(layer.backward_weight_ns)
    if layer.backward_ns is not None:
        entry["backward"] = _duration(layer.backward_ns)
    sizes = {
        "activation": layer.activation_bytes,
        "activation_after_input": layer.activation_after_input_bytes,
        "message": layer.message_bytes,
        "gradient_message": layer.gradient_message_bytes,
    }
    return {**entry, **{key: format_bytes(size) for key, size in sizes.items() if size is not None}}


def _duration(duration_ns: int) -> str:
    """`4.123 ms`, to so many digits."""
    factor = 10 ** max(0, len(str(duration_ns)) - DIGITS)
    return format_duration_ns(round(duration_ns / factor) * factor)
