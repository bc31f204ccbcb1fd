"""What the runtime itself costs: time per op where the stages compute nothing, on the CPU path, and memory over many steps.

Five measurements, each with B and W apart (ZB-H1) and fused (1F1B), in microseconds per op of the compute queue:

- the executor's loop alone, several stages on one rank, ops that compute nothing;
- the same with transfers, over gloo on the loopback interface;
- a whole `Pipe.step` of empty stages on one rank: PyTorch's autograd, the losses and the batch come to it;
- the same with a seed, which each F sets once for its layer;
- the former with transfers.

`wall` is by the clock and holds the waiting for other ranks, of which there is much in a pipeline that computes nothing.
`thread` is the processor time of the thread that runs the step, of which `compute` goes to the ops themselves (PyTorch's modules
and autograd, the split of a backward) and `transport` to gloo's send, receive and wait; `own` is the rest, the executor's.
Required: `own` below 50 us.

Run it as `python benchmarks/runtime/overhead.py [--steps 50] [--repeats 40] [--profile] [--memory-steps 1000]`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import fault_runs, timed_runs
from runs.processes import rank_processes

from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from schedc.ir.plan import Plan

REQUIRED_US = 50.0
SHAPE = (16,)


def planned(ranks: int, stages: int, split: bool) -> Plan:
    """This many stages, dealt to the ranks in runs, 16 microbatches."""
    problem = make_problem(ranks, 16, placement=[stage * ranks // stages for stage in range(stages)], split_backward=split)
    return plan_of(problem, constructive("greedy")(problem))


def measured(function: Callable[..., Any], plan: Plan, steps: int, repeats: int, profile: bool) -> list[Any]:
    """What the function gives on each rank."""
    with tempfile.TemporaryDirectory() as directory, rank_processes(plan.problem.ranks, Path(directory)) as ranks:
        results = ranks.run(function, plan, SHAPE, steps, repeats, profile, limit_s=600)
    for result in results:
        if not isinstance(result, (timed_runs.Cost, list)) and not profile:
            raise SystemExit(f"a rank failed: {result}")
    return results


def times(steps: int, repeats: int, profile: bool) -> bool:
    """Print the table; whether all rows keep the limit."""
    rows: list[tuple[str, Callable[..., Any], int, int]] = [
        ("executor alone, 1 rank", timed_runs.executor_alone, 1, 4),
        ("executor with transfers, 2 ranks", timed_runs.executor_alone, 2, 2),
        ("empty stages, 1 rank", timed_runs.empty_stages, 1, 4),
        ("empty stages with a seed, 1 rank", partial(timed_runs.empty_stages, seed=1), 1, 4),
        ("empty stages with transfers, 2 ranks", timed_runs.empty_stages, 2, 2),
    ]
    print(f"us per op, on {os.cpu_count()} cores; {steps} steps, best of {repeats} runs; the rank with the larger thread time")
    print(f"{'':38}{'backward':>10}{'ops':>6}{'transfers':>11}{'wall':>8}{'thread':>8}{'compute':>9}{'transport':>11}{'own':>8}")
    good = True
    for name, function, ranks, stages in rows:
        for title in ("fused", "split"):
            plan = planned(ranks, stages, title == "split")
            results = measured(function, plan, steps, repeats, profile)
            if profile:
                print(f"{name}, {title}\n{results[-1]}")
                continue
            cost = max(results, key=lambda one: float(one.thread_us))
            own_us = cost.thread_us - cost.compute_us - cost.transport_us
            good = good and own_us < REQUIRED_US
            print(
                f"{name:38}{title:>10}{cost.ops:>6}{cost.transfers:>11}{cost.wall_us:>8.1f}{cost.thread_us:>8.1f}"
                f"{cost.compute_us:>9.1f}{cost.transport_us:>11.1f}{own_us:>8.1f}"
            )
    return good


def memory(steps: int) -> bool:
    """Print resident memory and living tensors over many steps; whether they stay."""
    problem = make_problem(2, 8)
    plan = plan_of(problem, constructive("zb-h1")(problem))
    with tempfile.TemporaryDirectory() as directory, rank_processes(2, Path(directory)) as ranks:
        results = ranks.run(fault_runs.grow, plan, steps, max(1, steps // 10), limit_s=1200)
    print(f"memory over {steps} steps of ZB-H1, 2 ranks, 8 microbatches")
    good = True
    for rank, found in enumerate(results):
        living = [tensors for _, tensors in found]
        resident = [size / 2**20 for size, _ in found]
        print(f"rank {rank}: MiB resident {' '.join(f'{size:.1f}' for size in resident)}; living tensors {sorted(set(living))}")
        good = good and len(set(living)) == 1 and resident[-1] - resident[len(resident) // 2] < 1.0
    return good


def main() -> None:
    """Print all; fail if a limit is not kept."""
    parser = argparse.ArgumentParser(description="What the runtime itself costs, in time per op and in memory.")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--memory-steps", type=int, default=1000)
    parser.add_argument("--profile", action="store_true", help="show where the time goes instead")
    arguments = parser.parse_args()
    good = times(arguments.steps, arguments.repeats, arguments.profile)
    if arguments.profile:
        return
    good &= memory(arguments.memory_steps)
    if not good:
        raise SystemExit(f"the executor's own cost of an op is not below {REQUIRED_US:g} us everywhere, or memory has grown")


if __name__ == "__main__":
    main()
