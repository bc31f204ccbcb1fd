"""How soon the search over layouts is done at scale: 16 ranks, 256 microbatches, models of 112 to 130 uneven layers.

The models are made after table 5 of AdaPtis (its size Large), each twice: with the width and the vocabulary of that table, where
the output layer costs as much as many blocks, and with those of the largest published model of its family, which balances. No cost
is measured. A layer's forward takes two floating-point operations for each weight that a token uses, and the scores of a causal
attention, times 4,096 tokens, at 400 TFLOP/s; tensor parallelism divides the wide ones by 8. B takes as long as F, with the scores
twice; W what F spends on weights; BW both together. Mamba runs at half of that speed, as its scan is bound by memory; a mixture of
experts takes half as much again, for dispatch and combine. So:

- gemma: 128 blocks, each attention and a gated FFN; an embedding and a head.
- deepseek: 64 blocks of two layers, latent attention and FFN; the first three FFN are dense, the others mixtures of experts.
- nemotron-h: 112 layers, Mamba and FFN by turns; every eleventh is attention.

A rank can hold a quarter more than balanced 1F1B holds on the fullest rank, so memory counts; links take 10 µs and 50 GB/s.

Prints, for each model, the best of the named layouts with the known methods, what the search has after 10 s of two cores (its start
and its end included) and after a long run, and what the former lacks. Two walks run beside each other; cores are counted in seconds
of CPU time, so that other work on the machine does not count. Exit status 1: one lacks more than 1 %.

Run it as `python benchmarks/layouts/at_scale.py [--long 600] [MODEL ...]`.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.compiled.compiler import compiled
from schedc.ir.costs import MessageCost
from schedc.ir.layout import OpenLayout
from schedc.ir.network import Network
from schedc.ir.workload import Device, Layer, Workload
from schedc.solvers.heuristics.rule_table import RuleTable
from schedc.solvers.layout.baselines import baselines, named_layouts
from schedc.solvers.layout.climb import LayoutClimb
from schedc.solvers.layout.evaluation.kernel import evaluate_chain
from schedc.solvers.layout.layout_arrays import layout_arrays_of, scheduled_layout

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS, MICROBATCHES, CHUNKS = 16, 256, 2
CORES, SHORT_S, MOST_WORSE = 2, 10.0, 0.01
FIRST, FINISHED = 500, 2
"""Layouts on which the pace of the search is measured; and how many of the best get the schedules of more rules at the end."""
END_SHARE = 0.2
"""Of the short run, kept for its end."""
TOKENS = 4096
FLOPS_PER_NS = 400_000
ROOM = 1.25
"""Times what balanced 1F1B holds on the fullest rank."""
NETWORK = Network(site_of_rank=(0,) * RANKS, within=MessageCost(latency_ns=10_000, bytes_per_second=50_000_000_000))
BYTES_PER_PARAMETER = 16
SECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a model is made of."""

    width: int
    vocabulary: int
    tensor_parallel: int
    heads: int
    ffn: int
    experts_ffn: int = 0
    """The width of all experts that a token uses, together."""
    state: int = 128
    """Of Mamba."""


