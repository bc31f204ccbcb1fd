"""DualPipe-V: DualPipe's order folded onto a wave of two chunks per rank. A Problem in, a Schedule out."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING

from schedc.ir.ops import Kind, Op
from schedc.solvers.templates.shape import need_split, schedule_of, wave

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


def dualpipe_v(problem: Problem) -> Schedule:
    """DualPipe-V (DeepSeek-AI, 2025, DualPipe's "cut in half"; PyTorch's ScheduleDualPipeV): eight steps, B and W mostly fused.

    A forward and a backward that are meant to overlap are one after the other. Every rank holds at most 2p + 1 activations, of
    half size. The pattern needs 2p microbatches; with fewer it runs with the missing ones left out.

    Raises:
        Unsupported: the placement is not a wave of 2 chunks, or B and W cannot run apart.
    """
    need_split(problem, "dualpipe-v")
    grid = wave(problem, "dualpipe-v", chunks=2)
    positions = grid.positions
    microbatches = max(2 * positions, problem.microbatches)

    def order(position: int) -> Iterator[Op]:
        behind = positions - 1 - position
        down, up = grid.stages[position]
        forwards = {stage: count() for stage in (down, up)}
        backwards = {stage: count() for stage in (down, up)}
        pending: deque[Op] = deque()

        def forward(stage: int) -> Op:
            return Op(Kind.F, stage, next(forwards[stage]))

        def backward(stage: int, *, split: bool = False) -> Op:
            microbatch = next(backwards[stage])
            if not split:
                return Op(Kind.BW, stage, microbatch)
            pending.append(Op(Kind.W, stage, microbatch))
            return Op(Kind.B, stage, microbatch)

        for _ in range(2 * behind):
            yield forward(down)
        for _ in range(position + 1):
            yield forward(down)
            yield forward(up)
        for _ in range(behind):
            yield backward(up, split=True)
            yield pending.popleft()
            yield forward(up)
        for _ in range(microbatches - 2 * positions + position + 1):
            yield forward(down)
            yield backward(up)
            yield forward(up)
            yield backward(down)
        for _ in range(behind):
            yield backward(up)
            yield forward(up)
            yield backward(down)
        # The second half of these backwards is split, so that the W left over fill the drain; the odd op goes to the fused half.
        for index in range(2 * (position + 1)):
            yield backward(down if index % 2 else up, split=index > position)
        for _ in range(behind):
            if pending:
                yield pending.popleft()
            yield backward(down, split=True)
        yield from pending

    return schedule_of(problem, grid, order)
