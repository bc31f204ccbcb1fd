"""All layouts that are open, one after another, and a lower bound of each in some microseconds: for small problems only.

Takes a workload and what is open. Layouts are contiguous partitions with the rank of each stage, symmetric ones once. The bound is
each rank's work between its head and its tail, from tables; it makes no Problem.
"""

from __future__ import annotations

from itertools import combinations, product
from math import isinf
from typing import TYPE_CHECKING

from schedc.analysis.bounds.layouts.pieces import pieces_of, rank_kinds
from schedc.ir import Device, Objective, OpenLayout, Workload
from schedc.solvers.layout.layout_arrays import LayoutArrays

if TYPE_CHECKING:
    from collections.abc import Iterator

    Table = list[list[float]]
    Tables = tuple[Table, ...]

FAR = 2.0**60
"""More bytes than any rank has."""


def open_layouts(workload: Workload, open_layout: OpenLayout) -> Iterator[LayoutArrays]:
    """Every partition with every map of its stages to ranks that is open: connected, every rank with a stage, none with too many.

    Stages recompute as it is given.

    Where the placement is open, the ranks of a kind (`rank_kinds`, with the proof that swapping them changes nothing) have their
    first stages in ascending order.
    """
    for ranks in _maps(workload, open_layout):
        again = tuple(map(open_layout.recomputes, range(len(ranks))))
        for cuts in _partitions(workload, open_layout, len(ranks)):
            yield LayoutArrays(cuts, ranks, again)


def _partitions(workload: Workload, open_layout: OpenLayout, stages: int) -> Iterator[tuple[int, ...]]:
    layers = len(workload.layers)
    if open_layout.layers_of_stage is not None:
        yield (0, *(last for _, last in open_layout.layers_of_stage))
    else:
        yield from ((0, *inner, layers) for inner in combinations(range(1, layers), stages - 1))


