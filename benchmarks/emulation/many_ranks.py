"""Many ranks as processes of this machine: whether a plan runs to its end, how truly, and what each rank holds.

1F1B of as many microbatches as ranks, compute replaced by waiting, real channels over gloo. While it runs, each rank process is
looked at: its threads, its sockets and its resident memory. Threads must not grow with the ranks; sockets do, as all ranks say to
each other how a call begins.

Run it as `python benchmarks/emulation/many_ranks.py [--ranks 8,64] [--op 40ms] [--runs 2]`. On two cores the start of 64 ranks
takes minutes. It exits with status 1 if a rank of the last job has more threads than one of the first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from inputs.plans import plan_of
from inputs.problems import make_problem

from schedc.analysis.comparison.compare import compare
from schedc.compile.plans import time_plan
from schedc.runtime.emulation.emulate import emulate
from schedc.solvers.driver.registry import constructive
from schedc.units import parse_duration_ns


class Held(NamedTuple):
    """What a rank process has."""

    threads: int
    sockets: int
    resident_mib: float


def descendants() -> list[int]:
    """The processes that this one has started, and theirs."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (ValueError, OSError):  # no process, or one that has ended
            continue
    own = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in own} - own:
        own |= more
    return sorted(own - {os.getpid()})


def held_by(process: int) -> Held | None:
    """What a process has; None: it has ended."""
    root = Path("/proc", str(process))
    try:
        status = dict(line.split(":", 1) for line in (root / "status").read_text().splitlines())
        sockets = sum(os.readlink(each).startswith("socket:") for each in (root / "fd").iterdir())
        return Held(int(status["Threads"]), sockets, int(status["VmRSS"].split()[0]) / 1024)
    except (OSError, KeyError):  # of a process that has ended, and nobody has waited for, there is less
        return None


def run(ranks: int, op_ns: int, runs: int) -> Held:
    """Emulate, and print a line; what the median rank has held."""
    problem = make_problem(ranks, ranks, costs_ns=(op_ns, op_ns, op_ns), split_backward=False)
    plan = plan_of(problem, constructive("1f1b")(problem))
    seen: list[Held] = []

    def look(_: int) -> None:
        seen.extend(found for process in descendants() if (found := held_by(process)) is not None)

    emulation = emulate(plan, runs=runs, report=look)
    found = compare(plan, time_plan(plan), emulation.trace)
    most_threads = max(one.threads for one in seen)
    of_ranks = [one for one in seen if one.threads > most_threads / 2] or seen  # not what serves them
    median = Held(*(statistics.median(column) for column in zip(*of_ranks, strict=True)))
    measured_ns, load = found.measured.median_ns, "" if emulation.before_others else "; the load of the machine shows in the times"
    print(
        f"{ranks:>5} ranks: predicted {found.predicted_ns / 1e9:.3f} s, measured {measured_ns / 1e9:.3f} s"
        f" ({measured_ns / found.predicted_ns - 1:+.1%}); a rank has {median.threads:g} threads, {median.sockets:g} sockets,"
        f" {median.resident_mib:.0f} MiB{load}",
        flush=True,
    )
    return median


def main() -> None:
    """Run them; fail if threads grow with the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", default="8,64")
    parser.add_argument("--op", default="40ms", help="what each F, B and W takes")
    parser.add_argument("--runs", type=int, default=2)
    arguments = parser.parse_args()
    held = [run(int(ranks), parse_duration_ns(arguments.op), arguments.runs) for ranks in arguments.ranks.split(",")]
    if held[-1].threads > held[0].threads:
        raise SystemExit("a rank has more threads where there are more ranks")


if __name__ == "__main__":
    main()
