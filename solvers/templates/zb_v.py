"""ZB-V: zero bubble on a wave of two chunks per rank. A Problem in, a Schedule out."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from schedc.ir.ops import Kind, Op
from schedc.solvers.templates.shape import need_split, schedule_of, wave

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


def zb_v(problem: Problem) -> Schedule:
    """ZB-V (Qi et al., 2023, section 6, in the order of PyTorch's ScheduleZBVZeroBubble).

    No rank waits for F = B = W, and every rank holds 2p half-size activations, as much as 1F1B's first. The pattern needs 2p − 1
    microbatches; with fewer it runs with the missing ones left out.

    Raises:
        Unsupported: the placement is not a wave of 2 chunks, or B and W cannot run apart.
    """
    need_split(problem, "zb-v")
    grid = wave(problem, "zb-v", chunks=2)
    positions = grid.positions
    microbatches = max(2 * positions - 1, problem.microbatches)

    def order(position: int) -> Iterator[Op]:
        behind = positions - position
        down, up = grid.stages[position]
        counters = {(kind, stage): count() for kind in (Kind.F, Kind.B, Kind.W) for stage in (down, up)}

        def run(stage: int, *kinds: Kind) -> Iterator[Op]:
            return (Op(kind, stage, next(counters[kind, stage])) for kind in kinds)

        for _ in range(2 * behind - 1):
            yield from run(down, Kind.F)
        for _ in range(position):
            yield from run(up, Kind.F)
            yield from run(down, Kind.F)
        for _ in range(behind):
            yield from run(up, Kind.F, Kind.B, Kind.W)
        # 2·behind − 1 + position forwards of the first chunk are above, and position + behind of the second.
        more = microbatches - (2 * behind - 1 + position)
        for index in range(microbatches - positions):
            if index < more:
                yield from run(down, Kind.F)
            yield from run(down, Kind.B, Kind.W)
            yield from run(up, Kind.F, Kind.B, Kind.W)
        for _ in range(position):
            yield from run(down, Kind.B)
            yield from run(up, Kind.B)
        for _ in range(behind):
            yield from run(down, Kind.B, Kind.W)
        for _ in range(position):
            yield from run(up, Kind.W)
        for _ in range(position):
            yield from run(down, Kind.W)

    return schedule_of(problem, grid, order)
