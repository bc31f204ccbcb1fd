"""What each layer takes of those before it, or of the batch, and gives: of a chain, or of a graph of modules.

A layer of a graph takes what its edges carry, one value after another: the output of the layer before it, or those of its
module's inputs, then those of the model's `edges`, in their order. A value is a tensor or several. A layer that gives more than
its output gives a dict by the names that edges have (`value`). A layer without edges in begins with the batch, and one without
edges out has a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from schedc.errors import InvalidInput
from schedc.formats.graph_entries import OUTPUT, LayerEdge, joints_of
from schedc.io.location import Location
from schedc.runtime.common.boundary import tensors_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.runtime.profiling.model import MeasuredLayer, Model

Boundary: TypeAlias = tuple[torch.Tensor, ...]
"""What one layer gives to the next; those that require grad get a gradient."""


class LayerFlow:
    """The values between layers, each kept until the last layer that takes it has been measured."""

    def __init__(self, model: Model, moved: Callable[[object, str], Boundary]) -> None:
        """Look at the graph; `moved` brings a batch to the device.

        Raises:
            InvalidInput: a graph that cannot be, or edges without modules.
        """
        self.layers = sum(module.layers for module in model.modules)
        """How many there must be; 0: any number, which are a chain."""
        if model.edges and not model.modules:
            raise InvalidInput(
                "edges of the model: found some without modules, expected these, too, which say how many layers there are"
            )
        if self.layers and isinstance(model.layers, Sized):
            self.check(len(model.layers))
        places = (Location("modules of the model"), Location("edges of the model"))
        self._joints = joints_of(model.modules, model.edges, self.layers, places) if self.layers else ()
        ends = accumulate((module.layers for module in model.modules), initial=0)
        self._modules = [
            module.name for module, (begin, end) in zip(model.modules, pairwise(ends), strict=True) for _ in range(begin, end)
        ]
        self._model, self._moved = model, moved
        self._values: dict[tuple[int, str], Boundary] = {}
        self._last = {
            (joint.source, joint.value): joint.destination for joint in sorted(self._joints, key=lambda each: each.destination)
        }

    def check(self, layers: int) -> None:
        """Refuse another number of layers than the modules have."""
        if self.layers and layers != self.layers:
            raise InvalidInput(f"layers of the model: found {layers}, expected {self.layers}, as its modules have")

    def taken(self, layer: int) -> tuple[Boundary, bool]:
        """What the layer takes, and whether that is the batch.

        Raises:
            InvalidInput: there is none for it, or the model has more layers than its modules.
        """
        if self.layers and layer >= self.layers:
            raise InvalidInput(f"layers of the model: found more than the {self.layers} of its modules")
        sources = (
            [(joint.source, joint.value) for joint in self._joints if joint.destination == layer]
            if self.layers
            else [(layer - 1, OUTPUT)]
        )
        if not sources or layer == 0:
            given, name = self._model.inputs, self._module(layer)
            if isinstance(given, Mapping):
                if name not in given:
                    has = sorted(map(str, given))
                    raise InvalidInput(f"inputs of the model: found {has}, expected one for {name}, which begins with the batch")
                return self._moved(given[name], f"inputs of {name}"), True
            return self._moved(given, "inputs of the model"), True
        values = tuple(tensor for key in sources for tensor in self._values[key])
        for key in {key for key in sources if self._last.get(key, layer) == layer}:
            del self._values[key]
        return values, False

    def names(self, layer: int, *, last: bool) -> list[str]:
        """Of the values that others take; none: it has a loss, if there is one."""
        if not self.layers:
            return [] if last else [OUTPUT]
        return [*dict.fromkeys(joint.value for joint in self._joints if joint.source == layer)]

    def loss(self, layer: int) -> tuple[Callable[..., torch.Tensor] | None, Any]:
        """The loss function of a layer whose values nothing takes, and its targets.

        Raises:
            InvalidInput: there are some by module, but not of this one.
        """
        found, name = [], self._module(layer)
        for what, given in (("loss_fn", self._model.loss_fn), ("targets", self._model.targets)):
            if isinstance(given, Mapping) and self.layers:
                if name not in given:
                    raise InvalidInput(
                        f"{what} of the model: found {sorted(map(str, given))}, expected one for {name}, whose output nothing takes"
                    )
                found.append(given[name])
            else:
                found.append(given)
        return found[0], found[1]

    def give(self, layer: int, values: Mapping[str, Boundary]) -> None:
        """Keep what the layer gives.

        Raises:
            InvalidInput: over an edge without gradient goes a tensor that requires grad.
        """
        closed = [joint.value for joint in self._joints if joint.source == layer and joint.entry and not joint.entry.gradient]
        for name in closed:
            if any(tensor.requires_grad for tensor in values[name]):
                raise InvalidInput(f"its {name!r} requires grad, expected none, as an edge of it has no gradient; detach it")
        self._values.update(((layer, name), value) for name, value in values.items())

    def _module(self, layer: int) -> str:
        return self._modules[layer] if self._modules else "the model"


def by_name(found: object, names: Sequence[str]) -> dict[str, Boundary]:
    """What a layer gives, by the names of its values: a dict, or where there is one name, this value itself.

    Raises:
        InvalidInput: it is something else.
    """
    if len(names) == 1 and not (isinstance(found, Mapping) and names[0] in found):
        found = {names[0]: found}
    if not isinstance(found, Mapping) or not found.keys() >= {*names}:
        what = f"a dict with {[*found]}" if isinstance(found, Mapping) else f"a {type(found).__name__}"
        raise InvalidInput(f"it gives {what}, expected a dict with {[*names]}, the values of its edges")
    return {name: tensors_of(found[name], f"value {name!r}" if len(names) > 1 else "what a stage gives") for name in names}


def measured_edges(model: Model, layers: Sequence[MeasuredLayer]) -> tuple[LayerEdge, ...]:
    """The edges, with their sizes, of a model with modules or without edges; layers are as measured, none together with others."""
    if not model.edges:
        return ()
    nowhere = Location("")
    found = []
    for joint in joints_of(model.modules, model.edges, len(layers), (nowhere, nowhere)):
        if joint.entry is None:
            continue
        of, (message_bytes, gradient_bytes) = joint.entry, layers[joint.source].values[joint.value]
        found.append(
            LayerEdge(
                source=of.source,
                destination=of.destination,
                value=of.value,
                message_bytes=message_bytes,
                gradient=of.gradient and gradient_bytes > 0,
                gradient_message_bytes=gradient_bytes if 0 < gradient_bytes != message_bytes else None,
            )
        )
    return tuple(found)