def _maps(workload: Workload, open_layout: OpenLayout) -> Iterator[tuple[int, ...]]:
    if open_layout.placement is not None:
        yield open_layout.placement.rank_of_stage
        return
    most = open_layout.stages or min(len(workload.layers), open_layout.chunks * workload.ranks)
    least = open_layout.stages or workload.ranks
    kinds, connects = rank_kinds(workload), workload.network.connects
    joined = {(a, b) for a, b in product(range(workload.ranks), repeat=2) if a == b or (connects(a, b) and connects(b, a))}

    def grown(ranks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        missing = workload.ranks - len(set(ranks))
        if missing == 0 and len(ranks) >= least:
            yield ranks
        if len(ranks) + max(1, missing) > most:
            return
        for kind in kinds:
            for rank in kind[: sum(rank in ranks for rank in kind) + 1]:
                if ranks.count(rank) < open_layout.chunks and (not ranks or (ranks[-1], rank) in joined):
                    yield from grown((*ranks, rank))

    yield from grown(())


class QuickBound:
    """The bounds of the layouts of a workload."""

    def __init__(self, workload: Workload, open_layout: OpenLayout) -> None:
        """Nothing is computed before it is asked for."""
        self._workload, self._open = workload, open_layout
        self._tables: dict[tuple[int, int], Tables] = {}
        self._of_device: dict[tuple[Device, int], Tables] = {}
        self._is_limited = [
            any(each is not None for each in (device.limit_bytes, device.in_flight, device.capacity_bytes))
            for device in workload.devices
        ]
        self._hops: dict[tuple[int, int, int], tuple[int, int]] = {}

    def of(self, draft: LayoutArrays) -> int | None:
        """No schedule of the layout has a smaller objective; None: a stage has no room on its rank.

        Proof: a rank's blocks lie between the least time before its first forward and the least time after its last gradient part,
        its backwards begin no earlier than its last stage's first can, and it runs one at a time. The stage span is no less than
        that of the first stage's rank, which has all of this in it but rests of backwards, and no less than any rank's own. For
        what memory adds see `residency_bound_of_rank`.
        """
        cuts, ranks, _ = draft
        size, count = len(ranks), self._workload.microbatches
        forward, gradient, hop, hop_back = [0.0] * size, [0.0] * size, [0.0] * size, [0.0] * size
        work: dict[int, list[float]] = {}  # per rank: forwards, gradient parts, backwards
        stages_on: dict[int, list[int]] = {}
        for stage, rank in enumerate(ranks):
            tables = self._tables.get((rank, stage)) or self._table(rank, stage)
            i, j = cuts[stage], cuts[stage + 1]
            forward[stage], gradient[stage] = tables[0][i][j], tables[1][i][j]
            if isinf(forward[stage]):
                return None
            sums = work.setdefault(rank, [0.0, 0.0, 0.0])
            for kind in range(3):
                sums[kind] += tables[2 + kind][i][j]
            stages_on.setdefault(rank, []).append(stage)
            if stage and ranks[stage - 1] != rank:
                hop[stage], hop_back[stage] = self._hop(ranks[stage - 1], rank, i)
        head, back, away = [0.0] * size, [0.0] * size, [0.0] * size
        for stage in range(1, size):
            head[stage] = head[stage - 1] + forward[stage - 1] + hop[stage]
            back[stage] = back[stage - 1] + gradient[stage - 1] + hop_back[stage]
        for stage in range(size - 2, -1, -1):
            away[stage] = away[stage + 1] + hop[stage + 1] + forward[stage + 1] + gradient[stage + 1] + hop_back[stage + 1]
        is_makespan = self._workload.objective is Objective.MAKESPAN
        least_ns = 0.0
        for rank, (forwards_ns, gradients_ns, backwards_ns) in work.items():
            one, other = stages_on[rank][0], stages_on[rank][-1]
            gradient_head_ns = head[other] + forward[other] + away[other]
            frame_ns = 0.0 if is_makespan else head[one]
            least_ns = max(
                least_ns,
                head[one] - frame_ns + forwards_ns + backwards_ns,
                gradient_head_ns - frame_ns + backwards_ns,
                max(head[one] + forwards_ns, gradient_head_ns) + gradients_ns + back[one],
            )
            if not self._is_limited[rank]:
                continue
            here = [(stage, self._tables[rank, stage], cuts[stage], cuts[stage + 1]) for stage in stages_on[rank]]
            activation = [tables[5][i][j] for _, tables, i, j in here]
            room_bytes = self._room_bytes(rank, [tables[6][i][j] for _, tables, i, j in here], sum(activation))
            if sum(activation) > room_bytes:
                return None
            stays_ns = [forward[stage] + away[stage] + gradient[stage] for stage in stages_on[rank]]
            for stage, size_bytes, stay_ns in zip(stages_on[rank], activation, stays_ns, strict=True):
                if size_bytes:
                    in_slots = -(-count // min(count, room_bytes // size_bytes))
                    least_ns = max(least_ns, head[stage] + in_slots * stay_ns + back[stage])
            if room_bytes:
                byte_ns = count * sum(size_bytes * stay_ns for size_bytes, stay_ns in zip(activation, stays_ns, strict=True))
                least_ns = max(least_ns, head[one] + byte_ns // room_bytes + back[one])
        return int(least_ns)

    def _room_bytes(self, rank: int, rooms: list[float], activation_bytes: float) -> float:
        """For the activations of all stages of a rank, at most; `rooms`: for each of them alone."""
        device = self._workload.devices[rank]
        if device.capacity_bytes is not None and not any(self._open.recompute):
            return device.capacity_bytes - sum(device.capacity_bytes - room_bytes for room_bytes in rooms)
        if not any(self._open.recompute):
            return min(rooms) if device.in_flight is None else device.in_flight * activation_bytes
        return max(rooms) if device.in_flight is None else FAR  # any of the stages may be the one that recomputes

    def _table(self, rank: int, stage: int) -> Tables:
        """By first and last layer: F and gradient part of a microbatch; forwards, gradient parts and backwards of all; bytes.

        Bytes are those of an activation, and the room for them.
        """
        workload, device = self._workload, self._workload.devices[rank]
        differ = self._open.layers_of_stage is not None or len(self._open.recompute) > 1 or len(workload.static_bytes) > 1
        key = device, stage if differ else min(stage, 1)  # torch's first stage is another one
        if key not in self._of_device:
            pieces = pieces_of(workload, self._open, device, stage)
            times = (pieces.forward_ns, pieces.gradient_ns, pieces.forwards_ns, pieces.gradients_ns, pieces.backwards_ns)
            self._of_device[key] = tuple(matrix.tolist() for matrix in (*times, pieces.activation_bytes, pieces.room_bytes))
        self._tables[rank, stage] = self._of_device[key]
        return self._tables[rank, stage]

    def _hop(self, before: int, rank: int, layer: int) -> tuple[int, int]:
        """The times of a message to a stage that begins with the layer, and of its gradient back; the ranks are connected."""
        key = before, rank, layer
        if key not in self._hops:
            forth, back = self._workload.network.link(before, rank), self._workload.network.link(rank, before)
            costs = self._workload.layers[layer - 1]
            self._hops[key] = (
                0 if forth is None else forth.latency_ns + forth.occupancy_ns(costs.message_bytes),
                0 if back is None else back.latency_ns + back.occupancy_ns(costs.gradient_message_bytes),
            )
        return self._hops[key]
