"""A plan's job in other placements, with backwards split or fused, other recomputation, or an open layout, as Changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from schedc.errors import InvalidInput
from schedc.frontend.job import Job, checked_job
from schedc.frontend.job_source import source_of_table
from schedc.ir.ops import Kind
from schedc.study.explain.changes import Change, ChangeKind

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

PLACEMENTS = (("unidirectional", 1), ("loop", 2), ("wave", 2), ("bidirectional", 1))
"""Each with the stages that a rank has of a path; they are those that a job can name."""


def other_placements(job: Job, problem: Problem) -> tuple[list[Change], list[str]]:
    """The job in the placements that the plan's problem does not have, and why it cannot be in some.

    Partition and recomputation are the job's where they are for as many stages, else what the job has without them.

    Args:
        job: the plan's.
        problem: the plan's.
    """
    changes, why_not = [], []
    chunks = len(problem.paths[0]) // problem.ranks
    for placement, count in PLACEMENTS:
        if (placement, count) == (problem.placement, chunks):
            continue
        text = f"placement {placement}"
        try:
            other = _placed(job, placement, count, keep=count == chunks)
        except InvalidInput as error:
            why_not.append(f"{text}: {error}")
            continue
        if _work_ns(other) != _work_ns(problem):
            why_not.append(f"{text}: the job has costs of stages, which cannot be cut anew")
            continue
        changes.append(Change(kind=ChangeKind.PLACEMENT, text=text, problem=other, only_helps=False))
    return changes, why_not


def other_choices(job: Job, problem: Problem) -> tuple[list[Change], list[str]]:
    """The job with backwards that may split or must fuse, other recomputation, and an open layout; and why some cannot be.

    Args:
        job: the plan's, in the plan's layout.
        problem: the plan's.
    """
    split = problem.split_backward
    again = [stage.recompute for stage in problem.stages]
    tried: list[tuple[ChangeKind, str, dict[str, Any]]] = [
        (ChangeKind.SPLIT, f"split_backward = {str(not split).lower()}", {"split_backward": not split}),
        *([(ChangeKind.RECOMPUTE, 'recompute = "none"', {"recompute": "none"})] if any(again) else []),
        *([(ChangeKind.RECOMPUTE, 'recompute = "full"', {"recompute": "full"})] if not all(again) else []),
        (ChangeKind.RECOMPUTE, 'recompute = "auto"', {"recompute": "auto"}),
        (ChangeKind.LAYOUT, 'placement = "auto"', {"placement": "auto", "partition": "auto"}),
    ]
    changes, why_not = [], []
    for kind, text, values in tried:
        pipeline = dict(job.source.document["pipeline"]) | values
        if kind is ChangeKind.LAYOUT:
            pipeline.pop("chunks", None)
            pipeline |= {"recompute": "auto"} if isinstance(pipeline.get("recompute"), list) else {}
        try:
            other = _changed(job, pipeline)
        except InvalidInput as error:
            why_not.append(f"{text}: {error}")
            continue
        if other.given_problem is None:
            changes.append(Change(kind=kind, text=text, problem=problem, only_helps=False, open_job=other))
        else:
            helps = kind is ChangeKind.SPLIT and not split and replace(other.problem, split_backward=False) == problem
            changes.append(Change(kind=kind, text=text, problem=other.problem, only_helps=helps))
    return changes, why_not


def _placed(job: Job, placement: str, chunks: int, *, keep: bool) -> Problem:
    """The job's problem in a placement; `keep`: with its partition and its recomputation."""
    pipeline = dict(job.source.document["pipeline"]) | {"placement": placement}
    pipeline.pop("chunks", None)
    if chunks > 1:
        pipeline["chunks"] = chunks
    for key in () if keep else ("partition", "recompute"):
        if isinstance(pipeline.get(key), list):
            del pipeline[key]
    return _changed(job, pipeline).problem


def _changed(job: Job, pipeline: dict[str, Any]) -> Job:
    """The job with another table [pipeline]."""
    source = job.source
    table = dict(source.document)
    in_files = [override for overrides in source.in_files.values() for override in overrides]
    kept = [override for override in source.overrides if override.inside() in in_files]  # the others are in the document
    made = source_of_table(table | {"pipeline": pipeline}, directory=source.directory, name=source.default_name, overrides=kept)
    return checked_job(made)


def _work_ns(problem: Problem) -> int:
    """The forwards of one microbatch."""
    return sum(problem.duration_ns(Kind.F, stage, 0) for stage in problem.paths[0])
