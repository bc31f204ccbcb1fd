"""Models of several modules whose encoder costs differ by microbatch: layouts that are searched for, against those made by hand.

The cases are made after DIP's description (Xue et al., "DIP: Efficient Large Multimodal Model Training with Dynamic Interleaved
Pipeline", arXiv 2504.14145): three vision-language models and two that make videos of text, 12 to 94 billion parameters; how many
images or clips a microbatch has is drawn. The numbers are this program's: its generator is seeded, and nothing is measured.

- *Vision-language*: documents are packed to 8,192 tokens. A microbatch draws which share of them are pictures with a caption (one
  image, a median of 30 tokens of text), the others are pages (1 to 5 images, a median of 600 tokens). An image is 676 patches for
  the encoder and 169 tokens for the decoder, so a microbatch has up to 48. The decoder's microbatches are alike, the encoder's not.
- *Text to video*: clips of 2 to 16 s are packed to 16 s, with captions of a median of 200 tokens; a second is 1,024 tokens.
  Attention is within a clip, so both modules' microbatches differ.

A block takes its FLOPs at 45 % of 8 H100 (989 TFLOP/s); a rank is such a node, with 8 × 80 GB, 6 bytes for each parameter and 34
bytes for each token and unit of width in each block, of the largest microbatch; messages go at 8 × 50 GB/s, with 10 µs. There are 4
microbatches for each rank. The decoder's ids go past the encoder, so that stages are a graph.

By hand, each module balanced by itself: (a) the encoder whole on the first rank, with an even share of the decoder or with none,
1F1B; (b) the encoder on ranks of its own, on how many is best, 1F1B; (c) the best of these, of one balanced chain, and of each
module spread over all ranks, the decoder once, twice or three times (what DIP calls segments), under 1F1B, ZB-H1 and interleaved
1F1B; (d) the same layouts, under `rule-table`. Ours: partition, placement (at most 4 stages on a rank) and schedule by `auto`, in
the order that is given, and in any. The bound is that over layouts, in any order.

Run it as `python benchmarks/layouts/modules.py ROWS.csv [--time-limit 30] [--draws 2] [--video] [--only-table]`. Cases that are
finished are rows of the CSV and are not run again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.driver import OpenLayouts, compile_question
from schedc.compiled.compiler import compiled
from schedc.errors import Unsupported
from schedc.ir.costs import MessageCost
from schedc.ir.graph import Edge
from schedc.ir.layout import Layout, OpenLayout, Placement
from schedc.ir.network import Network
from schedc.ir.workload import Device, Layer, Workload
from schedc.lower.partition import balanced_partition
from schedc.lower.placement import place, placement_name
from schedc.lower.problem import problem_of
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.heuristics.rule_table import RuleTable
from schedc.solvers.layout.evaluation.kernel import evaluate
from schedc.solvers.templates import TEMPLATES
from schedc.verify.layout import verify_layout

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from benches.kept_rows import append_row, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FLOPS_PER_NS = 0.45 * 8 * 989_000
CAPACITY_BYTES, BYTES_PER_PARAMETER, BYTES_PER_UNIT = 8 * 80 * 10**9, 6, 34
LINK = MessageCost(latency_ns=10_000, bytes_per_second=8 * 50 * 10**9)
TOKENS, PATCHES, OF_IMAGE = 8_192, 676, 169
SECONDS, OF_SECOND = 16, 1_024
RANKS, PER_RANK, CHUNKS = (4, 8), 4, 4
KEYS = ("model", "ranks", "draw")
HAND = ("a", "b", "c", "d")
METHODS = ("1f1b", "zb-h1", "interleaved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The blocks of a module."""

    count: int
    width: int
    weights: int
    """Of one block."""
    vocabulary: int = 0
    """Of the head behind them; 0: there is none."""


def _encoder(count: int, width: int) -> Blocks:
    return Blocks(count=count, width=width, weights=12 * width * width)


def _decoder(count: int, width: int, hidden: int, kv: float, vocabulary: int = 0) -> Blocks:
    return Blocks(count=count, width=width, weights=round((2 + 2 * kv) * width * width + 3 * width * hidden), vocabulary=vocabulary)


