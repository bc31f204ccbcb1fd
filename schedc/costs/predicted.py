"""The layers of a model that a user names, as a profile has them: by a known name or the path of a config.json.

The architectures that are known by name are in the file models.toml beside this one, in the keys of a Hugging Face config.json.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schedc.costs.architecture import Architecture, Setting
from schedc.costs.devices import ROOFLINE, Accelerator, Efficiency, device_named
from schedc.costs.hugging_face import architecture_of_config
from schedc.costs.layers import layers_of, merged
from schedc.errors import InvalidInput
from schedc.io.input_file import read_bytes
from schedc.io.location import Location, show
from schedc.io.tables import parse_json
from schedc.spelling import nearest

if TYPE_CHECKING:
    from schedc.formats.profile_file import LayerEntry

DEFAULT_SEQUENCE = 4096
"""Tokens, where neither the user nor the model's position embeddings say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A model's layers on a device."""

    architecture: Architecture
    device: Accelerator
    setting: Setting
    rates: Efficiency
    title: str
    """The model, the device, how it is divided, and the tokens; for people."""
    layers: tuple[LayerEntry, ...]
    """Equal ones in a row are one entry."""


def predicted(
    model: str,
    device: str,
    *,
    tp: int = 1,
    cp: int = 1,
    ep: int = 1,
    microbatch: int = 1,
    sequence: int | None = None,
    selective_recompute: bool = False,
    split_backward: bool = True,
    rates: Efficiency = ROOFLINE,
) -> Predicted:
    """What the layers cost.

    Args:
        model: a known name, or the path of a Hugging Face config.json.
        device: a known name.
        tp: the tensor parallel size.
        cp: the context parallel size.
        ep: the expert parallel size.
        microbatch: sequences in a microbatch.
        sequence: tokens in a sequence; None: 4096, or the model's position embeddings if fewer.
        selective_recompute: whether B computes norms and activation functions again.
        split_backward: whether B and W may run apart.
        rates: which share of the device's peaks is reached.

    Raises:
        InvalidInput: there is no such model or device, the file cannot be used, or a size is not a whole number above 0.
        Unsupported: a dimension of the model cannot be divided so.
    """
    for name, size in (("tp", tp), ("cp", cp), ("ep", ep), ("microbatch", microbatch), ("sequence", sequence)):
        if size is not None and not (isinstance(size, Integral) and size >= 1):
            raise InvalidInput(f"{name}: found {show(size)}, expected a whole number of at least 1")
    architecture, where = architecture_of(model), device_named(device)
    setting = Setting(
        microbatch_size=microbatch,
        sequence_length=sequence or min(DEFAULT_SEQUENCE, architecture.positions or DEFAULT_SEQUENCE),
        tensor_parallel=tp,
        context_parallel=cp,
        expert_parallel=ep,
        selective_recompute=selective_recompute,
    )
    layers = merged(layers_of(architecture, where, setting, rates, split_backward=split_backward))
    divided = "".join(f", {name} {size}" for name, size in (("tp", tp), ("cp", cp), ("ep", ep)) if size > 1)
    title = f"{architecture.name} on {where.title}{divided}, {microbatch} × {setting.sequence_length} tokens"
    return Predicted(architecture=architecture, device=where, setting=setting, rates=rates, title=title, layers=layers)


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
