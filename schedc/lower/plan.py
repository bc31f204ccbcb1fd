"""The lowering: a Schedule becomes a Plan.

Takes the order of compute ops and the simulated times; gives every rank its compute queue, its communication queues and its
collectives. It decides nothing about the order of compute ops, and only when receives are posted about time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import Kind
from schedc.ir.plan import Collective, Plan, RankPlan
from schedc.lower.channels import channels_of

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.ops import Op
    from schedc.ir.plan import Certificate, MadeBy
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


def lower(problem: Problem, schedule: Schedule, timeline: Timeline, *, certificate: Certificate, made_by: MadeBy) -> Plan:
    """The plan that executes the schedule.

    Args:
        problem: what the schedule is for.
        schedule: an order that `schedc.verify.schedule.checks` accepts.
        timeline: when the simulator says that it happens.
        certificate: what the schedule is worth; goes into the plan as it is.
        made_by: how the schedule came to be; likewise.
    """
    channels = channels_of(timeline)
    ranks = tuple(
        RankPlan(rank=rank, compute=order, channels=channels[rank], collectives=_collectives(problem, order))
        for rank, order in enumerate(schedule.orders)
    )
    return Plan(problem=problem, ranks=ranks, parts=schedule.parts, certificate=certificate, made_by=made_by)


def _collectives(problem: Problem, order: tuple[Op, ...]) -> tuple[Collective, ...]:
    """The all-gathers in the order of their first F, then the reduce-scatters in the order of their last W or BW."""
    parallel = problem.data_parallel
    if parallel is None:
        return ()
    gathers = dict.fromkeys(op.stage for op in order if op.kind is Kind.F) if parallel.all_gather_ns else {}
    last_first = dict.fromkeys(op.stage for op in reversed(order) if op.kind in (Kind.W, Kind.BW))
    return (
        *(Collective("AG", stage) for stage in gathers),
        *(Collective("RS", stage) for stage in reversed(last_first)),
    )
