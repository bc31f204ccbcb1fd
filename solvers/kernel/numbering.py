"""Numbers of microbatches that are alike, from the order of a rank's ops: on each stage, the k-th F is of the k-th microbatch.

The same holds for the k-th backward (B or BW); the k-th W is of the k-th backward that is split. So an order needs only the stage
and the kind of each op, and a search can change these alone: where one stage ran two microbatches in another order than the rest,
ops would only wait for each other. It loses no schedule (proof in `models/blocks.py`).
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


FORWARDS, BACKWARDS, WEIGHTS, SPLIT = range(4)
"""Rows of `Numbering.seen`: F, B and BW together, W, and B alone."""


class Numbering(NamedTuple):
    """The numbers of the microbatches, and what `number_anew` writes while it goes through an order."""

    members: Any
    """[stage, k]: the k-th microbatch that visits the stage, ascending. No columns where microbatches are not alike."""
    seen: Any
    """[`FORWARDS` to `SPLIT`, stage]: how many ops of the kind the rank has run so far."""
    split: Any
    """[stage, k]: the microbatch of the stage's k-th backward that is split."""


def unnumbered(stages: int) -> Numbering:
    """Where microbatches are not alike: `number_anew` does nothing, so all keep their numbers."""
    return Numbering(np.zeros((stages, 0), np.int64), np.zeros((4, stages), np.int64), np.zeros((stages, 0), np.int64))


def numbering_of(problem: Problem) -> Numbering:
    """Of a problem in which no two paths share a stage. Graphs, and microbatches in slices, keep their numbers."""
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
    """Give each op of a rank's order the number of its microbatch.

    Where microbatches are not alike it changes nothing, and gives True.

    Args:
        facts: the problem.
        orders: changed.
        rank: whose order.
        numbering: of the problem; `seen` and `split` are overwritten.

    Returns:
        False if the order can never run: a backward comes before its F, a W before its B, or memory does not suffice. Then only the
        ops before that one are numbered.
    """
    members, seen, split = numbering
    codes, stages, left_bytes = orders.codes, len(facts.stage_rank), facts.limit[rank]
    if members.shape[1] == 0:
        return True
    for row in range(4):
        for stage in range(stages):
            seen[row, stage] = 0
    for position in range(orders.lengths[rank]):
        code = codes[rank, position]
        kind, stage = code % KINDS, (code // KINDS) % stages
        row = FORWARDS if kind == F else WEIGHTS if kind == W else BACKWARDS
        at = seen[row, stage]
        seen[row, stage] = at + 1
        if row == FORWARDS:
            left_bytes -= facts.held[stage]
        elif at >= seen[SPLIT if kind == W else FORWARDS, stage]:
            return False
        if left_bytes < (facts.again[stage] if row == BACKWARDS else 0):
            return False
        microbatch = split[stage, at] if kind == W else members[stage, at]
        if kind == W:
            left_bytes += facts.kept[stage]
        elif row == BACKWARDS:
            left_bytes += facts.held[stage] - (facts.kept[stage] if kind == B else 0)
        if kind == B:
            split[stage, seen[SPLIT, stage]] = microbatch
            seen[SPLIT, stage] += 1
        codes[rank, position] = (microbatch * stages + stage) * KINDS + kind
    return True
