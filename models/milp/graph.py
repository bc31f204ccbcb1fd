"""What must come before what, as a graph of the ops.

Blocks go in; an order of the ops, and whether one of them is certainly before another, come out. The edges are the needs, the
transfers, and the microbatch order of each stage and kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedc.ir.ops import Op
    from schedc.models.blocks import Blocks

__all__ = ["Graph", "graph_of"]


@dataclass(frozen=True, slots=True)
class Graph:
    """The ops in an order in which every op follows what it needs."""

    after: dict[Op, list[tuple[Op, int]]]
    """Per op, what follows it directly, and how many ticks after its end at the least. In topological order."""
    place: dict[Op, int]
    """Per op, its number in that order."""
    reached: dict[Op, int]
    """Per op, the set of all that follows it, as the bits of their numbers."""

    def follows(self, before: Op, after: Op) -> bool:
        """Whether `after` starts after `before` has ended in every schedule."""
        return bool(self.reached[before] >> self.place[after] & 1)


def graph_of(blocks: Blocks) -> Graph:
    """The graph of the blocks."""
    edges = [(before, op, 0) for before, op in blocks.needs]
    edges += [(move.producer, move.consumer, move.occupancy + move.latency) for move in blocks.transfers]
    edges += [(before, op, 0) for chain in blocks.chains for before, op in pairwise(chain)]
    sorter: TopologicalSorter[Op] = TopologicalSorter(dict.fromkeys(blocks.duration, ()))
    for before, op, _ in edges:
        sorter.add(op, before)
    order = tuple(sorter.static_order())
    after: dict[Op, list[tuple[Op, int]]] = {op: [] for op in order}
    for before, op, gap in edges:
        after[before].append((op, gap))
    place = {op: number for number, op in enumerate(order)}
    reached: dict[Op, int] = {}
    for op in reversed(order):
        bits = 0
        for later, _ in after[op]:
            bits |= reached[later] | 1 << place[later]
        reached[op] = bits
    return Graph(after, place, reached)
