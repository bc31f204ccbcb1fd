"""What must come before what, as a graph of the ops.

Blocks go in; an order of the ops, and whether one of them is certainly before another, come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.models.blocks import Blocks, followers_of

if TYPE_CHECKING:
    from schedc.ir.ops import Op


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
    after = followers_of(blocks)
    place = {op: number for number, op in enumerate(after)}
    reached: dict[Op, int] = {}
    for op in reversed(after):
        bits = 0
        for later, _ in after[op]:
            bits |= reached[later] | 1 << place[later]
        reached[op] = bits
    return Graph(after, place, reached)
