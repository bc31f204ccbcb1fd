"""What the monitor costs while nothing is wrong: steps with and without it, one after the other, in the same processes.

Two ranks over gloo train the same tiny layers through two pipes, one with a monitor. Their steps alternate. What the monitor costs
does not depend on how long ops take, but on the wires: about 4 stamps of each in a step, and one measurement after it. So steps are
nearly empty, which shows the difference best; it is shown in milliseconds and as a share of a step of 1 s, as training has them.
All are medians over pairs of steps: wall time, and the CPU time of the whole process, helper threads included.

Run it as `python benchmarks/adapting/overhead.py`; half a minute.
"""

from __future__ import annotations

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

RANKS, WARMUP = 2, 20


def timed(rank: int, plan: Plan, pairs: int, width: int, monitored: Sequence[bool]) -> dict[str, list[tuple[float, float]]]:
    """By pipe, wall and CPU seconds of each step. The first of a pair is now the one pipe's, now the other's."""
    import torch
    from torch import nn

    import schedc.runtime
    from schedc.runtime.adapt.monitor import Monitor

    torch.set_num_threads(1)
    samples = 64
    pipes = []
    for watched in monitored:
        monitor = Monitor() if watched else None
        torch.manual_seed(rank)
        stages: dict[int, nn.Module] = {rank: nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))}
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
    batch = torch.randn(samples * plan.problem.microbatches, width)
    found: list[list[tuple[float, float]]] = [[] for _ in pipes]
    for pair in range(WARMUP + pairs):
        for which in (0, 1) if pair % 2 else (1, 0):
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            pipes[which].step(batch, batch)
            taken = time.perf_counter() - wall_s, time.process_time() - cpu_s
            if pair >= WARMUP:
                found[which].append(taken)
    for pipe in pipes:
        pipe.close()
    return {"without": found[0], "with": found[1]}


def main() -> None:
    """Print the table."""
    from plans import plan_of
    from problems import make_problem
    from rank_processes import rank_processes

    from schedc.solvers.driver.registry import constructive

    print(
        "differences are medians over pairs of steps; below each, those of two pipes without a monitor: what the machine's noise is"
    )
    print(f"{'microbatches':>12} {'step':>9} {'wall':>10} {'of 1 s':>7} {'CPU of a rank':>14} {'of 1 s':>7}")
    for microbatches, width, pairs in ((8, 16, 300), (32, 16, 150)):
        links = dict.fromkeys([pair for a, b in pairwise(range(RANKS)) for pair in ((a, b), (b, a))], (0, 0))
        problem = make_problem(RANKS, microbatches, links=links)
        plan = plan_of(problem, constructive("zb-h1")(problem))
        for monitored in ((False, True), (False, False)):
            with tempfile.TemporaryDirectory() as directory, rank_processes(RANKS, Path(directory)) as processes:
                ranks: list[Any] = processes.run(timed, plan, pairs, width, monitored, limit_s=300)
            for each in ranks:
                if not isinstance(each, dict):
                    raise SystemExit(f"a rank failed: {each}")
            wall_s, cpu_s = (
                median(
                    with_it[which] - without[which]
                    for each in ranks
                    for with_it, without in zip(each["with"], each["without"], strict=True)
                )
                for which in (0, 1)
            )
            step_s = median(wall for each in ranks for wall, _ in each["without"])
            print(
                f"{microbatches:>12} {step_s * 1e3:>6.1f} ms {wall_s * 1e3:>+7.2f} ms {wall_s:>+7.2%}"
                f" {cpu_s * 1e3:>+11.2f} ms {cpu_s:>+7.2%}" + ("" if monitored[1] else "  (none)"),
                flush=True,
            )


if __name__ == "__main__":
    main()
