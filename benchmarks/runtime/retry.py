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
import threading
import time
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

import schedc.runtime
from schedc.runtime.session import loading
from schedc.runtime.transports.delegate import connect_delegate
from schedc.runtime.transports.gloo import connect_gloo

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS, MICROBATCHES = 4, 8
OP_S = 0.010
"""How long each F, B and W takes."""
CHANNELS = ("one channel", "can run again")


class Slow:
    """A group whose messages to one rank, from this one, are late."""

    def __init__(self, group: Any, peer: int, latency_s: float) -> None:
        self._group, self._peer, self._latency_s = group, peer, latency_s

    def __getattr__(self, name: str) -> Any:
        """All else is the group's."""
        return getattr(self._group, name)

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        """As the group's."""
        return _Late(partial(self._group.send, tensors, peer, tag), self._latency_s if peer == self._peer else 0.0)


class _Late:
    """What a thread sends when its time has come."""

    def __init__(self, send: Callable[[], Any], latency_s: float) -> None:
        self._work: Any = None
        self._sent = threading.Event()
        self._send = send
        timer = threading.Timer(latency_s, self._run)
        timer.daemon = True
        timer.start()

    def _run(self) -> None:
        self._work = self._send()
        self._sent.set()

    def wait(self, *limit: Any) -> None:
        self._sent.wait()
        self._work.wait(*limit)


class Work(torch.autograd.Function):
    """Waits as long as an op takes, and gives what it gets."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """F."""
        time.sleep(OP_S)
        return x + weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """B and W together."""
        (gradient,) = gradients
        time.sleep(2 * OP_S)
        return gradient, gradient.sum()


class Stage(nn.Module):
    """A stage that takes its time, and has a buffer and a weight to put back."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.register_buffer("table", torch.zeros(1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """F."""
        work: Any = Work
        y: torch.Tensor = work.apply(x, self.weight)
        return y


def ways() -> dict[str, Any]:
    """By row, what `loading.connection` gives in the code that this runs with."""
    if find_spec("schedc.runtime.transports.fallback") is not None:  # the project as it was before
        fallback: Any = import_module("schedc.runtime.transports.fallback")
        both = partial(fallback.Fallback, connect_gloo, connect_delegate, names=("gloo", "the delegate"))
        return {CHANNELS[0]: lambda: connect_gloo, CHANNELS[1]: both}
    from retry_runs import gloo_apart

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

    from plans import plan_of
    from problems import make_problem
    from rank_processes import rank_processes

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
