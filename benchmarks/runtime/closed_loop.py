"""Measured costs coming back: a plan of guessed costs is run and recorded, compiled anew with what was measured, and run again.

Prints what was predicted and measured each time, and what recording costs per op. Run it as `python
benchmarks/runtime/closed_loop.py`: real processes on this machine, one for each rank, gloo between them. Nothing here is a test:
where fewer cores are free than there are ranks, the ranks slow each other down, and no cost model predicts that.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter_ns

from rich.console import Console
from rich.table import Table

from schedc.analysis.comparison.compare import Comparison, compare
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.driver import compile_problem
from schedc.formats.links import link_topology_toml
from schedc.formats.plan.plan_file import read_plan, write_plan
from schedc.formats.profile_file import stage_profile_json
from schedc.formats.trace_file import read_trace
from schedc.frontend.job import load_job
from schedc.ir.ops import Kind, Op
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.units import format_duration_ns

JOB = """\
name = "closed-loop"
[pipeline]
ranks = {ranks}
microbatches = {microbatches}
[profile]
{profile}
{topology}
"""
GUESS = 'forward = "1 ms"\nbackward_input = "1 ms"\nbackward_weight = "1 ms"\nmessage = "512 KiB"'
NO_TOPOLOGY = ""
WIDTH, SAMPLES, STEPS, SKIPPED = 512, 256, 14, 4


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run needs to know."""

    ranks: int
    microbatches: int
    method: str
    layers: int


def main() -> None:
    """Run twice and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--method", default="zb-h1")
    parser.add_argument("--layers", type=int, default=6, help="linear layers of rank 0; each further rank has two more")
    settings = Settings(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        first = run(settings, directory, "guessed", GUESS, NO_TOPOLOGY)
        (directory / "profile.json").write_bytes(stage_profile_json(first.measured_problem))
        (directory / "topology.toml").write_bytes(link_topology_toml(first.measured_problem))
        again = 'path = "profile.json"', '[topology]\npath = "topology.toml"'
        second = run(settings, directory, "measured", *again)
    table = Table(title=f"{settings.ranks} ranks, {settings.microbatches} microbatches, {settings.method}", box=None)
    headers = ("costs", "predicted", "measured", "difference", "between", "the plan with this run's costs")
    for header in headers:
        table.add_column(header, justify="right")
    for label, found in (("guessed", first), ("measured in the run before", second)):
        measured = found.measured
        table.add_row(
            label,
            format_duration_ns(found.predicted_ns),
            format_duration_ns(measured.median_ns),
            f"{measured.median_ns / found.predicted_ns - 1:+.1%}",
            f"{format_duration_ns(measured.low_ns)} to {format_duration_ns(measured.high_ns)}",
            f"{format_duration_ns(found.recosted_ns)} ({measured.median_ns / found.recosted_ns - 1:+.1%})",
        )
    Console(width=150, highlight=False).print(table)
    sys.stdout.write(f"recording takes {recording_ns():.0f} ns per op with a send and a take\n")


def run(settings: Settings, directory: Path, label: str, profile: str, topology: str) -> Comparison:
    """Compile, execute and compare."""
    job = directory / "job.toml"
    ranks, microbatches = settings.ranks, settings.microbatches
    job.write_text(JOB.format(ranks=ranks, microbatches=microbatches, profile=profile, topology=topology), encoding="utf-8")
    plan_path, trace_path = directory / f"{label}.plan.json", directory / f"{label}.trace.json"
    write_plan(
        compile_problem(load_job(job).problem, SearchSettings(method=settings.method, limits=Limits(time_s=10))).plan, plan_path
    )
    context = get_context("spawn")
    store = directory / f"{label}.store"
    processes = [
        context.Process(target=train, args=(rank, settings, plan_path, trace_path, store), daemon=True) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    plan = read_plan(plan_path)
    return compare(plan, simulate(plan.problem, plan.schedule()), read_trace(trace_path))


def train(rank: int, settings: Settings, plan_path: Path, trace_path: Path, store: Path) -> None:
    """One rank: some steps, the last of them recorded."""
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist
    from torch import nn

    import schedc.runtime
    from schedc.runtime.measure.recording import Recorder, write_trace

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=settings.ranks)
    group = dist.new_group(backend="gloo")
    torch.manual_seed(rank)
    layers = settings.layers + 2 * rank
    stage = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)))
    recorder = Recorder(STEPS - SKIPPED, skip=SKIPPED)
    batch = torch.randn(settings.microbatches * SAMPLES, WIDTH)
    with schedc.runtime.load(plan_path, stages={rank: stage}, loss_fn=nn.functional.mse_loss, observe=recorder) as pipe:
        for _ in range(STEPS):
            stage.zero_grad()
            pipe.step(batch, batch)
        write_trace(recorder, read_plan(plan_path), group, trace_path)
    dist.destroy_process_group()


def recording_ns() -> float:
    """What a recorder takes for one op, its send and its take."""
    from schedc.runtime.common.hooks import OpTimes
    from schedc.runtime.measure.recording import Recorder

    op, count, taken_ns = Op(Kind.F, 0, 0), 1000, []
    recorder = Recorder(5, skip=0)
    for step in range(200):
        recorder.begin_step(step, 0)
        begin_ns = perf_counter_ns()
        for _ in range(count):
            recorder.taken(op, 1, 0)
            recorder.op(OpTimes(op, 0, 0, 0))
            recorder.sent(op, 1, 0)
        taken_ns.append((perf_counter_ns() - begin_ns) / count)
        recorder.end_step(step, 0)
    return statistics.median(taken_ns)


if __name__ == "__main__":
    main()
