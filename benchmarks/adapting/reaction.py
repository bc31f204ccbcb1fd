"""After how many slow steps a job runs another plan: links and ranks that change, simulated step by step with four kinds of noise.

The plan is one of 4 ranks and 12 microbatches with steps of 630 ms, whose middle link changes both ways after 1024 calm steps, or
one of whose ranks computes slower; and back 40 steps later. For each change it prints by what share of a step the plan takes longer
(shorter, back again) with it, by the simulator, and how many steps are slow, median and most of some runs: those until the monitors
know, and the one in which the ranks get the plan and offer it, where proposer and store take less time than a step. Where no plan
gains anything, that is when one could run. Every message varies by about 0.1 ms or more, so also the tails are as bad on a link of
1 ms as in `false_alarms.py` on one of 5 ms.

Then `false_alarms.py`'s count of alarms where nothing changes.

Run it as `python benchmarks/adapting/reaction.py`; some minutes. `--steps 2000` is faster.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from benches.simulated_noise import NOISES, RATE, nothing_wrong
from inputs.plans import plan_of
from inputs.problems import MS, make_problem
from oracles.link_pairs import BothEnds

from schedc.adapt.replan import replan
from schedc.ir.conditions import Conditions, LinkState
from schedc.ir.ops import Kind, Op
from schedc.runtime.adapt.monitoring.speeds import SpeedWatch
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.plan import Plan

CALM, STAYS, LONGEST = 1024, 40, 100
RUNS = 11
BEFORE_MS = 1
LINKS_MS = (5, 10, 20, 60)
SLOWDOWNS = (1.1, 1.2, 1.5)
OPS = [Op(kind, 0, at) for at in range(12) for kind in (Kind.F, Kind.B, Kind.W)]


def plan() -> Plan:
    """The job's."""
    links = {pair: (BEFORE_MS * MS, 0) for a in range(3) for pair in ((a, a + 1), (a + 1, a))}
    problem = make_problem(4, 12, costs_ns=(18 * MS, 19 * MS, 11 * MS), links=links, in_flight=8)
    return plan_of(problem, constructive("rule-table")(problem))


def share(job: Plan, conditions: Conditions) -> float:
    """By what share of a step the job's plan takes longer."""
    return replan(job, conditions).running_ns / replan(job, Conditions()).running_ns - 1


def steps_of_link(noise: Callable[[random.Random], Callable[[], float]], draw: random.Random, after_ms: int) -> tuple[int, int]:
    """Slow steps there, and back."""
    pair = BothEnds(RATE)

    def steps(latency_ms: float, count: int, changed: bool | None) -> int:
        def transit_ns(way: int) -> Callable[[], float]:
            more = noise(draw)
            return lambda: MS * (latency_ms + more())

        for step in range(1, count + 1):
            pair.step(transit_ns)
            if changed is not None and all(bool(excess_ns) == changed for excess_ns in pair.reported_ns):
                return step + 1
        return LONGEST + 1

    steps(BEFORE_MS, CALM, None)
    there = steps(after_ms, LONGEST, True)
    steps(after_ms, STAYS, None)
    return there, steps(BEFORE_MS, LONGEST, False)


def steps_of_rank(noise: Callable[[random.Random], Callable[[], float]], draw: random.Random, factor: float) -> tuple[int, int]:
    """Slow steps there, and back."""
    watch = SpeedWatch(RATE)

    def steps(slower: float, count: int, changed: bool | None) -> int:
        for step in range(1, count + 1):
            more = noise(draw)
            ops = [(op, round(10 * MS * (slower + more() / 10))) for op in OPS]
            if watch.doubtful:
                watch.early(ops[: len(ops) // 4])
                if changed is not None and len(watch.slowdown()) == (3 if changed else 0):
                    return step
            watch.step(ops)
            if changed is not None and len(watch.slowdown()) == (3 if changed else 0):
                return step + 1
        return LONGEST + 1

    steps(1.0, CALM, None)
    there = steps(factor, LONGEST, True)
    steps(factor, STAYS, None)
    return there, steps(1.0, LONGEST, False)


def said(found: list[int]) -> str:
    """Median and most."""
    most = "–" if max(found) > LONGEST else str(max(found))
    return f"{'–' if median(found) > LONGEST else f'{median(found):.0f}'} / {most}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000, help="with nothing wrong (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each change (default: %(default)s)")
    arguments = parser.parse_args()
    job = plan()
    print(f"slow steps until another plan runs, median / most of {arguments.runs} runs (– : more than {LONGEST}); there, back")
    print(f"{'change':<20} {'costs':>7}" + "".join(f" {name:>21}" for name in NOISES))
    for after_ms in LINKS_MS:
        slow = LinkState(latency_ns=after_ms * MS)
        cells = []
        for name, noise in NOISES.items():
            found = [steps_of_link(noise, random.Random(f"{name} {run} {after_ms}"), after_ms) for run in range(arguments.runs)]
            cells.append(", ".join(said(list(way)) for way in zip(*found, strict=True)))
        costs = share(job, Conditions(links={(1, 2): slow, (2, 1): slow}))
        print(f"{f'link {BEFORE_MS} -> {after_ms} ms':<20} {costs:>+7.0%}" + "".join(f" {cell:>21}" for cell in cells), flush=True)
    for factor in SLOWDOWNS:
        cells = []
        for name, noise in NOISES.items():
            found = [steps_of_rank(noise, random.Random(f"{name} {run} {factor}"), factor) for run in range(arguments.runs)]
            cells.append(", ".join(said(list(way)) for way in zip(*found, strict=True)))
        costs = share(job, Conditions(slowdown={(1, kind): factor for kind in (Kind.F, Kind.B, Kind.W)}))
        print(f"{f'rank {factor - 1:+.0%}':<20} {costs:>+7.0%}" + "".join(f" {cell:>21}" for cell in cells), flush=True)
    print()
    nothing_wrong(arguments.steps)


if __name__ == "__main__":
    main()
