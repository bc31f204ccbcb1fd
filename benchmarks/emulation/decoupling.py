"""What decoupled queues buy, under PipeMorph's slow links: one queue for all transfers of a rank, four, and an adapted plan.

4 ranks and 12 microbatches, F = B = W = 10 ms as in PipeMorph's simulations (figures 4 and 5), and 30 ms of latency between ranks 0
and 1 (figure 6) or ranks 2 and 3 (figure 14). The schedule is the one that PipeMorph's planner makes for links without delay. It is
emulated under the slow link as it is: once with all transfers of each rank in one queue, which holds one at a time, once with the
plan's queues. Then come the plan that is adapted to the link, by PipeMorph's planner and by the best method, and the plan's queues
over the delegate's helper threads, which shows what they add. PipeMorph's own times are of another model (GPT2-7B on H800s, costs
not printed; nor does its text say whether figure 6's 710 ms are with the delay): only the ratios to the time without delay compare.

Run it as `python benchmarks/emulation/decoupling.py [--runs 5] [--scale 1]`; it takes three minutes.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from schedc.analysis.comparison.compare import compare
from schedc.compile.certify import certify
from schedc.compile.driver import compile_problem
from schedc.compile.plans import time_plan
from schedc.ir.plan import MadeBy, Plan
from schedc.runtime.emulation.emulate import emulate
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.driver.registry import constructive
from schedc.study.bench.pipelines import LinkTimes, both_ways, pipeline

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

MS = 1_000_000
RANKS, MICROBATCHES = 4, 12
COSTS_NS = (10 * MS, 10 * MS, 10 * MS)
DELAY = LinkTimes(30 * MS, 0)
UNADAPTED, ADAPTED = "pipemorph{policy=initial}", "pipemorph"
PUBLISHED = {
    0: {"no delay": 710.0, "one queue": 1350.0},
    2: {"no delay": 703 / 1.9, "one queue": 703.0, "four queues": 579.0, "adapted": 398.0},
}
"""By the rank before the slow link, ms: section 3.2 with figure 6, and section 7.2 with figure 14."""


class Case(NamedTuple):
    """One row."""

    name: str
    plan: Plan
    queues: int = 4
    delegate: bool = False
    as_published: str = ""


def problem_of(before: int | None) -> Problem:
    """The pipeline, with the slow link after a rank."""
    slow = {} if before is None else both_ways((before,), DELAY)
    name = "no delay" if before is None else f"30 ms between ranks {before} and {before + 1}"
    return pipeline(name, RANKS, MICROBATCHES, COSTS_NS, in_flight=MICROBATCHES, slow=slow)


def cases(before: int) -> list[Case]:
    """The rows of one slow link."""
    free, slow = problem_of(None), problem_of(before)
    schedule = constructive(UNADAPTED)(free)
    usual, same = (certify(problem, schedule, MadeBy(schedc="benchmark", method=UNADAPTED)) for problem in (free, slow))
    adapted = compile_problem(slow, SearchSettings(method=ADAPTED)).plan
    best = compile_problem(slow, SearchSettings(limits=Limits(time_s=10.0))).plan
    return [
        Case("no delay, four queues", usual, as_published="no delay"),
        Case("one queue", same, queues=1, as_published="one queue"),
        Case("four queues", same, as_published="four queues"),
        Case("adapted by PipeMorph's planner, four queues", adapted, as_published="adapted"),
        Case(f"best plan ({best.made_by.method}), four queues", best),
        Case("adapted, one queue", adapted, queues=1),
        Case("four queues, through the delegate", same, delegate=True),
        Case("adapted, four queues, through the delegate", adapted, delegate=True),
    ]


def main() -> None:
    """Print a table for each slow link."""
    parser = argparse.ArgumentParser(description="What decoupled queues buy.")
    parser.add_argument("--runs", type=int, default=5, help="measured runs of each case")
    parser.add_argument("--scale", type=float, default=1.0, help="what all times are multiplied by")
    arguments = parser.parse_args()
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    ordered = True
    for before, published in PUBLISHED.items():
        table = Table(title=problem_of(before).name, title_justify="left", box=None)
        table.add_column("case")
        for header in ("planned ms", "measured ms", "least", "most", "to no delay", "PipeMorph ms", "to no delay"):
            table.add_column(header, justify="right")
        usual_ns, measured_ms = 0, {}
        for case in cases(before):
            trace = emulate(case.plan, scale=arguments.scale, runs=arguments.runs, queues=case.queues, delegate=case.delegate).trace
            found = compare(case.plan, time_plan(case.plan), trace)
            usual_ns = usual_ns or found.measured.median_ns
            measured_ms[case.name] = found.measured.median_ns / MS
            theirs = published.get(case.as_published)
            table.add_row(
                case.name,
                f"{found.predicted_ns / MS:.1f}" if case.queues == 4 else "–",
                *(f"{ns / MS:.1f}" for ns in (found.measured.median_ns, found.measured.low_ns, found.measured.high_ns)),
                f"{found.measured.median_ns / usual_ns:.2f}",
                "–" if theirs is None else f"{theirs:.0f}",
                "–" if theirs is None else f"{theirs / published['no delay']:.2f}",
            )
        console.print(table)
        added_ms = measured_ms["four queues, through the delegate"] - measured_ms["four queues"]
        console.print(f"four queues save {1 - measured_ms['four queues'] / measured_ms['one queue']:.1%} of one queue's time;")
        console.print(f"the delegate adds {added_ms:+.1f} ms to four queues over gloo\n")
        ordered = ordered and measured_ms["four queues"] < measured_ms["one queue"]
    sys.exit(int(not ordered))


if __name__ == "__main__":
    main()
