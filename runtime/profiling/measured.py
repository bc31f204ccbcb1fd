"""What has been measured of layers: times with their spread, memory; and equal layers in a row made into one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from schedc.analysis.comparison.times import LARGE_SPREAD, SampledTimes
from schedc.formats.profile_file import LayerEntry, SpreadEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SMALL_SHARE = 0.05
"""Times below this share of their layer's sum are too short for their spread to matter."""
PHASES = ("forward", "backward_input", "backward_weight", "backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayer:
    """One layer, or several equal ones in a row, for one microbatch."""

    name: str
    repeat: int = 1
    forward: SampledTimes
    backward_input: SampledTimes
    backward_weight: SampledTimes
    backward: SampledTimes
    """Fused: not the sum of the two."""
    held_bytes: int
    """After F, in a stage of this layer alone."""
    held_after_input_bytes: int
    """After B, until W: what W reads of the activations, and the gradients that it starts from."""
    message_bytes: int | None
    """The outputs; None for a last layer, whose output is the loss."""
    gradient_message_bytes: int | None
    """The gradients of those outputs that have one."""
    parameters: int
    """This many numbers, in each of the equal layers."""
    structure: str
    """Equal for layers that are alike: module, types and shapes."""

    @property
    def activation_bytes(self) -> int:
        """What the cost model takes to be held from F: never less than what is held after B."""
        return max(self.held_bytes, self.held_after_input_bytes)

    def phases(self) -> dict[str, SampledTimes]:
        """The times by name."""
        return {phase: getattr(self, phase) for phase in PHASES}

    def largest_spread(self) -> tuple[str, float]:
        """The phase whose times spread most, and how much, among those that make a difference."""
        least_ns = SMALL_SHARE * (self.forward.median_ns + self.backward.median_ns)
        spreads = {name: times.spread for name, times in self.phases().items() if times.median_ns >= least_ns}
        name = max(spreads, key=spreads.__getitem__)
        return name, spreads[name]


def profile_layer(layer: MeasuredLayer) -> LayerEntry:
    """What of it a profile.json has."""
    return LayerEntry(
        name=layer.name,
        repeat=layer.repeat,
        parameters=layer.parameters,
        forward_ns=layer.forward.median_ns,
        backward_input_ns=layer.backward_input.median_ns,
        backward_weight_ns=layer.backward_weight.median_ns,
        backward_ns=layer.backward.median_ns,
        activation_bytes=layer.activation_bytes,
        activation_after_input_bytes=layer.held_after_input_bytes,
        message_bytes=layer.message_bytes,
        gradient_message_bytes=None if layer.gradient_message_bytes == layer.message_bytes else layer.gradient_message_bytes,
        spread=SpreadEntry(**{phase: times.spread for phase, times in layer.phases().items()}),
    )


def merged(layers: Iterable[MeasuredLayer]) -> tuple[MeasuredLayer, ...]:
    """Layers in a row that are alike, as one that repeats, its medians over the samples of all.

    Alike are layers of the same structure that hold and send the same number of bytes. The name is the first one's and the last
    one's, `block.0 … block.31`.
    """
    return tuple(
        _one(tuple(group))
        for _, group in groupby(
            layers,
            key=lambda layer: (layer.structure, layer.held_bytes, layer.held_after_input_bytes, layer.message_bytes),
        )
    )


def warnings(layers: Sequence[MeasuredLayer], together: Sequence[MeasuredLayer]) -> tuple[str, ...]:
    """What a reader of the numbers should know.

    Args:
        layers: as measured.
        together: as written: the same, or `merged(layers)`.
    """
    said = []
    for layer in together:
        phase, spread = layer.largest_spread()
        if spread > LARGE_SPREAD:
            said.append(f"{layer.name}: {phase} spreads by {spread:.0%} of its median; is the machine busy? Try more --repeats")
    apart = iter(layers)
    for group in together:
        for layer in [next(apart) for _ in range(group.repeat)]:
            own, common = _total_ns(layer), _total_ns(group)
            spread = max(layer.largest_spread()[1], group.largest_spread()[1], LARGE_SPREAD)
            if abs(own - common) > 2 * spread * common:
                said.append(f"{layer.name}: takes {own / common:.0%} of what {group.name} take; use --no-merge to see each")
    grown = [layer.name for layer in together if layer.held_after_input_bytes > layer.held_bytes]
    if grown:
        said.append(
            f"{', '.join(grown)}: more is held after B than after F, because W starts from gradients; activation is set as high as"
            " activation_after_input"
        )
    return tuple(said)


def _total_ns(layer: MeasuredLayer) -> int:
    return layer.forward.median_ns + layer.backward.median_ns


def _one(group: tuple[MeasuredLayer, ...]) -> MeasuredLayer:
    first, last = group[0], group[-1]
    if first is last:
        return first

    together: dict[str, Any] = {
        phase: SampledTimes(tuple(sample for layer in group for sample in layer.phases()[phase].samples_ns)) for phase in PHASES
    }
    return replace(first, name=f"{first.name} … {last.name}", repeat=sum(layer.repeat for layer in group), **together)
