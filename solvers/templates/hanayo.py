"""Hanayo: waves of fused backwards. A Problem in, a Schedule out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.solvers.kernel.rule import Rule
from schedc.solvers.templates.list_order import list_order
from schedc.solvers.templates.shape import wave

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.solvers.kernel.list_scheduler import ListSchedule


def hanayo(problem: Problem) -> Schedule:
    """Hanayo (Liu et al., 2023): v chunks per rank are v / 2 waves; a rank holds at most p v activations of chunks.

    The paper's unit is p microbatches, drawn with BW twice as long as F. More of them follow here in whichever of three ways is
    shortest in these unit times: at most p microbatches under way, where two ops are ready the backward first or the forward
    first, or (v even) a cap on what each stage holds, the larger the longer its microbatches are away.

    Raises:
        Unsupported: the placement is not a wave.
    """
    grid = wave(problem, "hanayo")
    path, positions, chunks = problem.paths[0], grid.positions, grid.chunks
    depth = {stage: index for index, stage in enumerate(path)}
    count = len(path)
    # Of F, BW and W, the smallest first; of equals the lowest microbatch.
    backward_first = tuple((2 * count - depth[stage], depth[stage], 0) for stage in range(count))
    forward_first = ((0, 1, 0),) * count

    def made(priority: tuple[tuple[int, int, int], ...], cap_of: dict[int, int]) -> ListSchedule:
        in_flight = tuple(cap_of.get(stage) for stage in range(count))
        return list_order(problem, Rule(priority=priority, in_flight=in_flight, weight_lag=(0,) * count, oldest_first=True))

    under_way = {path[0]: positions}
    ways = [(backward_first, under_way), (forward_first, under_way)]
    if chunks % 2 == 0:
        # A stage at depth d of L waits for 2 (L − d) ops; 2 (L − d) / v, less one on the way down, add up to p v on every rank.
        share = {stage: -(-2 * (count - d) // chunks) - (2 * d < count) for stage, d in depth.items()}
        by_depth = (forward_first, {stage: max(1, cap) for stage, cap in share.items()})
        # On one wave the last way was never the longer one (p up to 10, m up to 29).
        ways = [by_depth] if chunks == 2 else [*ways, by_depth]
    return min((made(priority, cap_of) for priority, cap_of in ways), key=lambda way: way.end_ns).schedule
