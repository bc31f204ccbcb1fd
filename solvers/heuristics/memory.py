"""Memory limits of graphs and slices, which the list scheduler does not count to the byte: what it made is checked, and made anew.

It counts by the order of ops: values of a graph that wait depend on times, and of slices it counts the most that they can hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.analysis.bounds.residency import rank_without_room
from schedc.errors import Unsupported
from schedc.solvers.kernel.joints import NO_ROOM, Room, takes_joints, values_wait
from schedc.solvers.templates.fused import Sequential
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schedc.ir import Problem, Schedule


def exceeds(problem: Problem, schedule: Schedule) -> bool:
    """Whether values that wait have too little room in a schedule of a graph, or slices of which more are held than was counted."""
    if not takes_joints(problem) or not any(limit is not None for limit in problem.memory_limit_bytes):
        return False
    from schedc.analysis.simulation.memory import exceeded_limit  # imports numpy

    return exceeded_limit(problem, schedule) is not None


def within_memory(problem: Problem, construct: Callable[[Room], Schedule]) -> Schedule:
    """The first that fits of what `construct` makes and of one microbatch after another.

    It is asked for one without room for values that wait, then with it, then with fewer and fewer microbatches in flight.

    Raises:
        Unsupported: a rank's memory limit is too small for any schedule; or none of these fits.
    """
    if not takes_joints(problem):
        return construct(NO_ROOM)
    if full := rank_without_room(problem):
        rank, limit, needed = full
        raise Unsupported(
            f"rank {rank}: one microbatch holds {format_bytes(needed, 40)} of activations, more than the limit of"
            f" {format_bytes(limit, 40)}; raise the limit to at least that"
        )
    for room in _rooms(problem):
        try:
            schedule = construct(room)
        except Unsupported:  # by what the list scheduler counts
            continue
        if not exceeds(problem, schedule):
            return schedule
    if exceeds(problem, schedule := Sequential()(problem)):
        raise Unsupported(
            "values that wait for others have too little room beside activations, even where one microbatch goes after another;"
            " raise the memory limits, or take the method cpsat"
        )
    return schedule


def _rooms(problem: Problem) -> Iterator[Room]:
    yield NO_ROOM
    if values_wait(problem):
        yield Room(for_values=True)
    most = problem.microbatches // (len(problem.slices) or 1)
    while most > 1:
        most = most * 2 // 3
        yield Room(most=most)
