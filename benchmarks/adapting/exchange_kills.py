"""Processes are killed at random moments of exchanges of places: the others end with one line, and no loss differs.

Four processes train, two pipelines of two ranks, and all exchange places before every step. A random one is killed by SIGKILL at a
random moment, mostly within an exchange or the load after it. Required: every other process ends by itself within --limit seconds
with one line, and the losses until then are those of a run in which nobody is killed, bit by bit.

Run it as `python benchmarks/adapting/exchange_kills.py [--kills 20] [--seed 0]`. Exit status 1: one did not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

import exchange_runs
from plans import plan_of
from problems import make_problem
from rank_processes import DEAD, rank_processes

from schedc.ir.problem import DataParallel
from schedc.solvers.driver.registry import constructive

STEPS, LONG, TIMEOUT_S = 2000, 60, 5.0


def main() -> int:
    """Kill, and print what became of the others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds")
    arguments = parser.parse_args()
    random = Random(arguments.seed)
    problem = make_problem(2, 3, costs_ns=(10, 12, 9))
    stages = tuple(replace(stage, layers=(3 * index, 3 * index + 3)) for index, stage in enumerate(problem.stages))
    parallel = DataParallel(size=2, zero_stage=0, reduce_scatter_ns=(5, 5))
    problem = replace(problem, stages=stages, data_parallel=parallel)
    plan = plan_of(problem, constructive("zb-h1")(problem))
    with TemporaryDirectory() as directory, rank_processes(4, Path(directory)) as ranks:
        expected = ranks.run(exchange_runs.exchanging, plan, LONG, TIMEOUT_S, limit_s=600)[0][0]
    wrong, slowest_s, said = 0, 0.0, Counter[str]()
    for number in range(arguments.kills):
        with TemporaryDirectory() as directory, rank_processes(4, Path(directory)) as ranks:
            ranks.run(exchange_runs.exchanging, plan, 1, 60.0)  # everything is imported
            victim = random.randrange(4)
            after_s = random.uniform(0.0, 2.0)
            begun_s = time.monotonic()
            results = ranks.run(exchange_runs.exchanging, plan, STEPS, TIMEOUT_S, victim, after_s, limit_s=arguments.limit)
            took_s = time.monotonic() - begun_s - after_s
        slowest_s = max(slowest_s, took_s)
        sound = results[victim] == DEAD
        for process, result in enumerate(results):
            if process == victim:
                continue
            sound = sound and isinstance(result, tuple)
            if isinstance(result, tuple):
                losses, line = result
                sound = sound and bool(line) and "\n" not in line and losses[:LONG] == expected[: len(losses)]
                said[line.split(":")[0] + ": …" + line[-60:]] += 1
        wrong += not sound
        steps = max((len(result[0]) for result in results if isinstance(result, tuple)), default=0)
        print(f"kill {number}: process {victim} after {after_s:.2f} s, in step {steps}: {'ok' if sound else results}", flush=True)
    for line, count in said.most_common():
        print(f"{count:4} {line}")
    print(f"{arguments.kills} kills, {wrong} wrong; the others ended at most {slowest_s:.1f} s after the kill")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
