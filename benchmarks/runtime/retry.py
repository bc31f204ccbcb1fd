"""What it costs to be able to run a step again, on a link that is slow: 4 ranks, one-way latency between two of them, no failure.

No rank may leave a step while another may still ask for it again, so each waits for a word of all others. The latency is in all
messages between the two ranks: tensors, losses, words. The rows of a table are measured in turn, repeatedly, in the same processes.

    one channel      gloo alone: a rank waits for the words of its neighbours (before: that all has been taken)
    can run again    gloo with the delegate to take over, as NCCL has it between GPUs

It runs with the code that it is started with: `PYTHONPATH=OTHER_CHECKOUT python benchmarks/runtime/retry.py` measures that one,
where it also knows the fallback of each transfer, which the project had before. Run it as `python benchmarks/runtime/retry.py
[--rounds 5] [--steps 8]`; it takes five minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from runs.timed_runs import OP_S, Slow, Stage

import schedc.runtime
from schedc.runtime.session import loading
from schedc.runtime.transports.delegate import connect_delegate
from schedc.runtime.transports.gloo import connect_gloo

RANKS, MICROBATCHES = 4, 8
CHANNELS = ("one channel", "can run again")


def ways() -> dict[str, Any]:
    """By row, what `loading.connection` gives in the code that this runs with."""
    if find_spec("schedc.runtime.transports.fallback") is not None:  # the project as it was before
        fallback: Any = import_module("schedc.runtime.transports.fallback")
        both = partial(fallback.Fallback, connect_gloo, connect_delegate, names=("gloo", "the delegate"))
        return {CHANNELS[0]: lambda: connect_gloo, CHANNELS[1]: both}
    from runs.retry_runs import gloo_apart

    from schedc.runtime.transports.base import P2PChannel, only

    two = (P2PChannel("gloo", gloo_apart), P2PChannel("the delegate", connect_delegate))
    return {CHANNELS[0]: lambda: only(connect_gloo), CHANNELS[1]: lambda: lambda source, destination: two}


def measure(rank: int, plan: Any, latency_s: float, slow: tuple[int, int], row: str, steps: int) -> list[float]:
    """The times of steps in seconds, the first left out; an optimizer's step is between them.

    A time is from the beginning of a step to that of the next.
    """
    peer = {slow[0]: slow[1], slow[1]: slow[0]}.get(rank)
    groups: Any = vars(loading)["Groups"]
    made, before = groups.make, vars(loading)["connection"]

    def make(self: Any, ranks: Any) -> Any:
        group = made(self, ranks)
        members = sorted(ranks)
        return group if peer is None or peer not in members else Slow(group, members.index(peer), latency_s)

    vars(loading)["connection"] = lambda *_: ways()[row]()
    groups.make = make
    stages = {stage: Stage() for stage in plan.problem.stages_on(rank)}
    batch = [torch.zeros(4)] * MICROBATCHES
    begun = []
    try:
        with schedc.runtime.load(plan, stages=stages, loss_fn=lambda y, _: y.sum(), timeout_s=60) as pipe:
            for _ in range(steps + 2):
                begun.append(time.perf_counter())
                for stage in stages.values():
                    stage.weight.grad = None
                pipe.step(batch, batch)
                time.sleep(OP_S)
    finally:
        groups.make = made
        vars(loading)["connection"] = before
    return [after - at for at, after in pairwise(begun[1:])]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    given = parser.parse_args()

    from inputs.plans import plan_of
    from inputs.problems import make_problem
    from runs.processes import rank_processes

    from schedc.solvers.driver.registry import constructive

    problem = make_problem(RANKS, MICROBATCHES, split_backward=False)
    plan = plan_of(problem, constructive("1f1b")(problem))
    table = Table(title="a step, ms: median of all, on the slowest rank")
    for column in ("one-way latency", "between ranks", *CHANNELS, "ratio"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as directory, rank_processes(RANKS, Path(directory)) as ranks:
        for latency_s, slow in ((0.0, (0, 1)), (0.030, (0, 1)), (0.060, (0, 1)), (0.030, (1, 2)), (0.060, (2, 3))):
            times: dict[str, list[float]] = {row: [] for row in CHANNELS}
            for _ in range(given.rounds):
                for row in CHANNELS:
                    results = ranks.run(measure, plan, latency_s, slow, row, given.steps, limit_s=200)
                    times[row].append(max(median(result) for result in results))
            one, again = (1e3 * median(times[row]) for row in CHANNELS)
            table.add_row(f"{1e3 * latency_s:.0f} ms", f"{slow[0]}, {slow[1]}", f"{one:.1f}", f"{again:.1f}", f"{again / one:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
