"""What a timeline waits for: against a walk nanosecond by nanosecond, and against the simulator with ops and links delayed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, strategies as st
from inputs.graphs import graph_cases
from inputs.problems import make_problem
from inputs.random_schedules import cases, random_schedules
from suite.example_counts import examples

from schedc.analysis.attribution.idle import IdleCause, idle_of
from schedc.analysis.attribution.slack import slacks_of
from schedc.analysis.attribution.tolerance import Tolerance, lengthened_ns
from schedc.analysis.attribution.waits import Awaited, SegmentKind, critical_path, waits_of
from schedc.analysis.simulation.simulate import simulate
from schedc.ir.ops import Kind, Op, goes_to
from schedc.ir.schedule import Schedule
from schedc.solvers.heuristics.greedy import Greedy

if TYPE_CHECKING:
    from schedc.analysis.attribution.waits import Waits
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.problem import Problem

Blame = tuple[IdleCause, int, int | None]


@examples(20)
@given(cases(least_ns=0, least_occupancy_ns=0) | graph_cases(least_ns=0))
def test_the_critical_path_tiles_the_step(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    timeline = simulate(problem, schedule)
    waits = waits_of(problem, timeline)
    path = critical_path(timeline, waits)
    assert sum(segment.length_ns for segment in path) == timeline.makespan_ns
    assert all(before.end_ns == after.start_ns for before, after in pairwise(path))
    assert all(segment.length_ns > 0 for segment in path)
    for segment in path:
        if segment.kind in (SegmentKind.ALL_GATHER, SegmentKind.REDUCE_SCATTER):
            span = timeline.collectives[segment.collective or 0]
            assert (span.rank, span.start_ns, span.end_ns) == (segment.rank, segment.start_ns, segment.end_ns)
            continue
        op, transfer = segment.op, segment.transfer
        assert op is not None
        if transfer is not None:
            assert (timeline.sender[transfer], timeline.links[transfer]) == (op, (segment.rank, segment.destination))
            left_ns = timeline.transfer_left_ns[transfer]
            on_link = (timeline.transfer_start_ns[transfer], left_ns), (left_ns, timeline.arrival_ns[transfer])
            assert (segment.start_ns, segment.end_ns) == on_link[segment.kind is SegmentKind.LATENCY]
        else:
            assert (timeline.starts_ns[op], timeline.ends_ns[op]) == (segment.start_ns, segment.end_ns)


@examples(15)
@given(cases(least_ns=0, least_occupancy_ns=0) | graph_cases(least_ns=0))
def test_what_an_op_waits_for_comes_when_it_starts(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    timeline = simulate(problem, schedule)
    waits = waits_of(problem, timeline)
    for op, (cause, awaited, start_ns) in enumerate(zip(waits.cause, waits.awaited, timeline.starts_ns, strict=True)):
        if cause == Awaited.NOTHING:
            assert (start_ns, awaited, waits.idle_ns[op]) == (0, -1, 0)
        elif cause == Awaited.OP:
            assert (awaited, waits.idle_ns[op], timeline.ends_ns[awaited]) == (op - 1, 0, start_ns)
        elif cause == Awaited.MESSAGE:
            assert (awaited, op) in zip(timeline.taken, timeline.taker, strict=True)
            assert timeline.arrival_ns[awaited] == start_ns
            assert waits.idle_ns[op] > 0
        else:
            span = timeline.collectives[awaited]
            assert (span.end_ns, span.collective.stage) == (start_ns, timeline.ops[op, 1])
    for item in np.flatnonzero(waits.behind >= 0).tolist():
        assert left_ns(timeline, waits.behind[item]) == begun_ns(timeline, item)


def begun_ns(timeline: Timeline, item: int) -> int:
    """When a transfer or a collective (after these) begins on its line."""
    count = len(timeline.sender)
    return int(timeline.transfer_start_ns[item]) if item < count else timeline.collectives[item - count].start_ns


def left_ns(timeline: Timeline, item: int) -> int:
    """When it leaves it."""
    count = len(timeline.sender)
    return int(timeline.transfer_left_ns[item]) if item < count else timeline.collectives[item - count].end_ns


@examples(12)
@given(cases() | graph_cases(memory=False))
def test_idle_time_has_the_cause_of_each_nanosecond(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    limits = (2 * max(stage.activation_bytes for stage in problem.stages),) * problem.ranks
    problem = dataclasses.replace(problem, memory_limit_bytes=limits)
    timeline = simulate(problem, schedule)
    waits = waits_of(problem, timeline)
    found = idle_of(problem, schedule, timeline, waits)
    for rank, causes in enumerate(found):
        blamed = Counter(
            blame(problem, schedule, timeline, rank, now_ns)
            for now_ns in range(timeline.makespan_ns)
            if not running(timeline, rank, now_ns)
        )
        assert {(idle.cause, idle.rank, idle.destination): idle.idle_ns for idle in causes} == dict(blamed)
        assert sum(idle.idle_ns for idle in causes) == timeline.makespan_ns - timeline.busy_ns[rank]


def running(timeline: Timeline, rank: int, now_ns: int) -> bool:
    """Whether the rank computes in [now, now + 1)."""
    spans = zip(timeline.start_ns(rank), timeline.end_ns(rank), strict=True)
    return any(start_ns <= now_ns < end_ns for start_ns, end_ns in spans)


def blame(problem: Problem, schedule: Schedule, timeline: Timeline, rank: int, now_ns: int, *, awaited: bool = False) -> Blame:
    """Why the rank is idle in [now, now + 1); `awaited`: another rank waits for it."""
    starts_ns, order = timeline.start_ns(rank), schedule.orders[rank]
    place = sum(start_ns <= now_ns for start_ns in starts_ns)
    if place == 0 and not awaited:
        return IdleCause.WARM_UP, rank, None
    if place == len(order):
        return IdleCause.COOL_DOWN, rank, None
    if memory_full(problem, schedule, timeline, rank, place, now_ns):
        return IdleCause.MEMORY, rank, None
    for transfer in reversed(timeline.transfers):  # of several, the one that arrives last
        if transfer.arrival_ns == starts_ns[place] and order[place] in takers(problem, schedule, transfer.op):
            source = transfer.source
            if now_ns >= transfer.left_ns:
                return IdleCause.LATENCY, source, rank
            if now_ns >= transfer.start_ns:
                return IdleCause.TRANSMISSION, source, rank
            if now_ns >= transfer.ready_ns:
                return IdleCause.QUEUE, source, rank
            if running(timeline, source, now_ns):
                return IdleCause.COMPUTE, source, None
            return blame(problem, schedule, timeline, source, now_ns, awaited=True)
    return IdleCause.ALL_GATHER, rank, None


def takers(problem: Problem, schedule: Schedule, sent: Op) -> list[Op]:
    """The ops that need a message: of a block the first part, of a value that several stages of a rank take all of them."""
    edges, forward = problem.edges_of(problem.path_of[sent.microbatch]), sent.kind is Kind.F
    ends = [(edge.source, edge.destination) if forward else (edge.destination, edge.source) for edge in edges]
    stages = {to for source, to in ends if source == sent.stage and (problem.is_chain or to == goes_to(sent))}
    if forward:
        values = {edge.value for edge, (source, to) in zip(edges, ends, strict=True) if source == sent.stage and to in stages}
        ranks = {problem.stages[to].rank for to in stages}
        equal = [edge.destination for edge in edges if edge.source == sent.stage and edge.value in values]
        stages |= {to for to in equal if problem.stages[to].rank in ranks and not problem.is_chain}
    kinds = (Kind.F,) if forward else (Kind.B, Kind.BW)
    of_rank = [op for order in schedule.orders for op in order if op.kind in kinds and op.microbatch == sent.microbatch]
    return [op for op in of_rank if op.stage in stages and op.part <= 0]


def memory_full(problem: Problem, schedule: Schedule, timeline: Timeline, rank: int, place: int, now_ns: int) -> bool:
    """Whether a forward is ready and does not fit: the next of some stage from this place of the order on."""
    order, limit_bytes = schedule.orders[rank], problem.memory_limit_bytes[rank]
    assert limit_bytes is not None
    held_bytes = 0
    for op in order[:place]:
        parts = schedule.parts_of(op.kind, op.stage)
        if op.part <= 0:
            held_bytes += problem.taken_bytes(op.kind, op.stage, op.microbatch)
        if op.part < 0 or (parts is not None and op.part == len(parts.shares) - 1):
            held_bytes -= problem.released_bytes(op.kind, op.stage, op.microbatch)
    held_bytes += max((problem.taken_bytes(*op[:3]) for op in order if op.kind is not Kind.F), default=0)
    for chunk in problem.stages_on(rank):
        forward = next((op for op in order[place:] if op.kind is Kind.F and op.stage == chunk and op.part <= 0), None)
        if forward is None or held_bytes + problem.taken_bytes(*forward[:3]) <= limit_bytes:
            continue
        ready_ns = [span.end_ns for span in timeline.collectives if span.collective.token == f"AG{chunk}"]
        ready_ns += [each.arrival_ns for each in timeline.transfers if forward in takers(problem, schedule, each.op)]
        edges = problem.edges_of(problem.path_of[forward.microbatch])
        needs = [(edge.source, forward.microbatch) for edge in edges if edge.destination == chunk]
        needs += [(chunk, forward.microbatch - 1)] if problem.slice_of(forward.microbatch) else []
        ready_ns += [
            end_ns for op, end_ns in zip(order, timeline.end_ns(rank), strict=True) if op.kind is Kind.F and op[1:3] in needs
        ]
        if max(ready_ns, default=0) <= now_ns:
            return True
    return False


@examples(12)
@given(cases(trunks=False) | graph_cases(trunks=False), st.data())
def test_slack_is_what_an_op_can_be_late(case: tuple[Problem, Schedule], data: st.DataObject) -> None:
    problem, schedule = case
    schedule = Schedule(orders=tuple(tuple(op for op in order if op.part <= 0) for order in schedule.orders))
    schedule = Schedule(orders=tuple(tuple(op._replace(part=-1) for op in order) for order in schedule.orders))
    timeline = simulate(problem, schedule)
    slack_ns = slacks_of(timeline, waits_of(problem, timeline)).op_ns
    assert slack_ns.min() == 0
    op = data.draw(st.integers(0, len(timeline.ops) - 1))
    for more_ns, longer in ((int(slack_ns[op]), False), (int(slack_ns[op]) + 1, True)):
        kind, stage, microbatch, _ = timeline.ops[op].tolist()
        later = simulate(grown(problem, Kind(kind), stage, microbatch, more_ns), schedule)
        assert (later.makespan_ns > timeline.makespan_ns) == longer


def grown(problem: Problem, kind: Kind, stage: int, microbatch: int, more_ns: int) -> Problem:
    """The problem in which one block takes that much longer."""
    name = {Kind.F: "forward_ns", Kind.B: "backward_input_ns", Kind.W: "backward_weight_ns", Kind.BW: "backward_ns"}[kind]
    values = [problem.duration_ns(kind, stage, each) for each in range(problem.microbatches)]
    values[microbatch] += more_ns
    stages = list(problem.stages)
    stages[stage] = dataclasses.replace(stages[stage], **{name: tuple(values)})  # type: ignore[arg-type]
    return dataclasses.replace(problem, stages=tuple(stages))


@examples(16)
@given(cases(least_ns=0, least_occupancy_ns=0) | graph_cases(least_ns=0), st.integers(0, 30))
def test_a_link_tolerates_a_delay_and_not_more(case: tuple[Problem, Schedule], allowed_ns: int) -> None:
    problem, schedule = case
    tolerance = Tolerance(problem, schedule)
    timeline = simulate(problem, schedule)
    slack_ns = slacks_of(timeline, waits_of(problem, timeline)).of_links(timeline)
    target_ns = timeline.makespan_ns + allowed_ns
    for link, least_ns in slack_ns.items():
        most_ns = tolerance.extra_latency_ns(link, target_ns)

        def makespan_ns(extra_ns: int, link: tuple[int, int] = link) -> int:
            links = tuple(
                dataclasses.replace(each, latency_ns=each.latency_ns + extra_ns * ((each.source, each.destination) == link))
                for each in problem.links
            )
            return simulate(dataclasses.replace(problem, links=links), schedule).makespan_ns

        assert makespan_ns(most_ns) <= target_ns < makespan_ns(most_ns + 1)
        if tolerance.exact:
            assert most_ns <= least_ns + allowed_ns
            assert all(makespan_ns(most_ns + far_ns) > target_ns for far_ns in (2, 5, 20))


@examples(10)
@given(st.data(), st.integers(2, 4), st.integers(0, 9), st.integers(0, 9))
def test_a_link_that_one_message_crosses_tolerates_its_slack(data: st.DataObject, ranks: int, latency: int, occupancy: int) -> None:
    links = {(at, at + 1): (latency, occupancy) for at in range(ranks - 1)}
    problem = make_problem(ranks, 1, costs_ns=(3, 4, 5), links=links)
    schedule = data.draw(random_schedules(problem))
    timeline = simulate(problem, schedule)
    waits = waits_of(problem, timeline)
    for link, slack_ns in slacks_of(timeline, waits).of_links(timeline).items():
        assert Tolerance(problem, schedule).extra_latency_ns(link) == slack_ns


def test_memory_is_named_where_one_activation_more_would_help() -> None:
    links = {(0, 1): (50, 0), (1, 0): (50, 0)}
    problem = make_problem(2, 4, costs_ns=(10, 10, 10), links=links, in_flight=2)
    causes, waits = _causes(problem)
    assert causes[0][IdleCause.MEMORY, 0, None] > 0
    roomy, _ = _causes(dataclasses.replace(problem, memory_limit_bytes=(None, None)))
    assert not any(cause[0] is IdleCause.MEMORY for rank in roomy for cause in rank)
    assert waits.idle_ns.sum() > 0


def _causes(problem: Problem) -> tuple[list[dict[Blame, int]], Waits]:
    schedule = Greedy()(problem)
    timeline = simulate(problem, schedule)
    waits = waits_of(problem, timeline)
    found = idle_of(problem, schedule, timeline, waits)
    return [{(idle.cause, idle.rank, idle.destination): idle.idle_ns for idle in rank} for rank in found], waits


def test_a_share_of_the_step_is_the_decimal_number() -> None:
    assert lengthened_ns(100, 0.15) == 115  # int(100 * 1.15) is 114
    assert lengthened_ns(10**18, 0.05) == 105 * 10**16
    assert lengthened_ns(99, 0.05) == 103
