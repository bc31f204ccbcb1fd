"""Changes to a problem that may make its step shorter: a faster link, more memory, one more microbatch, other choices of the job.

What they gain is found by `resolve`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from schedc.errors import InvalidInput
from schedc.frontend.job import Job, checked_job
from schedc.frontend.job_source import source_of_table
from schedc.ir import DURATIONS, Kind, Link, Problem, are_alike

if TYPE_CHECKING:
    from collections.abc import Iterator


PLACEMENTS = (("unidirectional", 1), ("loop", 2), ("wave", 2), ("bidirectional", 1))
"""Each with the stages that a rank has of a path; they are those that a job can name."""


class ChangeKind(StrEnum):
    """What is changed."""

    LINK = "link"
    MEMORY = "memory"
    MICROBATCH = "microbatch"
    PLACEMENT = "placement"
    SPLIT = "split"
    RECOMPUTE = "recompute"
    LAYOUT = "layout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A problem that differs from the plan's in one thing."""

    kind: ChangeKind
    text: str
    """For people: `link 3>4 10 % faster`."""
    problem: Problem
    source: int | None = None
    """The rank, or of a link the source."""
    destination: int | None = None
    only_helps: bool
    """Whether every schedule of the plan's problem is one of this problem, too."""
    open_job: Job | None = field(default=None, hash=False)
    """Where the change leaves a layout to be chosen, the job; `problem` is then the plan's."""


def faster_link(problem: Problem, link: Link, percent: int = 10) -> Change | None:
    """The link with its latency divided, and its bandwidth multiplied, by 1 + percent / 100; whole units, never slower.

    None: it takes no time, so it cannot be faster.
    """
    faster = replace(
        link,
        latency_ns=link.latency_ns * 100 // (100 + percent),
        transfer_ns=None if link.transfer_ns is None else link.transfer_ns * 100 // (100 + percent),
        bytes_per_second=None if link.bytes_per_second is None else -(-link.bytes_per_second * (100 + percent) // 100),
    )
    if faster == link:
        return None
    links = tuple(faster if each is link else each for each in problem.links)
    return Change(
        kind=ChangeKind.LINK,
        text=f"link {link.source}>{link.destination} {percent} % faster",
        problem=replace(problem, links=links),
        source=link.source,
        destination=link.destination,
        only_helps=True,
    )


def more_memory(problem: Problem, rank: int) -> Change | None:
    """The rank with room for one more microbatch: its activations on all of the rank's stages of one path, the larger of two.

    None: the rank has no limit, or no activations.
    """
    limit_bytes = problem.memory_limit_bytes[rank]
    held = [
        sum(problem.stages[stage].activation_bytes for stage in path if problem.stages[stage].rank == rank)
        for path in problem.paths
    ]
    if limit_bytes is None or not max(held, default=0):
        return None
    limits = list(problem.memory_limit_bytes)
    limits[rank] = limit_bytes + max(held)
    return Change(
        kind=ChangeKind.MEMORY,
        text=f"one more activation on rank {rank}",
        problem=replace(problem, memory_limit_bytes=tuple(limits)),
        source=rank,
        only_helps=True,
    )


def one_more_microbatch(problem: Problem) -> Change | None:
    """The step with one more microbatch, in slices as the others; None: they differ, so nobody knows what one more costs."""
    more, count = len(problem.slices) or 1, len(problem.paths)
    if not are_alike(problem) or problem.path_of != tuple(m % count for m in range(problem.microbatches)):
        return None
    stages = list(problem.stages)
    for index, stage in enumerate(stages):
        several = {name: values for kind, name in DURATIONS.items() if len(values := stage.durations_ns(kind)) > 1}
        if several and more == 1:
            return None
        again: dict[str, Any] = {name: (*values, *values[:more]) for name, values in several.items()}
        stages[index] = replace(stage, **again)
    path_of = (*problem.path_of, *(problem.microbatches % count for _ in range(more)))
    longer = replace(problem, microbatches=problem.microbatches + more, path_of=path_of, stages=tuple(stages))
    return Change(kind=ChangeKind.MICROBATCH, text="one more microbatch", problem=longer, only_helps=False)


def other_choices(job: Job, problem: Problem) -> tuple[list[Change], list[str]]:
    """The job with backwards that may split or must fuse, other recomputation, an open layout, and in other placements.

    In another placement, partition and recomputation are the job's where they are for as many stages, else what the job has
    without them.

    Args:
        job: the plan's, in the plan's layout.
        problem: the plan's.

    Returns:
        The changes, and why some cannot be.
    """
    changes, why_not, source = [], [], job.source
    in_files = [override for overrides in source.in_files.values() for override in overrides]
    kept = [override for override in source.overrides if override.inside() in in_files]  # the others are in the document
    for kind, text, pipeline in _pipelines(job, problem):
        try:
            table = dict(source.document) | {"pipeline": pipeline}
            other = checked_job(source_of_table(table, directory=source.directory, name=source.default_name, overrides=kept))
            if kind is ChangeKind.PLACEMENT and _work_ns(other.problem) != _work_ns(problem):
                raise InvalidInput("the job has costs of stages, which cannot be cut anew")
        except InvalidInput as error:
            why_not.append(f"{text}: {error}")
            continue
        if other.given_problem is None:
            changes.append(Change(kind=kind, text=text, problem=problem, only_helps=False, open_job=other))
        else:
            may_split = kind is ChangeKind.SPLIT and not problem.split_backward
            helps = may_split and replace(other.problem, split_backward=False) == problem
            changes.append(Change(kind=kind, text=text, problem=other.problem, only_helps=helps))
    return changes, why_not


def _pipelines(job: Job, problem: Problem) -> Iterator[tuple[ChangeKind, str, dict[str, Any]]]:
    """Each other choice, what it is called, and the job's table [pipeline] with it."""
    own: dict[str, Any] = dict(job.source.document["pipeline"])
    split, again = not problem.split_backward, [stage.recompute for stage in problem.stages]
    yield ChangeKind.SPLIT, f"split_backward = {str(split).lower()}", own | {"split_backward": split}
    for recompute, is_other in (("none", any(again)), ("full", not all(again)), ("auto", True)):
        if is_other:
            yield ChangeKind.RECOMPUTE, f'recompute = "{recompute}"', own | {"recompute": recompute}
    without_chunks = {key: value for key, value in own.items() if key != "chunks"}
    open_layout = {"placement": "auto", "partition": "auto"}
    if isinstance(own.get("recompute"), list):
        open_layout["recompute"] = "auto"
    yield ChangeKind.LAYOUT, 'placement = "auto"', without_chunks | open_layout
    chunks = len(problem.paths[0]) // problem.ranks
    for placement, count in PLACEMENTS:
        if (placement, count) == (problem.placement, chunks):
            continue
        stays = {
            key: value
            for key, value in without_chunks.items()
            if count == chunks or key not in ("partition", "recompute") or not isinstance(value, list)
        }
        pipeline = stays | {"placement": placement} | ({"chunks": count} if count > 1 else {})
        yield ChangeKind.PLACEMENT, f"placement {placement}", pipeline


def _work_ns(problem: Problem) -> int:
    """The forwards of one microbatch."""
    return sum(problem.duration_ns(Kind.F, stage, 0) for stage in problem.paths[0])
