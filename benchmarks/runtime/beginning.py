"""What it costs to know that a batch fits before a step begins: ranks with inputs wait for words of others.

    asks nobody     ranks with inputs begin at once
    targets         they wait until those with targets and those of the other pipelines begin, as a pipe does
    all             they wait for all ranks of their own pipeline as well, as in the first step

Steps of the three kinds take turns in the same processes: a ratio is the median over neighbouring steps, on rank 0, with its
quartiles. A time is from the beginning of a step to that of the next; an optimizer's step is between them. A one-way latency is in
all messages between two ranks, or between the pipelines: tensors, losses, words; not in sums. `together`: all ranks leave the step
at the same time, as where gradients are clipped by the norm of all; else those with targets may leave it earlier.

Run it as `python benchmarks/runtime/beginning.py [--steps 30]`; it takes five minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from runs.timed_runs import OP_S, Late, Slow, Stage

import schedc.runtime
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.session import loading
from schedc.runtime.session.beginning import Beginning
from schedc.runtime.transports.base import only
from schedc.runtime.transports.gloo import connect_gloo

if TYPE_CHECKING:
    from collections.abc import Sequence

RANKS, MICROBATCHES = 4, 8
KINDS = "asks nobody", "targets", "all"
CASES: Sequence[tuple[str, float, tuple[int, int] | None, bool]] = (
    ("1f1b", 0.0, (0, 3), False),
    ("1f1b", 0.0, (0, 3), True),
    ("1f1b", 0.030, (0, 1), False),
    ("1f1b", 0.030, (0, 3), False),
    ("1f1b", 0.030, (0, 3), True),
    ("bidirectional", 0.0, (0, 3), False),
    ("bidirectional", 0.030, (0, 3), False),
    ("two pipelines", 0.0, (0, 1), False),
    ("two pipelines", 0.030, (0, 1), False),
    ("two pipelines", 0.030, None, False),
)
"""Plan, one-way latency in seconds, between which ranks (None: between pipelines), together."""


class Turns(Beginning):
    """Ranks with inputs ask all others of their pipeline in the third kind of steps, and nobody in the first."""

    kind = ""

    def _begins(self, given: Any, hooks: Any, *more: Any, **options: Any) -> list[list[int]]:
        self.has_run = self.kind != KINDS[2]
        self._telling = set() if self.kind == KINDS[0] else self._ending - {*self._starting}
        return super()._begins(given, hooks if self.kind != KINDS[0] else _Apart(hooks), *more, **options)


class _Apart(ReplicaHooks):
    """Says what others expect to hear, and does not wait for them."""

    def __init__(self, hooks: ReplicaHooks) -> None:
        self.begin_call = hooks.begin_call  # type: ignore[method-assign]


class Far(Slow):
    """A group whose members are all far from each other."""

    def _allgather_base(self, found: Any, own: Any) -> Any:
        return Late(partial(self._group._allgather_base, found, own), self._latency_s)


def measure(process: int, plan: Any, latency_s: float, slow: tuple[int, int] | None, together: bool, steps: int) -> list[float]:
    """The times of steps in seconds, the three kinds by turns."""
    from runs.harness import grid

    pipeline, replicas = grid(RANKS // plan.problem.ranks, plan.problem.ranks)
    rank = process % plan.problem.ranks
    peer = None if slow is None or not latency_s else {slow[0]: slow[1], slow[1]: slow[0]}.get(rank)
    groups: Any = vars(loading)["Groups"]
    made, before = groups.make, vars(loading)["connection"]

    def make(self: Any, ranks: Any) -> Any:
        group, members = made(self, ranks), sorted(ranks)
        if type(self) is not groups:
            return Far(group, -1, latency_s) if slow is None else group
        return Slow(group, members.index(peer), latency_s) if peer in members else group

    vars(loading)["connection"] = lambda *_: only(connect_gloo)
    groups.make = make
    stages = {stage: Stage() for stage in plan.problem.stages_on(rank)}
    parallel: dict[str, Any] = {} if plan.problem.data_parallel is None else {"data_parallel_group": replicas}
    batch = [torch.zeros(4)] * MICROBATCHES
    begun = []
    try:
        with schedc.runtime.load(
            plan, stages=stages, loss_fn=lambda y, _: y.sum(), timeout_s=60, pipeline_group=pipeline, **parallel
        ) as pipe:
            turns = pipe.steps.beginning = Turns(pipe.groups, None, 60.0, stages=stages)
            turns.use(plan.problem, pipe.steps.ending, [])
            for step in range(len(KINDS) * (steps + 1) + 1):
                turns.kind = KINDS[step % len(KINDS)]
                begun.append(time.perf_counter())
                for stage in stages.values():
                    stage.weight.grad = None
                pipe.step(batch, batch)
                if together:
                    pipe.groups.exchange(step)
                time.sleep(OP_S)
    finally:
        groups.make = made
        vars(loading)["connection"] = before
    return [after - at for at, after in pairwise(begun[len(KINDS) :])]


def planned(name: str) -> Any:
    """The plan of a case."""
    from dataclasses import replace

    from inputs.plans import plan_of
    from inputs.problems import make_problem

    from schedc.ir.problem import DataParallel
    from schedc.solvers.driver.registry import constructive

    if name == "bidirectional":
        problem = make_problem(RANKS, MICROBATCHES, placement="bidirectional", split_backward=False)
        return plan_of(problem, constructive("chimera")(problem))
    pipelines = 2 if name == "two pipelines" else 1
    problem = make_problem(RANKS // pipelines, MICROBATCHES, split_backward=False)
    if pipelines > 1:
        parallel = DataParallel(size=pipelines, zero_stage=0, reduce_scatter_ns=(1,) * len(problem.stages))
        problem = replace(problem, data_parallel=parallel)
    return plan_of(problem, constructive("1f1b")(problem))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    from runs.processes import rank_processes

    table = Table(title="steps that ask whether a batch fits, beside those that ask nobody")
    for column in ("plan", "latency", "between", "together", "asks nobody, ms", KINDS[1], KINDS[2]):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as directory, rank_processes(RANKS, Path(directory)) as ranks:
        for name, latency_s, slow, together in CASES:
            results: Any = ranks.run(measure, planned(name), latency_s, slow, together, given.steps, limit_s=200)
            if not all(isinstance(result, list) for result in results):
                raise SystemExit(f"a rank failed: {results}")
            nobody, *asking = (results[0][kind :: len(KINDS)] for kind in range(len(KINDS)))
            cells = []
            for times in asking:
                low, middle, high = quantiles([one / other for one, other in zip(times, nobody, strict=True)], n=4)
                cells.append(f"{middle:.3f} ({low:.3f} … {high:.3f})")
            where = "" if not latency_s else "pipelines" if slow is None else f"{slow[0]}, {slow[1]}"
            latency = f"{1e3 * latency_s:.0f} ms"
            table.add_row(name, latency, where, "yes" if together else "", f"{1e3 * median(nobody):.1f}", *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
