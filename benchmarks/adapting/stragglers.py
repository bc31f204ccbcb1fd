"""Steps under links whose delays change all the time: what plans made before, re-planning and choosing inside the step are worth.

Traces A, B and C are PipeMorph's figure 18: the latency of each link is drawn anew from N(30, 10) ms every 50 to 100, 100 to 200
and 200 to 400 ms; 4 ranks, 12 microbatches, F, B, W of 18, 19, 11 ms, room for 8. `wild` has figure 22's statistics (median 13,
mean 22.3, 99th percentile 79.3 ms; a new value every 10 s, correlated with the one before), `episodes` is the trace that PipeMorph
replays (1 to 3 slow links for 70 steps, 20 to 60 ms), both on its 14B pipeline: 8 ranks, 24 microbatches, room for 16. With
FOLDER, `ibm` has weekly means between regions of IBM's cloud, with jitter, on 4 ranks.

Every policy meets the same trace: step k begins at k times a fixed space. Times by the simulator.

- 1F1B, ZB-H1, and the optimum without delay: as planned. The last also with ranks that choose inside the step.
- best static: made by `compile` for the mean of the whole trace, which nobody knows before.
- at boundaries: starts with the optimum without delay; before each step `replan` for what links took in the steps before it, the
  mean over as many of them as look alike. Moves where that gains 1 % or more.
- inside: as at boundaries, and ranks choose inside the step.
- 8 steps late: the same where a change counts once 8 steps have seen it, as by the monitor's test.
- oracle: knows the trace. The best of all plans above and of 24 made for conditions within what the step will meet, in both
  modes. No schedule is below the bound: each link at its least latency in the step.

Run it as `python benchmarks/adapting/stragglers.py [--traces A,B,C,wild,episodes] [--steps 40] [--folder FOLDER]`. Exit status 1:
ours (inside) is below 97 % of the oracle's throughput where links change slower than a step, below 94 % where faster, or a plan
without delay that chooses loses more than 4 % to one made for the mean.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from schedc.adapt.replan import replan
from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.online import not_before, simulate_online
from schedc.compile.certify import certify
from schedc.compile.driver import compile_problem
from schedc.ir.conditions import Conditions, LinkState, LinkTrace
from schedc.ir.plan import MadeBy
from schedc.lower.problem import problem_under
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.driver.registry import constructive
from schedc.study.bench.pipelines import pipeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

MS = 1_000_000
SLOWER, FASTER = 0.97, 0.94
MOST_LOSS = 0.04
LEAST_GAIN = 0.01
WINDOW = 16
"""Steps at most whose mean is what links take."""
ALIKE_MS, ALIKE = 5.0, 0.25
"""A step is like those before it where its mean latency of each link is within this."""
LATE = 8
SEEN = 24
"""Conditions within a step for which the oracle makes plans."""
EPISODES = (
    "15;2_3;30 85;;0 120;0_1,5_6;40 190;;0 230;6_7;20 300;;0 340;2_3,3_4,6_7;50 410;;0 450;5_6;60 520;;0 560;1_2,6_7;60 630;;0"
)
EPISODES += " 670;0_1,4_5;20 740;;0 780;0_1,1_2,2_3;40 850;;0 890;4_5,5_6;50 960;;0"
"""experiments/large-scale/superpod/large-scale.trace of PipeMorph's repository: step; slow links; ms. Between them all are fast."""
EPISODE_STEPS = 1030
REGIONS = ("Dallas", "Washington DC", "London", "Frankfurt")


class Setup(NamedTuple):
    """One trace, and the pipeline under it."""

    problem: Problem
    trace: LinkTrace
    starts_ns: list[int]
    """When each measured step begins."""
    spacing_ns: int
    slow_changes: bool
    """Whether links change slower than steps end."""


