"""The balanced partition of a workload's layers in a placement: the work of the rank with the most is as little as it can be.

Where each rank has one stage it is exact, else as good as moving single cuts makes it (`schedc.lower.balance`).
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from schedc.lower.balance import Share, balanced_cuts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from schedc.ir.layout import Placement
    from schedc.ir.workload import Workload

_MOST_CELLS = 2**25
"""Above this many pieces × layers², the pieces get equal numbers of layers."""


def balanced_partition(workload: Workload, placed: Placement, recomputed: frozenset[int]) -> tuple[tuple[int, int], ...]:
    """Per stage, its layers [first, last).

    The work of a stage is that of its blocks in one step, each backward as the cheaper of BW and B with W, on its rank's device. If
    it can be had, every rank has room for what its stages hold all the time and as many microbatches as 1F1B has in flight there
    (`in_flight_of_1f1b`); else for one microbatch in each stage; else room does not count.

    Args:
        workload: its layers are one model, in order; at least as many as the placement has pieces.
        placed: the stages.
        recomputed: those that recompute.
    """
    pieces, count = placed.pieces, len(workload.layers)
    cuts: tuple[int, ...] | None = None
    if pieces * count * count <= _MOST_CELLS and pieces > 1:
        chain = _Chain(workload, placed, recomputed)
        for in_flight in (in_flight_of_1f1b(placed, workload.microbatches), (1,) * len(placed.rank_of_stage), None):
            cuts = balanced_cuts(chain.pieces(in_flight), chain.room_bytes if in_flight else np.full(workload.ranks, np.inf))
            if cuts is not None:
                break
    if cuts is None:
        cuts = tuple(piece * (count // pieces) + min(piece, count % pieces) for piece in range(pieces + 1))
    bounds = list(pairwise(cuts))
    return tuple(bounds[piece] for piece in placed.piece_of_stage)


def in_flight_of_1f1b(placed: Placement, microbatches: int) -> tuple[int, ...]:
    """Per stage, how many microbatches lie between its F and its backward where all stages take the same time.

    A microbatch comes back after twice as many stage times as there are stages from here on, and meanwhile the rank begins one for
    each of its stages in every two: 1F1B's p − i where each rank has one stage.
    """
    of_rank, of_path = Counter(placed.rank_of_stage), Counter(placed.path_of(microbatches))
    found = [0] * len(placed.rank_of_stage)
    for number, path in enumerate(placed.paths):
        for position, stage in enumerate(path):
            waits = -(-(len(path) - position) // of_rank[placed.rank_of_stage[stage]])
            found[stage] = min(waits, of_path[number])
    return tuple(found)


class _Chain:
    """What any layers in a row cost as a stage, as matrices [first, last]."""

    def __init__(self, workload: Workload, placed: Placement, recomputed: frozenset[int]) -> None:
        self._workload, self._placed, self._recomputed = workload, placed, recomputed
        layers = workload.layers
        self._activation = _sums([layer.activation_bytes for layer in layers])
        self._weights = _sums([layer.static_bytes for layer in layers])
        self._input = np.array([0, *(layer.message_bytes for layer in layers)], np.float64)[:, None]
        self._loads: dict[tuple[int, bool, Fraction], NDArray[np.float64]] = {}
        free = np.inf
        self.room_bytes = np.array(
            [
                free if limit is None else limit
                for device in workload.devices
                for limit in [device.limit_bytes if device.capacity_bytes is None else device.capacity_bytes]
            ]
        )
        """Of each rank; infinity where a number of microbatches or nothing limits it."""

    def pieces(self, in_flight: Sequence[int] | None) -> list[list[Share]]:
        """Per piece, what it adds to the ranks that have it, with this many microbatches in flight in each stage; None: any."""
        placed, workload = self._placed, self._workload
        found: list[list[Share]] = [[] for _ in range(placed.pieces)]
        path_of_stage = {stage: number for number, path in enumerate(placed.paths) for stage in path}
        for stage, (rank, piece) in enumerate(zip(placed.rank_of_stage, placed.piece_of_stage, strict=True)):
            again = stage in self._recomputed
            held, once = self._activation, np.zeros_like(self._activation)
            if again:
                held, once = self._input + once, self._activation
            held = held * (in_flight[stage] if in_flight else 0)
            if workload.devices[rank].capacity_bytes is not None:
                held = held + self._weights + workload.static_bytes[stage if len(workload.static_bytes) > 1 else 0]
            load = self._load(path_of_stage[stage], again, workload.devices[rank].speed)
            found[piece].append(Share(rank=rank, load=load, held_bytes=held, once_bytes=once))
        return found

    def _load(self, path: int, again: bool, speed: Fraction) -> NDArray[np.float64]:
        """The nanoseconds of one step on a device of this speed, of the microbatches of a path; the same array each time."""
        if (path, again, speed) not in self._loads:
            workload = self._workload
            path_of = self._placed.path_of(workload.microbatches)
            own = [microbatch for microbatch, number in enumerate(path_of) if number == path]

            def total_ns(values: tuple[int, ...]) -> int:
                return len(own) * values[0] if len(values) == 1 else sum(values[microbatch] for microbatch in own)

            layers = workload.layers
            load = _sums([total_ns(layer.forward_ns) for layer in layers])
            fused = _sums([total_ns(layer.backward_ns) for layer in layers])
            apart = _sums([total_ns(layer.backward_input_ns) + total_ns(layer.backward_weight_ns) for layer in layers])
            load = load + (np.minimum(fused, apart) if workload.split_backward else fused)
            if again:
                load = load + _sums([total_ns(layer.forward_again_ns or layer.forward_ns) for layer in layers])
            self._loads[path, again, speed] = load / float(speed)
        return self._loads[path, again, speed]


def _sums(values: Sequence[int]) -> NDArray[np.float64]:
    """[first, last]: the sum of values [first, last). Exact below 2^53."""
    up_to = np.array([0, *accumulate(values)], np.float64)
    return up_to[None, :] - up_to[:, None]
