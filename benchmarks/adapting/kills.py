"""Kills at random moments of a job that adapts: of its proposer, of the rank that has the proposer, and of the other rank.

Two ranks train while their monitors say, in turn, that a link is slow and that nothing differs, so that proposals and swaps follow
each other without a pause. When the proposer is killed, training must go on with the right gradients, and the leader must say so
in one line. When a rank is killed, the other must end with one line, and a note in which op it was. No run may hang.

Run it as `python benchmarks/adapting/kills.py [--kills 100]`. Exit status 1: one went wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

if TYPE_CHECKING:
    from adapt_runs import Fault

TRAINED_S = 1.5
"""Kills come within this time from the begin of training; the proposer is ready after about a second."""
PROPOSER = "proposer"
MOST_S = 90.0


def main() -> None:
    """Kill, print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    kills = parser.parse_args().kills
    random, counts, wrong = Random(0), Counter[tuple[str, str]](), 0
    for number in range(kills):
        victim = random.choice([PROPOSER, "rank 0", "rank 1"])
        begun = time.monotonic()
        said = once(victim, random)
        wrong += said != "right"
        counts[victim, said] += 1
        print(f"kill {number} of {victim}: {said} after {time.monotonic() - begun:.1f} s", file=sys.stderr)
    table = Table(title=f"{kills} kills at random moments")
    for column in ("killed", "what came of it", "times"):
        table.add_column(column)
    for (victim, said), times in sorted(counts.items()):
        table.add_row(victim, said, str(times))
    Console().print(table)
    sys.exit(wrong > 0)


def once(victim: str, random: Random) -> str:
    """Run a job in which this is killed; what went wrong, or that nothing did."""
    import adapt_runs  # here: the ranks import this file as well
    from plans import plan_of
    from problems import make_problem
    from rank_processes import rank_processes

    from schedc.ir.conditions import AS_PLANNED, Conditions, LinkState
    from schedc.solvers.driver.registry import constructive

    problem = make_problem(2, 6, costs_ns=(18, 19, 11), in_flight=6)
    plan = plan_of(problem, constructive("rule-table")(problem))
    slow = Conditions(links={(0, 1): LinkState(latency_ns=150)})
    fault: Fault
    if victim == PROPOSER:
        fault = adapt_runs.Fault("kill", random.randint(0, 3), random.uniform(0, 0.2))
    else:
        fault = adapt_runs.Fault("fall", int(victim[-1]), 1.0 + random.uniform(0, TRAINED_S))
    script = [[slow, AS_PLANNED] * 1000] * 2
    with TemporaryDirectory() as directory, rank_processes(2, Path(directory)) as ranks:
        results = ranks.run(adapt_runs.adapt_while_training, plan, script, 10**6, fault, limit_s=MOST_S)
    if victim == PROPOSER:
        return _trained(results)
    return _ended(results[1 - int(victim[-1])], results[int(victim[-1])])


def _trained(results: list[Any]) -> str:
    for result in results:
        if not isinstance(result, dict):
            return f"a rank failed: {result}"
        if result["error"] > 1e-9 or result["plans"] != results[0]["plans"]:
            return "a gradient is wrong, or ranks ran different plans"
    said = [text for result in results for text in result["warnings"]]
    return "right" if len(said) == 1 and "the proposer has ended: it ended by SIGKILL" in said[0] else f"said {said}"


def _ended(other: Any, killed: Any) -> str:
    if killed != "dead":
        return f"the rank was not killed: {killed}"
    if not isinstance(other, str):
        return f"the other rank went on: {other}"
    line, *notes = other.splitlines()
    is_clear = "TransferFailed: rank " in line and all(note.startswith("in ") for note in notes)
    return "right" if is_clear else f"the other rank: {other}"


if __name__ == "__main__":
    main()
