"""Which transfers the compute queues of a Plan need: for each message between ranks its producer and its consumer.

It is the verifier's own reading of problem and compute queues; lowering has another.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir.ops import WHOLE, Kind, Op

if TYPE_CHECKING:
    from schedc.ir.plan import Plan


class Need(NamedTuple):
    """One message that must cross ranks."""

    op: Op
    """The block that produces it, whole: the transfer's name."""
    source: int
    destination: int
    producer: int
    """The index in the source's compute queue of the op that ends the block."""
    consumer: int
    """The index in the destination's compute queue of the first op of the block that needs it."""


def needs_of(plan: Plan) -> dict[Op, Need]:
    """The messages that cross ranks, by name, for the blocks that the compute queues hold; the plan's ranks are 0, 1, …."""
    first: dict[tuple[int, int, int], int] = {}
    last: dict[tuple[int, int, int], int] = {}
    for rank in plan.ranks:
        for index, (kind, stage, microbatch, _) in enumerate(rank.compute):
            block = (kind, stage, microbatch)
            first.setdefault(block, index)
            last[block] = index
    needs: dict[Op, Need] = {}
    ranks = [stage.rank for stage in plan.problem.stages]
    crossed = [
        [(before, after, ranks[before], ranks[after]) for before, after in pairwise(path) if ranks[before] != ranks[after]]
        for path in plan.problem.paths
    ]
    for microbatch, path in enumerate(plan.problem.path_of):
        for before, after, here, there in crossed[path]:
            back, to = (Kind.B if (Kind.B, stage, microbatch) in last else Kind.BW for stage in (after, before))
            for kind, stage, source, consuming, destination in (
                (Kind.F, before, here, (Kind.F, after, microbatch), there),
                (back, after, there, (to, before, microbatch), here),
            ):
                producer, consumer = last.get((kind, stage, microbatch)), first.get(consuming)
                if producer is not None and consumer is not None:
                    op = Op(kind, stage, microbatch, WHOLE)
                    needs[op] = Need(op, source, destination, producer, consumer)
    return needs
