"""1F1B, with one stage per rank or interleaved on a loop, fused backward. A Problem in, a Schedule out."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from schedc.ir.ops import Kind, Op
from schedc.solvers.templates.shape import Grid, line_or_loop, loop, schedule_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


def one_f_one_b(problem: Problem) -> Schedule:
    """1F1B (PipeDream-flush, Narayanan et al., 2021): position i of p holds p − i activations; on a loop, `interleaved`.

    Raises:
        Unsupported: the placement is neither unidirectional nor a loop.
    """
    grid = line_or_loop(problem, "1f1b")
    if grid.chunks > 1:
        return _interleaved(problem, grid)

    def order(position: int) -> Iterator[Op]:
        (stage,) = grid.stages[position]
        warm_up = min(grid.positions - 1 - position, problem.microbatches)
        for index in range(problem.microbatches + warm_up):
            if index < problem.microbatches:
                yield Op(Kind.F, stage, index)
            if index >= warm_up:
                yield Op(Kind.BW, stage, index - warm_up)

    return schedule_of(problem, grid, order)


def interleaved(problem: Problem) -> Schedule:
    """Interleaved 1F1B (Narayanan et al., 2021, section 2.2): position i of p, v chunks, warms up with (v−1)g + 2(p−1−i) forwards.

    Microbatches pass each chunk in groups of g. Where p divides m, g = p, as in Megatron-LM. Else the groups share m as equally as
    they can with at least p each, as PyTorch has them where they come out equal; a last group below p, which Megatron-LM refuses,
    would let the ranks wait for each other in a cycle. Should that exceed a memory limit, g = p again, and the last group lacks
    some: slower, but never more than Megatron-LM's (v−1)p + 2(p−1−i) + 1 chunks.

    Raises:
        Unsupported: the placement is not a loop.
    """
    return _interleaved(problem, loop(problem, "interleaved"))


def _interleaved(problem: Problem, grid: Grid) -> Schedule:
    count, positions = problem.microbatches, grid.positions
    rounds = max(1, count // positions)
    equal = _with_groups(problem, grid, [count // rounds + (index < count % rounds) for index in range(rounds)])
    if count % positions == 0 or _fits(problem, equal):
        return equal
    return _with_groups(problem, grid, [positions] * -(-count // positions))


def _with_groups(problem: Problem, grid: Grid, sizes: Sequence[int]) -> Schedule:
    edges = [0, *accumulate(sizes)]
    groups = [range(first, last) for first, last in pairwise(edges)]

    def order(position: int) -> list[Op]:
        forth = grid.stages[position]
        forwards = [Op(Kind.F, stage, microbatch) for group in groups for stage in forth for microbatch in group]
        backwards = [Op(Kind.BW, stage, microbatch) for group in groups for stage in reversed(forth) for microbatch in group]
        warm_up = min((grid.chunks - 1) * sizes[0] + 2 * (grid.positions - 1 - position), len(forwards))
        steady = [op for pair in zip(forwards[warm_up:], backwards, strict=False) for op in pair]
        return forwards[:warm_up] + steady + backwards[len(forwards) - warm_up :]

    return schedule_of(problem, grid, order)


def _fits(problem: Problem, schedule: Schedule) -> bool:
    for order, limit_bytes in zip(schedule.orders, problem.memory_limit_bytes, strict=True):
        stages = [(problem.stages[op.stage], op.kind) for op in order]
        sizes = (size for stage, kind in stages for size in (stage.taken_bytes(kind), -stage.released_bytes(kind)))
        if limit_bytes is not None and max(accumulate(sizes), default=0) > limit_bytes:
            return False
    return True