def main() -> int:
    """Print a table for each trace."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", default="A,B,C,wild,episodes")
    parser.add_argument("--steps", type=int, default=40, help="of each trace but episodes, which has all of its own")
    parser.add_argument("--folder", type=Path, help="with traces/ibm-cloud-wan-latency.json")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each plan made before")
    arguments = parser.parse_args()
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    sound = True
    names = arguments.traces.split(",") + (["ibm"] if arguments.folder else [])
    for name in names:
        setup = setup_of(name, arguments.steps, arguments.folder)
        found = run(setup, arguments.time_limit, name)
        sound = report(console, name, setup, found) and sound
    return int(not sound)


def report(console: Console, name: str, setup: Setup, found: dict[str, list[float]]) -> bool:
    """Print the table; whether what is required holds."""
    table = Table(title=f"{name}: {len(setup.starts_ns)} steps", title_justify="left", box=None)
    table.add_column("policy")
    for header in ("mean step ms", "longest", "throughput to the oracle"):
        table.add_column(header, justify="right")
    oracle = fmean(found["oracle"])
    for policy, steps_ms in found.items():
        table.add_row(policy, f"{fmean(steps_ms):.1f}", f"{max(steps_ms):.1f}", f"{oracle / fmean(steps_ms):.1%}")
    console.print(table)
    ours, least = oracle / fmean(found["inside"]), SLOWER if setup.slow_changes else FASTER
    loss = fmean(found["without delay, choosing"]) / fmean(found["best static"]) - 1
    console.print(
        f"ours {ours:.1%} of the oracle (required {least:.0%}); the plan without delay, choosing, {loss:+.1%} to the best"
    )
    console.print(f"static (at most {MOST_LOSS:+.0%})\n")
    return ours >= least and loss <= MOST_LOSS


def run(setup: Setup, limit_s: float, name: str) -> dict[str, list[float]]:
    """Per policy, the makespan of each step in ms."""
    free = setup.problem
    mean = problem_under(free, mean_conditions(setup.trace, free, 0, setup.starts_ns[-1] + setup.spacing_ns))
    limits = Limits(time_s=limit_s, gap=0.001)
    static = {
        "1F1B": certify(free, constructive("1f1b")(free), MadeBy(schedc="benchmark", method="1f1b")),
        "ZB-H1": certify(free, constructive("zb-h1")(free), MadeBy(schedc="benchmark", method="zb-h1")),
        "without delay": compile_problem(free, SearchSettings(limits=limits)).plan,
        "best static": compile_problem(mean, SearchSettings(limits=limits)).plan,
    }
    found: dict[str, list[float]] = {}
    first = static["without delay"]
    boundaries, kept = (Boundary(first, 1), Boundary(first, LATE)), [first]
    random = Random(7)
    known: dict[str, dict[str, float]] = {}
    """What was found of a step in which nothing changes, by its conditions and the plan that runs."""
    for number, (before_ns, start_ns) in enumerate(pairwise([0, *setup.starts_ns])):
        step = Step(setup, start_ns)
        if start_ns - before_ns > setup.spacing_ns:  # the trace is looked at in pieces
            for back in range(2 * LATE, 0, -1):
                end_ns = start_ns - (back - 1) * setup.spacing_ns
                for each in boundaries:
                    each.saw(mean_conditions(setup.trace, free, max(0, end_ns - setup.spacing_ns), max(1, end_ns)))
                    each.plan()
        plans = [each.plan() for each in boundaries]
        key = f"{sorted(setup.trace.at(start_ns).links.items())} {[id(plan) for plan in plans]}"
        row = known.get(key)
        if row is None:
            row = row_of(step, static, plans, first, random)
            if not step.later:
                known[key] = row
                kept += plans  # whose ids are in the key
            print(f"{name}, step {number}: done", file=sys.stderr)
        for policy, step_ms in row.items():
            found.setdefault(policy, []).append(step_ms)
        for each in boundaries:
            each.saw(mean_conditions(setup.trace, free, start_ns, start_ns + round(row["inside"] * MS)))
    return found


def row_of(step: Step, static: dict[str, Plan], running: Sequence[Plan], first: Plan, random: Random) -> dict[str, float]:
    """Per policy, the makespan of one step in ms."""
    row = {policy: step.ms(plan, choose=False) for policy, plan in static.items()}
    row |= {f"{policy}, choosing": step.ms(static[policy], choose=True) for policy in ("without delay", "best static")}
    for plan, late in zip(running, ("", f", {LATE} steps late"), strict=True):
        row |= {f"at boundaries{late}": step.ms(plan, choose=False), f"inside{late}": step.ms(plan, choose=True)}
    best_ms = min(row.values())
    met = step.least_and_most(round(best_ms * MS))
    drawn = [{pair: ends[end] for pair, ends in met.items()} for end in (0, 1)]
    drawn += [{pair: random.uniform(*ends) for pair, ends in met.items()} for _ in range(SEEN)] if step.later else []
    for latencies_ns in drawn:
        made = replan(first, _conditions(latencies_ns)).plan
        best_ms = min(best_ms, step.ms(made, choose=False), step.ms(made, choose=True))
    least = problem_under(step.setup.problem, _conditions({pair: low for pair, (low, _) in met.items()}))
    return row | {"oracle": best_ms, "bound": best_bound(least).value_ns / MS}


class Step:
    """What links cost in one step."""

    def __init__(self, setup: Setup, start_ns: int) -> None:
        self.setup = setup
        self.start_ns = start_ns
        problem, trace = setup.problem, setup.trace
        self._now = problem_under(problem, trace.at(start_ns))
        # A step takes less than three times the space between steps.
        within = [(at - start_ns, each) for at, each in trace.entries if 0 < at - start_ns < 3 * setup.spacing_ns]
        self.later = [(at_ns, problem_under(problem, each)) for at_ns, each in within]

    def ms(self, plan: Plan, *, choose: bool) -> float:
        """The step's makespan with these orders."""
        schedule = plan.schedule()
        planned = not_before(plan.problem, schedule) if choose else None
        return simulate_online(self._now, schedule, self.later, choose=choose, planned=planned).timeline.makespan_ns / MS

    def least_and_most(self, length_ns: int) -> dict[tuple[int, int], tuple[float, float]]:
        """Per link, the least and the greatest latency in the step, in ns."""
        entries = [self.setup.trace.at(self.start_ns)]
        entries += [each for at, each in self.setup.trace.entries if self.start_ns < at < self.start_ns + length_ns]
        found = {}
        for pair in pairs_of(self.setup.problem):
            values = [latency_ns(each, pair) for each in entries]
            found[pair] = float(min(values)), float(max(values))
        return found


