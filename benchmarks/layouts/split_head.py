"""The head split over ranks beside vocabulary parallelism (Yeung et al., arXiv 2411.05288): activation memory, and time.

Their schedules are 1F1B with two more passes on every rank, each with its part of the vocabulary: S (logits, and a softmax of its
own) and T (gradients). Vocab-1 has two barriers: T of a microbatch follows all its S, and its backward follows all its T. Vocab-2
has one: S has the gradient of the hidden states, too, and T that of the weights alone, so the backward follows all S. Both are
graphs of this project: Vocab-1 is that of docs/graphs.md with S as F(V) and T as BW(V); in Vocab-2 the join gives the last stage
its gradient. The orders are those of their code (sail-sg/VocabularyParallelism 6191c3b, vocab_parallel_schedule.py): where S and T
go between a rank's forwards and backwards follows from the durations of these. Simulator and verifier are ours.

The first table counts microbatches in units of what one holds in a rank's stage, with forwards of 2, fused backwards of 4, S and T
of 1 each, 3 × ranks microbatches, no messages, nothing held by the vocabulary: what is held, and the time, beside the published
numbers (their README: p + 2, p + 1, and 1.5p for the interlaced pipeline, whose vocabulary passes all ranks do at once); and what
`compile` finds within such limits: the better of both graphs, with backwards fused as theirs are, and with B and W apart.

The second has their models (table 1: GPT on A100, 2,048 tokens, 128 microbatches) with costs of `schedc costs`: milliseconds of a
step of 1F1B with the head on the last stage (theirs: Baseline), of 1F1B on the partition with the least busy stage (Redis), of
both of theirs, and of ours within the peak of Vocab-1 on any rank: with fused backwards, with B and W apart, and with the layout
open (two stages on a rank, the head whole or split). Beside it are times over Baseline, and in brackets those of the published MFU
(table 5). Embeddings are on the first stage here, and over all ranks there.

Run it as `python benchmarks/layouts/split_head.py [--time-limit 20] [--ranks 8 16] [--microbatches 128]`. Exit status 1: theirs
hold something else than published, or ours within their memory takes longer.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.api import make_job
from schedc.compile.driver import OpenLayouts, compile_problem, compile_question
from schedc.costs.architecture import Setting
from schedc.costs.devices import device_named
from schedc.costs.hugging_face import architecture_of_config
from schedc.costs.layers import layers_of
from schedc.errors import NoPlanFound
from schedc.formats.profile_file import LayerEntry, profile_json
from schedc.io.location import Location
from schedc.ir import Edge, Kind, Op, Schedule
from schedc.lower.partition import balanced_partition
from schedc.lower.placement import place
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.verify.problem import verify_problem
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir import Problem

PUBLISHED = {
    (8, 2048): {"32k": (46.16, 46.01, 50.42, 50.23), "64k": (40.48, 46.37, 50.28, 50.18)},
    (16, 2048): {"32k": (45.66, 45.56, 49.02, 48.90), "64k": (40.09, 42.82, 50.62, 50.49)},
}
PUBLISHED[8, 2048] |= {"128k": (33.11, 44.22, 49.93, 49.82), "256k": (25.23, 38.91, 50.12, 49.69)}
PUBLISHED[16, 2048] |= {"128k": (32.44, 38.65, 50.54, 50.46), "256k": (24.21, 36.98, 50.66, 50.46)}
"""MFU in per cent, table 5: Baseline, Redis, Vocab-1, Vocab-2."""
MODELS = {8: (32, 3072, 24), 16: (48, 4096, 32)}
"""By ranks: layers, width, heads (table 1)."""
MIB = 2**20
HELD = {"Vocab-1": 2, "Vocab-2": 1}
"""Microbatches beyond one for each rank, as published."""


def passes(problem: Problem, ranks: int, *, barriers: int) -> Schedule:
    """Their 1F1B with S and T on every rank, of a problem whose stages are those of the ranks, the parts V, and the join.

    Args:
        problem: it.
        ranks: how many.
        barriers: 2 is Vocab-1, 1 is Vocab-2.
    """
    forward_ns, backward_ns = (max(stage.durations_ns(kind)[0] for stage in problem.stages[:ranks]) for kind in (Kind.F, Kind.BW))
    count = problem.microbatches
    # From the last rank to the first: whether S goes between B and F, not behind F, by when B and F of a rank begin.
    between, begins = [True], 0
    while len(between) < ranks:
        if begins - forward_ns >= -backward_ns:
            begins -= forward_ns
            between.append(True)
        else:
            begins += backward_ns - forward_ns
            between += [False, True]
    between = between[:ranks][::-1]
    early = [0] * ranks
    for rank in range(ranks - 2, -1, -1):
        early[rank] = early[rank + 1] + (between[rank + 1] or not between[rank])
    orders = []
    for rank in range(ranks):
        # F, B: of the stage; J: the loss; S: T of a microbatch and S of the next. Each from the first microbatch to the last.
        steady = "JBSF" if between[rank] else "JBFS"
        order = "F" * (ranks - rank) + "SF" + "JSF" * (barriers - 1) + "S" * early[rank] + steady * count + "S" * count
        done: Counter[str] = Counter()
        ops: list[Op] = []
        for each in order:
            number, done[each] = done[each], done[each] + 1
            if each == "S" and 0 < number <= count:
                ops.append(Op(kind=Kind.BW, stage=ranks + rank, microbatch=number - 1))
            if number < count and (each != "J" or rank == ranks - 1):
                stage = {"F": rank, "B": rank, "S": ranks + rank, "J": 2 * ranks}[each]
                kinds = {"B": (Kind.BW,), "J": (Kind.F, Kind.BW)}.get(each, (Kind.F,))
                ops += (Op(kind=kind, stage=stage, microbatch=number) for kind in kinds)
        orders.append(tuple(ops))
    return Schedule(orders=tuple(orders))


def one_barrier(problem: Problem, ranks: int) -> Problem:
    """The graph of Vocab-2: S computes the gradient of the hidden states, and the join gives it to the last stage."""
    last, join, hidden_bytes = ranks - 1, 2 * ranks, problem.stages[ranks - 1].message_bytes
    edges = []
    for edge in problem.edges:
        if edge.source == last:
            edges.append(replace(edge, gradient_message_bytes=None))
        elif edge.destination == join:
            edges.append(replace(edge, message_bytes=edge.message_bytes + hidden_bytes))
        else:
            edges.append(edge)
    edges.append(Edge(source=last, destination=join, value=1))
    stages = list(problem.stages)
    for part in range(ranks, 2 * ranks):
        stage = stages[part]
        zero = (0,) * len(stage.backward_input_ns)
        both = tuple(a + b for a, b in zip(stage.forward_ns, stage.backward_input_ns, strict=True))
        stages[part] = replace(
            stage,
            forward_ns=both,
            backward_input_ns=zero,
            backward_ns=stage.backward_weight_ns,
            message_bytes=stage.message_bytes + hidden_bytes,
        )
    return replace(problem, edges=tuple(edges), stages=tuple(stages), origin=None)


def timed(problem: Problem, schedule: Schedule) -> tuple[int, tuple[int, ...]]:
    """The makespan, and each rank's peak, once both are known to be sound."""
    if wrong := (*verify_problem(problem), *verify_schedule(problem, schedule)):
        raise SystemExit(f"{problem.name}: {wrong[0]}")
    timeline = simulate(problem, schedule)
    return timeline.makespan_ns, peak_bytes(problem, schedule, timeline)


