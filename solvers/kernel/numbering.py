"""Which microbatch an op of an order is, where microbatches are alike: on each stage they run in the order of their numbers.

The orders of a rank are then words of stages and kinds, of which any word is one. That loses nothing (proof in `models/blocks.py`),
and a changed word is a small change, where one microbatch before another on one stage alone only makes others wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schedc.compiled.kernel import kernel
from schedc.ir import Problem, are_alike
from schedc.solvers.kernel.joints import takes_joints
from schedc.solvers.kernel.tables import KINDS, B, F, W

if TYPE_CHECKING:
    from schedc.solvers.kernel.order_evaluator import Orders, ProblemArrays


class Numbering(NamedTuple):
    """The numbers of the microbatches, and room for `number_anew`."""

    members: Any
    """[stage, place]: the microbatches that visit the stage, ascending; no places where they are not alike."""
    seen: Any
    """[F, backward, W or B, stage]: how many the rank has had."""
    split: Any
    """[stage, place]: the microbatches whose backward was split."""


def unnumbered(stages: int) -> Numbering:
    """Microbatches are not alike: all keep their numbers."""
    return Numbering(np.zeros((stages, 0), np.int64), np.zeros((4, stages), np.int64), np.zeros((stages, 0), np.int64))


def numbering_of(problem: Problem) -> Numbering:
    """Of a problem whose stages have one path each; microbatches of graphs and those in slices are not taken to be alike."""
    nothing = unnumbered(len(problem.stages))
    if takes_joints(problem) or not are_alike(problem):
        return nothing
    members = np.zeros((len(problem.stages), problem.microbatches), np.int64)
    for path, stages in enumerate(problem.paths):
        own = [microbatch for microbatch, on in enumerate(problem.path_of) if on == path]
        members[list(stages), : len(own)] = own
    return nothing._replace(members=members, split=np.zeros_like(members))


@kernel()
def number_anew(facts: ProblemArrays, orders: Orders, rank: int, numbering: Numbering) -> bool:
    """Number the microbatches of a rank's ops; False if its order can never run: an op before its needs, or too much memory.

    Where microbatches are not alike it does nothing. After False some of the ops have their old numbers.
    """
    members, seen, split = numbering
    codes, stages, left_bytes = orders.codes, len(facts.stage_rank), facts.limit[rank]
    if members.shape[1] == 0:
        return True
    for way in range(4):
        for stage in range(stages):
            seen[way, stage] = 0
    for position in range(orders.lengths[rank]):
        code = codes[rank, position]
        kind, stage = code % KINDS, (code // KINDS) % stages
        way = 0 if kind == F else 2 if kind == W else 1
        at = seen[way, stage]
        seen[way, stage] = at + 1
        if way == 0:
            left_bytes -= facts.held[stage]
        elif at >= seen[3 if kind == W else 0, stage]:
            return False
        if left_bytes < (facts.again[stage] if way == 1 else 0):
            return False
        microbatch = split[stage, at] if kind == W else members[stage, at]
        if kind == W:
            left_bytes += facts.kept[stage]
        elif way == 1:
            left_bytes += facts.held[stage] - (facts.kept[stage] if kind == B else 0)
        if kind == B:
            split[stage, seen[3, stage]] = microbatch
            seen[3, stage] += 1
        codes[rank, position] = (microbatch * stages + stage) * KINDS + kind
    return True
