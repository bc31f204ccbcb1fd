"""What the layers of a model that a user names cost on a device that they name, as they divide it: what `schedc costs` shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from numbers import Integral
from typing import TYPE_CHECKING, TypeVar

from schedc.costs.architecture import (
    Architecture,
    ContextExchange,
    ExpertExchange,
    Framework,
    Setting,
    second_embedding,
    vision_parameters,
)
from schedc.costs.devices import Accelerator, device_named
from schedc.costs.efficiency import Efficiency, efficiency_of
from schedc.costs.layers import architecture_of, graph_of, layers_of, merged
from schedc.costs.operators.operator import GRADIENT_BYTES
from schedc.errors import InvalidInput
from schedc.formats.profile_file import profile_json
from schedc.io.location import show
from schedc.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.formats.graph_entries import LayerEdge, ModuleEntry
    from schedc.formats.profile_file import LayerEntry

DEFAULT_SEQUENCE = 4096
"""Tokens, where neither the user nor the model's position embeddings say otherwise."""


Choice = TypeVar("Choice", bound=StrEnum)


def _choice(kind: type[Choice], name: str, given: str) -> Choice:
    if given not in list(kind):
        raise InvalidInput(f"{name}: found {show(given)}, expected {' or '.join(kind)}")
    return kind(given)


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
    modules: tuple[ModuleEntry, ...]
    edges: tuple[LayerEdge, ...]
    notes: tuple[str, ...]
    """On what is counted; for people."""

    def profile_json(self, *, exact: bool = False) -> str:
        """The text of its profile; `exact` as of `schedc.formats.profile_file.profile_json`."""
        named = {"model": f"{self.title}, predicted", "device": self.device.title}
        return profile_json(self.layers, modules=self.modules, edges=self.edges, **named, exact=exact)


def predicted(
    model: str,
    device: str,
    *,
    tp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    context_exchange: str = "ring",
    expert_exchange: str = "all-to-all",
    node: int | None = None,
    framework: str = "plain",
    microbatch: int = 1,
    sequence: int | None = None,
    images: int = 0,
    image_size: tuple[int, int] | None = None,
    selective_recompute: bool = False,
    split_backward: bool = True,
    rates: Efficiency | None = None,
    table: Path | None = None,
) -> Predicted:
    """What the layers cost.

    Arguments are those of `schedc.write_profile`, and some besides: `node`, devices that fast links connect (None: the device's
    group); `selective_recompute`, whether B computes norms and activation functions again; `split_backward`, whether B and W may
    run apart; `rates`, which share of the device's peaks is reached (None: what its table says, or constants for devices without
    one).

    Raises:
        InvalidInput: there is no such model or device, the file cannot be used, or a size is not a whole number above 0.
        Unsupported: a dimension of the model cannot be divided so.
    """
    for name, size in (("tp", tp), ("cp", cp), ("ep", ep), ("etp", etp), ("microbatch", microbatch), ("sequence", sequence)):
        if size is not None and not (isinstance(size, Integral) and size >= 1):
            raise InvalidInput(f"{name}: found {show(size)}, expected a whole number of at least 1")
    if not (isinstance(images, Integral) and images >= 0):
        raise InvalidInput(f"images: found {show(images)}, expected a whole number of at least 0")
    architecture, where = architecture_of(model), device_named(device)
    vision, notes = architecture.vision, []
    if not images and vision is not None:
        architecture = replace(architecture, vision=None)
        notes.append("the decoder alone, as the microbatch has no images; schedc costs --images N has the encoder, too")
    setting = Setting(
        microbatch_size=microbatch,
        sequence_length=sequence or min(DEFAULT_SEQUENCE, architecture.positions or DEFAULT_SEQUENCE),
        tensor_parallel=tp,
        context_parallel=cp,
        expert_parallel=ep,
        expert_tensor_parallel=etp,
        context_exchange=_choice(ContextExchange, "context_exchange", context_exchange),
        expert_exchange=_choice(ExpertExchange, "expert_exchange", expert_exchange),
        node=where.group if node is None else node,
        framework=_choice(Framework, "framework", framework),
        selective_recompute=selective_recompute,
        images=images,
        image_size=image_size,
    )
    rates = efficiency_of(where.name, table) if rates is None else rates
    layers = merged(layers_of(architecture, where, setting, rates, split_backward=split_backward))
    named = (("tp", tp, 1), ("cp", cp, 1), ("ep", ep, 1), ("etp", setting.expert_tensor, tp))
    divided = "".join(f", {name} {size}" for name, size, usual in named if size != usual)
    title = f"{architecture.name} on {where.title}{divided}, {microbatch} × {setting.sequence_length} tokens"
    if images and vision is not None:
        wide, high = vision.grid(image_size)
        pixels = vision.patch * vision.merged
        notes.append(
            f"images: {images} of {wide * pixels} × {high * pixels} pixels, {wide * high} tokens each;"
            f" {vision_parameters(vision):,} of the parameters make tokens of them"
        )
    if not rates.table and rates == efficiency_of(where.name):
        notes.append(f"no products measured on {where.name} are known: which share of the peak they reach is a constant")
    modules, edges = graph_of(architecture, setting)
    second = second_embedding(architecture)
    if second is not None:
        first = modules[0].layers if modules else 0
        size = format_bytes(setting.rows(architecture.vocabulary) * architecture.hidden * GRADIENT_BYTES)
        keys = f'first = {first}, last = {first + second}, gradient = "{size}"'
        who = "head" if architecture.tied else "the module for a further token"
        notes.append(f"embedding and {who} share a matrix; where they are on two ranks, the job's [[tied]] has its sum: {keys}")
    return Predicted(
        architecture=architecture,
        device=where,
        setting=setting,
        rates=rates,
        title=title,
        layers=layers,
        modules=modules,
        edges=edges,
        notes=tuple(notes),
    )
