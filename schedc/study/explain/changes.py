"""Changes to a problem that may make its step shorter: a faster link, room for one more microbatch, one more microbatch.

Pure functions from a Problem to Changes. What they gain is found by `resolve`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedc.frontend.job import Job
    from schedc.ir.problem import Link, Problem


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
    """The step with one more microbatch; None: microbatches differ, so nobody knows what one more costs."""
    durations = (
        values
        for stage in problem.stages
        for values in (stage.forward_ns, stage.backward_input_ns, stage.backward_weight_ns, stage.backward_ns)
    )
    count = len(problem.paths)
    if any(len(values) > 1 for values in durations) or problem.path_of != tuple(m % count for m in range(problem.microbatches)):
        return None
    more = replace(problem, microbatches=problem.microbatches + 1, path_of=(*problem.path_of, problem.microbatches % count))
    return Change(kind=ChangeKind.MICROBATCH, text="one more microbatch", problem=more, only_helps=False)
