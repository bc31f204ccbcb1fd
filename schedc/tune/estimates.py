"""What is known of a candidate before its job is made: a lower bound, whether it can fit at all, and how long it will about take.

All follow from sums over the model's layers: whatever the partition, some rank has at least the average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.tune.jobs import bytes_per_parameter, collectives_of
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.text.profile_file import LayerEntry
    from schedc.tune.candidates import Candidate
    from schedc.tune.request import Request

__all__ = ["Totals", "about_ns", "no_room", "simple_bound_ns", "totals_of"]


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
    parameters: int

    def work_ns(self, candidate: Candidate) -> int:
        """All blocks of one microbatch."""
        return self.forward_ns + self.backward_ns + self._again_ns(candidate)

    def path_ns(self, candidate: Candidate) -> int:
        """From the first forward of a microbatch to its last gradient."""
        return self.forward_ns + self.gradient_ns + self._again_ns(candidate)

    def _again_ns(self, candidate: Candidate) -> int:
        return 0 if candidate.recompute == "none" else self.again_ns


def totals_of(layers: Sequence[LayerEntry], *, split_backward: bool) -> Totals:
    """The sums; without split backwards there is only the fused one."""
    forward_ns = gradient_ns = backward_ns = again_ns = activation_bytes = parameters = 0
    for layer in layers:
        split_ns = layer.backward_input_ns + layer.backward_weight_ns
        fused_ns = split_ns if layer.backward_ns is None else layer.backward_ns
        forward_ns += layer.repeat * layer.forward_ns
        gradient_ns += layer.repeat * (min(layer.backward_input_ns, fused_ns) if split_backward else fused_ns)
        backward_ns += layer.repeat * (min(split_ns, fused_ns) if split_backward else fused_ns)
        again_ns += layer.repeat * (layer.forward_ns if layer.forward_again_ns is None else layer.forward_again_ns)
        activation_bytes += layer.repeat * (layer.activation_bytes or 0)
        parameters += layer.repeat * (layer.parameters or 0)
    return Totals(
        forward_ns=forward_ns,
        gradient_ns=gradient_ns,
        backward_ns=backward_ns,
        again_ns=again_ns,
        activation_bytes=activation_bytes,
        parameters=parameters,
    )


def simple_bound_ns(request: Request, candidate: Candidate, totals: Totals) -> int:
    """No schedule of the candidate has a shorter step: some rank's work, the path of one microbatch, some rank's collectives."""
    work_ns = candidate.microbatches * totals.work_ns(candidate) // candidate.ranks
    return max(work_ns, totals.path_ns(candidate), _collectives_ns(request, candidate, totals))


def about_ns(request: Request, candidate: Candidate, totals: Totals) -> int:
    """The step of 1F1B with equal stages, and collectives that nothing overlaps; only for the order of candidates."""
    rounds = candidate.microbatches + (candidate.ranks - 1) / candidate.chunks
    step_ns = rounds * totals.work_ns(candidate) / candidate.ranks
    return round(step_ns) + _collectives_ns(request, candidate, totals)


def no_room(request: Request, candidate: Candidate, totals: Totals) -> str:
    """Why the ranks together have no room for what is static and for one microbatch, if so; empty: they may have."""
    needed = totals.parameters * bytes_per_parameter(request, candidate)
    what = "what is static"
    if candidate.recompute == "none" and needed <= candidate.ranks * request.capacity_bytes:
        needed, what = needed + totals.activation_bytes, "what is static and one microbatch"
    if needed <= candidate.ranks * request.capacity_bytes:
        return ""
    each, have = format_bytes(int(needed / candidate.ranks), 1), format_bytes(request.capacity_bytes, 1)
    return f"a rank needs {each} on average for {what}, and has {have}"


def _collectives_ns(request: Request, candidate: Candidate, totals: Totals) -> int:
    """Of a rank with the average of the parameters."""
    if candidate.data_parallel == 1:
        return 0
    memory, collectives = request.file.memory, collectives_of(request, candidate)
    parameters = totals.parameters // candidate.ranks
    reduce_ns = collectives.one_way_ns(parameters * memory.gradient_bytes)
    if candidate.zero_stage == 0:
        return 2 * reduce_ns
    return reduce_ns + collectives.one_way_ns(parameters * memory.weight_bytes)
