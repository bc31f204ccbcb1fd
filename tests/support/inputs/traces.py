"""Traces for tests, made from simulated timelines, without the code that compares them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from schedc.formats.plan.plan_file import plan_sha256
from schedc.ir.ops import Kind, Op
from schedc.ir.trace import RankTrace, StepTrace, Trace
from schedc.verify.plan.channels import needs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

FIELDS = {Kind.F: "forward_ns", Kind.B: "backward_input_ns", Kind.W: "backward_weight_ns", Kind.BW: "backward_ns"}


def trace_of_timelines(plan: Plan, timelines: Sequence[Timeline], first_step: int = 0, *, in_turn: bool = False) -> Trace:
    """The trace of steps that went exactly as these timelines of the plan's schedule say, one after another.

    An op that needs several transfers takes each when it comes; with `in_turn` one after another, whichever came first.
    """
    needs = needs_of(plan)
    steps: list[list[StepTrace]] = [[] for _ in plan.ranks]
    origin_ns = 0
    for number, timeline in enumerate(timelines, start=first_step):
        moves = {transfer.op: transfer for transfer in timeline.transfers}
        taken_ns: dict[Op, int] = {}
        free_ns: dict[tuple[int, int], int] = {}
        for op, need in sorted(needs.items(), reverse=True):
            taker = need.destination, need.consumer
            asked_ns = free_ns.get(taker, timeline.end_ns(need.destination)[need.consumer - 1] if need.consumer else 0)
            taken_ns[op] = max(asked_ns, moves[op].arrival_ns)
            if in_turn:
                free_ns[taker] = taken_ns[op]
        for rank in plan.ranks:
            starts_ns, ends_ns = timeline.start_ns(rank.rank), timeline.end_ns(rank.rank)
            before_ns = [0, *ends_ns[:-1]]
            channels_ns = tuple(
                tuple(origin_ns + (taken_ns[op] if channel.receives else moves[op].ready_ns) for op in channel.transfers)
                for channel in rank.channels
            )
            steps[rank.rank].append(
                StepTrace(
                    step=number,
                    step_begin_ns=origin_ns,
                    step_end_ns=origin_ns + timeline.makespan_ns,
                    asked_ns=tuple(origin_ns + time_ns for time_ns in before_ns),
                    begun_ns=tuple(origin_ns + time_ns for time_ns in starts_ns),
                    ended_ns=tuple(origin_ns + time_ns for time_ns in ends_ns),
                    channels_ns=channels_ns,
                )
            )
        origin_ns += timeline.makespan_ns + 1000
    return Trace(
        plan_name=plan.name,
        plan_sha256=plan_sha256(plan),
        ranks=tuple(
            RankTrace(
                rank=rank.rank,
                clock_offset_ns=0,
                clock_error_ns=0,
                compute=rank.compute,
                channels=tuple(replace(channel, post_before=()) for channel in rank.channels),
                steps=tuple(steps[rank.rank]),
            )
            for rank in plan.ranks
        ),
    )


def slower_block(problem: Problem, op: Op, by_ns: int) -> Problem:
    """The problem with one microbatch's block of one stage slower."""
    values = [problem.duration_ns(op.kind, op.stage, microbatch) for microbatch in range(problem.microbatches)]
    values[op.microbatch] += by_ns
    stages = list(problem.stages)
    changes: dict[str, Any] = {FIELDS[op.kind]: tuple(values)}
    stages[op.stage] = replace(problem.stages[op.stage], **changes)
    return replace(problem, stages=tuple(stages))


def slower_stage(problem: Problem, stage: int, kind: Kind, by_ns: int) -> Problem:
    """The problem with all blocks of a kind of one stage slower."""
    for microbatch in range(problem.microbatches):
        problem = slower_block(problem, Op(kind, stage, microbatch), by_ns)
    return problem


def slower_link(problem: Problem, source: int, destination: int, by_ns: int) -> Problem:
    """The problem with one link's latency longer."""
    links = tuple(
        replace(link, latency_ns=link.latency_ns + by_ns) if (link.source, link.destination) == (source, destination) else link
        for link in problem.links
    )
    return replace(problem, links=links)
