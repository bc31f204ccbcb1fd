"""Processes are killed at random moments of a ping, a proposal, a swap and an exchange of places: none hangs, no gradient differs.

In the first three kinds of run two ranks train with a monitor that asks for pings all the time and says in turn that a link is slow
and that nothing differs, so that proposals and swaps follow each other without a pause. In the last kind four processes, two
pipelines of two ranks, all exchange places after every step. A kill waits a random time, then until what it is for is under way,
and then a random time again. What is under way when the signal is sent is written down; there are as many kills as it takes for
`--kills` of each.

Required: the gradients of all steps are right, or the losses those of a run without a kill, bit by bit. If the proposer is killed,
training goes on, and the leader says so in one line. If a rank is killed, all others end by themselves with one line.

Run it as `python benchmarks/adapting/kills.py [--kills 25] [--of PHASE …] [--seed 0] [--timeout 10]`, `--kills` for each of the
four. Exit status 1: one went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

SUPPORT = str(Path(__file__).parents[2] / "tests" / "support")
sys.path.insert(0, SUPPORT)
# the server of rank processes imports the modules that they run, once
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")]))

if TYPE_CHECKING:
    from runs.kill_runs import Kill

    from schedc.ir.plan import Plan

PHASES = ("monitor", "proposal", "swap", "exchange")
VICTIMS: dict[str, list[int | None]] = {
    "monitor": [0, 1],
    "proposal": [None, 0, 1],
    "swap": [None, 0, 1],
    "exchange": [0, 1, 2, 3],
}
"""Ranks, or processes; None: the proposer."""
STORES: list[Any] = []
STEPS, COMPARED, WORST = 5000, 30, 1e-9
DELAY_S = {"monitor": 0.01, "proposal": 0.02, "swap": 0.01, "exchange": 0.03}
"""At most this long after the begin of what is under way: about how long it takes."""


def main() -> None:
    """Kill, print what came of it."""
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=25, help="of each of the four, while it is under way")
    parser.add_argument("--of", nargs="*", choices=PHASES, help="of these alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds: the jobs' timeout_s")
    arguments = parser.parse_args()
    random, plan = Random(arguments.seed), _replicated()
    expected = _undisturbed(plan)
    counts, slowest_s, wrong = Counter[tuple[str, str, str]](), defaultdict[str, float](float), 0
    hits, begun_s = Counter[str](), time.monotonic()
    phases = arguments.of or PHASES
    while any(hits[phase] < arguments.kills for phase in phases):
        phase = min(phases, key=lambda each: hits[each])
        victim = random.choice(VICTIMS[phase])
        times = random.uniform(0.3, 1.5), random.uniform(0.0, DELAY_S[phase])
        if phase == "exchange":
            said, under_way, took_s = exchanged(plan, expected, victim, times, arguments.timeout)
        else:
            said, under_way, took_s = adapted(phase, victim, times, arguments.timeout)
        who = "the proposer" if victim is None else "a rank"
        what = phase if phase in under_way else f"{phase}, which has just ended"
        hits[phase] += phase in under_way
        counts[what, who, said] += 1
        slowest_s[what] = max(slowest_s[what], took_s)
        wrong += said != "right"
        ended = f"{took_s:.1f} s; {time.monotonic() - begun_s:.0f} s in all"
        print(f"kill {counts.total()} in {phase}, {victim}: {said}; {' '.join(under_way)}; {ended}", file=sys.stderr, flush=True)
    table = Table(title=f"{counts.total()} kills, {wrong} wrong; timeout_s {arguments.timeout:g}")
    for column in ("under way", "killed", "what came of it", "times", "the others ended after at most"):
        table.add_column(column)
    for (what, who, said), times_seen in sorted(counts.items()):
        table.add_row(what, who, said, str(times_seen), "" if who == "the proposer" else f"{slowest_s[what]:.1f} s")
    Console().print(table)
    sys.exit(wrong > 0)


def adapted(phase: str, victim: int | None, times: tuple[float, float], timeout_s: float) -> tuple[str, list[str], float]:
    """Kill in a job that adapts; what went wrong, or that nothing did; what was under way; how long the others took to end."""
    from inputs.plans import plan_of
    from inputs.problems import make_problem
    from runs import kill_runs  # here: the ranks import this file as well
    from runs.processes import rank_processes

    from schedc.ir.conditions import AS_PLANNED, Conditions, LinkState
    from schedc.solvers.driver.registry import constructive

    problem = make_problem(2, 6, costs_ns=(18, 19, 11), in_flight=6)
    plan = plan_of(problem, constructive("rule-table")(problem))
    script = [Conditions(links={(0, 1): LinkState(latency_ns=150)}), AS_PLANNED]
    with TemporaryDirectory() as directory, rank_processes(2, Path(directory), "runs.kill_runs", port=store().port) as ranks:
        kill = kill_runs.Kill(victim, phase, *times, str(Path(directory) / "diary"))
        results = _results(ranks, kill_runs.adapt_until_killed, plan, script, kill, timeout_s)
        hit, at_s = _moment(kill)
    for rank, result in enumerate(results):
        if rank != victim and not isinstance(result, dict):
            return f"rank {rank} failed: {result}", hit, 0.0
        if rank != victim and result["worst"] > WORST:
            return f"a gradient of rank {rank} is wrong by {result['worst']:.1e}", hit, 0.0
    if victim is not None:
        other = results[1 - victim]
        is_clear = other["line"] is not None and other["line"].startswith("TransferFailed: rank ") and "\n" not in other["line"]
        is_right = results[victim] == "dead" and is_clear
        return "right" if is_right else f"{results}", hit, other["at_s"] - at_s
    said = [text for result in results for text in result["warnings"]]
    is_right = len(said) == 1 and "the proposer has ended: it ended by SIGKILL" in said[0]
    is_right = is_right and results[0]["plans"] == results[1]["plans"] and all(result["line"] is None for result in results)
    return "right" if is_right else f"{results}", hit, 0.0


def exchanged(
    plan: Plan, expected: list[list[float]], victim: int | None, times: tuple[float, float], timeout_s: float
) -> tuple[str, list[str], float]:
    """Kill in a job whose processes exchange places; as `adapted`."""
    from runs import kill_runs
    from runs.processes import rank_processes

    with TemporaryDirectory() as directory, rank_processes(4, Path(directory), "runs.kill_runs", port=store().port) as ranks:
        kill = kill_runs.Kill(victim, "exchange", *times, str(Path(directory) / "diary"))
        results = _results(ranks, kill_runs.exchange_until_killed, plan, STEPS, timeout_s, kill)
        hit, at_s = _moment(kill)
    last_s = 0.0
    assert victim is not None
    for process, result in enumerate(results):
        if process == victim:
            continue
        if not isinstance(result, tuple):
            return f"process {process} failed: {result}", hit, last_s
        losses, line, ended_s = result
        last_s = max(last_s, ended_s - at_s)
        if not line or "\n" in line:
            return f"process {process} said {line!r}", hit, last_s
        if losses[:COMPARED] != expected[process][: len(losses)]:
            return f"a loss of process {process} differs", hit, last_s
    return "right" if results[victim] == "dead" else "it was not killed", hit, last_s


def store() -> Any:
    """A new store of a job, which lives as long as this process, as that of torchrun."""
    from torch._C._distributed_c10d import TCPStore

    STORES.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    return STORES[-1]


def _results(ranks: Any, *arguments: Any) -> list[Any]:
    try:
        results: list[Any] = ranks.run(*arguments, limit_s=120)
    except AssertionError as error:  # the rank that gave no result
        return [str(error)] * 4
    return results


def _moment(kill: Kill) -> tuple[list[str], float]:
    """What was under way when the signal was sent, and when that was."""
    diary = Path(kill.diary)
    if not diary.exists():
        return ["nobody was killed"], 0.0
    read = json.loads(diary.read_text(encoding="utf-8"))
    return read["under_way"], read["at_s"]


def _replicated() -> Plan:
    """A plan of two pipelines."""
    from inputs.plans import plan_of
    from inputs.problems import make_problem

    from schedc.ir.problem import DataParallel
    from schedc.solvers.driver.registry import constructive

    problem = make_problem(2, 3, costs_ns=(10, 12, 9))
    stages = tuple(replace(stage, layers=(3 * index, 3 * index + 3)) for index, stage in enumerate(problem.stages))
    problem = replace(problem, stages=stages, data_parallel=DataParallel(size=2, zero_stage=0, reduce_scatter_ns=(5, 5)))
    return plan_of(problem, constructive("zb-h1")(problem))


def _undisturbed(plan: Plan) -> list[list[float]]:
    """By process, the losses where nobody is killed."""
    from runs import exchange_runs
    from runs.processes import rank_processes

    with TemporaryDirectory() as directory, rank_processes(4, Path(directory), "runs.kill_runs") as ranks:
        return [losses for losses, _ in ranks.run(exchange_runs.exchanging, plan, COMPARED, 60.0, limit_s=600)]


if __name__ == "__main__":
    main()
