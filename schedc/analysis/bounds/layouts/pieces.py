"""What any layers in a row cost as a stage: matrices [first, last] of layers [first, last), infinite where they can be none.

Takes a workload, a device and what is known of the stage. Durations are floats that are whole numbers below 2^53, so exact. On a
device of another speed a half nanosecond is rounded down: with blocks no longer, and links that serve messages in any order, every
schedule stays one, so that bounds hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from schedc.ir.workload import Device, Layer, Semantics, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from schedc.ir.layout import OpenLayout

    Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Per pair of layers, the stage from the one to the other. The gradient part of a backward is its first min(B, BW)."""

    forward_ns: Matrix
    """The least of any microbatch, as is `gradient_ns`. Infinite where there can be no such stage."""
    gradient_ns: Matrix
    forwards_ns: Matrix
    """All microbatches together, as are `gradients_ns` and `backwards_ns`."""
    gradients_ns: Matrix
    backwards_ns: Matrix
    most_forward_ns: Matrix
    """The most of any microbatch, as are `most_gradient_ns` and `most_rest_ns`."""
    most_gradient_ns: Matrix
    most_rest_ns: Matrix
    early_ns: Matrix
    """By how much splitting a backward brings its gradient forward, where it costs work; 0 where it does not. Else `more_ns`."""
    more_ns: Matrix
    """What splitting it costs: B + W − BW."""
    by_gradient_bytes: Matrix
    """What of an activation the end of the gradient part may release."""
    by_rest_bytes: Matrix
    """What is held until all of the backward has ended."""
    room_bytes: Matrix
    """For activations; infinite without a limit."""

    @property
    def activation_bytes(self) -> Matrix:
        """What a microbatch holds from its forward on."""
        return self.by_gradient_bytes + self.by_rest_bytes


def pieces_of(workload: Workload, open_layout: OpenLayout, device: Device, stage: int) -> Pieces:
    """What layers cost as this stage of the one path, on a rank with this device that has no other stage."""
    layers = workload.layers
    recompute = open_layout.recomputes(stage)
    first_of_torch = workload.semantics is Semantics.TORCH and stage == 0
    values = [microbatch_values(workload, layer, recompute=recompute) for layer in layers]
    shape = (len(layers) + 1, len(layers) + 1)
    least = [np.full(shape, np.inf) for _ in range(2)]
    total = [np.zeros(shape) for _ in range(3)]
    most = [np.zeros(shape) for _ in range(3)]
    early, more = np.zeros(shape), np.zeros(shape)
    alike = max(len(of_layer) for of_layer in values) == 1
    count = 1 if alike else workload.microbatches
    for microbatch in range(count):
        own = [of_layer[microbatch if len(of_layer) > 1 else 0] for of_layer in values]
        forward, gradient, weight, fused = (_sums([value[kind] for value in own]) for kind in range(4))
        if first_of_torch:
            gradient, weight = np.zeros(shape), fused
        forward, gradient, weight, fused = (_at(device.speed, matrix) for matrix in (forward, gradient, weight, fused))
        part, backward = fused, fused
        if workload.split_backward:
            part, backward = np.minimum(gradient, fused), np.minimum(gradient + weight, fused)
        least = [np.minimum(least[0], forward), np.minimum(least[1], part)]
        total = [sums + own_ns for sums, own_ns in zip(total, (forward, part, backward), strict=True)]
        most = [np.maximum(known, own_ns) for known, own_ns in zip(most, (forward, part, backward - part), strict=True)]
        if alike and workload.split_backward:
            pays = (fused > part) & (gradient + weight > fused)
            early, more = np.where(pays, fused - part, 0), np.where(pays, gradient + weight - fused, 0)
    if alike:
        total = [workload.microbatches * sums for sums in total]
    by_gradient, by_rest, kept_free, counted = _bytes(workload, open_layout, recompute=recompute)
    room = _room(workload, device, stage, counted, kept_free)
    possible = np.triu(np.ones(shape, dtype=bool), 1) & (by_gradient + by_rest <= room)
    if open_layout.layers_of_stage is not None:
        given = np.zeros(shape, dtype=bool)
        given[open_layout.layers_of_stage[stage]] = True
        possible &= given
    return Pieces(
        forward_ns=np.where(possible, least[0], np.inf),
        gradient_ns=np.where(possible, least[1], np.inf),
        forwards_ns=total[0],
        gradients_ns=total[1],
        backwards_ns=total[2],
        most_forward_ns=most[0],
        most_gradient_ns=most[1],
        most_rest_ns=most[2],
        early_ns=early,
        more_ns=more,
        by_gradient_bytes=by_gradient,
        by_rest_bytes=by_rest,
        room_bytes=room,
    )


def microbatch_values(workload: Workload, layer: Layer, *, recompute: bool) -> list[tuple[int, int, int, int]]:
    """F, B, W and BW of a layer: of all microbatches, or of each."""
    again: tuple[int, ...] = (0,)
    if recompute:
        again = layer.forward_ns if layer.forward_again_ns is None else layer.forward_again_ns
    given = (layer.forward_ns, layer.backward_input_ns, layer.backward_weight_ns, layer.backward_ns, again)
    count = workload.microbatches if any(len(durations_ns) > 1 for durations_ns in given) else 1
    found = []
    for microbatch in range(count):
        forward, gradient, weight, fused, more = (values[microbatch if len(values) > 1 else 0] for values in given)
        found.append((forward, gradient + more, weight, fused + more))
    return found


def _sums(values: Sequence[int]) -> Matrix:
    """[first, last]: the sum of values [first, last)."""
    up_to = np.array([0, *accumulate(values)], np.float64)
    return up_to[None, :] - up_to[:, None]


def _at(speed: Fraction, durations_ns: Matrix) -> Matrix:
    """The durations on a device of this speed, to the nearest nanosecond, ties down."""
    if speed == 1:
        return durations_ns
    slower: Matrix = np.ceil(durations_ns / float(speed) * (1 - 2.0**-50) - 0.5)
    return slower


def _bytes(workload: Workload, open_layout: OpenLayout, *, recompute: bool) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """What gradient part and rest release of an activation, what a recomputation takes besides, and what `in_flight` counts.

    A stage that recomputes holds its input until its backward ends (`without_recomputed_bytes`); one that may, that or its
    activation, whichever is less.
    """
    layers = workload.layers
    whole = _sums([layer.activation_bytes for layer in layers])
    after = _sums([layer.activation_after_input_bytes for layer in layers])
    nothing = np.zeros_like(whole)
    if workload.semantics is Semantics.TORCH:
        after = whole
    if not workload.split_backward:
        after = nothing
    of_input = np.array([0, *(layer.message_bytes for layer in layers)], np.float64)[:, None] + nothing
    if open_layout.recompute_is_open:
        return np.minimum(of_input, whole), nothing, nothing, whole
    if recompute:
        return of_input, nothing, whole, np.maximum(of_input, after)
    return whole - after, after, nothing, whole


def _room(workload: Workload, device: Device, stage: int, counted_bytes: Matrix, kept_free_bytes: Matrix) -> Matrix:
    """What the rank may hold of activations, if the stage is its only one."""
    if device.capacity_bytes is not None:
        weights = _sums([layer.static_bytes for layer in workload.layers])
        given = workload.static_bytes[stage if len(workload.static_bytes) > 1 else 0]
        return device.capacity_bytes - given - weights - kept_free_bytes
    if device.in_flight is not None:
        return device.in_flight * counted_bytes
    return (np.inf if device.limit_bytes is None else float(device.limit_bytes)) - kept_free_bytes
