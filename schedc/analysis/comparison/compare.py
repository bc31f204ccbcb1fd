"""A plan beside what happened: predicted against measured, where the time went, what was late and why, and what things cost.

Takes a plan, its simulated Timeline and a Trace of it; gives a Comparison. Costs are those of all recorded steps; accounts, delays
and pictures are those of one of them, by default the one whose iteration time is the median.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.analysis.comparison.causes import Chains, Delay
from schedc.analysis.comparison.measured_costs import BlockCost, LinkTransfers, block_costs, link_costs, measured_problem
from schedc.analysis.comparison.measured_steps import check_trace, measured_timeline, measured_times
from schedc.analysis.comparison.spread import Spread, spread_of
from schedc.analysis.comparison.step_times import Account, accounts, planned_times
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.ir.trace import Trace


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
    planned_timeline: Timeline
    measured_timeline: Timeline
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
    check_trace(plan, trace)
    measured = measured_times(plan, timeline, trace)
    if step is None:
        times = sorted(measured, key=lambda times: times.iteration_ns)[(len(measured) - 1) // 2]
        step = trace.steps[measured.index(times)]
    elif step in trace.steps:
        times = measured[trace.steps.index(step)]
    else:
        raise InvalidInput(f"step {step} is not in the trace, which has {_runs(trace.steps)}")
    blocks, links = block_costs(plan.problem, timeline, measured), link_costs(timeline, measured)
    problem = measured_problem(plan.problem, blocks, links)
    chains = Chains(timeline, times)
    of_ranks = zip(accounts(timeline, planned_times(timeline)), accounts(timeline, times), timeline.bounds, strict=True)
    iterations, whole = (spread_of(values) for values in ([times.iteration_ns for times in measured], _whole_steps_ns(trace)))
    assert iterations is not None and whole is not None
    return Comparison(
        predicted_ns=timeline.makespan_ns,
        measured=iterations,
        steps=tuple((number, times.iteration_ns) for number, times in zip(trace.steps, measured, strict=True)),
        whole_step=whole,
        recosted_ns=simulate(problem, plan.schedule()).makespan_ns,
        shown_step=step,
        shown_ns=times.iteration_ns,
        ranks=tuple(
            RankComparison(planned=planned, measured=found, worst=chains.delay(chains.worst(range(begin, end))))
            for planned, found, (begin, end) in of_ranks
        ),
        worst=chains.delay(chains.worst(range(len(timeline.ops)))),
        end=chains.delay(max(range(len(timeline.ops)), key=lambda index: times.ended_ns[index])),
        planned_timeline=timeline,
        measured_timeline=measured_timeline(timeline, times),
        blocks=blocks,
        links=links,
        measured_problem=problem,
    )


def _whole_steps_ns(trace: Trace) -> list[int]:
    return [
        max(rank.steps[at].step_end_ns for rank in trace.ranks) - min(rank.steps[at].step_begin_ns for rank in trace.ranks)
        for at in range(len(trace.steps))
    ]


def _runs(numbers: tuple[int, ...]) -> str:
    """Numbers in words: `the steps 3 to 12`, or one by one."""
    if len(numbers) == 1:
        return f"the step {numbers[0]} only"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"the steps {numbers[0]} to {numbers[-1]}"
    return f"the steps {', '.join(map(str, numbers))}"
