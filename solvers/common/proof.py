"""What follows where a model has no schedule that is as good as the known one: a bound, nothing, or that schedc is wrong.

A formulation says which schedules it holds, and its limit is the objective of a schedule that is known. Where it holds that very
schedule, "there is none" contradicts it. This is the one place that turns such an answer into a bound, for every formulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.errors import Defect

if TYPE_CHECKING:
    from schedc.ir.schedule import Schedule
    from schedc.models.blocks import Blocks


def bound_of_none(blocks: Blocks, known: Schedule, known_ns: int, *, is_bound: bool, claimed_by: str) -> int:
    """The lower bound, in nanoseconds, that follows where a model has no schedule whose objective is at most the known one's.

    Args:
        blocks: of the model.
        known: the schedule whose objective is the model's limit.
        known_ns: that objective.
        is_bound: whether bounds of the model hold for the problem, so that it has a solution for every schedule of such blocks.
        claimed_by: who says that there is none.

    Returns:
        The known objective, where the model speaks for the problem but not for the known schedule, which cuts its blocks in another
        way; 0 where it does not speak for the problem.

    Raises:
        Defect: the model has a solution for the known schedule.
    """
    if not is_bound:
        return 0
    if not known.parts or known.parts == blocks.parts:
        raise Defect(f"{claimed_by}: no schedule has an objective of {known_ns} ns or less, but one that has it is known")
    return known_ns
