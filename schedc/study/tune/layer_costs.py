"""What layers cost as a candidate divides them, with weights sharded or whole; and the sums over a model's layers.

Takes a prediction or a profile; gives the entries of a profile.json and the layers that the compiler makes of them. Where ZeRO 2 or
3 divides gradients or weights, the replicas' collectives run beside the blocks, layer by layer: a layer's forward takes no less
than the gathering of a layer's weights, its backward no less than gathering and reducing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import structs

from schedc.formats.profile_file import LayerEntry, profile_json
from schedc.frontend.profile import layers_of_entries
from schedc.io.location import Location

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.costs.architecture import Setting
    from schedc.costs.layers import Part
    from schedc.ir import Layer
    from schedc.study.tune.candidates import TuneCandidate

PROFILE = "profile.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over all layers, of one microbatch."""

    forward_ns: int
    gradient_ns: int
    """Of the backwards, until the gradient is sent."""
    backward_ns: int
    """Of the backwards, fused or split, whichever is less."""
    again_ns: int
    """Of the forwards that run again where all stages recompute."""
    activation_bytes: int
    held_byte_ns: int
    """Of each layer's activations, how long any plan holds them at least: while the forwards and backwards run from it on."""
    parameters: int
    """But those of experts."""
    expert_parameters: int
    of_unlike: tuple[Fraction, Fraction] | None = None
    """Where ranks differ, what the one with the most work has of blocks, and of forwards that run again, at least (`least_of`)."""

    def work_ns(self, candidate: TuneCandidate) -> int:
        """All blocks of one microbatch."""
        return self.forward_ns + self.backward_ns + self._again_ns(candidate)

    def rank_work_ns(self, candidate: TuneCandidate) -> Fraction:
        """What the rank with the most work has of it, of one microbatch, at least."""
        if self.of_unlike is None:
            return Fraction(self.work_ns(candidate), candidate.ranks)
        return self.of_unlike[0] + (self.of_unlike[1] if candidate.recompute == "full" else 0)

    def path_ns(self, candidate: TuneCandidate) -> int:
        """From the first forward of a microbatch to its last gradient."""
        return self.forward_ns + self.gradient_ns + self._again_ns(candidate)

    def _again_ns(self, candidate: TuneCandidate) -> int:
        return self.again_ns if candidate.recompute == "full" else 0


def totals_of(entries: Sequence[LayerEntry], *, split_backward: bool, shared_parameters: int = 0) -> Totals:
    """The sums; without split backwards there is only the fused one. `shared_parameters` are in two layers, of one rank perhaps."""
    forward_ns = gradient_ns = backward_ns = again_ns = activation_bytes = held_byte_ns = parameters = experts = 0
    for layer in reversed(entries):
        times, fused_ns, held_bytes = layer.repeat, layer.whole_ns, layer.activation_bytes or 0
        input_ns, weight_ns = layer.parts_ns
        until_ns = min(input_ns, fused_ns) if split_backward else fused_ns
        held_byte_ns += held_bytes * (  # of a run of layers, the last waits for itself alone, the first for all
            times * (forward_ns + gradient_ns) + times * (times + 1) // 2 * (layer.forward_ns + until_ns)
        )
        forward_ns += times * layer.forward_ns
        gradient_ns += times * until_ns
        backward_ns += times * (min(input_ns + weight_ns, fused_ns) if split_backward else fused_ns)
        again_ns += times * (layer.forward_ns if layer.forward_again_ns is None else layer.forward_again_ns)
        activation_bytes += times * held_bytes
        parameters += times * ((layer.parameters or 0) - (layer.expert_parameters or 0))
        experts += times * (layer.expert_parameters or 0)
    return Totals(
        forward_ns=forward_ns,
        gradient_ns=gradient_ns,
        backward_ns=backward_ns,
        again_ns=again_ns,
        activation_bytes=activation_bytes,
        held_byte_ns=held_byte_ns,
        parameters=parameters - shared_parameters,
        expert_parameters=experts,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerCosts:
    """A model's layers for one microbatch size and one way to divide them."""

    entries: tuple[LayerEntry, ...]
    split_backward: bool
    """Whether B and W may run apart."""
    title: str
    """Of the model, in its profile."""
    parts: tuple[Part, ...] = ()
    """The layers' operators; none of layers that were measured."""
    setting: Setting | None = None
    text: str = ""
    """Of the profile that they were read from; empty: it is made of the entries."""
    file: str = PROFILE
    """Of that profile; for messages."""
    shared_parameters: int = 0
    """Of a device, in the embedding's matrix, which another layer counts, too; a rank with both holds it once."""
    shared_layer: int = 0
    """That other layer: a tied head, or a module for further tokens."""

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """As the compiler has them.

        Raises:
            InvalidInput: the entries cannot be used.
        """
        return layers_of_entries(self.entries, Location(self.file), split_backward=self.split_backward)

    @cached_property
    def each(self) -> tuple[LayerEntry, ...]:
        """An entry for each layer."""
        repeated = [structs.replace(entry, repeat=1) for entry in self.entries for _ in range(entry.repeat)]
        if self.parts:
            repeated = [structs.replace(entry, name=part.name) for entry, part in zip(repeated, self.parts, strict=True)]
        return tuple(repeated)

    @cached_property
    def totals(self) -> Totals:
        """Their sums; without split backwards there is only the fused one."""
        return totals_of(self.entries, split_backward=self.split_backward, shared_parameters=self.shared_parameters)

    @property
    def profile(self) -> str:
        """The text of profile.json, which gives the same layers again."""
        return self.text or profile_json(self.entries, model=self.title, exact=True)


def sharded(costs: LayerCosts, collectives_ns: Callable[[int, int], tuple[int, int]]) -> LayerCosts:
    """The same layers where collectives run beside their blocks.

    Args:
        costs: of whole weights.
        collectives_ns: of a layer's parameters, those of experts apart: what reducing and gathering them takes.
    """
    entries = []
    for entry in costs.entries:
        experts = entry.expert_parameters or 0
        reduce_ns, gather_ns = collectives_ns((entry.parameters or 0) - experts, experts)
        again_ns = None if entry.forward_again_ns is None else max(entry.forward_again_ns, gather_ns)
        entry = structs.replace(entry, backward_ns=max(entry.whole_ns, gather_ns + reduce_ns), forward_again_ns=again_ns)
        if not entry.is_fused:
            input_ns, weight_ns = entry.parts_ns
            entry = structs.replace(entry, backward_input_ns=max(input_ns, gather_ns), backward_weight_ns=max(weight_ns, reduce_ns))
        entries.append(structs.replace(entry, forward_ns=max(entry.forward_ns, gather_ns)))
    return replace(costs, entries=tuple(entries), text="")
