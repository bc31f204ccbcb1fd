"""What rank processes run in the tests of what a run shows: spans in a profiler's trace, several observers, the line at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from runs.harness import Orders, load, make_batch, make_stages
from schedc.runtime.measure.recording import Recorder
from schedc.runtime.profiling.products import measured_collectives

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.formats.operator_table import CollectiveRow
    from schedc.ir.plan import Plan


def profiled(rank: int, plan: Plan, directory: Path) -> tuple[list[list[str]], str, list[str]]:
    """Steps of which some are profiled, with two observers: the orders heard, the line of the run, and the profiler's op spans."""
    orders, recorder = Orders(), Recorder(skip=1)
    with load(plan, make_stages(plan, rank), observe=[orders, recorder]) as pipe:
        pipe.step(*make_batch(plan, 0))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for step in range(1, 3):
                pipe.step(*make_batch(plan, step))
        profiler.export_chrome_trace(str(directory / f"{rank}.json"))
        pipe.step(*make_batch(plan, 3))
        pipe.write_trace(directory / "trace.json")
        line = pipe.summary()
    events: Any = profiler.events()
    tokens = [event.name for event in events if event.name in orders.steps[0]]
    return orders.steps, line, sorted(tokens)


def measure_collectives(rank: int) -> list[CollectiveRow]:
    """Two sizes of each kind, small ones."""
    return list(measured_collectives(torch.device("cpu"), repeats=1, warmup=1, sizes=(4096, 16384)))