LLAMA_8B, QWEN_32B = (32, 4096, 14336, 1 / 4), (64, 5120, 27648, 1 / 5)
VISION = {
    "ViT 5B + Llama 3 8B": (_encoder(48, 3072), _decoder(*LLAMA_8B, 128256)),
    "ViT 5B + Qwen2.5 32B": (_encoder(48, 3072), _decoder(*QWEN_32B, 152064)),
    "ViT 22B + Qwen2.5 72B": (_encoder(48, 6144), _decoder(80, 8192, 29568, 1 / 8, 152064)),
}
VIDEO = {
    "Llama 3 8B + DiT 5B": (_decoder(*LLAMA_8B), _encoder(48, 3072)),
    "Qwen2.5 32B + DiT 30B": (_decoder(*QWEN_32B), _encoder(64, 6272)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """What a microbatch has for a module: sequences of these lengths, which attend to themselves."""

    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """All of them."""
        return sum(self.lengths)

    @property
    def pairs(self) -> int:
        """Of tokens, in attention."""
        return sum(length * length for length in self.lengths)


def drawn_images(random: Random) -> tuple[Sequences, Sequences]:
    """Of one microbatch of images and text."""
    captions, images, text = random.random(), 0, 0
    while True:
        more, words = 1, round(random.lognormvariate(3.4, 0.8))
        if random.random() >= captions:
            more, words = random.randint(1, 5), round(random.lognormvariate(6.4, 0.8))
        if (images + more) * OF_IMAGE + text + words > TOKENS:
            return Sequences(lengths=(PATCHES,) * images), Sequences(lengths=(TOKENS,))
        images, text = images + more, text + words


def drawn_clips(random: Random) -> tuple[Sequences, Sequences]:
    """Of one microbatch of captions and clips; what the last one is longer than the rest of the time is cut off."""
    captions: list[int] = []
    clips: list[int] = []
    while sum(clips) < SECONDS:
        clips.append(min(random.randint(2, SECONDS), SECONDS - sum(clips)))
        captions.append(max(1, round(random.lognormvariate(5.3, 0.6))))
    return Sequences(lengths=tuple(captions)), Sequences(lengths=tuple(OF_SECOND * clip for clip in clips))


def workload_of(model: str, ranks: int, draw: int) -> Workload:
    """The case."""
    random, count = Random(f"{model}:{ranks}:{draw}"), PER_RANK * ranks
    sizes = VISION.get(model) or VIDEO[model]
    batch = [(drawn_images if model in VISION else drawn_clips)(random) for _ in range(count)]
    modules = [_layers(blocks, [each[at] for each in batch]) for at, blocks in enumerate(sizes)]
    first, layers = len(modules[0]), (*modules[0], *modules[1])
    edges = [
        Edge(
            source=layer,
            destination=layer + 1,
            message_bytes=layers[layer].message_bytes,
            gradient_message_bytes=layers[layer].gradient_message_bytes,
        )
        for layer in range(len(layers) - 1)
    ]
    edges.append(Edge(source=0, destination=first, message_bytes=8 * TOKENS, gradient_message_bytes=None, value=1))
    return Workload(
        name=model,
        microbatches=count,
        layers=layers,
        devices=(Device(capacity_bytes=CAPACITY_BYTES),) * ranks,
        network=Network(site_of_rank=(0,) * ranks, within=LINK),
        edges=tuple(edges),
        modules=tuple(map(len, modules)),
    )


def _layers(blocks: Blocks, batch: Sequence[Sequences]) -> tuple[Layer, ...]:
    """The module's layers; what is held and sent is that of the largest microbatch."""
    most = max(each.tokens for each in batch)

    def layer(weights: int, held: int, attends: int) -> Layer:
        own = [round(2 * weights * each.tokens / FLOPS_PER_NS) for each in batch]
        attention = [round(attends * 4 * blocks.width * each.pairs / FLOPS_PER_NS) for each in batch]
        forward = [a + b for a, b in zip(own, attention, strict=True)]
        gradient = [a + 2 * b for a, b in zip(own, attention, strict=True)]
        return Layer(
            forward_ns=_alike(forward),
            backward_input_ns=_alike(gradient),
            backward_weight_ns=_alike(own),
            backward_ns=_alike([a + b for a, b in zip(gradient, own, strict=True)]),
            activation_bytes=held * blocks.width * most,
            activation_after_input_bytes=held * blocks.width * most // 2,
            message_bytes=2 * blocks.width * most,
            gradient_message_bytes=2 * blocks.width * most,
            parameters=weights,
            static_bytes=BYTES_PER_PARAMETER * weights,
        )

    head = (layer(blocks.width * blocks.vocabulary, 1, 0),) if blocks.vocabulary else ()
    return (layer(blocks.weights, BYTES_PER_UNIT, 1),) * blocks.count + head


def _alike(values: list[int]) -> tuple[int, ...]:
    return tuple(values) if len(set(values)) > 1 else (values[0],)


def by_hand(workload: Workload) -> Iterator[tuple[str, Layout]]:
    """The layouts: their kind, `a`, `b` or `c`, and what they are."""
    ranks, (encoder, decoder) = workload.ranks, workload.modules
    every, end = list(range(ranks)), encoder + decoder
    shares = [decoder // ranks + (rank < decoder % ranks) for rank in every]
    cuts = (0, *(encoder + each for each in accumulate(shares)))
    yield "a", _layout(every, tuple(pairwise(cuts)))
    for count in range(1, ranks):
        own, rest = _balanced(workload, 0, encoder, every[:count]), _balanced(workload, encoder, end, every[count:])
        yield "a" if count == 1 else "b", _layout(every, own + rest)
        if count == 1:
            yield "b", _layout(every, own + rest)
    yield "c", _layout(every, _balanced(workload, 0, end, every))
    for chunks in range(1, CHUNKS):
        spread = _balanced(workload, 0, encoder, every), _balanced(workload, encoder, end, chunks * every)
        yield "c", _layout((1 + chunks) * every, spread[0] + spread[1])


def _balanced(workload: Workload, first: int, last: int, ranks: list[int]) -> tuple[tuple[int, int], ...]:
    """These layers on these ranks, as the busiest has the least."""
    part = replace(workload, layers=workload.layers[first:last], edges=(), modules=())
    placed = Placement(rank_of_stage=tuple(ranks), paths=(tuple(range(len(ranks))),))
    return tuple((first + a, first + b) for a, b in balanced_partition(part, placed, frozenset()))


def _layout(ranks: list[int], bounds: tuple[tuple[int, int], ...]) -> Layout:
    placed = place(ranks, max(ranks) + 1)
    name = placement_name(placed.rank_of_stage, max(ranks) + 1)
    return Layout(rank_of_stage=placed.rank_of_stage, paths=placed.paths, layers_of_stage=bounds, placement=name)


def taken_ns(workload: Workload, layout: Layout, method: str) -> int | None:
    """The makespan of a method in a layout; None: it does not exist there, or has no room. Templates take the ids for granted."""
    if verify_layout(workload, layout):
        return None
    problem = problem_of(workload, layout)
    try:
        if method in TEMPLATES:
            schedule = TEMPLATES[method].construct(problem_of(replace(workload, edges=()), layout))
        else:
            schedule = RuleTable().construct(problem)
    except Unsupported:
        return None
    return None if exceeded_limit(problem, schedule) is not None else simulate(problem, schedule).makespan_ns


def measured(workload: Workload, time_s: float) -> dict[str, object]:
    """The makespans, and what the best by hand was."""
    found: dict[str, dict[int, str]] = {kind: {} for kind in HAND}
    for kind, layout in by_hand(workload):
        for method in (*METHODS, "rule-table"):
            made_ns = taken_ns(workload, layout, method)
            if made_ns is None:
                continue
            what = f"{kind} {len(layout.rank_of_stage) // workload.ranks} {method}"
            if method == "1f1b" and kind in "ab":
                found[kind].setdefault(made_ns, what)
            found["d" if method == "rule-table" else "c"].setdefault(made_ns, what)
    row: dict[str, object] = {}
    for kind, known in found.items():
        row[kind] = min(known, default=None)
        row[f"{kind} is"] = known[min(known)] if known else ""
    for name, in_order in (("given", True), ("chosen", False)):
        question = OpenLayouts(replace(workload, in_order=in_order), OpenLayout(chunks=CHUNKS))
        certificate = (made := compile_question(question, SearchSettings(limits=Limits(time_s=time_s)))).plan.certificate
        row |= {name: certificate.makespan_ns, "bound": certificate.lower_bound_ns}
        chosen = made.layout
        assert chosen is not None
        border = workload.modules[0]
        mixed = sum(first < border < last for first, last in chosen.layers_of_stage)
        encoders = {rank for rank, (first, _) in zip(chosen.rank_of_stage, chosen.layers_of_stage, strict=True) if first < border}
        row[f"{name} is"] = f"{len(chosen.rank_of_stage)} stages, {mixed} of both, encoder on {len(encoders)} ranks"
    works = [statistics.mean(layer.forward_ns) + statistics.mean(layer.backward_ns) for layer in workload.layers]
    return row | {"encoder": f"{sum(works[: workload.modules[0]]) / sum(works):.3f}", "spread": f"{_spread(workload):.2f}"}


def _spread(workload: Workload) -> float:
    """The encoder's longest microbatch, in means."""
    each = workload.layers[0].forward_ns
    return max(each) / statistics.mean(each)


def main() -> int:
    """Do the cases that have no row yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("rows", type=Path, help="a CSV that keeps what is done")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each order")
    parser.add_argument("--draws", type=int, default=2, help="batches for each model and number of ranks")
    parser.add_argument("--only-table", action="store_true", help="run nothing; print what the file has")
    parser.add_argument("--video", action="store_true", help="only the models that make videos")
    options = parser.parse_args()
    compiled(evaluate)
    done = [{name: row[name] for name in KEYS} for row in rows_of(options.rows)]
    for model, ranks, draw in product(VIDEO if options.video else (*VISION, *VIDEO), RANKS, range(options.draws)):
        key = {"model": model, "ranks": str(ranks), "draw": str(draw)}
        if key not in done and not options.only_table:
            append_row(options.rows, key | measured(workload_of(model, ranks, draw), options.time_limit))
    _report(rows_of(options.rows))
    return 0


def _report(rows: list[dict[str, str]]) -> None:
    """Print the table."""
    table = Table(title="Ours in any order against layouts by hand, in times of its makespan; gaps to the bound over layouts")
    ratios: dict[str, list[float]] = {name: [] for name in (*HAND, "given")}
    for heading in ("model", "ranks", "encoder's share", "longest / mean", *HAND, "given order", "ours, ms", "gap", "gap, given"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    gaps: list[tuple[float, float]] = []
    for row in rows:
        ours, bound = int(row["chosen"]), int(row["bound"])
        for name, known in ratios.items():
            known += [int(row[name]) / ours] if row[name] else []
        gaps.append((1 - bound / ours, 1 - bound / int(row["given"])))
        cells = (f"{int(row[name]) / ours:.3f}" if row[name] else "-" for name in ratios)
        share = f"{float(row['encoder']):.0%}"
        table.add_row(
            row["model"], row["ranks"], share, row["spread"], *cells, f"{ours / 1e6:.0f}", *(f"{gap:.1%}" for gap in gaps[-1])
        )
    table.add_section()
    for title, of in (("mean", statistics.mean), ("largest", max), ("least", min)):
        table.add_row(
            title,
            "",
            "",
            "",
            *(f"{of(each):.3f}" for each in ratios.values()),
            "",
            *(f"{of(each):.1%}" for each in zip(*gaps, strict=True)),
        )
    console = Console(width=150)
    console.print(table)
    for name in ("c", "chosen"):
        console.print(f"{name}: {'; '.join(row[f'{name} is'] for row in rows)}")


if __name__ == "__main__":
    sys.exit(main())
