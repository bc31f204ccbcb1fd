"""Does a plan fit a job? The same pipeline for simulating it under the job's costs; the same costs, too, for being its plan."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from schedc.ir.problem import Problem
from schedc.verify.violation import Violation

if TYPE_CHECKING:
    from schedc.ir.plan import Plan

PIPELINE = ("ranks", "microbatches", "paths", "path_of", "split_backward")
"""The fields of a Problem that decide which orders make sense for it; and the ranks of its stages."""
FOR_PEOPLE = ("name", "placement")
"""The fields that mean nothing to a plan."""
COSTS = tuple(field.name for field in fields(Problem) if field.name not in PIPELINE + FOR_PEOPLE)
"""All other fields, so that none is forgotten."""


def check_pipeline(plan: Plan, problem: Problem) -> tuple[Violation, ...]:
    """The plan and the job have the same ranks, microbatches, stages and paths, so the plan's orders make sense for the job."""
    found = _differences(plan.problem, problem, PIPELINE, "pipeline")
    ranks = ([stage.rank for stage in plan.problem.stages], [stage.rank for stage in problem.stages])
    if ranks[0] != ranks[1]:
        message = f"the plan's stages are on ranks {ranks[0]}, the job's on {ranks[1]}; compile the job again"
        found.append(Violation("same-pipeline", "pipeline.stages", message))
    return tuple(found)


def check_costs(plan: Plan, problem: Problem) -> tuple[Violation, ...]:
    """The plan was made for exactly the job's costs, links, limits and objective.

    What stages hold all the time, and their parameters, may be missing in a plan; they are a part of the limits.
    """
    stages = plan.problem.stages
    if all(stage.static_bytes is None for stage in stages):
        problem = replace(problem, stages=tuple(replace(stage, static_bytes=None) for stage in problem.stages))
    if not any(stage.parameters for stage in stages):
        problem = replace(problem, stages=tuple(replace(stage, parameters=0, expert_parameters=0) for stage in problem.stages))
    return tuple(_differences(plan.problem, problem, COSTS, "costs"))


def _differences(ours: Problem, theirs: Problem, names: tuple[str, ...], section: str) -> list[Violation]:
    found = []
    for name in names:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine == other:
            continue
        place, message = f"{section}.{name}", f"the plan has {mine!r}, the job {other!r}"
        if isinstance(mine, tuple) and isinstance(other, tuple) and len(mine) == len(other):
            at = next(index for index, pair in enumerate(zip(mine, other, strict=True)) if pair[0] != pair[1])
            place, message = f"{section}.{name}[{at}]", f"the plan has {mine[at]!r}, the job {other[at]!r}"
        found.append(Violation(f"same-{section}", place, f"{message}; compile the job again"))
    return found
