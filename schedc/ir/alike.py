"""Which microbatches of a Problem are alike: the same path, and the same durations on each of its stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import BLOCKS

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


def are_alike(problem: Problem) -> bool:
    """Whether the microbatches of each stage take the same time there; of slices, the same ones of all microbatches."""
    slices = len(problem.slices) or 1
    if len(problem.paths) == 1:
        each = (stage.durations_ns(kind) for stage in problem.stages for kind in BLOCKS)
        return all(len(set(values[index::slices])) == 1 for values in each for index in range(slices if len(values) > 1 else 1))
    return all(
        len(values) == 1 or len({values[m] for m, path in enumerate(problem.path_of) if stage in problem.paths[path]}) == 1
        for stage, costs in enumerate(problem.stages)
        for values in map(costs.durations_ns, BLOCKS)
    )


def groups_of(problem: Problem) -> tuple[int, ...]:
    """Per microbatch, the least one that is like it: the same path, the same durations on each of its stages.

    A slice is like the same slice of a microbatch that has the same durations in all of its slices. Formulations may fix the order
    among those that are alike, and lose nothing (`schedc.models.blocks`), and searches over orders swap none of them.
    """
    differing = [
        [
            values
            for stage in path
            for values in map(problem.stages[stage].durations_ns, BLOCKS)
            if len(values) > 1  # one value is the same for all
        ]
        for path in problem.paths
    ]
    slices = len(problem.slices) or 1
    first: dict[tuple[int, ...], int] = {}
    found = []
    for microbatch, path in enumerate(problem.path_of):
        begin = microbatch - problem.slice_of(microbatch)
        durations = (value for values in differing[path] for value in values[begin : begin + slices])
        found.append(first.setdefault((path, microbatch - begin, *durations), microbatch))
    return tuple(found)
