"""Ranks are killed at random moments of an update, a checkpoint and a migration: the job restarts from the last whole checkpoint.

Real processes train, two or four ranks, steps that end or overlap (stash, 2BW), and write a checkpoint beside training every three
steps. In some jobs layers migrate all the time. One rank gets SIGKILL some time after it begins to load the plan, to connect for
the first checkpoint, or to update; to copy a checkpoint, to write it, or to name its metadata; to migrate layers, to copy those
that leave, or to receive the copy of those that come (`arriving`). Then the job is started again, without a kill.

Required: the other ranks end by themselves; no process is left; what was half written is refused; the job goes on from the newest
whole checkpoint, no older than one that a rank knew to be whole; and all weights and buffers after the last step are, bit by bit
(float64), those of a job that was never killed. Lost are the steps since that checkpoint.

Run it as `python benchmarks/adapting/restarts.py [--kills 20] [--of PHASE …] [--seed 0]`; there are as many kills as it takes for
`--kills` of each while it is under way. Exit status 1: one went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

SUPPORT = str(Path(__file__).parents[2] / "tests" / "support")
sys.path.insert(0, SUPPORT)
# the server of rank processes imports the modules that they run, once
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")]))

if TYPE_CHECKING:
    from runs.restart_runs import Kill

    from schedc.ir.plan import Plan

DELAY_S = {
    "load": 0.05,
    "connecting": 0.01,
    "update": 0.001,
    "copy": 0.001,
    "writing": 0.02,
    "renaming": 0.005,
    "migration": 0.3,
    "leaving": 0.002,
    "arriving": 0.05,
}
"""At most this long after its begin: about how long it takes."""
MOVING = ("leaving", "arriving")
"""What ranks 0 and 1 do in turn."""
STEPS, EVERY = 12, 3
STORES: list[Any] = []


class Seen(NamedTuple):
    """What came of a kill."""

    said: str
    """`right`, or what is wrong; `too late` where nobody was killed."""
    under_way: list[str]
    lost: int = 0
    half: int = 0


def main() -> None:
    """Kill, print what came of it."""
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="of each of the nine")
    parser.add_argument("--of", nargs="*", choices=DELAY_S, help="of these alone")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random, begun_s, wrong, kills = Random(arguments.seed), time.monotonic(), 0, 0
    jobs = _jobs()
    expected = {name: _undisturbed(plans) for name, plans in jobs.items()}
    counts, lost = Counter[tuple[str, str, str]](), defaultdict[str, list[int]](list)
    half = Counter[str]()
    for phase in arguments.of or DELAY_S:
        done = 0
        while done < arguments.kills:
            name = random.choice([each for each in jobs if each.endswith("migrates") or phase not in ("migration", *MOVING)])
            ranks = {"renaming": 1, **dict.fromkeys(MOVING, 2)}.get(phase, jobs[name][0].problem.ranks)
            seen = killed(jobs[name], expected[name], phase, random.randrange(ranks), random)
            print(f"{phase}, {name}: {seen}; {time.monotonic() - begun_s:.0f} s in all", file=sys.stderr, flush=True)
            if seen.said == "too late":
                continue
            done += phase in seen.under_way
            kills += 1
            wrong += seen.said != "right"
            what = phase if phase in seen.under_way else f"{phase}, which has just ended"
            counts[what, name, seen.said] += 1
            lost[phase].append(seen.lost)
            half[phase] += seen.half
    table = Table(title=f"{kills} kills, {kills - wrong} right, in {time.monotonic() - begun_s:.0f} s")
    for column in ("under way", "job", "what came of it", "times"):
        table.add_column(column)
    for row, times in sorted(counts.items()):
        table.add_row(*row, str(times))
    Console().print(table)
    for phase, steps in lost.items():
        mean = sum(steps) / len(steps)
        print(f"{phase}: {min(steps)} to {max(steps)} steps lost, {mean:.1f} in the mean; {half[phase]} half-written ones refused")
    sys.exit(wrong > 0)


def killed(plans: list[Plan], expected: dict[int, str], phase: str, victim: int, random: Random) -> Seen:
    """Kill one, start again, compare."""
    from runs.restart_runs import Kill  # here: the ranks import this file as well

    most = {"load": 1, "connecting": 1, "update": STEPS, **dict.fromkeys(MOVING, 2)}.get(phase, 3)
    kill = Kill(victim, phase, random.randint(1, most), random.uniform(0, DELAY_S[phase]))
    with TemporaryDirectory() as directory:
        results = _run(plans, directory, kill)
        diaries = [_read(Path(directory) / f"diary-{rank}") for rank in range(len(results))]
        under_way = [each for note in diaries[victim] for each in note.get("under_way", ())]
        if isinstance(results[victim], dict):
            return Seen("too late", under_way)
        for rank, result in enumerate(results):
            if not isinstance(result, dict) and (rank, result) != (victim, "dead"):
                return Seen(f"rank {rank} failed: {result}", under_way)
        left = [note["pid"] for diary in diaries for note in diary if "pid" in note and Path(f"/proc/{note['pid']}").exists()]
        if left:
            return Seen(f"{len(left)} processes are left", under_way)
        folders = [path for path in Path(directory).glob("step-*") if path.is_dir()]
        whole = max((int(path.name[5:]) for path in folders if (path / ".metadata").exists()), default=0)
        half = sum(not (path / ".metadata").exists() for path in folders)
        made = max((note["step"] for note in diaries[victim] if "step" in note), default=0)
        known = max((note["whole"] for diary in diaries for note in diary if "whole" in note), default=0)
        again = _run(plans, directory, None)
    for rank, result in enumerate(again):
        if not isinstance(result, dict) or result["line"] is not None:
            return Seen(f"rank {rank} does not restart: {result}", under_way)
        if result["first"] != whole or whole < known:
            return Seen(f"rank {rank} goes on from {result['first']}, not {whole}, known {known}", under_way)
        if result["half"] != half:
            return Seen(f"of {half} half-written checkpoints {result['half']} are refused", under_way)
    values = {number: value for result in again for number, value in result["values"].items()}
    said = "right" if values == expected else "weights differ"
    return Seen(said, under_way, max(0, made - whole), half)


def _run(plans: list[Plan], directory: str, kill: Kill | None) -> list[Any]:
    """What each rank gives; `dead`, if it was killed."""
    from runs import restart_runs
    from runs.processes import rank_processes
    from torch._C._distributed_c10d import TCPStore

    # a store of the job that outlives its ranks, as torchrun's
    STORES[:] = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    count = plans[0].problem.ranks
    with rank_processes(count, Path(directory), "runs.restart_runs", port=STORES[0].port) as ranks:
        ranks.run(restart_runs.ready)  # who dies before all have the group that the processes make for the job is not what is asked
        try:
            return ranks.run(restart_runs.train_on, plans, directory, STEPS, EVERY, kill, limit_s=120)
        except AssertionError as error:  # the rank that gave no result
            return [str(error)] * count


def _read(diary: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in diary.read_text(encoding="utf-8").splitlines()] if diary.exists() else []


def _undisturbed(plans: list[Plan]) -> dict[int, str]:
    """The digests of all layers of a job that nobody kills, and in which no layer moves."""
    with TemporaryDirectory() as directory:
        results = _run(plans[:1], directory, None)
    assert all(isinstance(result, dict) for result in results), results
    return {number: value for result in results for number, value in result["values"].items()}


def _jobs() -> dict[str, list[Plan]]:
    """By name, the plan; and the one that layers migrate to."""
    from inputs.asynchronous_plans import period_plan
    from inputs.few_plans import made_by

    from schedc.ir import Versions
    from schedc.lower.run import run_of

    def overlapping(ranks: int, mode: Versions, counts: list[int]) -> Plan:
        return run_of(with_layers(period_plan(ranks, 1, mode), counts), 3)

    return {
        "2 ranks": [made_by("1f1b", 2, 3, counts=[4, 2])],
        "4 ranks": [made_by("1f1b", 4, 4, counts=[3, 1, 1, 1])],
        "2 ranks, stash": [overlapping(2, Versions.STASH, [4, 2])],
        "4 ranks, 2bw": [overlapping(4, Versions.TWO_BUFFERED, [3, 1, 1, 1])],
        "2 ranks, migrates": [made_by("1f1b", 2, 3, counts=counts) for counts in ([4, 2], [3, 3])],
        "4 ranks, migrates": [made_by("1f1b", 4, 4, counts=counts) for counts in ([3, 1, 1, 1], [2, 2, 1, 1])],
        "2 ranks, 2bw, migrates": [overlapping(2, Versions.TWO_BUFFERED, counts) for counts in ([4, 2], [3, 3])],
    }


def with_layers(plan: Plan, counts: list[int]) -> Plan:
    """With this many layers in each stage."""
    from dataclasses import replace
    from itertools import accumulate, pairwise

    bounds = pairwise([0, *accumulate(counts)])
    stages = tuple(replace(stage, layers=pair) for stage, pair in zip(plan.problem.stages, bounds, strict=True))
    return replace(plan, problem=replace(plan.problem, stages=stages))


if __name__ == "__main__":
    main()
