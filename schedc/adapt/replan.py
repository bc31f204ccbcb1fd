"""Re-planning: a plan and what links and ranks cost at the time in, the best plan for that out, verified; in milliseconds.

Stages, ranks, paths, memory limits and collectives stay as they are, so that a running job can move to the new plan between two
steps (`Pipe.swap`). Nothing here depends on a clock: the same plan under the same conditions gives the same proposal.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from schedc import __version__
from schedc.analysis.bounds.lower_bounds import simple_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.certify import certify
from schedc.errors import InvalidInput, Unsupported
from schedc.ir import Conditions, Kind, MadeBy, Op, Plan, Problem, Schedule
from schedc.ir.index import tables_of
from schedc.lower.problem import checked_under
from schedc.solvers.heuristics.rule_table import RuleTable, slow_link_rules
from schedc.verify.problem import check_pipeline

if TYPE_CHECKING:
    from collections.abc import Sequence


CLIMB_OPS = 6_000
"""How many ops the climbs from the best rules may place: under 1 ms, compiled; on large problems too few for any."""
METHOD = "replan"


class Choice(StrEnum):
    """Which plan is the best."""

    RUNNING = "running"
    """The one that runs."""
    KNOWN = "known"
    """One that was given."""
    NEW = "new"
    """One made for the conditions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The best plan under the conditions, and what it gains."""

    plan: Plan
    """With `Choice.NEW` its costs are those of the conditions; else it is the plan that was given, with the costs that it has."""
    choice: Choice
    running_ns: int
    """The objective of the running plan's orders under the conditions, by the simulator."""
    objective_ns: int
    """That of the proposed plan's; not above `running_ns`."""

    @property
    def gain_ns(self) -> int:
        """How much shorter a step is, at least 0."""
        return self.running_ns - self.objective_ns


def replan(
    plan: Plan,
    conditions: Conditions,
    *,
    running: Plan | None = None,
    known: Sequence[Plan] = (),
    replicas: int = 1,
    climb_ops: int = CLIMB_OPS,
) -> Proposal:
    """The best plan under the conditions. Of equal ones the running plan, then the given ones in their order, then a new one.

    Where nothing differs from what the job's plan expects, that plan comes first and no new one is made: who compiled it had time.

    Args:
        plan: the job's plan, whose costs the conditions differ from. It is among the candidates.
        conditions: what links and ranks cost.
        running: the plan that runs, with the same stages; None: `plan`.
        known: more plans of the same stages to choose from, which have been verified. One whose collectives have another order is
            passed over: other pipelines may run the job's plan.
        replicas: how many pipelines the job has, though the plan may have no collectives: it then sums the gradients of a stage
            after the stage's last W or BW, and the order of these stays.
        climb_ops: how many ops the climbs from the best rules may place; 0: no climbs.

    Returns:
        The proposal. A new plan has been accepted by the plan verifier; its certificate claims the largest of the bounds that take
        no time to speak of (`simple_bound`).

    Raises:
        InvalidInput: a plan has other stages, or the conditions make a problem that nobody can plan for.
        Unsupported: weights are sharded within the step.
        Defect: the verifier refuses the new plan.
    """
    if plan.problem.is_sharded:
        raise Unsupported(f"plan {plan.name!r} gathers and releases weights within the step; compile it anew for other conditions")
    problem = checked_under(plan.problem, conditions, "under the conditions")
    tables = tables_of(problem)
    now = running or plan
    as_planned = problem == plan.problem
    best, choice = now, Choice.RUNNING
    running_ns = best_ns = simulate(problem, _orders(now, problem), tables=tables).objective_ns(problem.objective)
    for other in (plan, *known) if plan is not now else known:
        orders = _orders(other, problem)
        if not _same_collectives(plan, other, replicas):
            continue
        other_ns = simulate(problem, orders, tables=tables).objective_ns(problem.objective)
        if other_ns < best_ns or (as_planned and other is plan and other_ns == best_ns):
            best, best_ns, choice = other, other_ns, Choice.KNOWN
    if as_planned:
        return Proposal(plan=best, choice=choice, running_ns=running_ns, objective_ns=best_ns)
    try:
        schedule = RuleTable(climb_ops=climb_ops).best_of(problem, slow_link_rules)
    except Unsupported:  # the rules do not hold one microbatch; what ran before holds
        return Proposal(plan=best, choice=choice, running_ns=running_ns, objective_ns=best_ns)
    timeline = simulate(problem, schedule, tables=tables)
    new_ns = timeline.objective_ns(problem.objective)
    if new_ns < best_ns:
        made_by = MadeBy(schedc=__version__, method=METHOD, job_sha256=plan.made_by.job_sha256)
        new = certify(problem, schedule, made_by, bounds=(simple_bound(problem),), timeline=timeline)  # ranks wait for it
        if _same_collectives(plan, new, replicas):
            best, best_ns, choice = new, new_ns, Choice.NEW
    return Proposal(plan=best, choice=choice, running_ns=running_ns, objective_ns=best_ns)


def _orders(plan: Plan, problem: Problem) -> Schedule:
    """The orders of a plan of the same stages."""
    if violations := check_pipeline(plan, problem):
        raise InvalidInput(f"{plan.name}: {violations[0]}")
    return plan.schedule()


def _same_collectives(plan: Plan, other: Plan, replicas: int) -> bool:
    """Whether all ranks have the same collectives in the same order: pipelines that run different plans meet in them."""
    if plan.problem.data_parallel is None and replicas > 1:
        return [_ends(rank.compute) for rank in plan.ranks] == [_ends(rank.compute) for rank in other.ranks]
    return [rank.collectives for rank in plan.ranks] == [rank.collectives for rank in other.ranks]


def _ends(order: Sequence[Op]) -> list[int]:
    """A rank's stages in the order of their last W or BW."""
    last = {op.stage: at for at, op in enumerate(order) if op.kind in (Kind.W, Kind.BW)}
    return sorted(last, key=last.__getitem__)
