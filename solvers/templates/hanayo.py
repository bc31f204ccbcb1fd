"""Hanayo: waves of fused backwards. A Problem in, a Schedule out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import Kind, Op
from schedc.solvers.templates.list_order import list_order
from schedc.solvers.templates.shape import wave

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

__all__ = ["hanayo"]


def hanayo(problem: Problem) -> Schedule:
    """Hanayo (Liu et al., 2023): v chunks per rank are v / 2 waves; a rank holds at most p v activations of chunks.

    The paper's unit is p microbatches, drawn with BW twice as long as F. More of them follow here in whichever of three ways is
    shortest in these unit times: at most p microbatches under way, where two ops are ready the backward first or the forward
    first, or (v even) a cap on what each stage holds, the larger the longer its microbatches are away.

    Raises:
        Unsupported: the placement is not a wave.
    """
    grid = wave(problem, "hanayo")
    path, positions, chunks = problem.paths[0], grid.positions, grid.chunks
    depth = {stage: index for index, stage in enumerate(path)}

    def backward_first(op: Op) -> tuple[int, ...]:
        return (0, depth[op.stage], op.microbatch) if op.kind is Kind.BW else (1, -depth[op.stage], op.microbatch)

    def forward_first(op: Op) -> tuple[int, ...]:
        return (op.kind is Kind.BW, op.microbatch, depth[op.stage])

    under_way = {path[0]: positions}
    ways = [(backward_first, under_way), (forward_first, under_way)]
    if chunks % 2 == 0:
        # A stage at depth d of L waits for 2 (L − d) ops; 2 (L − d) / v, less one on the way down, add up to p v on every rank.
        share = {stage: -(-2 * (len(path) - d) // chunks) - (2 * d < len(path)) for stage, d in depth.items()}
        by_depth = (forward_first, {stage: max(1, cap) for stage, cap in share.items()})
        # On one wave the last way was never the longer one (p up to 10, m up to 29).
        ways = [by_depth] if chunks == 2 else [*ways, by_depth]
    return min((list_order(problem, priority, _caps(problem, cap_of)) for priority, cap_of in ways), key=lambda way: way[0])[1]


def _caps(problem: Problem, cap_of: dict[int, int]) -> dict[Op, Op]:
    """Each F beyond a stage's cap on microbatches in flight waits for the BW that makes room for it."""
    return {
        Op(Kind.F, stage, microbatch): Op(Kind.BW, stage, microbatch - cap)
        for stage, cap in cap_of.items()
        for microbatch in range(cap, problem.microbatches)
    }
