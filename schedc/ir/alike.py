"""Microbatches that are alike: the same path, and the same durations on each of its stages.

Formulations may fix the order among those, and lose nothing (`schedc.models.blocks`), and searches over orders swap none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


def are_alike(problem: Problem) -> bool:
    """Whether the microbatches of each stage take the same time there."""
    if len(problem.paths) == 1:
        return all(len(set(stage.durations_ns(kind))) == 1 for stage in problem.stages for kind in Kind)
    return all(
        len(values) == 1 or len({values[m] for m, path in enumerate(problem.path_of) if stage in problem.paths[path]}) == 1
        for stage, costs in enumerate(problem.stages)
        for values in map(costs.durations_ns, Kind)
    )


def groups_of(problem: Problem) -> tuple[int, ...]:
    """Per microbatch, the least one that is like it."""
    differing = [
        [
            values
            for stage in path
            for values in map(problem.stages[stage].durations_ns, Kind)
            if len(values) > 1  # one value is the same for all
        ]
        for path in problem.paths
    ]
    first: dict[tuple[int, ...], int] = {}
    return tuple(
        first.setdefault((path, *(values[microbatch] for values in differing[path])), microbatch)
        for microbatch, path in enumerate(problem.path_of)
    )
