"""Engines whose transfers hold up compute, and the simulator of each (cost model, "Engines that wait")."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from schedc.analysis.simulation.blocking import simulate_blocking
from schedc.analysis.simulation.one_queue import simulate_one_queue
from schedc.analysis.simulation.simulate import simulate

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


class Transfers(StrEnum):
    """How an engine's transfers go beside its compute."""

    DECOUPLED = "decoupled"
    """They hold up nothing: the cost model that plans are made for."""
    ONE_QUEUE = "one-queue"
    """All transfers of a rank share a queue that holds one, and a full queue holds up the rank."""
    BLOCKING = "blocking"
    """A rank waits in each send and receive."""


_SIMULATORS = {
    Transfers.DECOUPLED: simulate,
    Transfers.ONE_QUEUE: simulate_one_queue,
    Transfers.BLOCKING: simulate_blocking,
}


def simulate_engine(problem: Problem, schedule: Schedule, transfers: Transfers) -> Timeline:
    """When every op, transfer and collective of the schedule happens on such an engine.

    Args:
        problem: what the ops cost.
        schedule: a schedule that `verify_schedule` accepts.
        transfers: the engine's.

    Raises:
        CheckFailed: the ranks wait for each other in a cycle.
    """
    return _SIMULATORS[transfers](problem, schedule)
