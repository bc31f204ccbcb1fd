"""What bounds every cut of microbatches into slices: the work of all slices, and what a rank waits for the first and the last one.

Takes a workload of whole microbatches and what is open; gives one number. It makes no slices: what they take are functions of where
they begin and end (`_Law`), as in `schedc.lower.slices`, with which it shares no code.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil, sqrt
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import Objective, OpenLayout, OpenSlices, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schedc.ir import Layer

ROUNDS = 50
"""Of bisection; its lower end counts."""
EXACT = 1e-11
"""Floats are this exact, as a share of the bound."""


class _Law(NamedTuple):
    """What a slice takes that has a sequence from the share a to the share b: fixed + linear (b − a) + square (b² − a²), in ns."""

    fixed: float = 0.0
    linear: float = 0.0
    square: float = 0.0

    def over(self, other: _Law) -> _Law:
        """What this takes more than the other, at most."""
        return _Law(*(max(0.0, mine - its) for mine, its in zip(self, other, strict=True)))

    def times(self, factor: float) -> _Law:
        return _Law(*(factor * each for each in self))


def _sum(laws: Iterable[_Law]) -> _Law:
    return _Law(*(sum(parts) for parts in zip(_Law(), *laws, strict=True)))


def _least(laws: Iterable[_Law]) -> _Law:
    return _Law(*(min(parts) for parts in zip(*laws, strict=True)))


class _Stage(NamedTuple):
    """What a slice takes on a stage, at least."""

    forward: _Law
    gradient: _Law
    """Of its backward, before the gradient leaves."""
    backward: _Law
    """All of it."""
    layers: int


class _Wait(NamedTuple):
    """An objective T is at least work − known, over all slices before one, + path, of that one."""

    work: _Law
    """Of all microbatches on a rank."""
    known: _Law
    """What of the work of all microbatches may be done while the slice is on its way."""
    path: _Law
    rounded: float
    """By how much rounding may take less, for each slice."""

    def work_ns(self, slices: int) -> float:
        return slices * (self.work.fixed - self.rounded) + self.work.linear + self.work.square

    def end(self, begin: float, before: int, room_ns: float) -> float:
        """The latest end of a slice that begins at `begin`, behind `before` others, if T is the work and `room_ns`."""
        known = before * self.known.fixed + self.known.linear * begin + self.known.square * begin * begin
        _, linear, square = self.path
        left = room_ns + known - self.path.fixed
        if left < 0:
            return begin
        left += linear * begin + square * begin * begin
        slope = linear + sqrt(linear * linear + 4 * square * left)
        return 2 * left / slope if slope > 0 else 1.0


def cuts_bound(workload: Workload, open_layout: OpenLayout, slices: OpenSlices) -> int:
    """No cut has a schedule with a smaller objective, in the layout that is given; 0 where that is open, or stages are a graph.

    Let s be the first stage of a rank, u the first slice on it that is the j-th of its microbatch or a later one (so the j-th), E
    the units whose F run there before u. Then no backward has run anywhere before s: it would follow the F of a last slice there.

    - On each stage i before s, u and then E ∖ E′ run after E′, what has run before u. By induction u begins on s no earlier than
      F*(E) + the F of u on all stages before s with their messages, where F* is what a slice takes on the quickest of these.
    - Of what the rank does, only F(E) is done then, and E has slices before the j-th alone. So T ≥ its work − what F(E) exceeds
      F*(E) by + those F of u. In the other direction of time, the same holds of gradients behind the last backward of a j-th slice;
      both hold together, for the work that gradients follow, and the former for all work.

    A slice may so end only so far behind its begin, and the farther the farther it begins: that of each the farthest is taken gives
    the fewest slices for T. T is sought by bisection for each number of slices. Cuts may be anywhere, memory counts for nothing,
    links serve all at once; each rounding counts half a nanosecond.

    Args:
        workload: of whole microbatches, alike.
        open_layout: with one path.
        slices: which cuts are open.
    """
    if workload.edges or open_layout.heads != (False,) or open_layout.placement is None or open_layout.layers_of_stage is None:
        return 0
    waits = _waits(workload, open_layout, is_span=workload.objective is Objective.STAGE_SPAN)
    counts = range(slices.least, slices.most + 1)
    best_ns = float("inf")
    for count in sorted(counts, key=lambda count: (count & (count - 1) != 0, count)):  # powers of 2 first
        if _fits(waits, count, best_ns):
            best_ns = _least_ns(waits, count)
    return max(0, ceil(best_ns * (1 - EXACT)))


def _least_ns(waits: Sequence[_Wait], slices: int) -> float:
    """The least T for which as many slices suffice."""
    low_ns = max(wait.work_ns(slices) for wait in waits)
    high_ns = low_ns + max(sum(wait.path) for wait in waits)
    if _fits(waits, slices, low_ns):
        return low_ns
    for _ in range(ROUNDS):
        middle_ns = (low_ns + high_ns) / 2
        if _fits(waits, slices, middle_ns):
            high_ns = middle_ns
        else:
            low_ns = middle_ns
    return low_ns


def _fits(waits: Sequence[_Wait], slices: int, objective_ns: float) -> bool:
    """Whether as many slices suffice for the objective; with more of them the work may be more."""
    rooms_ns = [(wait, objective_ns - wait.work_ns(slices)) for wait in waits]
    if min(room_ns for _, room_ns in rooms_ns) < 0:
        return False
    begin = 0.0
    for before in range(slices):
        end = min(wait.end(begin, before, room_ns) for wait, room_ns in rooms_ns)
        if end >= 1:
            return True
        if end <= begin:
            return False
        begin = end
    return False


def _waits(workload: Workload, open_layout: OpenLayout, *, is_span: bool) -> list[_Wait]:
    assert open_layout.placement is not None and open_layout.layers_of_stage is not None
    ranks, bounds = open_layout.placement.rank_of_stage, open_layout.layers_of_stage
    stages = [
        _stage(workload, rank, workload.layers[first:last], again=not open_layout.recompute_is_open and open_layout.recomputes(at))
        for at, (rank, (first, last)) in enumerate(zip(ranks, bounds, strict=True))
    ]
    ends = [workload.layers[last - 1] for _, last in bounds]
    hops = [_hop(workload, *pair, end.message_bytes) for pair, end in zip(pairwise(ranks), ends, strict=False)]
    back = [_hop(workload, *pair[::-1], end.gradient_message_bytes) for pair, end in zip(pairwise(ranks), ends, strict=False)]
    count, waits = workload.microbatches, []
    for rank in range(workload.ranks):
        first = ranks.index(rank)
        own = [stage for stage, at in zip(stages, ranks, strict=True) if at == rank]
        forward, gradient, backward = (_sum(getattr(stage, name) for stage in own) for name in ("forward", "gradient", "backward"))
        before, layers = stages[:first], sum(stage.layers for stage in own)
        rounded = 4.0 * (count * (layers + max(stage.layers for stage in stages)) + sum(stage.layers for stage in before))
        if not before or is_span:
            waits.append(_Wait(_sum((forward, backward)).times(count), _Law(), _Law(), rounded))
            continue
        known = forward.over(_least(stage.forward for stage in before))
        known_back = gradient.over(_least(stage.gradient for stage in before))
        path, path_back = _sum((*(stage.forward for stage in before), *hops[:first])), _sum(stage.gradient for stage in before)
        waits += (
            _Wait(_sum((forward, backward)).times(count), known.times(count), path, rounded),
            _Wait(
                _sum((forward, gradient)).times(count),
                _sum((known, known_back)).times(count),
                _sum((path, path_back, *back[:first])),
                rounded,
            ),
        )
    return waits


def _hop(workload: Workload, source: int, destination: int, size_bytes: int) -> _Law:
    """What the message of a slice takes at least."""
    link = None if source == destination else workload.network.link(source, destination)
    if link is None:
        return _Law()
    empty_ns = link.occupancy_ns(0)
    return _Law(link.latency_ns + empty_ns, max(0, link.occupancy_ns(size_bytes) - empty_ns - 1))


def _stage(workload: Workload, rank: int, layers: Sequence[Layer], *, again: bool) -> _Stage:
    speed = float(workload.devices[rank].speed)
    forward, gradient, backward = _Law(), _Law(), _Law()
    for layer in layers:
        of_forward, of_input, of_weight = (_shares(layer, float(share)) for share in (*layer.quadratic, 0.0))
        input_ns, weight_ns, whole_ns = layer.backward_input_ns[0], layer.backward_weight_ns[0], layer.backward_ns[0]
        apart = _sum((of_input.times(input_ns), of_weight.times(weight_ns)))
        both_ns = input_ns + weight_ns
        fused = apart.times(whole_ns / both_ns) if both_ns else of_input.times(whole_ns)
        extra = of_forward.times((layer.forward_again_ns or layer.forward_ns)[0] if again else 0)
        forward = _sum((forward, of_forward.times(layer.forward_ns[0])))
        split = workload.split_backward
        gradient = _sum((gradient, extra, _least((fused, of_input.times(input_ns))) if split else fused))
        backward = _sum((backward, extra, _least((fused, apart)) if split else fused))
    return _Stage(forward.times(1 / speed), gradient.times(1 / speed), backward.times(1 / speed), len(layers) + 1)


def _shares(layer: Layer, quadratic: float) -> _Law:
    fixed = float(layer.fixed)
    return _Law(fixed, 1 - fixed - quadratic, quadratic)
