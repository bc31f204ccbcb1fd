"""A slow link replayed with real processes: what steps take if the plan stays, if the ranks adapt, and if they also choose.

Four ranks, 12 microbatches, F, B and W of 18, 19 and 11 ms, memory for 8 microbatches, run by `schedc emulate` at a quarter of
these times. The plan is the rule table's for no delay. The link between the ranks 1 and 2 has 30 ms both ways for a while, then
60 ms, then none again. The table shows the mean step of each stretch, in the plan's time, and of those that adapt after how many
steps they moved, and the mean from the last of these moves on. The oracle has the proposer's best plan for the stretch from its
first step on: predicted, nothing of the runtime's own time is in it; nor is it in the column of the static plan's prediction.

Run it as `python benchmarks/adapting/replay.py`; three minutes.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.conditions import LinkTrace
    from schedc.ir.plan import Plan

MS = 1_000_000
SCALE = 0.25
CALM_NS, SLOW_NS, AFTER_NS = 6_000 * MS, 30_000 * MS, 30_000 * MS
LATENCIES_MS = (30, 60)
PAIR = ((1, 2), (2, 1))


class Series(NamedTuple):
    """Runs one after another."""

    begun_ns: Sequence[int]
    runs_ns: Sequence[int]
    plan_of_run: Sequence[int]


def static(plan: Plan, trace: LinkTrace, runs: int) -> Series:
    """The plan stays."""
    from schedc.runtime.emulation.emulate import emulate

    found = emulate(plan, scale=SCALE, runs=runs, links=trace)
    ranks = found.trace.ranks
    taken_ns = [
        max(max(rank.steps[run].ended_ns) for rank in ranks) - min(rank.steps[run].step_begin_ns for rank in ranks)
        for run in range(runs)
    ]
    return Series(found.begun_ns, taken_ns, [0] * runs)


def adapting(plan: Plan, trace: LinkTrace, runs: int, *, choose: bool) -> Series:
    """The ranks adapt."""
    from schedc.runtime.emulation.emulate import emulate_adapting

    found = emulate_adapting(plan, scale=SCALE, runs=runs, links=trace, choose=choose)
    if found.ended is not None:
        raise SystemExit(f"the ranks adapted no more: {found.ended}")
    for move in found.moves:
        when = "not taken up" if move.run is None else f"from run {move.run + 1} on"
        links = ", ".join(f"{a}>{b} {(state.latency_ns or 0) / MS:.1f} ms" for (a, b), state in move.conditions.links.items())
        print(
            f"  plan {move.plan} {when}: {links or 'as planned'}; {move.before_ns / MS:.0f} → {move.after_ns / MS:.0f} ms",
            flush=True,
        )
    return Series(found.begun_ns, found.runs_ns, found.plan_of_run)


def cell(series: Series, since_ns: int, until_ns: int) -> str:
    """Of the runs that begin in this stretch."""
    runs = [at for at, begin_ns in enumerate(series.begun_ns) if since_ns <= begin_ns < until_ns]
    shown = f"{mean(series.runs_ns[at] for at in runs) / MS:.0f}"
    moves = [at for at in runs if at and series.plan_of_run[at] != series.plan_of_run[at - 1]]
    if not moves:
        return shown
    after = [series.runs_ns[at] for at in runs if at >= moves[-1]]
    steps = " and ".join(str(at - runs[0]) for at in moves)
    return f"{shown} (after {steps} steps: {mean(after) / MS:.0f})"


def main() -> None:
    """Print the table."""
    from inputs.plans import plan_of
    from inputs.problems import make_problem

    from schedc.adapt.replan import replan
    from schedc.ir.conditions import Conditions, LinkState, LinkTrace
    from schedc.solvers.driver.registry import constructive

    problem = make_problem(4, 12, costs_ns=(18 * MS, 19 * MS, 11 * MS), in_flight=8)
    plan = plan_of(problem, constructive("rule-table")(problem))
    states = [Conditions(links=dict.fromkeys(PAIR, LinkState(latency_ns=ms * MS))) for ms in LATENCIES_MS]
    times_ns = [0, CALM_NS, CALM_NS + SLOW_NS, CALM_NS + 2 * SLOW_NS, CALM_NS + 2 * SLOW_NS + AFTER_NS]
    trace = LinkTrace(tuple(zip(times_ns[1:4], (*states, Conditions()), strict=True)))
    proposals = [replan(plan, conditions) for conditions in (Conditions(), *states, Conditions())]
    lasting_ns = [until - since for since, until in pairwise(times_ns)]
    runs = sum(round(ns / proposal.objective_ns) for ns, proposal in zip(lasting_ns, proposals, strict=True))
    columns = [static(plan, trace, runs)]
    for choose in (False, True):
        print("adapting and choosing:" if choose else "adapting:")
        columns.append(adapting(plan, trace, runs, choose=choose))
    print(f"\n{runs} runs\n")
    print("| link 1-2 | static | predicted | adapting | adapting and choosing | oracle, predicted |")
    print("|---|---|---|---|---|---|")
    names = ["as planned", *(f"{ms} ms" for ms in LATENCIES_MS), "as planned again"]
    for name, (since_ns, until_ns), proposal in zip(names, pairwise(times_ns), proposals, strict=True):
        stay, adapt, both = (cell(series, since_ns, until_ns) for series in columns)
        print(f"| {name} | {stay} | {proposal.running_ns / MS:.0f} | {adapt} | {both} | {proposal.objective_ns / MS:.0f} |")


if __name__ == "__main__":
    main()