class Boundary:
    """What re-planning at step boundaries runs: the plan for the mean of the steps that look like the last one."""

    def __init__(self, first: Plan, least: int) -> None:
        self._first = self._running = first
        self._least = least
        """A level counts when this many steps have seen it."""
        self._seen: list[Conditions] = []

    def saw(self, conditions: Conditions) -> None:
        """What links took in the step that has ended, each in the mean."""
        latest = conditions.links
        if self._seen and any(_differs(state, self._seen[-1].links[pair]) for pair, state in latest.items()):
            self._seen.clear()
        self._seen = [*self._seen, conditions][-WINDOW:]

    def plan(self) -> Plan:
        """For the next step."""
        if len(self._seen) < self._least:
            return self._running
        pairs = self._seen[-1].links
        mean = {pair: fmean(latency_ns(each, pair) for each in self._seen) for pair in pairs}
        proposal = replan(self._first, _conditions(mean), running=self._running)
        if proposal.gain_ns >= LEAST_GAIN * proposal.running_ns:
            self._running = proposal.plan
        return self._running


def _differs(one: LinkState, other: LinkState) -> bool:
    """Whether a link has changed, and not only jitters."""
    before, after = ((each.latency_ns or 0) / MS for each in (other, one))
    return abs(after - before) > max(ALIKE_MS * 4, ALIKE * 2 * before)


def _conditions(latencies_ns: dict[tuple[int, int], float]) -> Conditions:
    return Conditions(links={pair: LinkState(latency_ns=round(value)) for pair, value in latencies_ns.items()})


def pairs_of(problem: Problem) -> list[tuple[int, int]]:
    """The directed links."""
    return [(link.source, link.destination) for link in problem.links]


def latency_ns(conditions: Conditions, pair: tuple[int, int]) -> int:
    """Of a link; without delay where nothing is said."""
    state = conditions.links.get(pair)
    return 0 if state is None else state.latency_ns or 0


def mean_conditions(trace: LinkTrace, problem: Problem, begin_ns: int, end_ns: int) -> Conditions:
    """Each link's latency in the mean over a time."""
    times_ns = [begin_ns, *(at for at, _ in trace.entries if begin_ns < at < end_ns), end_ns]
    totals = dict.fromkeys(pairs_of(problem), 0.0)
    for at, until in pairwise(times_ns):
        now = trace.at(at)
        for pair in totals:
            totals[pair] += latency_ns(now, pair) * (until - at) / (end_ns - begin_ns)
    return _conditions(totals)


