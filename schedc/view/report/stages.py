"""The stages of a plan as rows of text, for the terminal and the page: where each is, what it holds, what its rank can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schedc.ir.problem import Problem

HEADERS = ("stage", "rank", "layers", "recomputes", "static", "capacity")
UNKNOWN = "–"


class StageRun(NamedTuple):
    """A run of stages that are alike."""

    stages: int
    cells: tuple[str, ...]
    """Under the headers: what one of the stages holds all the time, what its rank can hold in all."""


def stage_rows(problem: Problem, stages: Iterable[int]) -> list[StageRun]:
    """The rows of these stages, ascending; none where no more is known of the problem's than their ranks.

    Stages are alike that follow each other, on the ranks and in the layers, and have the same in all else.
    """
    if all(stage.layers is None and not stage.recompute and stage.static_bytes is None for stage in problem.stages):
        return []
    capacities = [_capacity_bytes(problem, rank) for rank in range(problem.ranks)]
    runs: list[list[int]] = []
    for index in stages:
        if runs and _continues(problem, capacities, runs[-1], index):
            runs[-1].append(index)
        else:
            runs.append([index])
    return [_row(problem, capacities, run) for run in runs]


def _capacity_bytes(problem: Problem, rank: int) -> int | None:
    """What is for activations, and what the rank's stages hold all the time; None where one of these is not known."""
    sizes = [problem.memory_limit_bytes[rank], *(stage.static_bytes for stage in problem.stages if stage.rank == rank)]
    known = [size for size in sizes if size is not None]
    return sum(known) if 1 < len(known) == len(sizes) else None


def _continues(problem: Problem, capacities: Sequence[int | None], run: Sequence[int], index: int) -> bool:
    """Whether the stage is like those of the run, and follows them."""
    one, other = problem.stages[run[-1]], problem.stages[index]
    step = other.rank - one.rank
    if index != run[-1] + 1 or step not in ((-1, 1) if len(run) == 1 else (one.rank - problem.stages[run[-2]].rank,)):
        return False
    if one.layers is None or other.layers is None:
        follow = one.layers is other.layers
    else:
        follow = one.layers[1] == other.layers[0] and one.layers[1] - one.layers[0] == other.layers[1] - other.layers[0]
    alike = (one.recompute, one.static_bytes, capacities[one.rank]) == (other.recompute, other.static_bytes, capacities[other.rank])
    return follow and alike


def _row(problem: Problem, capacities: Sequence[int | None], run: Sequence[int]) -> StageRun:
    first, last = problem.stages[run[0]], problem.stages[run[-1]]
    layers = UNKNOWN
    if first.layers is not None and last.layers is not None:
        each = f", {first.layers[1] - first.layers[0]} each" if len(run) > 1 else ""
        layers = _span(first.layers[0], last.layers[1] - 1) + each
    sizes = (UNKNOWN if size is None else format_bytes(size) for size in (first.static_bytes, capacities[first.rank]))
    cells = (_span(run[0], run[-1]), _span(first.rank, last.rank), layers, "yes" if first.recompute else "no", *sizes)
    return StageRun(len(run), cells)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
