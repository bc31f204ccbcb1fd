"""Layers in a row as one stage of a plan with slices, or of one whose stages are a graph, as `build_stages` makes it."""

from __future__ import annotations

from typing import Any

from schedc.errors import InvalidInput
from schedc.runtime.common.boundary import tensors_of
from schedc.runtime.session.layers import Layers
from schedc.runtime.stage.named import OF_RUNTIME, taken_by
from schedc.runtime.stage.slices import takes_state


class Row(Layers):
    """The first layer takes what the stage does, also by name; each that takes a state has its own in the stage's."""

    takes_targets: bool
    """Whether the first layer wants the targets."""
    takes_state: bool
    """Whether any layer has a state."""

    def wire(self, first: int, *, sliced: bool) -> Row:
        """Look at the layers, of which `first` is the first in the model; the stage itself.

        Raises:
            InvalidInput: microbatches are in slices, and a layer does not say whether it has a state; or a layer wants targets that
                it does not get.
        """
        wanting = [getattr(layer, "takes_targets", False) for layer in self]
        if any(wanting[1:]):
            number = first + wanting.index(True, 1)
            raise InvalidInput(
                f"layer {number} takes the targets, and layer {number - 1} is before it in its stage; partition before it"
            )
        self.takes_targets = wanting[0]
        self._takes = [sliced and takes_state(layer, f"layer {number}") for number, layer in enumerate(self, first)]
        self.takes_state = any(self._takes)
        return self

    def forward(self, *values: Any, state: Any = None, **named: Any) -> Any:
        """What the last layer gives; with the states of all layers, where one has any."""
        states: list[Any] = []
        found: Any = None
        for layer, takes, own in zip(self, self._takes, state or [None] * len(self), strict=True):
            if states:
                values = tensors_of(found, "what a layer gives")
                named = {name: value for name, value in named.items() if name not in OF_RUNTIME}
            found = layer(*values, **taken_by(layer, named), **({"state": own} if takes else {}))
            after = None
            if takes:
                if not isinstance(found, tuple) or len(found) != 2:
                    raise InvalidInput(f"a {type(layer).__name__} gives a {type(found).__name__}, expected (y, state)")
                found, after = found
            states.append(after)
        return (found, states) if self.takes_state else found
