"""A plan beside what happened: predicted against measured, where the time went, what was late and why, and what things cost.

Takes a plan, its simulated Timeline and a Trace of it; gives a Comparison. Costs are those of all recorded steps; accounts, delays
and pictures are those of one of them, by default the one whose iteration time is the median.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.comparison.causes import Delay, delays_of
from schedc.analysis.comparison.measured_costs import BlockCost, LinkTransfers, block_costs, link_costs, measured_problem
from schedc.analysis.comparison.steps import Step, last_awaited, measured_steps, planned_step
from schedc.analysis.comparison.times import Spread, spread_of
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import InvalidInput
from schedc.ir import Plan, Problem, Trace

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The time of one rank in one step: five parts that add up to the iteration exactly."""

    compute_ns: int
    late_ns: int
    """Waiting for transfers whose producer had not sent them yet."""
    transfer_ns: int
    """Waiting for transfers that were under way."""
    other_ns: int
    """Between ops, waiting for no transfer: before the rank began the step, handing over, posting, collectives before it."""
    idle_ns: int
    """After the rank's last op, until the iteration ended."""

    @property
    def waiting_ns(self) -> int:
        """All time between the begin of the iteration and the rank's last op without compute."""
        return self.late_ns + self.transfer_ns + self.other_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class RankComparison:
    """One rank in the step looked at."""

    planned: Account
    measured: Account
    worst: Delay
    """The op that ended latest against the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that a trace says about its plan."""

    predicted_ns: int
    """The plan's makespan."""
    measured: Spread
    """The iteration times of all recorded steps: from the first rank's begin to the end of the last op (of the step, where the
    plan has collectives)."""
    steps: tuple[tuple[int, int], ...]
    """Each recorded step's number and iteration time."""
    whole_step: Spread
    """From the first rank's begin to the last rank's end, the exchange of losses included."""
    recosted_ns: int
    """What the plan takes with the measured costs in the simulator. What the measured iteration differs from this is neither
    blocks nor links being slower than the plan's costs: overhead between ops, variance, contention."""
    shown_step: int
    """The step that all below is about."""
    shown_ns: int
    """Its iteration time."""
    ranks: tuple[RankComparison, ...]
    worst: Delay
    """The op that ended latest against the plan, of all ranks."""
    end: Delay
    """The op that ended last: its delay is what the iteration took longer, the collectives' apart."""
    planned_step: Step
    measured_step: Step
    blocks: tuple[BlockCost, ...]
    """Of all recorded steps, as is all below."""
    links: tuple[LinkTransfers, ...]
    measured_problem: Problem
    """The plan's problem with the measured costs."""


def compare(plan: Plan, timeline: Timeline, trace: Trace, step: int | None = None) -> Comparison:
    """Compare a plan with a trace of it.

    Args:
        plan: a plan that verifies.
        timeline: when the simulator says that it happens.
        trace: a recording of it.
        step: the number of the step to look at; None: the one whose iteration time is the median, of an even number the lower.

    Raises:
        InvalidInput: the trace is not of the plan, or has no such step.
    """
    steps, planned = measured_steps(plan, timeline, trace), planned_step(plan.problem, timeline)
    if step is None:
        shown = sorted(steps, key=lambda each: each.iteration_ns)[(len(steps) - 1) // 2]
        step = trace.steps[steps.index(shown)]
    elif step in trace.steps:
        shown = steps[trace.steps.index(step)]
    else:
        raise InvalidInput(f"step {step} is not in the trace, which has {_runs(trace.steps)}")
    blocks, links = block_costs(plan.problem, timeline, steps), link_costs(timeline, steps)
    problem = measured_problem(plan.problem, blocks, links)
    ended_ns = shown.timeline.ends_ns
    latest = np.lexsort((ended_ns, timeline.ends_ns - ended_ns))  # against the plan; of several, the first in time
    worst_of_ranks = [int(latest[(latest >= begin) & (latest < end)][0]) for begin, end in timeline.bounds]
    end, worst, *of_ranks = delays_of(timeline, shown, [int(ended_ns.argmax()), int(latest[0]), *worst_of_ranks])
    return Comparison(
        predicted_ns=timeline.makespan_ns,
        measured=spread_of(each.iteration_ns for each in steps),
        steps=tuple((number, each.iteration_ns) for number, each in zip(trace.steps, steps, strict=True)),
        whole_step=spread_of(
            max(each.step_end_ns for each in of_step) - min(each.step_begin_ns for each in of_step)
            for of_step in zip(*(rank.steps for rank in trace.ranks), strict=True)
        ),
        recosted_ns=simulate(problem, plan.schedule()).makespan_ns,
        shown_step=step,
        shown_ns=shown.iteration_ns,
        ranks=tuple(
            RankComparison(planned=account, measured=found, worst=delay)
            for account, found, delay in zip(accounts(planned), accounts(shown), of_ranks, strict=True)
        ),
        worst=worst,
        end=end,
        planned_step=planned,
        measured_step=shown,
        blocks=blocks,
        links=links,
        measured_problem=problem,
    )


def accounts(step: Step) -> tuple[Account, ...]:
    """Each rank's account.

    Waiting is counted from when the rank was free to when the op began. Up to when the transfer was sent the producer is to
    blame, from then to when it was taken the transfer; sends and takes on two clocks are held within that time. Of several
    transfers that is the one that it waited for last.
    """
    timeline, asked_ns, begun_ns, ended_ns = step.timeline, step.asked_ns, step.timeline.starts_ns, step.timeline.ends_ns
    transfer, sent_ns, taken_ns = last_awaited(timeline, step.awaited), asked_ns.copy(), asked_ns.copy()
    waited = transfer >= 0
    sent_ns[waited], taken_ns[waited] = step.sent_ns[transfer[waited]], step.taken_ns[transfer[waited]]
    sent_ns = np.minimum(np.maximum(sent_ns, asked_ns), begun_ns)
    taken_ns = np.minimum(np.maximum(taken_ns, sent_ns), begun_ns)
    other_ns = asked_ns - np.where(timeline.is_first, 0, np.roll(ended_ns, 1)) + begun_ns - taken_ns
    parts_ns = np.stack([ended_ns - begun_ns, sent_ns - asked_ns, taken_ns - sent_ns, other_ns])
    result = []
    for begin, end in timeline.bounds:
        compute_ns, late_ns, transfer_ns, rest_ns = parts_ns[:, begin:end].sum(axis=1).tolist()
        idle_ns = step.iteration_ns - (int(ended_ns[end - 1]) if end > begin else 0)
        result.append(Account(compute_ns=compute_ns, late_ns=late_ns, transfer_ns=transfer_ns, other_ns=rest_ns, idle_ns=idle_ns))
    return tuple(result)


def _runs(numbers: tuple[int, ...]) -> str:
    """Numbers in words: `the steps 3 to 12`, or one by one."""
    if len(numbers) == 1:
        return f"the step {numbers[0]} only"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"the steps {numbers[0]} to {numbers[-1]}"
    return f"the steps {', '.join(map(str, numbers))}"