def ours(graphs: Sequence[Problem], limit_bytes: int, limits: Limits, *, apart: bool) -> tuple[int, int, int] | None:
    """Makespan, bound and peak of the best plan within a limit for each rank, B and W apart or not; None: none was found."""
    found = []
    for problem in graphs:
        within = replace(problem, memory_limit_bytes=(limit_bytes,) * problem.ranks, split_backward=apart)
        try:
            certificate = compile_problem(within, SearchSettings(limits=limits)).plan.certificate
        except NoPlanFound:
            continue
        found.append((certificate.makespan_ns, certificate.lower_bound_ns, max(certificate.peak_activation_bytes)))
    return min(found, default=None)


def job(layers: Sequence[LayerEntry], ranks: int, microbatches: int, pipeline: dict[str, Any], **sections: Any) -> Any:
    """A job of these layers."""
    with TemporaryDirectory() as folder:
        Path(folder, "profile.json").write_text(profile_json(layers, exact=True))
        table = {"pipeline": {"ranks": ranks, "microbatches": microbatches, **pipeline}, "profile": {"path": "profile.json"}}
        return make_job({**table, **sections}, directory=folder, name=f"{ranks} ranks")


def in_units(ranks: Sequence[int], limits: Limits) -> bool:
    """The first table; whether theirs hold what is published, and ours is never longer."""
    table = Table(title="Microbatches held at most, and time: theirs, and ours within a limit", pad_edge=False, box=None)
    for name in (
        "ranks",
        "schedule",
        "published",
        "held",
        "time",
        "limit",
        "ours, fused",
        "held",
        "ours, B and W",
        "held",
        "bound",
    ):
        table.add_column(name, justify="left" if name == "schedule" else "right")
    holds = True
    unit = LayerEntry(
        forward_ns=2000,
        backward_input_ns=2000,
        backward_weight_ns=2000,
        activation_bytes=MIB,
        activation_after_input_bytes=MIB,
    )
    for p in ranks:
        head = LayerEntry(forward_ns=1000 * p, backward_input_ns=500 * p, backward_weight_ns=500 * p)
        problem = job((*[unit] * p, head), p, 3 * p, {"placement": "unidirectional", "partition": [1] * p, "head": "split"}).problem
        graphs = problem, one_barrier(problem, p)
        rows: list[tuple[str, str, int, float | None, int | None]] = [("1F1B, head whole", "p", p, None, None)]
        for name, barriers, of in (("Vocab-1", 2, graphs[0]), ("Vocab-2", 1, graphs[1])):
            time_ns, peaks = timed(of, passes(of, p, barriers=barriers))
            holds &= max(peaks) == (p + HELD[name]) * MIB
            rows.append((name, f"p + {HELD[name]}", p + HELD[name], max(peaks) / MIB, time_ns))
        rows.append(("interlaced", "1.5p", 3 * p // 2, None, None))
        for name, published, limit, held, taken_ns in rows:
            cells = []
            for apart in (False, True):
                found = ours(graphs, limit * MIB, limits, apart=apart)
                holds &= taken_ns is None or (found is not None and found[0] <= taken_ns)
                cells += ["-", "-"] if found is None else [f"{found[0] / 1000:g}", f"{found[2] / MIB:g}"]
            bound = "-" if found is None else f"{found[1] / 1000:g}"
            known = ["-" if held is None else f"{held:g}", "-" if taken_ns is None else f"{taken_ns / 1000:g}"]
            table.add_row(str(p), name, published, *known, str(limit), *cells, bound)
    Console(width=132).print(table)
    return holds


def on_models(ranks: Sequence[int], microbatches: int, limits: Limits) -> bool:
    """The second table; whether ours is never longer."""
    table = Table(title="A step in milliseconds, and times over Baseline (published)", pad_edge=False, box=None)
    for name in (
        "ranks",
        "vocabulary",
        "Baseline",
        "Redis",
        "Vocab-1",
        "Vocab-2",
        "ours, fused",
        "ours, B and W",
        "layout open",
        "bound",
    ):
        table.add_column(name, justify="right")
    peaks_of, holds = Table(title="Peak activations of a rank in GiB, values that wait included", pad_edge=False, box=None), True
    for name in ("ranks", "vocabulary", "Baseline", "Redis", "Vocab-1", "Vocab-2", "ours, fused", "ours, B and W", "layout open"):
        peaks_of.add_column(name, justify="right")
    for p in ranks:
        blocks, hidden, heads = MODELS[p]
        for size, published in PUBLISHED[p, 2048].items():
            config = {
                "n_layer": blocks,
                "n_embd": hidden,
                "n_head": heads,
                "n_positions": 2048,
                "vocab_size": int(size[:-1]) * 1024,
            }
            gpt = architecture_of_config({"model_type": "gpt2", **config, "tie_word_embeddings": False}, "gpt", Location("gpt"))
            layers = layers_of(gpt, device_named("a100"), Setting(sequence_length=2048))
            network = {"topology": {"within": {"latency": "10 us", "bandwidth": "25 GB/s"}}}
            even = [blocks // p + (rank == 0) for rank in range(p)]
            flat = {"placement": "unidirectional"}
            split = job(layers, p, microbatches, {**flat, "partition": even, "head": "split"}, **network).problem
            first = job(layers, p, microbatches, {**flat, "partition": [*even[:-1], even[-1] + 1]}, **network)
            least = [end - begin for begin, end in balanced_partition(first.workload, place("unidirectional", p), frozenset())]
            spread = job(layers, p, microbatches, {**flat, "partition": least}, **network).problem
            single = one_barrier(split, p)
            found = [
                _1f1b(first.problem),
                _1f1b(spread),
                timed(split, passes(split, p, barriers=2)),
                timed(single, passes(single, p, barriers=1)),
            ]
            times, peaks = [time_ns for time_ns, _ in found], [max(each) for _, each in found]
            limit = peaks[2]
            made = [ours((split, single), limit, limits, apart=apart) for apart in (False, True)]
            open_layout = {"placement": "auto", "partition": "auto", "chunks": 2, "head": "auto"}
            question = job(layers, p, microbatches, open_layout, **network, memory={"limit": f"{limit} B"})
            certificate = compile_question(
                OpenLayouts(question.workload, question.open_layout), SearchSettings(limits=limits)
            ).plan.certificate
            made.append((certificate.makespan_ns, certificate.lower_bound_ns, max(certificate.peak_activation_bytes)))
            holds &= all(each is not None and each[0] <= times[2] for each in made)
            base = times[0]
            said = [f"{each / published[0]:.2f}" for each in published]
            cells = [f"{each / 1e6:.0f} {base / each:.2f} ({said[at]})" for at, each in enumerate(times)]
            cells += ["-" if each is None else f"{each[0] / 1e6:.0f} {base / each[0]:.2f}" for each in made]
            table.add_row(str(p), size, *cells, f"{certificate.lower_bound_ns / 1e6:.0f}")
            shown = [f"{each / 2**30:.2f}" for each in (*peaks, *(0 if each is None else each[2] for each in made))]
            peaks_of.add_row(str(p), size, *shown)
    Console(width=160).print(table)
    Console(width=132).print(peaks_of)
    return holds


def _1f1b(problem: Problem) -> tuple[int, tuple[int, ...]]:
    plan = compile_problem(replace(problem, split_backward=False), SearchSettings(method="1f1b")).plan
    return plan.certificate.makespan_ns, plan.certificate.peak_activation_bytes


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for each plan of ours")
    parser.add_argument("--ranks", type=int, nargs="*", default=[8, 16], choices=tuple(MODELS), help="of the second table")
    parser.add_argument("--units", type=int, nargs="*", default=[4, 8, 16], help="ranks of the first table")
    parser.add_argument("--microbatches", type=int, default=128, help="of the second table")
    options = parser.parse_args()
    limits = Limits(time_s=options.time_limit)
    return int(not (in_units(options.units, limits) & on_models(options.ranks, options.microbatches, limits)))


if __name__ == "__main__":
    sys.exit(main())
