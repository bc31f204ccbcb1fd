"""The integer grid of a model: the coarsest tick that represents every duration exactly, or one that rounds down.

Solvers get small integers this way. Where rounding is needed, durations are rounded *down*, so that a solver's lower bound
stays one of the true problem; the schedule that it finds is timed again exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

MOST_TICKS = 1 << 40
"""A horizon of more ticks than this (1,100 s in nanoseconds) is rounded to a coarser grid; CP-SAT's sums stay far from overflow."""


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """A tick's length."""

    tick_ns: int
    exact: bool

    def ticks(self, time_ns: int) -> int:
        """The duration in ticks, rounded down."""
        return time_ns // self.tick_ns


def grid_of(problem: Problem, horizon_ns: int) -> TimeGrid:
    """The grid for a problem whose schedules of interest end by the horizon."""
    tick_ns = 0
    for stage in problem.stages:
        for kind in Kind:
            tick_ns = gcd(tick_ns, *stage.durations_ns(kind))
        for link in problem.links:
            for size_bytes in {stage.message_bytes, stage.gradient_message_bytes}:
                tick_ns = gcd(tick_ns, link.latency_ns, link.occupancy_ns(size_bytes))
    parallel = problem.data_parallel
    if parallel is not None:
        tick_ns = gcd(tick_ns, *parallel.reduce_scatter_ns, *parallel.all_gather_ns)
    tick_ns = max(tick_ns, 1)
    coarse_ns = -(-horizon_ns // MOST_TICKS)
    return TimeGrid(tick_ns, True) if tick_ns >= coarse_ns else TimeGrid(coarse_ns, False)
