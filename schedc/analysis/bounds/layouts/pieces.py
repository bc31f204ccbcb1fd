"""What bounds over layouts are made of: any layers in a row as a stage, and which ranks are interchangeable.

Takes a workload, a device and what is known of the stage; gives what the layers cost, as matrices [first, last] of layers
[first, last), infinite where they can be none. Durations are floats that are whole numbers below 2^53, so exact. On a device of
another speed a half nanosecond is rounded down: with blocks no longer, and links that serve messages in any order, every schedule
stays one, so that bounds hold. And what memory makes a rank with one such stage wait, for all of them at once: the arguments are
those of `residency_bound_of_rank` (slots) and of `idle_gap_bound_of_rank`, which have the proofs; here they take heads, tails and
absences from all layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from schedc.ir import Device, Layer, Link, OpenLayout, Semantics, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

MOST_CELLS = 2**26
"""Above this many gaps × activations × pieces, idle gaps are not counted; what an activation's stay takes is."""


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


def most_work_in_gaps_ns(pieces: Pieces, microbatches: int) -> list[Matrix]:
    """Per gap j, from the j-th end of a forward to the j-th start of a backward, the most work in it.

    Empty where memory limits nothing, or it is too much to compute. Proof: at `idle_gap_bound_of_rank`. Of the first j
    microbatches x − 1 others may run their gradient parts in the gap, y − 1 their rests, where x ≤ y ≤ j and x of what a gradient
    part releases and y of the rest have room at once.
    """
    slots = _slots(pieces, microbatches)
    possible = np.isfinite(pieces.forward_ns)
    most_slots = int(slots[possible].max(initial=0))
    limited = np.isfinite(pieces.room_bytes)
    if not (possible & limited).any() or most_slots * microbatches * slots.size > MOST_CELLS:
        return []
    room = np.where(limited, pieces.room_bytes, 0)
    pairs: list[tuple[int, Matrix]] = []
    for x in range(1, most_slots + 1):
        left = room - x * pieces.by_gradient_bytes
        y = np.floor_divide(left, pieces.by_rest_bytes, out=np.full(slots.shape, np.inf), where=pieces.by_rest_bytes > 0)
        y = np.where(limited & (slots < microbatches), y, np.inf)
        pairs.append((x, np.where((left >= 0) | ~limited, y, -1)))
    found = []
    for j in range(1, microbatches + 1):
        backwards_ns = np.zeros(slots.shape)
        for x, most_y in pairs[:j]:
            y = np.minimum(most_y, j)
            here_ns = (x - 1) * pieces.most_gradient_ns + (y - 1) * pieces.most_rest_ns
            backwards_ns = np.where(y >= x, np.maximum(backwards_ns, here_ns), backwards_ns)
        forwards = np.minimum(microbatches - j, slots - 1)
        found.append(forwards * pieces.most_forward_ns + backwards_ns)
    return found


def stays_ns(microbatches: int, pieces: Pieces, head_ns: Matrix, tail_ns: Matrix, away_ns: Matrix) -> Matrix:
    """The least objective by the stay of activations.

    An activation stays from the start of its forward to the end of its gradient part; at most `slots` do at once, so some
    slot holds microbatches / slots of them, rounded up, one after another, between the head and the tail.
    """
    slots = np.maximum(_slots(pieces, microbatches), 1)
    stay_ns = pieces.forward_ns + away_ns + pieces.gradient_ns
    found: Matrix = head_ns + np.ceil(microbatches / slots) * stay_ns + tail_ns
    return found


def idle_ns(microbatches: int, pieces: Pieces, most_work_ns: list[Matrix], away_ns: Matrix) -> Matrix:
    """The most idle time of disjoint gaps, which comes on top of the rank's work (`idle_gap_bound_of_rank`)."""
    slots = np.maximum(_slots(pieces, microbatches), 1).astype(np.int64)
    found = np.zeros((microbatches + 1, *slots.shape))
    known_ns = np.where(np.isfinite(away_ns), away_ns, 0)
    for j in range(1, microbatches + 1):
        earlier = np.maximum(0, j - slots)[None]
        here_ns = np.maximum(0, known_ns - most_work_ns[j - 1]) + np.take_along_axis(found, earlier, axis=0)[0]
        found[j] = np.maximum(found[j - 1], here_ns)
    last: Matrix = found[-1]
    return last


def _slots(pieces: Pieces, microbatches: int) -> Matrix:
    """How many activations fit at once; all, if all do; at least 0."""
    activation = pieces.activation_bytes
    counts = (activation > 0) & np.isfinite(pieces.room_bytes)
    fit = np.floor_divide(pieces.room_bytes, activation, out=np.full(activation.shape, np.inf), where=counts)
    slots: Matrix = np.clip(fit, 0, microbatches)
    return slots


def rank_kinds(workload: Workload) -> tuple[tuple[int, ...], ...]:
    """The ranks, those that are interchangeable together; ascending in each class, and the classes by their first.

    Ranks a and b are interchangeable if they have the same device, the link from a to b is the one from b to a (cost, and trunk if
    it has one), and for every other rank x, the link from a to x is the one from b to x, and that from x to a the one from x to b.

    Proof that a layout may then swap them, also several such pairs: with a and b renamed, the problem of the one layout becomes
    that of the other, op for op, link for link and trunk for trunk, as no cost depends on anything else of a rank. Collectives
    depend on the stage alone. So every schedule of the one is one of the other, with the same times. The relation is transitive, as
    swapping a and c is swapping a and b, then b and c, then a and b; so the first member of a class can stand for all of it.
    """
    network = workload.network

    def cost(source: int, destination: int) -> Link | None:
        """The link, without the names of its ends."""
        link = network.link(source, destination)
        return None if link is None else replace(link, source=0, destination=1)

    def are_alike(a: int, b: int) -> bool:
        others = [x for x in range(workload.ranks) if x not in (a, b)]
        return (
            workload.devices[a] == workload.devices[b]
            and cost(a, b) == cost(b, a)
            and all(cost(a, x) == cost(b, x) and cost(x, a) == cost(x, b) for x in others)
        )

    kinds: list[list[int]] = []
    for rank in range(workload.ranks):
        kind = next((each for each in kinds if are_alike(each[0], rank)), None)
        if kind is None:
            kinds.append([rank])
        else:
            kind.append(rank)
    return tuple(map(tuple, kinds))
