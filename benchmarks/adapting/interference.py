"""Interference on one of four ranks: how soon a forest tells it, and what re-partition gains by that, and with the truth known.

Real processes. Rank 1 computes on one CPU; processes that compete for that CPU begin after a while. The other ranks' layers wait
instead of computing, as if each had a machine of its own: on the two cores that this needs, four ranks that compute would interfere
with each other. 16 layers, 4 on each rank, take 3 ms forward and 6 ms backward alone; 8 microbatches, 1F1B, gloo. Nothing is
restarted while a phase runs; each layout runs in a job of its own.

1. A forest is trained on that CPU, by the command's own functions. Its errors on runs held out, beside the others', are printed.
2. The job runs calm, then beside competitors. Rank 1's monitor has the forest; printed is when each kind of evidence was there.
   What is true is the median of the layers' times in rank 1, beside the competitors, by that before them.
3. `repartition` moves layers for what was predicted, for what was measured, and for the truth. Each layout runs beside the same
   competitors: in a job that has it from the start, and in one that begins with 4 layers on each rank, whose layers then migrate
   while it trains (`begin_migration`, SGD). Of the latter are printed the steps before, those until the new layout runs, from the
   begin of one to that of the next, and those after.

Run it as `python benchmarks/adapting/interference.py [--runs 60]`, where nothing else runs; seven minutes, two CPUs at least.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from math import nan
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan
    from schedc.ir.workload import Workload

MS = 1_000_000
RANKS, LAYERS, MICROBATCHES, SLOW = 4, 16, 8, 1
FORWARD_MS, BACKWARD_MS = 3, 6
CALM_STEPS, SLOW_STEPS, AFTER_STEPS, SKIPPED = 120, 60, 40, 10
STAY_STEPS, LIVE_STEPS = 30, 90
"""Steps before layers migrate, and in all."""
WIDTH, SIDE = 8, 96


class StepNote(NamedTuple):
    """Of one rank: a step, and what was known after it."""

    begun_ns: int
    ended_ns: int
    layer_ns: float
    """Median of the forwards of its layers."""
    slowdown: float
    """What its monitor says of F."""
    predicted: bool
    """Whether that is predicted, and not measured."""


def train(
    rank: int, plan: Plan, steps: int, cpu: int, folder: str, model: str | None, other: Plan | None
) -> tuple[list[StepNote], int]:
    """Run the plan; after `CALM_STEPS`, if there is a model, say so in a file and go on when the competitors are there.

    After `STAY_STEPS` layers migrate to the layout of another plan, if there is one.

    Returns:
        The steps; and after how many of them, from the begin of the migration on, that layout runs.
    """
    import numpy as np
    import torch
    from torch import nn

    import schedc.runtime
    from schedc.ir.ops import Kind
    from schedc.runtime.adapt.migration import begin_migration
    from schedc.runtime.adapt.monitor import Monitor
    from schedc.runtime.interference.predictor import SlowdownPredictor

    torch.set_num_threads(1)
    os.sched_setaffinity(0, {cpu} if rank == SLOW else set(range(os.cpu_count() or 1)) - {cpu})
    a, product = np.full((SIDE, SIDE), 0.01, np.float32), np.empty((SIDE, SIDE), np.float32)
    took_ns: list[float] = []

    def compute(units: int) -> float:
        begun_ns = time.perf_counter_ns()
        for _ in range(units):
            np.matmul(a, a, out=product)
        return time.perf_counter_ns() - begun_ns

    calibration = Path(folder) / "units"
    if not calibration.exists() and rank == SLOW:
        calibration.write_text(str(500 * MS / min(compute(500) for _ in range(20))))
    while not calibration.exists():
        time.sleep(0.01)
    units_of_ms = float(calibration.read_text() or "nan")

    def work(ms: int) -> None:
        if rank == SLOW:
            compute(round(ms * units_of_ms))
        else:
            time.sleep(ms / 1e3)

    class Work(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            begun_ns = time.perf_counter_ns()
            work(FORWARD_MS)
            took_ns.append(time.perf_counter_ns() - begun_ns)
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            work(BACKWARD_MS)
            return gradients[0]

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Work.apply(self.linear(x))  # type: ignore[no-any-return, no-untyped-call]

    def build(plan: Plan, rank: int) -> Any:
        torch.manual_seed(0)
        return schedc.runtime.build_stages([Layer() for _ in range(LAYERS)], plan, rank)

    stages = build(plan, rank)
    optimizer = torch.optim.SGD(stages[rank].parameters(), lr=0.01)
    monitor = Monitor(predictor=SlowdownPredictor(model) if model is not None and rank == SLOW else None)
    pipe = schedc.runtime.load(
        plan,
        stages=stages,
        loss_fn=lambda output, target: (output - target).square().mean(),
        observe=monitor,
        wrap=monitor.wrap,
    )
    batch, found, migration = torch.randn(MICROBATCHES, WIDTH), [], None
    for step in range(steps):
        if model is not None and step == CALM_STEPS and rank == 0:
            (Path(folder) / "calm").touch()
            while not (Path(folder) / "competing").exists():
                time.sleep(0.01)
        took_ns.clear()
        begun_ns = time.perf_counter_ns()
        pipe.step(batch, batch)
        said = monitor.speeds.slowdown().get(Kind.F, 1.0)
        predicted = Kind.F in monitor.speeds.slowdown() and Kind.F not in monitor.speeds.measured()
        found.append(StepNote(begun_ns, time.perf_counter_ns(), median(took_ns), said, predicted))
        optimizer.step()
        optimizer.zero_grad()
        if other is not None and step == STAY_STEPS - 1:
            migration = begin_migration(pipe, optimizer, other, build=build)
        elif migration is not None:
            migration.between_steps()
    pipe.close()
    monitor.close()
    return found, 0 if migration is None or migration.state != "done" else migration.boundaries


def workload() -> Workload:
    """The layers, alone."""
    from schedc.ir import Network
    from schedc.ir.workload import Device, Layer, Workload

    layers = tuple(
        Layer(
            forward_ns=(FORWARD_MS * MS,),
            backward_input_ns=(BACKWARD_MS * MS // 2,),
            backward_weight_ns=(BACKWARD_MS * MS // 2,),
            backward_ns=(BACKWARD_MS * MS,),
            message_bytes=4 * WIDTH,
            gradient_message_bytes=4 * WIDTH,
            position=(at, at + 1),
        )
        for at in range(LAYERS)
    )
    network = Network(site_of_rank=(0,) * RANKS)
    return Workload(
        name="interference",
        microbatches=MICROBATCHES,
        layers=layers,
        devices=(Device(),) * RANKS,
        network=network,
        split_backward=False,
    )


def step_ms(notes: Sequence[Sequence[StepNote]], first: int, last: int) -> float:
    """The median of steps, from the first rank that begins to the last that ends."""
    taken = [max(rank[step].ended_ns for rank in notes) - min(rank[step].begun_ns for rank in notes) for step in range(first, last)]
    return median(taken) / MS


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60, help="to train the forest from; default: %(default)s")
    parser.add_argument("--run-s", type=float, default=1.0, help="seconds of each; default: %(default)s")
    parser.add_argument("--competitors", type=int, default=1, help="that compute beside rank 1; default: %(default)s")
    options = parser.parse_args()

    from inputs.plans import plan_of
    from runs.processes import rank_processes

    from schedc.adapt.repartition import repartition
    from schedc.io.child import Child
    from schedc.ir.conditions import Conditions
    from schedc.ir.layout import Layout
    from schedc.ir.ops import Kind
    from schedc.lower.problem import problem_of
    from schedc.runtime.interference.fitting import fit
    from schedc.runtime.interference.forest import forest_json
    from schedc.runtime.interference.making import THREADS, make
    from schedc.solvers.driver.registry import constructive

    cpu = (os.cpu_count() or 1) - 1
    everywhere = os.sched_getaffinity(0)
    print(f"load before: {os.getloadavg()[0]:.1f} on {len(everywhere)} CPUs")
    given = workload()
    even = Layout(
        rank_of_stage=tuple(range(RANKS)),
        paths=(tuple(range(RANKS)),),
        layers_of_stage=tuple((4 * rank, 4 * rank + 4) for rank in range(RANKS)),
        placement="unidirectional",
    )
    problem = problem_of(given, even)
    plan = plan_of(problem, constructive("1f1b")(problem))
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        model = folder / "model.json"
        os.sched_setaffinity(0, {cpu})  # what is started from here on is on that CPU
        made = make(options.runs, options.run_s, most=options.competitors + 1)
        fitted = fit(made.samples)
        model.write_bytes(forest_json(fitted.file))
        print(f"{len(made.samples)} windows; errors on runs held out (mean, worst, mean after a change):")
        for entry in fitted.errors:
            print(f"  {entry.name:>10} {entry.mean:.3f} {entry.worst:.3f} {entry.after_change:.3f}")
        with ExitStack() as stack:
            child = ["-m", "schedc.runtime.interference.child"]
            competitors = [stack.enter_context(Child(child, THREADS)) for _ in range(options.competitors)]
            os.sched_setaffinity(0, everywhere)

            def compete(duty: float) -> None:
                for competitor in competitors:
                    competitor.ask(json.dumps({"compete": "burn", "duty": duty}).encode())

            begun_ns: list[int] = []

            def begin() -> None:
                while not (folder / "calm").exists():
                    time.sleep(0.01)
                begun_ns.append(time.perf_counter_ns())
                compete(1.0)
                (folder / "competing").touch()

            threading.Thread(target=begin, daemon=True).start()

            def run(
                plan: Plan, steps: int, model: Path | None = None, other: Plan | None = None
            ) -> tuple[list[list[StepNote]], int]:
                with tempfile.TemporaryDirectory() as own, rank_processes(RANKS, Path(own)) as processes:
                    found = processes.run(train, plan, steps, cpu, str(folder), model and str(model), other, limit_s=500)
                for rank, each in enumerate(found):
                    if not isinstance(each, tuple):
                        raise SystemExit(f"rank {rank} failed: {each}")
                return [notes for notes, _ in found], found[0][1]

            notes, _ = run(plan, CALM_STEPS + SLOW_STEPS, model)
            calm_ms = step_ms(notes, SKIPPED, CALM_STEPS)
            slow_ms = step_ms(notes, CALM_STEPS + SKIPPED, CALM_STEPS + SLOW_STEPS)
            before, after = (
                median(note.layer_ns for note in part) for part in (notes[SLOW][:CALM_STEPS], notes[SLOW][CALM_STEPS:])
            )
            truth = after / before
            print(f"a step takes {calm_ms:.0f} ms alone, {slow_ms:.0f} ms beside competitors; rank {SLOW} takes {truth:.2f} times")
            beliefs: dict[str, float] = {}
            for name, kind in (("predicted", True), ("measured", False)):
                first = next((note for note in notes[SLOW][CALM_STEPS:] if note.slowdown > 1 and note.predicted is kind), None)
                if first is None:
                    print(f"  {name}: not in {SLOW_STEPS} steps")
                    continue
                late_s = (first.ended_ns - begun_ns[0]) / 1e9
                steps = sum(note.ended_ns <= first.ended_ns for note in notes[SLOW][CALM_STEPS:])
                print(f"  {name}: {first.slowdown:.2f} times as slow, known when step {steps} ended, after {late_s:.1f} s")
                beliefs[name] = first.slowdown
            false = sum(note.slowdown != 1 for note in notes[SLOW][:CALM_STEPS])
            print(f"  of the {CALM_STEPS} calm steps, {false} ended with a change believed")
            beliefs["true"] = truth
            print("\n| belief | slow-down | layers | step predicted | measured | layers migrate: before | until | after |")
            print(f"|---|---|---|---|---|---|---|---|\n| none | 1 | 4, 4, 4, 4 | | {slow_ms:.0f} ms | | | |")
            for name, factor in beliefs.items():
                conditions = Conditions(slowdown={(SLOW, kind): factor for kind in (Kind.F, Kind.B, Kind.W)})
                found = repartition(plan, given, conditions, steps=1000)
                layers = ", ".join(
                    str(last - first) for first, last in (stage.layers or (0, 0) for stage in found.plan.problem.stages)
                )
                measured_ms = step_ms(run(found.plan, AFTER_STEPS)[0], SKIPPED, AFTER_STEPS)
                live, count = run(plan, LIVE_STEPS, other=found.plan)
                moved = STAY_STEPS + count  # its first step has the new layout
                until_ms = (live[0][moved].begun_ns - live[0][STAY_STEPS - 1].begun_ns) / MS / (count + 1) if count else nan
                print(
                    f"| {name} | {factor:.2f} | {layers} | {found.objective_ns / MS:.0f} ms | {measured_ms:.0f} ms"
                    f" | {step_ms(live, SKIPPED, STAY_STEPS - 1):.0f} ms | {count + 1} of {until_ms:.0f} ms"
                    f" | {step_ms(live, moved + 1, LIVE_STEPS):.0f} ms |",
                    flush=True,
                )
    print(f"load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
