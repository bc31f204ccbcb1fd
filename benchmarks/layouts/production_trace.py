"""The steps of a production job, replayed under 1F1B beside what was recorded, and what other schedules and partitions would save.

Takes the trace of ByteDance's job ST as it was extracted from github.com/ByteDance-Seed/StragglerAnalysis (Apache-2.0): 4 ranks, 2
replicas, 4 microbatches, 32 steps, a last stage that takes half as long again as the others; in ms, `forward[step][replica][stage]`
and `backward[…]` the durations of each microbatch, backwards fused, and `fwd_transfer`, `bwd_transfer` those of the messages.

- Replayed: every block takes what was recorded, every message the mean of its link in this step; a step takes as long as its longer
  replica. The recorded span is from the first forward's start to the last backward's end: no collective and no optimizer is in it.
- A better order: the same stages, compiled by `auto`; with backwards fused, as they were, and with backwards that may be split.
  How long B and W take was not recorded: each is half of the fused one.
- A better partition: the balanced one in the same placement. How many layers there are was not published: each of the first three
  stages is taken as this many like layers; the last one has as many, and a head that takes the rest of its time. No rank may hold
  more than the first one did under 1F1B, counted in layers.

Run it as `python benchmarks/layouts/production_trace.py bytedance-ST.json [--layers 8] [--time-limit 2] [--every 1]`. Exit
status 1: a replayed step differs by more than 0.5 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from schedc.analysis.simulation.simulate import simulate
from schedc.compile.driver import compile_problem
from schedc.ir.layout import Layout
from schedc.ir.network import Link, Network
from schedc.ir.ops import Kind
from schedc.ir.workload import Device, Layer, Workload
from schedc.lower.partition import balanced_partition
from schedc.lower.placement import place
from schedc.lower.problem import problem_of
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.templates import TEMPLATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.problem import Problem

MS = 1_000_000
MOST_ERROR = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A recorded step, its replay, and what its durations make of other schedules, by heading."""

    number: int
    recorded_ms: float
    replayed_ms: float
    others_ms: dict[str, float]

    @property
    def error(self) -> float:
        """Of the replay, relative to the record."""
        return self.replayed_ms / self.recorded_ms - 1

    def saved(self, heading: str) -> float:
        """The share of the replay that another schedule saves."""
        return 1 - self.others_ms[heading] / self.replayed_ms


