"""What the monitor costs while nothing is wrong: steps with and without it, one after the other, in the same processes.

Ranks over gloo train the same tiny layers through two pipes, one with a monitor, and wait at the end of each step until it has
taken as long as it should. What the monitor costs does not depend on how long ops take, but on the wires: about 4 stamps of each in
a step that is measured, and one measurement after it. Where steps are short, only every n-th is measured.

The pipes' steps alternate. What a step takes longer than the one of the other pipe beside it, waiting apart, and how much more CPU
time the whole process takes, helper threads included, are medians over such pairs, apart for steps that are measured and others.
Shown is the mean over all steps, of a rank in the middle, which has the most links. Below each line are those of two pipes without
a monitor: what the machine's noise is.

Run it as `python benchmarks/adapting/overhead.py`; five minutes.
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
WARMUP = 40


def timed(
    rank: int, plan: Plan, pairs: int, step_s: float, monitored: Sequence[bool]
) -> tuple[list[tuple[bool, float, float]], int]:
    """By pair, whether the second pipe's step is measured, and what it takes more of wall and CPU seconds; and its monitor's n."""
    import torch
    from torch import nn

    import schedc.runtime
    from schedc.runtime.adapt.monitor import Monitor
    from schedc.runtime.adapt.monitoring.sampling import GAP_PER_LINK_S, most_links

    torch.set_num_threads(1)
    # a pipe's steps are twice as far apart as those of a job, as the other pipe's lie between
    monitor = Monitor(least_gap_s=2 * GAP_PER_LINK_S * most_links(plan.problem))
    pipes = []
    for watched in monitored:
        torch.manual_seed(rank)
        stages: dict[int, nn.Module] = {rank: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))}
        pipes.append(
            schedc.runtime.load(
                plan,
                stages=stages,
                loss_fn=lambda output, target: (output - target).square().mean(),
                timeout_s=60,
                observe=monitor if watched else None,
                wrap=monitor.wrap if watched else None,
            )
        )
    batch = torch.randn(SAMPLES * plan.problem.microbatches, WIDTH)
    found = []
    for pair in range(WARMUP + pairs):
        taken: list[tuple[float, float]] = [(0.0, 0.0), (0.0, 0.0)]
        measured = pair % monitor.every == 0
        for which in (0, 1) if pair // monitor.every % 2 else (1, 0):
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            pipes[which].step(batch, batch)
            wall_s = time.perf_counter() - wall_s
            time.sleep(max(0.0, step_s - wall_s))  # the monitor's thread works meanwhile
            taken[which] = wall_s, time.process_time() - cpu_s
        if pair >= WARMUP:
            found.append((measured, taken[1][0] - taken[0][0], taken[1][1] - taken[0][1]))
    for pipe in pipes:
        pipe.close()
    return found, monitor.every


def mean_of(found: Sequence[tuple[bool, float, float]], which: int) -> float:
    """Over all steps, of the medians of those that are measured and of the others."""
    parts = [[pair[which] for pair in found if pair[0] is measured] for measured in (True, False)]
    return sum(len(part) * median(part) for part in parts if part) / len(found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3, help="default: %(default)s")
    arguments = parser.parse_args()

    from inputs.plans import plan_of
    from inputs.problems import make_problem
    from runs.processes import rank_processes

    from schedc.solvers.driver.registry import constructive

    ranks = arguments.ranks
    links = dict.fromkeys([pair for a, b in pairwise(range(ranks)) for pair in ((a, b), (b, a))], (0, 0))
    problem = make_problem(ranks, MICROBATCHES, links=links)
    plan = plan_of(problem, constructive("zb-h1")(problem))
    print(f"{'step':>7} {'measured':>10} {'wall':>11} {'share':>7} {'CPU of a rank':>14} {'share':>7} {'of a measured step':>19}")
    for step_s, pairs in ((0.05, 240), (0.1, 160), (0.3, 60)):
        for monitored in ((False, True), (False, False)):
            with tempfile.TemporaryDirectory() as directory, rank_processes(ranks, Path(directory)) as processes:
                given: list[Any] = processes.run(timed, plan, pairs, step_s, monitored, limit_s=900)
            for each in given:
                if not isinstance(each, tuple):
                    raise SystemExit(f"a rank failed: {each}")
            found, every = given[ranks // 2]
            wall_s, cpu_s = (mean_of(found, which) for which in (1, 2))
            once_s = median(more_s for measured, _, more_s in found if measured)
            print(
                f"{step_s * 1e3:>4.0f} ms {('all' if every == 1 else f'1 in {every}') if monitored[1] else '(none)':>10}"
                f" {wall_s * 1e3:>+8.2f} ms {wall_s / step_s:>+7.2%} {cpu_s * 1e3:>+11.2f} ms {cpu_s / step_s:>+7.2%}"
                f" {once_s * 1e3:>+16.2f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