def main() -> int:
    """Run the searches and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", help=f"some of: {', '.join(MODELS)}; all, if none is named")
    parser.add_argument("--long", type=float, default=600.0, help="seconds of the long run")
    options = parser.parse_args()
    compiled(evaluate_chain)
    table = Table(title=f"{RANKS} ranks, {MICROBATCHES} microbatches, at most {CHUNKS} stages a rank: step times in s")
    table.add_column("model")
    runs = [heading for each in (SHORT_S, options.long) for heading in (f"after {each:g} s", "layouts", "CPU s")]
    for heading in ("layers", "best named", *runs, "lacks"):
        table.add_column(heading, justify="right")
    lacks = []
    for name in options.models or MODELS:
        workload = made(name)
        named_ns = baselines(workload, OpenLayout(chunks=CHUNKS))[0].objective_ns
        (short_ns, *short), (long_ns, *long) = (_searched(workload, each) for each in (SHORT_S, options.long))
        lacks.append(short_ns / min(short_ns, long_ns) - 1)
        cells = [cell for ns, (count, cpu_s) in ((short_ns, short), (long_ns, long)) for cell in (ns / SECONDS, count, cpu_s)]
        shown = [f"{cell:.4f}" if number % 3 == 0 else f"{cell:.0f}" for number, cell in enumerate(cells)]
        table.add_row(name, str(len(workload.layers)), f"{named_ns / SECONDS:.4f}", *shown, f"{lacks[-1]:.2%}")
        print(f"{name}: {', '.join(shown)}", file=sys.stderr, flush=True)
    Console(width=140).print(table)
    return int(max(lacks) > MOST_WORSE)


def made(name: str) -> Workload:
    """The model of this name, with its memory limit."""
    make, size = MODELS[name]
    workload = Workload(
        name=name,
        microbatches=MICROBATCHES,
        layers=make(size),
        devices=(Device(),) * RANKS,
        network=NETWORK,
    )
    draft = layout_arrays_of(named_layouts(workload, OpenLayout(chunks=1))["balanced unidirectional"])
    held = []
    for stage, (first, last) in enumerate(zip(draft.cuts, draft.cuts[1:], strict=False)):
        layers = workload.layers[first:last]
        in_flight = min(MICROBATCHES, RANKS - stage)
        held.append(sum(layer.static_bytes + in_flight * layer.activation_bytes for layer in layers))
    return replace(workload, devices=(Device(capacity_bytes=int(ROOM * max(held))),) * RANKS)


def _searched(workload: Workload, seconds: float) -> tuple[int, int, float]:
    """The best objective after this long on all cores, start and end included; how many layouts were evaluated; CPU seconds."""
    begun_s = time.process_time()
    search = LayoutClimb(workload, OpenLayout(chunks=CHUNKS), workers=CORES)
    count = FIRST
    while count >= FIRST:
        before, start_s = search.evaluated, time.process_time()
        search.run(evaluations=count)
        pace = (search.evaluated - before) / (time.process_time() - start_s)
        count = round(pace * (CORES * (seconds - END_SHARE * SHORT_S) - (time.process_time() - begun_s)))
    kept = search.scheduled(FINISHED)
    by_table = [scheduled_layout(workload, each.layout, RuleTable(), "layouts + rule-table") for each in kept]
    found = [each.objective_ns for each in (*kept, *by_table, *baselines(workload, OpenLayout(chunks=CHUNKS))) if each is not None]
    return min(found), search.evaluated, time.process_time() - begun_s


def _layer(size: Size, weights: float, scores: float = 0.0, slowness: float = 1.0, kept: float = 0.0) -> Layer:
    """A layer.

    Args:
        size: of its model.
        weights: that a token uses.
        scores: floating-point operations of a token's forward that use none.
        slowness: how much longer it takes.
        kept: weights besides that a token does not use.
    """
    per_ns = FLOPS_PER_NS * size.tensor_parallel / slowness / TOKENS
    weights_ns, scores_ns = round(2 * weights / per_ns), round(scores / per_ns)
    message_bytes = 2 * TOKENS * size.width
    activation_bytes = 17 * message_bytes // (2 * size.tensor_parallel)
    return Layer(
        forward_ns=(weights_ns + scores_ns,),
        backward_input_ns=(weights_ns + 2 * scores_ns,),
        backward_weight_ns=(weights_ns,),
        backward_ns=(2 * (weights_ns + scores_ns),),
        activation_bytes=activation_bytes,
        activation_after_input_bytes=activation_bytes // 2,
        message_bytes=message_bytes,
        gradient_message_bytes=message_bytes,
        static_bytes=BYTES_PER_PARAMETER * round((weights + kept) / size.tensor_parallel),
    )


def _embedding(size: Size) -> Layer:
    return replace(
        _layer(size, 0.1 * size.width**2, kept=size.vocabulary * size.width), activation_bytes=0, activation_after_input_bytes=0
    )


def _head(size: Size) -> Layer:
    return replace(_layer(size, size.vocabulary * size.width), message_bytes=0, gradient_message_bytes=0)


def _attention(size: Size) -> Layer:
    """Eight key and value heads."""
    return _layer(size, (2 + 16 / size.heads) * size.width**2, 2 * TOKENS * size.width)


def _gemma(size: Size) -> tuple[Layer, ...]:
    attention, ffn = (2 + 16 / size.heads) * size.width**2, 3 * size.ffn * size.width
    return (_embedding(size), *[_layer(size, attention + ffn, 2 * TOKENS * size.width)] * 128, _head(size))


def _deepseek(size: Size) -> tuple[Layer, ...]:
    low_rank = 1536 + 576 if size.width > 4000 else 576
    attention = _layer(size, low_rank * size.width + size.heads * (448 * 512 + 128 * size.width), 320 * TOKENS * size.heads)
    dense = _layer(size, 3 * size.ffn * size.width)
    experts = _layer(size, 3 * size.experts_ffn * size.width, slowness=1.5, kept=6 * size.experts_ffn * size.width)
    blocks = [layer for block in range(64) for layer in (attention, dense if block < 3 else experts)]
    return (_embedding(size), *blocks, _head(size))


def _nemotron_h(size: Size) -> tuple[Layer, ...]:
    mamba = _layer(size, (6 + 16 * size.state / size.width) * size.width**2, slowness=2.0)
    ffn = _layer(size, 2 * size.ffn * size.width)
    blocks = [_attention(size) if layer % 11 == 7 else (mamba, ffn)[layer % 2] for layer in range(112)]
    return (_embedding(size), *blocks, _head(size))


MODELS: dict[str, tuple[Callable[[Size], tuple[Layer, ...]], Size]] = {
    "gemma": (_gemma, Size(width=1536, vocabulary=1 << 20, tensor_parallel=1, heads=16, ffn=6144)),
    "gemma, wide": (_gemma, Size(width=5376, vocabulary=262_144, tensor_parallel=8, heads=32, ffn=21_504)),
    "deepseek": (_deepseek, Size(width=2048, vocabulary=1 << 19, tensor_parallel=1, heads=16, ffn=10_944, experts_ffn=11_264)),
    "deepseek, wide": (
        _deepseek,
        Size(width=7168, vocabulary=129_280, tensor_parallel=8, heads=128, ffn=18_432, experts_ffn=18_432),
    ),
    "nemotron-h": (_nemotron_h, Size(width=1024, vocabulary=1 << 19, tensor_parallel=1, heads=16, ffn=4096)),
    "nemotron-h, wide": (_nemotron_h, Size(width=8192, vocabulary=131_072, tensor_parallel=8, heads=64, ffn=32_768, state=256)),
}

if __name__ == "__main__":
    sys.exit(main())