def setup_of(name: str, steps: int, folder: Path | None) -> Setup:
    """The trace of this name."""
    small = pipeline(name, 4, 12, (18 * MS, 19 * MS, 11 * MS), in_flight=8)
    large = pipeline(name, 8, 24, (9 * MS, 10 * MS, 6 * MS), in_flight=16)
    random = Random(1)
    if name in ("A", "B", "C"):
        shortest_ms, longest_ms = {"A": (50, 100), "B": (100, 200), "C": (200, 400)}[name]
        starts_ns = [1000 * MS * number for number in range(1, steps + 1)]
        trace = redrawn(small, random, shortest_ms, longest_ms, starts_ns[-1] + 4000 * MS)
        return Setup(small, trace, starts_ns, 1000 * MS, slow_changes=False)
    if name == "wild":
        starts_ns = [(900 * piece + number) * 1000 * MS for piece in range(4) for number in range(1, steps // 4 + 1)]
        trace = bursty(large, random, 3600)
        return Setup(large, trace, starts_ns, 1000 * MS, slow_changes=True)
    if name == "episodes":
        starts_ns = [1000 * MS * number for number in range(1, EPISODE_STEPS)]
        return Setup(large, episodes(), starts_ns, 1000 * MS, slow_changes=True)
    if name == "ibm" and folder is not None:
        starts_ns = [2000 * MS * number for number in range(1, steps + 1)]
        return Setup(small, regions(small, folder, random, steps), starts_ns, 2000 * MS, slow_changes=True)
    raise SystemExit(f"--traces: found {name!r}, expected A, B, C, wild, episodes")


def redrawn(problem: Problem, random: Random, shortest_ms: int, longest_ms: int, end_ns: int) -> LinkTrace:
    """Each pair of neighbours has a latency, the same both ways, drawn anew after a pause of between these."""
    changes: list[tuple[int, tuple[int, int], LinkState]] = []
    for a, b in _neighbours(problem):
        at_ns = 0
        while at_ns < end_ns:
            changes += _both_ways(at_ns, a, b, max(0.0, random.gauss(30, 10)))
            at_ns += round(random.uniform(shortest_ms, longest_ms) * MS)
    return LinkTrace.of(sorted(changes, key=lambda change: change[0]))


def bursty(problem: Problem, random: Random, length_s: int) -> LinkTrace:
    """Figure 22: a value every 10 s, whose ranks among all values are those of a normal process with a correlation of 0.8."""
    changes: list[tuple[int, tuple[int, int], LinkState]] = []
    for a, b in _neighbours(problem):
        level = random.gauss(0, 1)
        for at_s in range(0, length_s, 10):
            changes += _both_ways(at_s * 1000 * MS, a, b, figure_22_ms(NormalDist().cdf(level)))
            level = 0.8 * level + math.sqrt(1 - 0.8**2) * random.gauss(0, 1)
    return LinkTrace.of(sorted(changes, key=lambda change: change[0]))


def figure_22_ms(share: float) -> float:
    """The latency that this share of values is below: median 13, mean 22.3, 99th percentile 79.3 ms."""
    above: float = max(0.0, 2 * share - 1) ** 1.79
    return 1 + 24 * min(share, 0.5) + 68.75 * above


def episodes() -> LinkTrace:
    """PipeMorph's trace, a step each second."""
    changes: list[tuple[int, tuple[int, int], LinkState]] = []
    slow: list[tuple[int, int]] = []
    for episode in EPISODES.split():
        at, links, latency = episode.split(";")
        at_ns = int(at) * 1000 * MS - 500 * MS
        for a, b in slow:
            changes += [(at_ns, (a, b), LinkState()), (at_ns, (b, a), LinkState())]
        slow = [(int(a), int(b)) for a, _, b in (link.partition("_") for link in links.split(",") if link)]
        for a, b in slow:
            changes += _both_ways(at_ns, a, b, float(latency))
    return LinkTrace.of(changes)


def regions(problem: Problem, folder: Path, random: Random, steps: int) -> LinkTrace:
    """IBM's means between four regions, a week for each eight steps; jitter adds a tenth in the mean, anew twice in a step."""
    found = json.loads((folder / "traces" / "ibm-cloud-wan-latency.json").read_text(encoding="utf-8"))["links"]
    changes: list[tuple[int, tuple[int, int], LinkState]] = []
    for rank, pair in enumerate(pairwise(REGIONS)):
        for half in range(2 * steps + 6):
            for one, other, ends in ((rank, rank + 1, pair), (rank + 1, rank, pair[::-1])):
                weekly = [value for value in found[">".join(ends)] if value is not None]
                milliseconds: float = weekly[half // 16 * 7 % len(weekly)] * random.uniform(1.0, 1.2)
                changes.append((half * 1000 * MS, (one, other), LinkState(latency_ns=round(milliseconds * MS))))
    return LinkTrace.of(sorted(changes, key=lambda change: change[0]))


def _neighbours(problem: Problem) -> Iterable[tuple[int, int]]:
    return ((rank, rank + 1) for rank in range(problem.ranks - 1))


def _both_ways(at_ns: int, a: int, b: int, latency_ms: float) -> list[tuple[int, tuple[int, int], LinkState]]:
    state = LinkState(latency_ns=round(latency_ms * MS))
    return [(at_ns, (a, b), state), (at_ns, (b, a), state)]


if __name__ == "__main__":
    sys.exit(main())
