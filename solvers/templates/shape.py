"""The shapes of pipelines that the known schedules need, read from a problem's stages and paths.

A shape says by *position* along the pipeline which rank sits there and which stages it has. Templates count positions, not rank
numbers, so a list of ranks in any order is as good as 0, 1, 2 …
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from schedc.errors import Unsupported
from schedc.ir import Op, Problem, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Stages by position and chunk; all positions have the same number of chunks."""

    ranks: tuple[int, ...]
    """The rank at each position."""
    stages: tuple[tuple[int, ...], ...]
    """Per position, its stages, in the order in which a forward visits them."""

    @property
    def positions(self) -> int:
        """How many ranks the pipeline has."""
        return len(self.ranks)

    @property
    def chunks(self) -> int:
        """How many stages each rank has."""
        return len(self.stages[0])


class Shape(NamedTuple):
    """A path of passes over all ranks, each in the same order, or each in the order opposite to the one before."""

    needs: str
    """What to say that a template needs."""
    least: int = 1
    """Passes, at least and at most."""
    most: float = inf
    back_and_forth: bool = False


LINE = Shape("a unidirectional placement (one stage per rank)", most=1)
LOOP = Shape("a loop placement with 2 or more chunks per rank", least=2)
LINE_OR_LOOP = Shape("a unidirectional or a loop placement")
WAVE = Shape("a wave placement with 2 or more chunks per rank", least=2, back_and_forth=True)
WAVE_OF_TWO = Shape("a wave placement with 2 chunks per rank", least=2, most=2, back_and_forth=True)


def grid_for(problem: Problem, template: str, shape: Shape) -> Grid:
    """The problem as one path of this shape.

    Raises:
        Unsupported: it is none.
    """
    grid = _passes(problem, back_and_forth=shape.back_and_forth)
    if grid is None or not shape.least <= grid.chunks <= shape.most:
        raise Unsupported(f"{template} needs {shape.needs}; this job has {_found(problem)}")
    return grid


def two_lines(problem: Problem, template: str) -> tuple[Grid, Grid]:
    """The problem as two paths that visit every rank once, in opposite orders.

    Raises:
        Unsupported: it is none.
    """
    grids = _two_lines(problem)
    if grids is None:
        raise Unsupported(f"{template} needs a bidirectional placement; this job has {_found(problem)}")
    return grids


def need_split(problem: Problem, template: str) -> None:
    """Refuse a problem whose backward cannot be split.

    Raises:
        Unsupported: the problem has no separate B and W.
    """
    if not problem.split_backward:
        raise Unsupported(f"{template} runs B and W apart; this job has split_backward = false, set split_backward = true")


def schedule_of(problem: Problem, grid: Grid, order_at: Callable[[int], Iterable[Op]]) -> Schedule:
    """The schedule whose rank at each position runs `order_at(position)`.

    Ops of microbatches that the problem does not have are left out: a pattern for more microbatches stays valid without some.
    """
    orders: list[tuple[Op, ...]] = [()] * problem.ranks
    for position, rank in enumerate(grid.ranks):
        orders[rank] = tuple(op for op in order_at(position) if op.microbatch < problem.microbatches)
    return Schedule(orders=tuple(orders))


def _found(problem: Problem) -> str:
    """What shape the problem has, in words for a message."""
    if len(problem.paths) > 1:
        return "a bidirectional placement" if _two_lines(problem) else f"{len(problem.paths)} paths"
    for name, back_and_forth in (("loop", False), ("wave", True)):
        grid = _passes(problem, back_and_forth=back_and_forth)
        if grid is not None:
            return "a unidirectional placement" if grid.chunks == 1 else f"a {name} placement with {grid.chunks} chunks"
    return f"a placement of {len(problem.stages)} stages on {problem.ranks} ranks that is neither a loop nor a wave"


def _passes(problem: Problem, *, back_and_forth: bool) -> Grid | None:
    """The path cut into passes over all ranks, each in the same order or each in the order opposite to the one before."""
    if len(problem.paths) != 1:
        return None
    path, size = problem.paths[0], problem.ranks
    visited = [problem.stages[stage].rank for stage in path]
    first = visited[:size]
    if set(first) != set(range(size)) or len(path) % size:
        return None
    rows = []
    for chunk in range(len(path) // size):
        row, expected = path[chunk * size : (chunk + 1) * size], first
        if back_and_forth and chunk % 2:
            row, expected = row[::-1], first[::-1]
        if visited[chunk * size : (chunk + 1) * size] != expected:
            return None
        rows.append(row)
    return Grid(ranks=tuple(first), stages=tuple(zip(*rows, strict=True)))


def _two_lines(problem: Problem) -> tuple[Grid, Grid] | None:
    if len(problem.paths) != 2:
        return None
    down, up = (tuple(problem.stages[stage].rank for stage in path) for path in problem.paths)
    if len(down) != problem.ranks or set(down) != set(range(problem.ranks)) or up != down[::-1]:
        return None
    first, second = (tuple((stage,) for stage in path) for path in problem.paths)
    return Grid(ranks=down, stages=first), Grid(ranks=up, stages=second)
