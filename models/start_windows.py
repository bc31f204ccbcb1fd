"""Time windows: how early each op can start, and how much must follow its end, by longest paths through the needs.

Blocks go in, heads and tails in ticks come out. Formulations use them to narrow variables before solving; with an incumbent of
value U, an op of duration d starts in [head, U − tail − d]. What may be fused counts with the least that it takes. Where the
objective is the stage span, each rank's clock starts with its first op, so a tail is measured from U plus that op's head, and may
be negative.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.ir.alike import are_alike
from schedc.ir.ops import Kind, Op
from schedc.ir.problem import Objective
from schedc.models.blocks import followers_of

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.models.blocks import Blocks

__all__ = ["Windows", "certain_first_ops", "windows_of"]


@dataclass(frozen=True, slots=True)
class Windows:
    """Per op, in ticks."""

    head: dict[Op, int]
    """The earliest start."""
    tail: dict[Op, int]
    """The least time from its end to the end of everything; to the end of its rank's span, where that is the objective."""
    origin: dict[int, int]
    """Per rank, when its clock starts: 0, or for the stage span the head of its first op."""
    first_ops: tuple[Op, ...]
    """For the stage span, where it is certain with which op each rank begins, and when: at its head."""
    path: int
    """The longest path: no schedule has a smaller objective."""


def certain_first_ops(problem: Problem) -> list[Op]:
    """The op with which each rank begins at its head in every schedule that takes microbatches in order; empty where that is open.

    Microbatch 0 comes to every rank before any other, and finds every link free, if all are alike, one path visits each rank once
    before it visits any again, no two links share a trunk, and no all-gather is waited for.
    """
    trunks = [link.trunk for link in problem.links if link.trunk is not None]
    parallel = problem.data_parallel
    head = problem.paths[0][: problem.ranks]
    certain = (
        are_alike(problem)
        and len(problem.paths) == 1
        and len({problem.stages[stage].rank for stage in head}) == problem.ranks
        and len(set(trunks)) == len(trunks)
        and (parallel is None or not parallel.all_gather_ns)
    )
    return [Op(Kind.F, stage, 0) for stage in head] if certain else []


def windows_of(problem: Problem, blocks: Blocks) -> Windows:
    """Heads and tails along needs, transfers, collectives, and the chains."""
    after = followers_of(blocks)
    head = {op: blocks.gather.get(op.stage, 0) for op in blocks.duration}
    for op, followers in after.items():
        for later, gap in followers:
            head[later] = max(head[later], head[op] + blocks.least(op) + gap)
    first_ops = tuple(certain_first_ops(problem)) if problem.objective is Objective.STAGE_SPAN else ()
    origin = dict.fromkeys(range(problem.ranks), 0) | {problem.rank_of(op): head[op] for op in first_ops}
    tail = {op: -origin[problem.rank_of(op)] for op in blocks.duration}
    if problem.objective is Objective.MAKESPAN:
        for chain in blocks.chains:
            tail[chain[-1]] = blocks.scatter.get(chain[-1].stage, 0)
    weights: dict[Op, list[Op]] = defaultdict(list)
    for op in blocks.duration:
        if blocks.may_vanish(op):
            weights[blocks.backward_of(op)].append(op)
    for op in reversed(after):
        for later, gap in after[op]:
            tail[op] = max(tail[op], gap + blocks.least(later) + tail[later])
        if op in blocks.fused:
            weight = sum(blocks.duration[part] for part in weights[op])
            split = blocks.duration[op] + max(tail[op], weight + tail[weights[op][-1]])
            tail[op] = min(split, blocks.fused[op] + tail[op]) - blocks.least(op)
    return Windows(head, tail, origin, first_ops, max(head[op] + blocks.least(op) + tail[op] for op in blocks.duration))