def main() -> int:
    """Replay all steps and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--layers", type=int, default=8, help="like layers of each stage")
    parser.add_argument("--time-limit", type=float, default=2.0, help="seconds of `auto` for each schedule")
    parser.add_argument("--every", type=int, default=1, help="take every nth step")
    options = parser.parse_args()
    if not options.trace.is_file():
        print(f"{options.trace}: there is no such file; it is not part of this repository")
        return 0
    trace = json.loads(options.trace.read_bytes())
    limits = Limits(time_s=options.time_limit)
    steps = [_step(trace, number, options.layers, limits) for number in range(0, len(trace["steps"]), options.every)]
    table = Table(
        "step", title=f"{trace['name']}: ms, and the share that other schedules save; {options.layers} layers in each stage"
    )
    headings = list(steps[0].others_ms)
    for heading in ("recorded", "replayed", "error", *headings):
        table.add_column(heading, justify="right")
    for step in steps:
        times = (f"{step.recorded_ms:.2f}", f"{step.replayed_ms:.2f}", f"{step.error:+.3%}")
        table.add_row(str(step.number), *times, *(f"{step.saved(heading):.2%}" for heading in headings))
    means = [f"{statistics.mean(step.saved(heading) for step in steps):.2%}" for heading in headings]
    table.add_row("mean", "", "", f"{statistics.mean(step.error for step in steps):+.3%}", *means)
    console = Console(width=150)
    console.print(table)
    worst = max(abs(step.error) for step in steps)
    console.print(f"{len(steps)} steps replayed: worst error {worst:.3%} (required: {MOST_ERROR:.1%})")
    return 0 if worst <= MOST_ERROR else 1


def _step(trace: dict[str, Any], index: int, layers: int, limits: Limits) -> Step:
    """One step: the longer of its replicas, each way."""
    replicas = [_spans_ns(_workload(trace, index, replica, layers), layers, limits) for replica in range(len(trace["dps"]))]
    longest_ms = {heading: max(spans[heading] for spans in replicas) / MS for heading in replicas[0]}
    return Step(
        number=trace["steps"][index],
        recorded_ms=trace["compute_span_ms"][index],
        replayed_ms=longest_ms.pop("replayed"),
        others_ms=longest_ms,
    )


def _spans_ns(workload: Workload, layers: int, limits: Limits) -> dict[str, int]:
    """How long the workload takes, each way."""
    own = _layout(workload, [*range(0, layers * workload.ranks, layers), len(workload.layers)])
    balanced = _layout(workload, None)
    found = {"replayed": _under_1f1b_ns(problem_of(workload, own))}
    for name, layout in (("order", own), ("partition and order", balanced)):
        if layout is balanced:
            found["partition"] = _under_1f1b_ns(problem_of(workload, layout))
        for kind, split in (("", False), (", split", True)):
            problem = problem_of(replace(workload, split_backward=split), layout)
            certificate = compile_problem(problem, SearchSettings(limits=limits)).plan.certificate
            found[name + kind] = certificate.makespan_ns
            if layout is own and not split:
                found["order, bound"] = certificate.lower_bound_ns
    return found


def _workload(trace: dict[str, Any], index: int, replica: int, layers: int) -> Workload:
    """One replica in one step, its stages cut into like layers, and a head at the end."""
    forward, backward = (_ns(trace[key][index][replica]) for key in ("forward", "backward"))
    ranks, microbatches = len(forward), len(forward[0])
    found = []
    for stage in range(ranks):
        times = [forward[stage], backward[stage]]
        if stage == ranks - 1:
            times = [[sum(values) // stage for values in zip(*kind[:stage], strict=True)] for kind in (forward, backward)]
        for layer in range(layers):
            found.append(_layer(*([time // layers + (layer < time % layers) for time in kind] for kind in times)))
    blocks = found[-layers:]
    rest = [
        [whole - sum(layer.durations_ns(kind)[at] for layer in blocks) for at, whole in enumerate(times[-1])]
        for kind, times in ((Kind.F, forward), (Kind.BW, backward))
    ]
    found.append(_layer(*rest))
    links = []
    for stage, pair in enumerate(pairwise(range(ranks))):
        for key, (source, destination) in (("fwd_transfer", pair), ("bwd_transfer", pair[::-1])):
            latency_ns = round(statistics.mean(trace[key][index][replica][stage]) * MS)
            links.append(Link(source=source, destination=destination, latency_ns=latency_ns))
    return Workload(
        name=f"step-{trace['steps'][index]}-{replica}",
        microbatches=microbatches,
        layers=tuple(found),
        devices=(Device(limit_bytes=2 * layers * min(ranks, microbatches)),) * ranks,
        network=Network(site_of_rank=(0,) * ranks, links=tuple(links)),
        split_backward=False,
    )


def _ns(stages_ms: Sequence[Sequence[float]]) -> list[list[int]]:
    return [[round(each * MS) for each in stage] for stage in stages_ms]


def _layer(forward_ns: Sequence[int], backward_ns: Sequence[int]) -> Layer:
    """A layer whose microbatch holds two bytes, and one between B and W."""
    return Layer(
        forward_ns=tuple(forward_ns),
        backward_input_ns=tuple(each - each // 2 for each in backward_ns),
        backward_weight_ns=tuple(each // 2 for each in backward_ns),
        backward_ns=tuple(backward_ns),
        activation_bytes=2,
        activation_after_input_bytes=1,
    )


def _layout(workload: Workload, cuts: Sequence[int] | None) -> Layout:
    """One stage on each rank, cut there; None: balanced."""
    placed = place("unidirectional", workload.ranks)
    bounds = balanced_partition(workload, placed, frozenset()) if cuts is None else tuple(pairwise(cuts))
    return Layout(rank_of_stage=placed.rank_of_stage, paths=placed.paths, layers_of_stage=bounds)


def _under_1f1b_ns(problem: Problem) -> int:
    return simulate(problem, TEMPLATES["1f1b"].construct(problem)).makespan_ns


if __name__ == "__main__":
    sys.exit(main())
