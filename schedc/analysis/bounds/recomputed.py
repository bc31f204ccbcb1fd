"""A problem whose stages recompute as one in which none does and no schedule is lost, so that every bound on it holds.

Takes a problem and gives one in which memory is taken by F alone; all else is the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


def without_recomputed_bytes(problem: Problem) -> Problem:
    """The problem in which a stage that recomputes holds its input until its backward ends, and nothing after it.

    A rank all of whose stages recompute has less memory, by what the least of its recomputations takes.

    Proof: a schedule of the problem, with all its times, is one of this. What a rank holds there at a time is no more than here: of
    a stage that recomputes the input alone, of others the same. Let all stages of the rank recompute, and look at any time. If no
    input is held, nothing is, there. Else a backward runs, or one will: until the next one starts, F are all that changes
    what is held of inputs, and they only add. When that one starts, the inputs then held and what it takes fit the limit here; so
    the inputs held before fit the limit there, less by the least that any backward of the rank takes. While it runs, it holds that.
    """
    if not any(stage.recomputed_bytes for stage in problem.stages):
        return problem
    stages = tuple(
        replace(stage, recomputed_bytes=0, activation_after_input_bytes=0) if stage.recomputed_bytes else stage
        for stage in problem.stages
    )
    limits = list(problem.memory_limit_bytes)
    for rank, limit_bytes in enumerate(limits):
        least = min((stage.recomputed_bytes for stage in problem.stages if stage.rank == rank), default=0)
        limits[rank] = None if limit_bytes is None else max(0, limit_bytes - least)
    return replace(problem, stages=stages, memory_limit_bytes=tuple(limits))
