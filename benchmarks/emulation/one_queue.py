"""One queue for all transfers of a rank: `simulate --transfers one-queue` against real processes, `emulate --queues 1`.

Plans of 1F1B, zero bubble, interleaved and wave schedules, mixed ones from the greedy heuristic, over slow links with and without
occupancy and over a shared trunk. Ops take 20 to 80 ms, so that what the runtime adds to each is little. The decoupled prediction
is printed beside it: what is between the two is what the queue costs.

Run it as `python benchmarks/emulation/one_queue.py [--runs 5] [--scale 1]`; it takes four minutes. Exit status 1: a median is not
within 3 % of its prediction.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from schedc.analysis.comparison.compare import compare
from schedc.analysis.simulation.engines import Transfers
from schedc.compile.certify import certify
from schedc.compile.plans import time_plan
from schedc.ir.plan import MadeBy, Plan
from schedc.runtime.emulation.emulate import emulate
from schedc.solvers.driver.registry import constructive
from schedc.study.bench.pipelines import LinkTimes, both_ways, pipeline

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

MS = 1_000_000
COSTS_NS = (40 * MS, 50 * MS, 30 * MS)
CHUNKED_NS = (80 * MS, 100 * MS, 60 * MS)
"""Of a rank with two chunks, each of which takes half."""
WITHIN = 0.03


class Case(NamedTuple):
    """A method on a pipeline."""

    method: str
    problem: Problem


def cases() -> list[Case]:
    """All rows."""
    late, busy = LinkTimes(120 * MS, 0), LinkTimes(30 * MS, 40 * MS)
    first = pipeline("120 ms of latency on the first link", 4, 8, COSTS_NS, in_flight=8, slow=both_ways((0,), late))
    last = pipeline("30 ms and 40 ms of occupancy on the last link", 4, 8, COSTS_NS, in_flight=8, slow=both_ways((2,), busy))
    everywhere = pipeline("10 ms and 10 ms on all links", 4, 8, COSTS_NS, in_flight=8, otherwise=LinkTimes(10 * MS, 10 * MS))
    shared = LinkTimes(20 * MS, 25 * MS, "sea")
    trunk = pipeline("two links forward on one trunk", 4, 8, COSTS_NS, in_flight=8, slow={(0, 1): shared, (2, 3): shared})
    loop = pipeline(
        "loop, 30 ms and 5 ms on all links", 4, 8, CHUNKED_NS, in_flight=8, placement="loop", otherwise=LinkTimes(30 * MS, 5 * MS)
    )
    wave = pipeline(
        "wave, 60 ms on the middle link",
        4,
        8,
        CHUNKED_NS,
        in_flight=8,
        placement="wave",
        slow=both_ways((1,), LinkTimes(60 * MS, 0)),
    )
    return [
        *(Case(method, problem) for problem in (first, last, everywhere, trunk) for method in ("1f1b", "zb-h1", "greedy")),
        *(Case(method, loop) for method in ("interleaved", "greedy")),
        *(Case(method, wave) for method in ("zb-v", "greedy")),
    ]


def plan_of(case: Case) -> Plan:
    """The checked plan of the method's schedule."""
    schedule = constructive(case.method)(case.problem)
    return certify(case.problem, schedule, MadeBy(schedc="benchmark", method=case.method))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="One queue, simulated and emulated.")
    parser.add_argument("--runs", type=int, default=5, help="measured runs of each case")
    parser.add_argument("--scale", type=float, default=1.0, help="what all times are multiplied by")
    arguments = parser.parse_args()
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    table = Table(title="One queue for all transfers of a rank", title_justify="left", box=None)
    for header in ("pipeline", "method"):
        table.add_column(header)
    for header in ("decoupled ms", "one queue ms", "emulated ms", "least", "most", "off"):
        table.add_column(header, justify="right")
    worst = 0.0
    for case in cases():
        plan = plan_of(case)
        predicted = time_plan(plan, transfers=Transfers.ONE_QUEUE)
        emulation = emulate(plan, scale=arguments.scale, runs=arguments.runs, queues=1)
        measured = compare(plan, predicted, emulation.trace).measured
        off = measured.median_ns / predicted.makespan_ns - 1
        worst = max(worst, abs(off))
        table.add_row(
            case.problem.name,
            case.method,
            *(f"{ns / MS:.1f}" for ns in (plan.certificate.makespan_ns, predicted.makespan_ns)),
            *(f"{ns / MS:.1f}" for ns in (measured.median_ns, measured.low_ns, measured.high_ns)),
            f"{off:+.2%}",
        )
    console.print(table)
    console.print(f"the largest difference is {worst:.2%}; at most {WITHIN:.0%} is required")
    sys.exit(int(worst > WITHIN))


if __name__ == "__main__":
    main()
