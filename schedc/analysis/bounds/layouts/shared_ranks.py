"""The bound over layouts in which ranks may have several stages: what the ranks must do together, and the largest pieces of it.

Takes a workload and what is open; gives a lower bound on the objective of every layout. It costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, permutations
from math import ceil
from operator import add
from typing import TYPE_CHECKING

from schedc.analysis.bounds.layouts.pieces import microbatch_values
from schedc.analysis.bounds.residency import load_of_slots
from schedc.ir import Layer, Link, Objective, OpenLayout, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    _Pair = tuple[Link, Link]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Atom:
    """Layers that no layout parts, at speed 1. The gradient part of a backward is its first min(B, BW)."""

    forward_ns: Fraction
    """The least of any microbatch, as is `gradient_ns`."""
    gradient_ns: Fraction
    forwards_ns: int
    """All microbatches together, as are `gradients_ns` and `backwards_ns`."""
    gradients_ns: int
    backwards_ns: int
    activation_bytes: int


def shared_ranks_bound(workload: Workload, open_layout: OpenLayout) -> int:
    """No layout has a schedule with a smaller objective, however many stages its ranks have.

    Proof, T being the objective of a schedule in any layout.

    - Work. In the order of their first layers, the n-th rank (from 0) begins behind n other ranks, so n layers at least and n
      messages come before its first forward, and as many gradient parts and gradients after its last gradient part; in the order of
      their last layers, all forwards and n gradient parts before its first backward, for the n-th from the end. A rank r of speed
      v does at most v × (T − its head − its tail) of work that lies between the two. Over all ranks, for each of four kinds of
      work (all; forwards and gradient parts, which the way back follows; backwards; gradient parts), the sum is no more than
      Σ v T − Σ v (head + tail). The largest heads count with the least speeds: no other order gives a smaller sum.
    - Pigeonhole. Of the k P + 1 atoms with the most work, P ranks do k + 1 on one of them (`load_of_slots`), at the highest speed.
    - Path. One microbatch passes all layers there and back, at the highest speed, and P − 1 links at least, both ways. One of these
      serves a message of each of the others, too.
    - Memory (Little's law). Each layer's activation stays while the microbatch goes from there to the end and back. All ranks
      together have no more than their limits, less what the model holds all the time.

    Each rounding to whole nanoseconds, on devices of other speeds, takes at most half of one, and counts in full.
    The stage span is that of some rank. That of the first stage's rank is no less than all of this but what has rests of backwards
    in it; for these the frame is each rank's own: heads count from its first forward.
    """
    # The stages, if the partition is given, else the layers.
    bounds = open_layout.layers_of_stage or tuple((layer, layer + 1) for layer in range(len(workload.layers)))
    atoms = [_atom(workload, open_layout, workload.layers[first:last]) for first, last in bounds]
    ranks, speeds = workload.ranks, sorted(device.speed for device in workload.devices)
    fastest, all_speeds = speeds[-1], sum(speeds)
    rounded_ns = _rounded_ns(workload, open_layout, len(atoms))
    forward_ns = [_at(atom.forward_ns, fastest) for atom in atoms]
    gradient_ns = [_at(atom.gradient_ns, fastest) for atom in atoms]
    hop_ns, hop_back_ns = _least_hops(workload)
    # Least times outside the blocks of the ranks: of the n-th rank before its first forward, and after its last gradient part; of
    # the n-th from the end before its first backward. Own: for all of its blocks, and its backwards; for the stage span from its
    # first forward.
    heads_ns = [sum(forward_ns[:n], Fraction(0)) + n * hop_ns for n in range(ranks)]
    returns_ns = [sum(gradient_ns[:n], Fraction(0)) + n * hop_back_ns for n in range(ranks)]
    onward_ns = [sum(gradient_ns[len(atoms) - n :], Fraction(0)) + n * hop_back_ns for n in range(ranks)]
    there_ns = sum(forward_ns) + (ranks - 1) * hop_ns
    gradient_heads_ns = [there_ns + each for each in onward_ns]
    own_heads_ns, own_gradient_heads_ns = heads_ns, gradient_heads_ns
    if workload.objective is Objective.STAGE_SPAN:
        own_heads_ns = [Fraction(0)] * ranks
        behind_ns = [sum(forward_ns[len(atoms) - n :], Fraction(0)) + n * hop_ns for n in range(ranks)]
        own_gradient_heads_ns = list(map(add, behind_ns, onward_ns))
    forwards_ns, gradients_ns, backwards_ns = (
        sum(getattr(atom, name) for atom in atoms) for name in ("forwards_ns", "gradients_ns", "backwards_ns")
    )
    sums_ns = (
        forwards_ns + backwards_ns + _least(speeds, own_heads_ns),
        forwards_ns + gradients_ns + _least(speeds, list(map(add, heads_ns, returns_ns))),
        backwards_ns + _least(speeds, own_gradient_heads_ns),
        gradients_ns + _least(speeds, gradient_heads_ns) + _least(speeds, returns_ns),
    )
    loads = [(atom.forwards_ns + atom.backwards_ns, 1) for atom in atoms]
    largest_ns = (load_of_slots(loads, ranks) - rounded_ns) / fastest
    together_ns = max((each - rounded_ns) / all_speeds for each in sums_ns)
    path_ns, stays_ns = _path_ns(workload, open_layout, atoms, fastest), _memory_ns(workload, open_layout, atoms, fastest)
    least_ns: int = ceil(max(largest_ns, together_ns, path_ns, stays_ns))
    return max(0, least_ns)


def graph_bound(workload: Workload, open_layout: OpenLayout) -> int:
    """No layout of layers that are a graph has a schedule with a smaller objective: the work, all of it and of the largest atoms.

    Proof: as of `shared_ranks_bound`, work and pigeonhole, with all heads and tails 0.
    """
    bounds = open_layout.layers_of_stage or tuple((layer, layer + 1) for layer in range(len(workload.layers)))
    atoms = [_atom(workload, open_layout, workload.layers[first:last]) for first, last in bounds]
    speeds = [device.speed for device in workload.devices]
    rounded_ns = _rounded_ns(workload, open_layout, len(atoms))
    loads = [(atom.forwards_ns + atom.backwards_ns, 1) for atom in atoms]
    together_ns = (sum(load_ns for load_ns, _ in loads) - rounded_ns) / sum(speeds)
    return max(0, ceil(together_ns), ceil((load_of_slots(loads, workload.ranks) - rounded_ns) / max(speeds)))


def _rounded_ns(workload: Workload, open_layout: OpenLayout, atoms: int) -> Fraction:
    """What rounding to whole nanoseconds takes at most, of all blocks together, on devices of other speeds than 1."""
    speeds = [device.speed for device in workload.devices]
    stages = open_layout.stages or min(atoms, open_layout.chunks * workload.ranks)
    return Fraction(0) if all(speed == 1 for speed in speeds) else Fraction(3 * workload.microbatches * stages, 2) * max(speeds)


def _least(speeds: Sequence[Fraction], times_ns: Sequence[Fraction]) -> Fraction:
    """The least sum of speed × time, whichever rank has which time; speeds ascending."""
    return sum((speed * time_ns for speed, time_ns in zip(speeds, sorted(times_ns, reverse=True), strict=True)), Fraction(0))


def _atom(workload: Workload, open_layout: OpenLayout, layers: Sequence[Layer]) -> _Atom:
    again = all(open_layout.recompute)
    values = [microbatch_values(workload, layer, recompute=again) for layer in layers]
    count = max(len(of_layer) for of_layer in values)
    forwards, gradients, backwards = [], [], []
    for microbatch in range(count):
        own = [of_layer[microbatch if len(of_layer) > 1 else 0] for of_layer in values]
        forward, gradient, weight, fused = (sum(value[kind] for value in own) for kind in range(4))
        forwards.append(forward)
        gradients.append(min(gradient, fused) if workload.split_backward else fused)
        backwards.append(min(gradient + weight, fused) if workload.split_backward else fused)
    alike = workload.microbatches // count
    return _Atom(
        forward_ns=Fraction(min(forwards)),
        gradient_ns=Fraction(min(gradients)),
        forwards_ns=alike * sum(forwards),
        gradients_ns=alike * sum(gradients),
        backwards_ns=alike * sum(backwards),
        activation_bytes=sum(layer.activation_bytes for layer in layers),
    )


def _path_ns(workload: Workload, open_layout: OpenLayout, atoms: Sequence[_Atom], fastest: Fraction) -> Fraction:
    blocks_ns = sum((_at(atom.forward_ns, fastest) + _at(atom.gradient_ns, fastest) for atom in atoms), Fraction(0))
    hops_ns = busiest_ns = 0
    for pairs in _crossings(workload, open_layout):
        messages = [(pair, layer) for pair in pairs for layer in workload.layers[:-1]]
        hops_ns += min(sum(_hop_ns(pair, layer)) for pair, layer in messages)
        busiest_ns = max(busiest_ns, min(max(_occupancy_ns(pair, layer)) for pair, layer in messages))
    return blocks_ns + hops_ns + (workload.microbatches - 1) * busiest_ns


def _memory_ns(workload: Workload, open_layout: OpenLayout, atoms: Sequence[_Atom], fastest: Fraction) -> Fraction:
    limits = [device.limit_bytes if device.capacity_bytes is None else device.capacity_bytes for device in workload.devices]
    known = [limit for limit in limits if limit is not None]
    if len(known) < len(limits) or open_layout.recompute_is_open or any(open_layout.recompute):
        return Fraction(0)
    held = Fraction(0)
    if all(device.capacity_bytes is not None for device in workload.devices):
        held = Fraction(sum(layer.static_bytes for layer in workload.layers) + workload.ranks * min(workload.static_bytes))
    byte_ns, stay_ns = Fraction(0), Fraction(0)
    for atom in reversed(atoms):
        stay_ns += _at(atom.forward_ns, fastest) + _at(atom.gradient_ns, fastest)
        byte_ns += workload.microbatches * atom.activation_bytes * stay_ns
    room = sum(known) - held
    return byte_ns / room if room > 0 else Fraction(0)


def _at(time_ns: Fraction, speed: Fraction) -> Fraction:
    """The least that rounding leaves of it."""
    return time_ns if speed == 1 else max(Fraction(0), time_ns / speed - Fraction(1, 2))


def _least_hops(workload: Workload) -> tuple[int, int]:
    """The least times of a message and of a gradient between any two ranks."""
    if workload.ranks == 1:
        return 0, 0
    hops = [
        _hop_ns(pair, layer)
        for pair in _link_pairs(workload, permutations(range(workload.ranks), 2))
        for layer in workload.layers[:-1]
    ]
    return min(forth for forth, _ in hops), min(back for _, back in hops)


def _crossings(workload: Workload, open_layout: OpenLayout) -> list[list[_Pair]]:
    """Per change of ranks on the path, of which there are at least as many, the links that it may use."""
    if open_layout.placement is not None:
        crossed = pairwise(open_layout.placement.rank_of_stage)
        return [_link_pairs(workload, [pair]) for pair in crossed if pair[0] != pair[1]]
    return [_link_pairs(workload, permutations(range(workload.ranks), 2))] * (workload.ranks - 1)


def _link_pairs(workload: Workload, pairs: Iterable[tuple[int, int]]) -> list[_Pair]:
    """The distinct pairs of links, there and back, between these ranks that are connected."""
    found: dict[_Pair, None] = {}
    for a, b in pairs:
        forth, back = workload.network.link(a, b), workload.network.link(b, a)
        if forth is not None and back is not None:
            found[replace(forth, source=0, destination=1, trunk=None), replace(back, source=1, destination=0, trunk=None)] = None
    return list(found)


def _hop_ns(pair: _Pair, layer: Layer) -> tuple[int, int]:
    """What a message takes that a stage with this last layer sends, and what the gradient takes that comes back."""
    forth_ns, back_ns = _occupancy_ns(pair, layer)
    return pair[0].latency_ns + forth_ns, pair[1].latency_ns + back_ns


def _occupancy_ns(pair: _Pair, layer: Layer) -> tuple[int, int]:
    return pair[0].occupancy_ns(layer.message_bytes), pair[1].occupancy_ns(layer.gradient_message_bytes)
