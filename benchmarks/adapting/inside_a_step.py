"""What it is worth to choose the next op inside a step, by what has come: plans made for other link delays than there are.

4 ranks, 12 microbatches, F, B and W of 18, 19 and 11 ms, memory for 8 microbatches. The latency of each link is drawn from N(30,
10) ms, anew after 50 to 100 ms (A), 100 to 200 ms (B), 200 to 400 ms (C), for each of the links by itself. Five plans: 1F1B,
ZB-H1, and the best that is found for a latency of 0, 30 and 45 ms. Each runs the same steps in its own order, and choosing. Mean
steps in ms.

With `--emulate`, real processes run two of the plans with 30 ms on all links, in both ways, beside the simulator.

Run it as `python benchmarks/adapting/inside_a_step.py [--steps 60] [--emulate]`; it takes two minutes, with `--emulate` three.
Exit status 1: choosing gains less than 25 % for 1F1B or less than 1 % for the plan for no delay, loses more than 1.5 % for a plan
that was made for these delays, or an emulated run is more than 6 % away from the simulated one.
"""

from __future__ import annotations

import argparse
import random
import sys
from statistics import fmean, median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.analysis.simulation.online import not_before, simulate_online
from schedc.compile.certify import certify
from schedc.compile.driver import compile_problem
from schedc.ir.conditions import LinkState, LinkTrace
from schedc.ir.plan import MadeBy
from schedc.lower.problem import problem_under
from schedc.runtime.emulation.emulate import emulate
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.driver.registry import constructive
from schedc.study.bench.pipelines import LinkTimes, pipeline

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

MS = 1_000_000
RANKS, MICROBATCHES = 4, 12
COSTS_NS = (18 * MS, 19 * MS, 11 * MS)
MEAN_MS, DEVIATION_MS = 30.0, 10.0
LONGEST_MS = 3_000.0
TRACES = {"A": (50.0, 100.0), "B": (100.0, 200.0), "C": (200.0, 400.0)}
PAIRS = [(rank, rank + 1) for rank in range(RANKS - 1)]
NO_DELAY, MEAN, MORE = "best for 0 ms", "best for 30 ms", "best for 45 ms"
RUNS = 3


def problem_at(latency_ms: float) -> Problem:
    """The pipeline with this latency on all links."""
    links = LinkTimes(round(latency_ms * MS), 0)
    return pipeline(f"4x12 at {latency_ms:g} ms", RANKS, MICROBATCHES, COSTS_NS, in_flight=8, otherwise=links)


def plans() -> dict[str, Plan]:
    """By what they were made for."""
    found = {
        method: certify(problem_at(0), constructive(method)(problem_at(0)), MadeBy(schedc="benchmark", method=method))
        for method in ("1f1b", "zb-h1")
    }
    for name, latency_ms in ((NO_DELAY, 0), (MEAN, 30), (MORE, 45)):
        found[name] = compile_problem(problem_at(latency_ms), SearchSettings(limits=Limits(deterministic=6))).plan
    return found


def both_ways(pair: tuple[int, int], latency_ms: float) -> list[tuple[tuple[int, int], LinkState]]:
    """A link's latency in both directions."""
    state = LinkState(latency_ns=round(max(0.0, latency_ms) * MS))
    return [(pair, state), (pair[::-1], state)]


def step_of(generator: random.Random, shortest_ms: float, longest_ms: float) -> LinkTrace:
    """How the links change in one step."""
    changes = []
    for pair in PAIRS:
        time_ms = 0.0
        while time_ms < LONGEST_MS:
            latency_ms = generator.gauss(MEAN_MS, DEVIATION_MS)
            changes += [(round(time_ms * MS), link, state) for link, state in both_ways(pair, latency_ms)]
            time_ms += generator.uniform(shortest_ms, longest_ms)
    return LinkTrace.of(sorted(changes, key=lambda change: change[0]))


def step_ns(plan: Plan, trace: LinkTrace, *, choose: bool) -> int:
    """What a step takes."""
    later = [(time_ns, problem_under(plan.problem, conditions)) for time_ns, conditions in trace.entries]
    planned = not_before(plan.problem, plan.schedule()) if choose else None
    return simulate_online(later[0][1], plan.schedule(), later[1:], choose=choose, planned=planned).timeline.makespan_ns


def emulated(plan: Plan) -> list[tuple[float, float]]:
    """In the plan's order and choosing, with 30 ms on all links: simulated and emulated, in ms."""
    trace = LinkTrace.of([(0, link, state) for pair in PAIRS for link, state in both_ways(pair, MEAN_MS)])
    ordered = emulate(plan, runs=RUNS, links=trace).trace
    planned_ns = [
        max(max(rank.steps[at].ended_ns) for rank in ordered.ranks) - min(rank.steps[at].step_begin_ns for rank in ordered.ranks)
        for at in range(RUNS)
    ]
    chosen_ns = emulate(plan, runs=RUNS, choose=True, links=trace).runs_ns
    return [
        (step_ns(plan, trace, choose=False) / MS, median(planned_ns) / MS),
        (step_ns(plan, trace, choose=True) / MS, median(chosen_ns) / MS),
    ]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Choosing inside a step, where links change.")
    parser.add_argument("--steps", type=int, default=60, help="steps of each trace")
    parser.add_argument("--emulate", action="store_true", help="run two plans as processes, too")
    arguments = parser.parse_args()
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    made = plans()
    table = Table(title="Mean step in ms, in the plan's order and choosing", title_justify="left", box=None)
    table.add_column("plan")
    for trace in TRACES:
        for header in (trace, "choosing", "gain"):
            table.add_column(header, justify="right")
    bad: list[str] = []
    steps = {}
    for trace, lengths in TRACES.items():
        generator = random.Random(trace)
        steps[trace] = [step_of(generator, *lengths) for _ in range(arguments.steps)]
    for name, plan in made.items():
        row = [name]
        for trace, traced in steps.items():
            planned, chosen = (fmean(step_ns(plan, step, choose=choose) for step in traced) / MS for choose in (False, True))
            row += [f"{planned:.0f}", f"{chosen:.0f}", f"{1 - chosen / planned:+.1%}"]
            least = {"1f1b": 0.25, NO_DELAY: 0.01}.get(name, -0.015)
            if 1 - chosen / planned < least:
                bad.append(f"{name} on {trace}")
        table.add_row(*row)
    console.print(table)
    if arguments.emulate:
        runs = Table(title="30 ms on all links, as processes", title_justify="left", box=None)
        for header in ("plan", "order", "simulated ms", "emulated ms", "off"):
            runs.add_column(header, justify="left" if header in ("plan", "order") else "right")
        for name in ("1f1b", NO_DELAY):
            for order, (simulated_ms, measured_ms) in zip(("the plan's", "choosing"), emulated(made[name]), strict=True):
                off = measured_ms / simulated_ms - 1
                runs.add_row(name, order, f"{simulated_ms:.1f}", f"{measured_ms:.1f}", f"{off:+.1%}")
                if abs(off) > 0.06:
                    bad.append(f"{name}, emulated, {order}")
        console.print(runs)
    console.print("all as required" if not bad else f"not as required: {', '.join(bad)}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
