"""What the monitor costs while nothing is wrong: steps with and without it, one after the other, in the same processes.

Ranks over gloo train the same tiny layers through two pipes, one with a monitor, and wait at the end of each step until it has
taken as long as it should. What the monitor costs does not depend on how long ops take, but on the wires: about 4 stamps of each in
a step that is measured, and one measurement after it. Where steps are short, only every n-th is measured.

The pipes take turns, for some dozen steps each. Shown are medians over pairs of turns, for the rank on which they are the largest:
what a step takes longer, waiting apart, and the CPU time of the whole process, helper threads included. Below each line are those
of two pipes without a monitor: what the machine's noise is.

Run it as `python benchmarks/adapting/overhead.py`; ten minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan

MICROBATCHES, WIDTH, SAMPLES = 8, 16, 64


def timed(
    rank: int, plan: Plan, turns: int, turn_steps: int, step_s: float, monitored: Sequence[bool]
) -> tuple[list[list[tuple[float, float]]], int]:
    """By pipe, wall and CPU seconds of a step, for each turn; and every how many steps the second pipe's monitor measures."""
    import torch
    from torch import nn

    import schedc.runtime
    from schedc.runtime.adapt.monitor import Monitor

    torch.set_num_threads(1)
    pipes, every = [], Monitor()
    for watched in monitored:
        monitor = Monitor() if watched else None
        every = monitor or every
        torch.manual_seed(rank)
        stages: dict[int, nn.Module] = {rank: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))}
        pipes.append(
            schedc.runtime.load(
                plan,
                stages=stages,
                loss_fn=lambda output, target: (output - target).square().mean(),
                timeout_s=60,
                observe=monitor,
                wrap=None if monitor is None else monitor.wrap,
            )
        )
    batch = torch.randn(SAMPLES * plan.problem.microbatches, WIDTH)
    found: list[list[tuple[float, float]]] = [[] for _ in pipes]
    for turn in range(turns + 1):
        for which in (0, 1) if turn % 2 else (1, 0):
            wall_s, cpu_s = 0.0, time.process_time()
            for _ in range(turn_steps):
                begun_s = time.perf_counter()
                pipes[which].step(batch, batch)
                taken_s = time.perf_counter() - begun_s
                wall_s += taken_s
                time.sleep(max(0.0, step_s - taken_s))
            if turn:  # the first allocates, and it is where n is found
                found[which].append((wall_s / turn_steps, (time.process_time() - cpu_s) / turn_steps))
    for pipe in pipes:
        pipe.close()
    return found, every.every


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3, help="the middle ones have four links (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=9, help="pairs of turns (default: %(default)s)")
    arguments = parser.parse_args()

    from plans import plan_of
    from problems import make_problem
    from rank_processes import rank_processes

    from schedc.solvers.driver.registry import constructive

    ranks = arguments.ranks
    links = dict.fromkeys([pair for a, b in pairwise(range(ranks)) for pair in ((a, b), (b, a))], (0, 0))
    problem = make_problem(ranks, MICROBATCHES, links=links)
    plan = plan_of(problem, constructive("zb-h1")(problem))
    print(f"{'step':>7} {'measured':>10} {'wall':>11} {'share':>7} {'CPU of a rank':>14} {'share':>7}")
    for step_s, turn_steps in ((0.05, 48), (0.1, 48), (0.3, 24)):
        for monitored in ((False, True), (False, False)):
            with tempfile.TemporaryDirectory() as directory, rank_processes(ranks, Path(directory)) as processes:
                given: list[Any] = processes.run(timed, plan, arguments.turns, turn_steps, step_s, monitored, limit_s=900)
            for each in given:
                if not isinstance(each, tuple):
                    raise SystemExit(f"a rank failed: {each}")
            wall_s, cpu_s = (
                max(median(more[which] - less[which] for less, more in zip(*turns, strict=True)) for turns, _ in given)
                for which in (0, 1)
            )
            every = given[0][1]
            print(
                f"{step_s * 1e3:>4.0f} ms {('all' if every == 1 else f'every {every}th') if monitored[1] else '(none)':>10}"
                f" {wall_s * 1e3:>+8.2f} ms {wall_s / step_s:>+7.2%} {cpu_s * 1e3:>+11.2f} ms {cpu_s / step_s:>+7.2%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
