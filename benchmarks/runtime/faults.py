"""What happens when something goes wrong in a pipeline of four processes: on which ranks an error comes, when, and what it says.

First many random kills: a random rank of a random plan ends itself, by SIGKILL or `_exit`, at a random moment of a random op of the
first three steps. The wait limit of the pipes is ten minutes and the watchdog's a minute, so no rank can pass by waiting: all must
learn of it from their connections, and name a peer. Then the other faults.

Run it as `python benchmarks/runtime/faults.py [--kills 50] [--seed 0]`.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import fault_runs
from runs.processes import DEAD, rank_processes

from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runs.fault_runs import Said

    from schedc.ir.plan import Plan

RANKS = 4
NEVER_S = 600.0
"""A wait limit that no run here reaches."""
WATCHDOG_S = 60.0
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "1F1B": ("1f1b", {}),
    "ZB-H1": ("zb-h1", {}),
    "interleaved": ("interleaved", {"placement": "loop", "chunks": 2}),
    "ZB-V": ("zb-v", {"placement": "wave", "chunks": 2}),
    "Chimera": ("chimera", {"placement": "bidirectional"}),
    "W in parts": ("greedy{n_sub=3}", {"links": {(0, 1): (25, 10), (1, 0): (25, 10)}, "in_flight": 6}),
}


def planned(name: str, microbatches: int = 8, ranks: int = RANKS) -> Plan:
    """The plan of one of the methods."""
    method, options = METHODS[name]
    problem = make_problem(ranks, microbatches, costs_ns=(10, 12, 9), **options)
    return plan_of(problem, constructive(method)(problem))


def names_a_peer(error: str, rank: int) -> bool:
    """Whether the message says which other rank it is about."""
    return any(int(found) != rank for found in re.findall(r"\brank (\d+)", error))


def kills(count: int, seed: int) -> bool:
    """Print each kill and the spread of the times; whether all survivors have raised and named a peer."""
    draw = random.Random(seed)
    print(f"{count} random kills, seed {seed}: ms from the death to the last of {RANKS - 1} survivors' errors")
    times_ms, silent, nameless = [], 0, 0
    for number in range(count):
        name = draw.choice(list(METHODS))
        plan = planned(name)
        rank = draw.randrange(RANKS)
        after, fraction = draw.randrange(3 * len(plan.ranks[rank].compute)), draw.random()
        with tempfile.TemporaryDirectory() as directory:
            diary = Path(directory) / "diary"
            death = fault_runs.Death(rank, after, fraction, draw.choice(["kill", "exit"]), str(diary))
            with rank_processes(RANKS, Path(directory)) as ranks:
                try:
                    results = ranks.run(fault_runs.die, plan, death, NEVER_S, limit_s=WATCHDOG_S)
                except AssertionError as hung:
                    print(f"{number:>3}  {name:12} {death.way:5} rank {rank}: HANGS: {hung}")
                    silent += 1
                    continue
            died_s, op = diary.read_text(encoding="utf-8").split()
        survivors = {one: said for one, said in enumerate(results) if one != rank}
        wrong = [one for one, said in survivors.items() if isinstance(said, str) or said.error is None]
        if wrong or results[rank] != DEAD:
            print(f"{number:>3}  {name:12} {death.way:5} rank {rank} in {op}: no error on {wrong}: {results}")
            silent += 1
            continue
        nameless += sum(not names_a_peer(said.error, one) for one, said in survivors.items())
        last = max(survivors, key=lambda one: float(survivors[one].at_s))
        times_ms.append((survivors[last].at_s - float(died_s)) * 1e3)
        print(f"{number:>3}  {name:12} {death.way:5} rank {rank} in {op:7} {times_ms[-1]:>8.1f}  {survivors[last].error}")
    if times_ms:
        print(f"min {min(times_ms):.1f} ms, median {statistics.median(times_ms):.1f} ms, max {max(times_ms):.1f} ms")
    print(f"{silent} without an error or hanging; {nameless} messages that name no peer")
    return not silent and not nameless


def shown(title: str, said: Sequence[Said], begun_s: float | None = None) -> None:
    """Print what each rank says."""
    after = f", last after {max(one.at_s for one in said) - begun_s:.1f} s" if begun_s else ""
    print(f"{title}{after}")
    for rank, one in enumerate(said):
        print(f"  rank {rank}: {one.error or 'goes on'}")


def others() -> bool:
    """Print the other faults; whether each ended as it must."""
    plan = planned("1F1B")
    good = True
    with tempfile.TemporaryDirectory() as directory, rank_processes(RANKS, Path(directory)) as ranks:

        def run(*arguments: Any) -> list[Any]:
            return ranks.run(*arguments, limit_s=WATCHDOG_S)

        reference = run(fault_runs.be_late, plan, 2, 0.0, 60.0)[0][1]
        begun_s = time.monotonic()
        results = run(fault_runs.be_late, plan, 2, 5.0, 60.0)
        shown("rank 2 is 5 s late, timeout_s 60", [said for said, _ in results], begun_s)
        good &= all(said.error is None and losses == reference for said, losses in results)
        begun_s = time.monotonic()
        results = run(fault_runs.be_late, plan, 2, 5.0, 2.0)
        shown("rank 2 is 5 s late, timeout_s 2 (itself it learns of it when it is back)", [said for said, _ in results], begun_s)
        good &= all((said.error or "").startswith("TransferFailed: ") for said, _ in results)

        said = run(fault_runs.misfit, [plan, plan, planned("ZB-H1"), plan], None, 0, NEVER_S)
        shown("rank 2 loads another plan", said)
        good &= all((one.error or "").startswith("CheckFailed: ranks 0 and 2 have different plans") for one in said)
        said = run(fault_runs.misfit, [planned("1F1B", ranks=2)] * RANKS, None, 0, NEVER_S)
        shown("a plan for 2 ranks", said)
        good &= all((one.error or "").startswith("InvalidInput: plan 'test' is for 2 ranks, this job has 4") for one in said)

        results = run(fault_runs.lose_numbers, plan, {3: float("nan")}, True)
        shown("the loss of microbatch 3 is NaN in the second of three steps", [steps[1][0] for steps in results])
        good &= all("loss of microbatch 3, computed on rank 3, is nan" in (steps[1][0].error or "") for steps in results)
        shown("the step after it", [steps[2][0] for steps in results])
        good &= all(steps[2][0].error is None and steps[2][3] for steps in results)

        for after, culprit, title in (
            (0, 2, "rank 1's stage gives a shape that rank 2's does not take"),
            (2, 1, "rank 1's stage gives another shape from its third microbatch on"),
        ):
            begun_s = time.monotonic()
            said = run(fault_runs.misfit, [plan] * RANKS, 1, after, NEVER_S)
            shown(title, said, begun_s)
            for rank, one in enumerate(said):
                good &= one.error is not None and (rank == culprit or one.error.startswith("TransferFailed: "))
    return good


def main() -> None:
    """Print all; fail if something did not end as it must."""
    parser = argparse.ArgumentParser(description="What happens when something goes wrong in a pipeline of four processes.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    good = kills(arguments.kills, arguments.seed)
    good &= others()
    if not good:
        raise SystemExit("a fault did not end in a clear error on every rank")


if __name__ == "__main__":
    main()
