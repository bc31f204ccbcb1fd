"""What the rank processes of the recording's tests run: steps with a recorder, and the trace of them."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch.distributed as dist

import schedc.runtime
from runs.pipeline_runs import loss_fn, make_batch, make_stages
from schedc.errors import SchedcError
from schedc.runtime.measure.clocks import clock_offsets
from schedc.runtime.measure.recording import Recorder, write_trace

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan
    from schedc.runtime.measure.clocks import ClockOffset


def train_and_write(rank: int, plan: Plan, steps: int, path: Path, keep: int, skip: int) -> list[tuple[int, int]]:
    """Train with a recorder and write its trace; when each step began and ended here."""
    recorder = Recorder(keep, skip=skip)
    times = []
    with schedc.runtime.load(plan, stages=make_stages(plan, rank), loss_fn=loss_fn, timeout_s=60, observe=recorder) as pipe:
        for step in range(steps):
            begin_ns = perf_counter_ns()
            pipe.step(*make_batch(plan, step))
            times.append((begin_ns, perf_counter_ns()))
        write_trace(recorder, plan, dist.new_group(backend="gloo"), path)
    return times


def train_and_fail_to_write(rank: int, plan: Plan, other: Plan, directory: Path) -> list[str]:
    """What writing says without a step, for another plan, into no directory, and with steps that only one rank has."""
    group = dist.new_group(backend="gloo")
    recorder, late = Recorder(skip=0), Recorder(skip=rank)
    said = []

    def attempt(heard: Recorder, of: Plan, path: Path) -> None:
        try:
            write_trace(heard, of, group, path)
            said.append("written")
        except SchedcError as error:
            said.append(f"{type(error).__name__}: {error}")

    attempt(recorder, plan, directory / "trace.json")
    for heard in (recorder, late):
        with schedc.runtime.load(plan, stages=make_stages(plan, rank), loss_fn=loss_fn, timeout_s=60, observe=heard) as pipe:
            for step in range(2):
                pipe.step(*make_batch(plan, step))
    attempt(recorder, other, directory / "trace.json")
    attempt(recorder, plan, directory / "nowhere" / "trace.json")
    attempt(late, plan, directory / "trace.json")
    return said


def offsets(rank: int) -> list[ClockOffset]:
    """The clocks of all ranks, on rank 0."""
    return clock_offsets(dist.new_group(backend="gloo"))
