"""Time windows: how early each op can start, and how much must follow its end, by longest paths through the needs.

Blocks go in, heads and tails in ticks come out. Formulations use them to narrow variables before solving; with an incumbent of
value U, an op of duration d starts in [head, U − tail − d]. Where the objective is the stage span, each rank's clock starts
with its first op, so a tail is measured from U plus that op's head, and may be negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedc.ir.ops import Op
    from schedc.ir.problem import Problem
    from schedc.models.blocks import Blocks

__all__ = ["Windows", "windows_of"]


@dataclass(frozen=True, slots=True)
class Windows:
    """Per op, in ticks."""

    head: dict[Op, int]
    """The earliest start."""
    tail: dict[Op, int]
    """The least time from its end to the end of everything; to the end of its rank's span, where that is the objective."""
    origin: dict[int, int]
    """Per rank, when its clock starts: 0, or for the stage span the head of its first op."""
    path: int
    """The longest path: no schedule has a smaller objective."""


def windows_of(problem: Problem, blocks: Blocks) -> Windows:
    """Heads and tails along needs, transfers, collectives, and the microbatch order of each stage and kind."""
    after: dict[Op, list[tuple[Op, int]]] = {op: [] for op in blocks.duration}
    waiting = dict.fromkeys(blocks.duration, 0)
    edges = [(before, op, 0) for before, op in blocks.needs]
    edges += [(move.producer, move.consumer, move.occupancy + move.latency) for move in blocks.transfers]
    edges += [(before, op, 0) for chain in blocks.chains for before, op in pairwise(chain)]
    for before, op, gap in edges:
        after[before].append((op, gap))
        waiting[op] += 1
    order = [op for op, count in waiting.items() if count == 0]
    head = {op: blocks.gather.get(op.stage, 0) for op in blocks.duration}
    for op in order:
        for later, gap in after[op]:
            head[later] = max(head[later], head[op] + blocks.duration[op] + gap)
            waiting[later] -= 1
            if waiting[later] == 0:
                order.append(later)
    origin = dict.fromkeys(range(problem.ranks), 0)
    if problem.objective == "stage-span":
        for rank in origin:
            origin[rank] = min((start for op, start in head.items() if problem.rank_of(op) == rank), default=0)
    tail = {op: -origin[problem.rank_of(op)] for op in blocks.duration}
    if problem.objective == "makespan":
        for chain in blocks.chains:
            tail[chain[-1]] = blocks.scatter.get(chain[-1].stage, 0)
    for op in reversed(order):
        for later, gap in after[op]:
            tail[op] = max(tail[op], gap + blocks.duration[later] + tail[later])
    return Windows(head, tail, origin, max(head[op] + length + tail[op] for op, length in blocks.duration.items()))
