"""Microbatches that are alike: the same path, and the same durations on each of its stages.

Formulations may fix the order among those, and lose nothing (`schedc.models.blocks`), and searches over orders swap none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

__all__ = ["groups_of"]


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
