"""A model condensed to blocks, so that all its boundaries can be tried: DynPipe, section V.B, Algorithm 2.

The k layers that take the most time are the critical ones. A block is a critical layer with all layers before it, up to the block
before; what follows the last critical layer is a block, too. A stage consists of whole blocks. With k = all layers,
every boundary is among the candidates; the paper's networks have few layers that take long, and the others cost nothing to keep
with one of these. Where many layers take the same time, and not all are critical, those that are lie evenly over the model.

In go the layout that runs, the layers and what has changed; out come layouts, which `schedc.adapt.repartition` times. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.ir import Conditions, Kind, Layer, Link, Workload

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from schedc.solvers.layout.layout_arrays import LayoutArrays

MOST_WANTED = 100_000
"""At most this many layouts, where the user says how many layers are critical: a minute, and as much memory as a large plan."""


def condensed_layouts(
    running: LayoutArrays, workload: Workload, conditions: Conditions, links: Collection[Link], top_k: int | None, most: int
) -> Iterator[LayoutArrays]:
    """All layouts whose stages are of whole blocks, on the ranks where they run (lines 11 and 12); the stages' number stays.

    `running` says where each stage is, and by how much each layer is slowed down there. A layer's communication is a microbatch's
    messages behind it, over the slowest of the `links` under the conditions. `top_k` layers are critical; None: as many as make at
    most `most` layouts, at least one for each stage.

    Raises:
        InvalidInput: `top_k` makes more than `MOST_WANTED` layouts.
    """
    layers, stages = len(workload.layers), len(running.ranks)
    times_ns = [
        _time_ns(layer, running.ranks[bisect_right(running.cuts, at) - 1], workload, conditions, links)
        for at, layer in enumerate(workload.layers)
    ]

    def starts_with(wanted: int) -> list[int]:
        """Where blocks begin, but the first: behind each critical layer; the last block ends with the model."""
        return [layer + 1 for layer in critical_layers(times_ns, wanted) if layer + 1 < layers]

    if top_k is None:
        fitting = (wanted for wanted in range(layers, stages, -1) if comb(len(starts_with(wanted)), stages - 1) <= most)
        top_k = next(fitting, min(stages, layers))
    starts = starts_with(top_k)
    if (count := comb(len(starts), stages - 1)) > MOST_WANTED:
        fits = next(wanted for wanted in range(top_k, 0, -1) if comb(wanted, stages - 1) <= MOST_WANTED)
        raise InvalidInput(f"top_k: found {top_k}, which makes {count} layouts of {stages} stages, expected at most {fits}")
    for cuts in combinations(starts, stages - 1):
        yield running._replace(cuts=(0, *cuts, layers))


def critical_layers(times_ns: list[float], top_k: int) -> list[int]:
    """The `top_k` layers that take the most time (line 4), in the model's order; of equal ones, some that lie evenly."""
    if top_k >= len(times_ns):
        return list(range(len(times_ns)))
    least_ns = sorted(times_ns, reverse=True)[top_k - 1]
    above = [layer for layer, time_ns in enumerate(times_ns) if time_ns > least_ns]
    equal = [layer for layer, time_ns in enumerate(times_ns) if time_ns == least_ns]
    wanted = top_k - len(above)
    return sorted([*above, *(equal[(2 * number + 1) * len(equal) // (2 * wanted)] for number in range(wanted))])


def _time_ns(layer: Layer, rank: int, workload: Workload, conditions: Conditions, links: Collection[Link]) -> float:
    """What a microbatch of the first length computes in a layer on the rank that has it, and sends behind it."""
    forward, gradient, weight = (conditions.slowdown.get((rank, kind), 1.0) for kind in (Kind.F, Kind.B, Kind.W))
    compute_ns = layer.forward_ns[0] * forward + layer.backward_ns[0] * (gradient + weight) / 2
    sending_ns = max((link.occupancy_ns(layer.message_bytes + layer.gradient_message_bytes) for link in links), default=0)
    return compute_ns / float(workload.devices[rank].speed) + sending_ns
