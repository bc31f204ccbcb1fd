"""What a job may not say although each of its keys is right by itself: too much to be exact, or messages that cost nothing.

Each check refuses it in one line that names the key; `location` is the place of the key, or of the table that it is in.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.io.location import Location, show
from schedc.ir.problem import MOST_OPS, Link, Problem, Stage
from schedc.ir.workload import Semantics
from schedc.units import MAX_QUANTITY, format_bytes, format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.frontend.job_file import PipelineSection, ProfileSection
    from schedc.ir.layout import Placement


def check_semantics(pipeline: PipelineSection, placed: Placement, location: Location) -> None:
    """Refuse a placement that the runtime cannot execute."""
    if pipeline.semantics is Semantics.TORCH and len(placed.paths) > 1:
        raise location.refuse(
            f'"torch" where pipeline.placement is {show(pipeline.placement)}',
            "a placement with one path, as torch's stages form one chain",
        )


def check_ops(pipeline: PipelineSection, placed: Placement, location: Location) -> None:
    """Refuse at once what is too large to be planned. All paths of a placement are equally long."""
    per_microbatch = 3 * len(placed.paths[0])
    if pipeline.microbatches * per_microbatch > MOST_OPS:
        raise (location / "microbatches").refuse(
            f"{pipeline.microbatches}, which makes {pipeline.microbatches * per_microbatch} compute ops",
            f"at most {MOST_OPS // per_microbatch} for {len(placed.paths[0])} stages, as a plan has at most {MOST_OPS} compute ops",
        )


def check_messages(problem: Problem, profile: ProfileSection, location: Location) -> None:
    """Refuse messages of no size where they count; `location` is [profile].

    They would silently take no time on a link with a bandwidth, and no memory of a stage that recomputes.
    """
    at, given = location / ("message" if profile.path is None else "path"), profile.message_bytes is not None
    sized = {(link.source, link.destination) for link in problem.links if link.bytes_per_second is not None}
    for path in problem.paths:
        for stage, following in pairwise(path):
            source, destination = problem.stages[stage].rank, problem.stages[following].rank
            if (source, destination) in sized and not problem.stages[stage].message_bytes:
                raise at.refuse(
                    f"a message of 0 B from stage {stage}" if given else f"no message size of stage {stage}",
                    f"{'more' if given else 'one'}, as the link from rank {source} to rank {destination} has a bandwidth",
                )
            keeps_it = problem.stages[following].recompute and problem.memory_limit_bytes[destination] is not None
            if keeps_it and not problem.stages[stage].message_bytes:
                raise at.refuse(
                    f"no message size of stage {stage}",
                    f"one, as stage {following} recomputes and keeps the message in limited memory",
                )


def check_size(problem: Problem, location: Location) -> None:
    """Refuse a step so long or large that sums of it would no longer be exact everywhere (JSON, 64-bit evaluators)."""
    work_ns = [
        max(stage.forward_ns) + max(*stage.backward_ns, max(stage.backward_input_ns) + max(stage.backward_weight_ns))
        for stage in problem.stages
    ]
    step_ns = problem.microbatches * (sum(work_ns) + _transfers_ns(problem.links, problem.stages))
    if step_ns > MAX_QUANTITY:
        raise location.refuse(
            f"work and transfers of {format_duration_ns(step_ns)} in all", f"at most {format_duration_ns(MAX_QUANTITY)}"
        )
    held = [0] * problem.ranks
    for stage in problem.stages:
        held[stage.rank] += problem.microbatches * stage.most_bytes
    if max(held) > MAX_QUANTITY:
        raise location.refuse(
            f"activations of {format_bytes(max(held))} on rank {held.index(max(held))} in all",
            f"at most {format_bytes(MAX_QUANTITY)}",
        )


def _transfers_ns(links: Sequence[Link], stages: Sequence[Stage]) -> int:
    """More than the transfers of one microbatch take: each stage's larger message over the slowest link, there and back."""
    sizes = [max(stage.message_bytes, stage.gradient_message_bytes) for stage in stages]
    largest = max(sizes)
    slowest = max((link.latency_ns + link.occupancy_ns(largest) for link in links), default=0)
    return 2 * len(stages) * slowest
