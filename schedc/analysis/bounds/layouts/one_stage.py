"""The bound over layouts in which each rank has one stage: by dynamic programming over where the stages begin and who has them.

Takes a workload and what is open; gives the least objective that a relaxed layout has. Ranks that are interchangeable count as one
kind (`rank_kinds`), so that twenty like ranks are as little work as one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.bounds.layouts.pieces import idle_ns, most_work_in_gaps_ns, pieces_of, rank_kinds, stays_ns
from schedc.ir import Device, Link, Objective, OpenLayout, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from schedc.analysis.bounds.layouts.pieces import Matrix, Pieces

    Vector = NDArray[np.float64]

MOST_NODES = 4096
"""Above this many, all ranks count as one kind that is the best of each."""
MOST_CELLS = 2**21
"""Above this many nodes × pairs of layers, nothing is refuted, which takes some twenty times as long."""
ROUNDS = 3
"""Stages that are too long are left out this many times, as others become too long by that."""
PRECISION = 14
"""Objectives are refuted up to 2^-14 of the least that is not."""


@dataclass(frozen=True, slots=True)
class _Node:
    """The ranks of the stages up to one, by kind, and the kind of that one."""

    used: tuple[int, ...]
    kind: int


@dataclass(slots=True)
class _Times:
    """What is known at a node. Vectors of least times, by the layer that its stage begins with or ends before; infinite: none."""

    pieces: Pieces
    most_work_ns: list[Matrix]
    """Per gap (`most_work_in_gaps_ns`)."""
    arrival_ns: Vector
    """By first layer: before its forward can start."""
    return_ns: Vector
    """By first layer: after its gradient part."""
    forward_end_ns: Vector = field(init=False)
    """By last layer: before its forward ends."""
    gradient_return_ns: Vector = field(init=False)
    """By last layer: from the start of its backward, after which the path back ends."""
    away_ns: Vector = field(init=False)
    """By last layer: from the end of its forward to the start of its backward."""
    trip_ns: Vector = field(init=False)
    """By first layer: from the start of its forward to the end of its gradient part."""


def one_stage_bound(workload: Workload, open_layout: OpenLayout) -> int | None:
    """No layout with one stage on each rank has a schedule with a smaller objective; None: none has room for its stages.

    Proof. Take any such layout. Its stages in the order of the path visit nodes: which ranks are behind, by kind, and on which kind
    the stage is. Let H be the least time before a stage's first forward can start, over all ways to have ranks of these kinds
    behind that have the layers before it, K likewise the least time that must follow its last gradient part, and A the least time
    that a microbatch is away, over all ways for the other ranks to have the layers after it. In this layout they are no less. So
    the rank of the stage obeys every argument of a single resource with these heads and tails (`one_machine`: the least head, the
    work of a set of its blocks, the least tail), and what memory makes it wait (`stays_ns`). The links to the stage before it
    likewise serve one message of each microbatch, after its head and before its tail. The objective is no less than the largest of
    all these over the stages of the layout, and the dynamic program gives the least such largest value over all sequences of nodes
    and cuts, this layout's among them. The stage span is that of some rank. Of the first stage's, from its first forward to its
    last block, all of this holds but what has rests of backwards in it; for these the frame is the rank's own, and H is 0.

    Of a layout whose objective is at most T, each stage has a value of at most T. So what comes before and after need only be the
    least over such stages, and becomes more; where then no relaxed layout is left, none has an objective of T. The result is the
    least T that is not refuted in this way.

    Where ranks have too many kinds, they count as one kind, with the highest speed, the most memory and the cheapest links of any:
    every layout is then one of theirs that takes no longer.
    """
    kinds = _Kinds(workload, open_layout)
    levels = kinds.levels()
    everywhere: dict[_Node, NDArray[np.bool_]] = {}
    values_ns, least_ns = _values(kinds, levels, everywhere)
    if np.isinf(least_ns):
        return None
    if len(values_ns) * (len(workload.layers) + 1) ** 2 > MOST_CELLS:
        return int(least_ns)
    refuted_ns, step_ns = int(least_ns) - 1, 1
    while not _may_take(kinds, levels, values_ns, refuted_ns + step_ns):
        refuted_ns, step_ns = refuted_ns + step_ns, 2 * step_ns
    possible_ns = refuted_ns + step_ns
    while possible_ns - refuted_ns > max(1, refuted_ns >> PRECISION):
        middle_ns = (refuted_ns + possible_ns) // 2
        if _may_take(kinds, levels, values_ns, middle_ns):
            possible_ns = middle_ns
        else:
            refuted_ns = middle_ns
    return refuted_ns + 1


def _may_take(kinds: _Kinds, levels: list[list[_Node]], values_ns: dict[_Node, Matrix], most_ns: int) -> bool:
    """Whether some relaxed layout may have an objective of at most `most_ns`, its stages being those whose values are no more."""
    for _ in range(ROUNDS):
        may_be = {node: matrix <= most_ns for node, matrix in values_ns.items()}
        values_ns, least_ns = _values(kinds, levels, may_be)
        if least_ns > most_ns:
            return False
    return True


def _values(kinds: _Kinds, levels: list[list[_Node]], may_be: dict[_Node, NDArray[np.bool_]]) -> tuple[dict[_Node, Matrix], float]:
    """Per node and pair of layers, the least objective by the stage; and the least largest of them that a relaxed layout has.

    Args:
        kinds: of the ranks.
        levels: the nodes of each stage.
        may_be: per node, which stages a layout may have; empty: all.
    """
    count = len(kinds.workload.layers)
    times = _times(kinds, levels, may_be)
    values_ns: dict[_Node, Matrix] = {}
    largest_ns: dict[_Node, Vector] = {}
    for level in levels:
        for node in level:
            before_ns = np.full(count + 1, np.inf)
            if sum(node.used) == 1:
                before_ns[0] = 0
            for before in kinds.before(node, times):
                crossing_ns = kinds.crossing_ns(times, before, node)
                before_ns = np.minimum(before_ns, np.maximum(largest_ns[before], crossing_ns))
            values_ns[node] = _by_stage_ns(kinds.workload, times[node])
            largest_ns[node] = np.maximum(before_ns[:, None], values_ns[node]).min(axis=0)
    return values_ns, min(float(largest_ns[node][count]) for node in levels[-1])


def _times(kinds: _Kinds, levels: list[list[_Node]], may_be: dict[_Node, NDArray[np.bool_]]) -> dict[_Node, _Times]:
    """What comes before and after the stages of each node."""
    count = len(kinds.workload.layers)
    times: dict[_Node, _Times] = {}
    for stage, level in enumerate(levels):
        for node in level:
            pieces, most_work_ns = kinds.pieces(node.kind, stage)
            if may_be:
                pieces = replace(pieces, forward_ns=np.where(may_be[node], pieces.forward_ns, np.inf))
            arrival_ns, return_ns = np.full(count + 1, np.inf), np.full(count + 1, np.inf)
            if stage == 0:
                arrival_ns[0] = return_ns[0] = 0
            for before in kinds.before(node, times):
                hop_ns, back_ns, _ = kinds.hops_ns(before.kind, node.kind)
                arrival_ns = np.minimum(arrival_ns, times[before].forward_end_ns + hop_ns)
                return_ns = np.minimum(return_ns, times[before].gradient_return_ns + back_ns)
            gradient_ns = np.where(np.isinf(pieces.forward_ns), np.inf, pieces.gradient_ns)
            here = _Times(pieces=pieces, most_work_ns=most_work_ns, arrival_ns=arrival_ns, return_ns=return_ns)
            here.forward_end_ns = (arrival_ns[:, None] + pieces.forward_ns).min(axis=0)
            here.gradient_return_ns = (return_ns[:, None] + gradient_ns).min(axis=0)
            times[node] = here
    for stage in reversed(range(len(levels))):
        for node in levels[stage]:
            here = times[node]
            here.away_ns = np.full(count + 1, np.inf)
            if stage == len(levels) - 1:
                here.away_ns[count] = 0
            for after in kinds.after(node, times):
                hop_ns, back_ns, _ = kinds.hops_ns(node.kind, after.kind)
                here.away_ns = np.minimum(here.away_ns, times[after].trip_ns + hop_ns + back_ns)
            here.trip_ns = (here.pieces.forward_ns + here.pieces.gradient_ns + here.away_ns).min(axis=1)
    return times


def _by_stage_ns(workload: Workload, times: _Times) -> Matrix:
    """Per pair of layers, the least objective by the rank that has them; infinite where it cannot."""
    pieces = times.pieces
    head_ns, tail_ns, away_ns = times.arrival_ns[:, None], times.return_ns[:, None], times.away_ns[None, :]
    is_makespan = workload.objective is Objective.MAKESPAN
    own_head_ns = head_ns if is_makespan else np.where(np.isinf(head_ns), np.inf, 0)
    all_ns = own_head_ns + pieces.forwards_ns + pieces.backwards_ns
    apart_ns = np.maximum(head_ns + pieces.forwards_ns, head_ns + pieces.forward_ns + away_ns) + tail_ns  # but for the backwards
    arguments_ns = [
        all_ns,
        own_head_ns + pieces.forward_ns + away_ns + pieces.backwards_ns,
        apart_ns + pieces.gradients_ns,
        stays_ns(workload.microbatches, pieces, head_ns, tail_ns, away_ns),
    ]
    if times.most_work_ns:
        arguments_ns.append(all_ns + idle_ns(workload.microbatches, pieces, times.most_work_ns, away_ns))
    if is_makespan:
        arguments_ns.append(_mixture_ns(pieces, all_ns, apart_ns + pieces.backwards_ns))
    found: Matrix = np.max(np.broadcast_arrays(*arguments_ns), axis=0)
    return found


def _mixture_ns(pieces: Pieces, work_ns: Matrix, fused_ns: Matrix) -> Matrix:
    """Where splitting a backward costs work: the least objective, however many are split; 0 elsewhere.

    Proof: with k split, the work is k × (B + W − BW) more than that of all fused, and the gradients come by k × (BW − gradient
    part) earlier at most than with all fused (`mixture_bound`).
    """
    more, early = pieces.more_ns, pieces.early_ns
    pays = (more > 0) & np.isfinite(fused_ns)
    gap = np.where(pays, np.maximum(0, np.where(pays, fused_ns, 0) - work_ns), 0)
    fewest = np.floor_divide(gap, more + early, out=np.zeros(gap.shape), where=pays)
    found: Matrix = np.minimum(
        np.maximum(work_ns + fewest * more, fused_ns - fewest * early),
        np.maximum(work_ns + (fewest + 1) * more, fused_ns - (fewest + 1) * early),
    )
    return np.where(pays, found, 0)


class _Kinds:
    """The kinds of ranks, what stages cost on them, and in which order they can have them."""

    def __init__(self, workload: Workload, open_layout: OpenLayout) -> None:
        self.workload, self._open = workload, open_layout
        self._ranks: tuple[tuple[int, ...], ...]
        if open_layout.placement is not None:
            self._ranks = tuple((rank,) for rank in range(workload.ranks))
        else:
            self._ranks = rank_kinds(workload)
            if prod(len(kind) + 1 for kind in self._ranks) * len(self._ranks) > MOST_NODES:
                self._ranks = (tuple(range(workload.ranks)),)
        self._devices = [_best_device([workload.devices[rank] for rank in kind]) for kind in self._ranks]
        self._pieces: dict[tuple[Device, bool, int, bool], tuple[Pieces, list[Matrix]]] = {}
        self._hops: dict[tuple[int, int], tuple[Vector, Vector, Vector]] = {}

    def levels(self) -> list[list[_Node]]:
        """Per stage, its nodes."""
        placement = self._open.placement
        found: list[list[_Node]] = []
        for stage in range(self.workload.ranks):
            level: dict[_Node, None] = {}
            for used in {node.used for node in found[-1]} if found else {(0,) * len(self._ranks)}:
                for kind, ranks in enumerate(self._ranks):
                    may_have = used[kind] < len(ranks) if placement is None else placement.rank_of_stage[stage] == kind
                    if may_have:
                        level[_Node(tuple(n + (at == kind) for at, n in enumerate(used)), kind)] = None
            found.append(sorted(level, key=lambda node: (node.used, node.kind)))
        return found

    def before(self, node: _Node, known: dict[_Node, _Times]) -> Iterator[_Node]:
        """The nodes of the stage before."""
        used = tuple(n - (at == node.kind) for at, n in enumerate(node.used))
        return (each for kind in range(len(self._ranks)) if (each := _Node(used, kind)) in known)

    def after(self, node: _Node, known: dict[_Node, _Times]) -> Iterator[_Node]:
        """The nodes of the stage after."""
        for kind in range(len(self._ranks)):
            each = _Node(tuple(n + (at == kind) for at, n in enumerate(node.used)), kind)
            if each in known:
                yield each

    def pieces(self, kind: int, stage: int) -> tuple[Pieces, list[Matrix]]:
        """What any layers cost as this stage on a rank of the kind, and the most work in its gaps."""
        workload = self.workload
        given = self._open.layers_of_stage is not None or len(workload.static_bytes) > 1
        first = stage == 0
        key = (self._devices[kind], self._open.recomputes(stage), stage if given else 0, first)
        if key not in self._pieces:
            pieces = pieces_of(workload, self._open, self._devices[kind], stage)
            self._pieces[key] = pieces, most_work_in_gaps_ns(pieces, workload.microbatches)
        return self._pieces[key]

    def hops_ns(self, source: int, destination: int) -> tuple[Vector, Vector, Vector]:
        """Per layer that the later stage begins with, the least times of three things, over all ranks of these kinds.

        Of the message to it; of the gradient that it sends back to `source`; and of what these two occupy of their links, whichever
        is more.
        """
        if (source, destination) not in self._hops:
            layers, network = self.workload.layers, self.workload.network
            distinct: set[tuple[Link, Link]] = set()
            for a, b in product(self._ranks[source], self._ranks[destination]):
                there, again = (network.link(a, b), network.link(b, a)) if a != b else (None, None)
                if there is not None and again is not None:
                    distinct.add((replace(there, source=0, destination=1), replace(again, source=1, destination=0)))
            best = np.full((4, len(layers) + 1), np.inf)
            for there, again in distinct:
                on = np.array([there.occupancy_ns(layer.message_bytes) for layer in layers[:-1]])
                back = np.array([again.occupancy_ns(layer.gradient_message_bytes) for layer in layers[:-1]])
                of_pair = [on + there.latency_ns, back + again.latency_ns, on, back]
                best[:, 1:-1] = np.minimum(best[:, 1:-1], of_pair)
            self._hops[source, destination] = best[0], best[1], np.maximum(best[2], best[3])
        return self._hops[source, destination]

    def crossing_ns(self, times: dict[_Node, _Times], before: _Node, node: _Node) -> Vector:
        """Per layer that the later stage begins with, the least objective by the links between the two stages."""
        hop_ns, back_ns, busiest_ns = self.hops_ns(before.kind, node.kind)
        path_ns = times[before].forward_end_ns + hop_ns + times[node].trip_ns + back_ns + times[before].gradient_return_ns
        others = self.workload.microbatches - 1
        return path_ns + others * busiest_ns if others else path_ns


def _best_device(devices: Sequence[Device]) -> Device:
    """A device that is as fast and can hold as much as any of these; without a limit where theirs are of several sorts."""
    limits = [
        {name: value for name in ("limit_bytes", "in_flight", "capacity_bytes") if (value := getattr(device, name)) is not None}
        for device in devices
    ]
    sorts = Counter(name for limit in limits for name in limit)
    most = {name: max(limit[name] for limit in limits) for name, n in sorts.items() if n == len(devices)}
    return Device(speed=max(device.speed for device in devices), **most)
