"""The simulator against hand-made cases, properties, and a longest path computed another way."""

from __future__ import annotations

import dataclasses
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.problems import make_problem, problems
from inputs.random_schedules import random_schedules

from schedc.analysis.simulation.flow import flow_of
from schedc.analysis.simulation.memory import memory_curve, peak_bytes
from schedc.analysis.simulation.simulate import event_loop, simulate, times_of
from schedc.compiled.compiler import compiled
from schedc.errors import CheckFailed
from schedc.ir.ops import Kind, Op
from schedc.ir.problem import DataParallel, Problem
from schedc.ir.schedule import Collective, Schedule

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline

F, B, W, BW = Kind.F, Kind.B, Kind.W, Kind.BW


def all_then_back(ranks: int, microbatches: int) -> Schedule:
    """GPipe on one path: all forwards, then all fused backwards."""
    return Schedule(
        orders=tuple(
            tuple(Op(kind, rank, microbatch) for kind in (F, BW) for microbatch in range(microbatches)) for rank in range(ranks)
        )
    )


def test_one_rank_runs_its_ops_back_to_back() -> None:
    timeline = simulate(make_problem(1, 2, costs_ns=(3, 4, 5)), all_then_back(1, 2))
    assert timeline.start_ns(0) == [0, 3, 6, 15]
    assert timeline.makespan_ns == 24
    assert timeline.transfers == ()


def test_occupancy_queues_and_latency_overlaps() -> None:
    """Two activations of 7 ns leave at 3 and 6; the second waits for the link until 10; each arrives 100 after it left."""
    problem = make_problem(2, 2, costs_ns=(3, 4, 5), links={(0, 1): (100, 7)})
    timeline = simulate(problem, all_then_back(2, 2))
    forward = [transfer for transfer in timeline.transfers if transfer.op.kind is F]
    assert [(t.ready_ns, t.start_ns, t.left_ns, t.arrival_ns) for t in forward] == [(3, 3, 10, 110), (6, 10, 17, 117)]
    assert timeline.start_ns(1) == [110, 117, 120, 129]
    assert timeline.start_ns(0)[2:] == [129, 138]
    assert timeline.makespan_ns == 147


def test_a_trunk_serves_in_order_of_ready_time_and_ties_go_to_the_lower_source() -> None:
    """Bidirectional on 2 ranks: F0.0 leaves rank 0 and F2.1 leaves rank 1 at the same time, on one trunk."""
    problem = make_problem(
        2,
        2,
        placement="bidirectional",
        links={(0, 1): (0, 7), (1, 0): (0, 7)},
        trunks={(0, 1): "shared", (1, 0): "shared"},
    )
    orders = (
        (Op(F, 0, 0), Op(F, 3, 1), Op(BW, 3, 1), Op(BW, 0, 0)),
        (Op(F, 2, 1), Op(F, 1, 0), Op(BW, 1, 0), Op(BW, 2, 1)),
    )
    timeline = simulate(problem, Schedule(orders=orders))
    starts = {(t.op, t.source): t.start_ns for t in timeline.transfers}
    assert starts[Op(F, 0, 0), 0] == 10
    assert starts[Op(F, 2, 1), 1] == 17


def test_collectives_run_beside_compute_and_gate_the_first_forward() -> None:
    problem = dataclasses.replace(
        make_problem(2, 1, placement=[0, 1, 0], costs_ns=(10, 10, 10)),
        data_parallel=DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(50, 6, 70), all_gather_ns=(5, 40, 9)),
    )
    orders = (
        (Op(F, 0, 0), Op(F, 2, 0), Op(B, 2, 0), Op(W, 2, 0), Op(B, 0, 0), Op(W, 0, 0)),
        (Op(F, 1, 0), Op(B, 1, 0), Op(W, 1, 0)),
    )
    timeline = simulate(problem, Schedule(orders=orders))
    spans = {span.collective: (span.ready_ns, span.start_ns, span.end_ns) for span in timeline.collectives}
    assert spans[Collective("AG", 0)] == (0, 0, 5)
    assert spans[Collective("AG", 2)] == (0, 5, 14)
    assert timeline.start_ns(0) == [5, 50, 60, 70, 80, 90]
    assert timeline.start_ns(1) == [40, 70, 80]
    assert spans[Collective("RS", 2)] == (80, 80, 150)
    assert spans[Collective("RS", 0)] == (100, 150, 200)
    assert timeline.makespan_ns == 200
    assert timeline.stage_span_ns == 95


def test_a_deadlock_is_reported_with_the_ops_that_wait() -> None:
    problem = make_problem(2, 2)
    good = all_then_back(2, 2)
    turned = Schedule(orders=((good.orders[0][0], *good.orders[0][2:0:-1], good.orders[0][3]), good.orders[1]))
    with pytest.raises(CheckFailed, match=r"rank 0 before BW0\.0, rank 1 before F1\.1"):
        simulate(problem, turned)


@st.composite
def cases(draw: st.DrawFn, *, shared_trunks: bool = True) -> tuple[Problem, Schedule]:
    """A small problem and a random valid schedule of it."""
    problem = draw(problems(shared_trunks=shared_trunks, min_duration_ns=0))
    return problem, draw(random_schedules(problem))


def spans_of(problem: Problem, schedule: Schedule, timeline: Timeline) -> dict[tuple[Kind, int, int], tuple[int, int]]:
    """Per block: the start of its first part and the end of its last."""
    spans: dict[tuple[Kind, int, int], tuple[int, int]] = {}
    for rank, order in enumerate(schedule.orders):
        for op, start_ns, end_ns in zip(order, timeline.start_ns(rank), timeline.end_ns(rank), strict=True):
            first_ns, _ = spans.get(op[:3], (start_ns, 0))
            spans[op[:3]] = (first_ns, end_ns)
    return spans


def neighbour(problem: Problem, op: Op, step: int) -> int | None:
    """The stage before (-1) or after (+1) the op's on its path."""
    path = problem.path(op.microbatch)
    at = path.index(op.stage) + step
    return path[at] if 0 <= at < len(path) else None


@pytest.mark.slow
@given(cases(shared_trunks=False))
def test_without_shared_links_it_equals_a_longest_path(case: tuple[Problem, Schedule]) -> None:
    """A link of its own is FIFO in its source's order, so all waiting is a fixed graph, and times are longest paths in it."""
    problem, schedule = case
    place = {op: (rank, at) for rank, order in enumerate(schedule.orders) for at, op in enumerate(order)}

    def last_op(kind: Kind, stage: int, microbatch: int) -> Op | None:
        return max((op for op in place if op[:3] == (kind, stage, microbatch)), key=lambda op: op.part, default=None)

    def sent_before(op: Op) -> Op | None:
        """The transfer before this op's on the same link."""
        rank, at = place[op]
        target = receiver(op)
        return next((other for other in reversed(schedule.orders[rank][:at]) if receiver(other) == target), None)

    def receiver(op: Op) -> int | None:
        if op.kind is W or last_op(*op[:3]) != op:
            return None
        stage = neighbour(problem, op, 1 if op.kind is F else -1)
        rank = None if stage is None else problem.stages[stage].rank
        return None if rank == place[op][0] else rank

    @cache
    def left_ns(op: Op) -> int:
        earlier = sent_before(op)
        rank = receiver(op)
        assert rank is not None
        occupancy_ns = problem.link(place[op][0], rank).occupancy_ns(problem.message_bytes(op))
        return max(end_ns(op), left_ns(earlier) if earlier else 0) + occupancy_ns

    @cache
    def end_ns(op: Op) -> int:
        rank, at = place[op]
        ready_ns = end_ns(schedule.orders[rank][at - 1]) if at else 0
        stage = neighbour(problem, op, -1 if op.kind is F else 1)
        if op.kind is not W and op.part <= 0 and stage is not None and problem.stages[stage].rank != rank:
            kinds = (F,) if op.kind is F else (B, BW)
            producer = next(found for kind in kinds if (found := last_op(kind, stage, op.microbatch)))
            ready_ns = max(ready_ns, left_ns(producer) + problem.link(problem.stages[stage].rank, rank).latency_ns)
        return ready_ns + schedule.duration_ns(problem, op)

    timeline = simulate(problem, schedule)
    for rank, order in enumerate(schedule.orders):
        assert timeline.end_ns(rank) == [end_ns(op) for op in order]


@given(cases())
def test_nothing_starts_before_its_needs_and_nothing_overlaps(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    timeline = simulate(problem, schedule)
    spans = spans_of(problem, schedule, timeline)
    arrivals = {(t.op[:3], t.destination): t.arrival_ns for t in timeline.transfers}
    for (kind, stage, microbatch), (start_ns, _) in spans.items():
        op = Op(kind, stage, microbatch)
        if kind is W:
            assert start_ns >= spans[B, stage, microbatch][1]
            continue
        if kind is not F:
            assert start_ns >= spans[F, stage, microbatch][1]
        other = neighbour(problem, op, -1 if kind is F else 1)
        if other is None:
            continue
        producer = (F if kind is F else (BW if (BW, other, microbatch) in spans else B), other, microbatch)
        if problem.stages[other].rank == problem.stages[stage].rank:
            assert start_ns >= spans[producer][1]
        else:
            assert start_ns >= arrivals[producer, problem.stages[stage].rank] >= spans[producer][1]
    for rank in range(problem.ranks):
        assert all(end <= start for end, start in zip(timeline.end_ns(rank), timeline.start_ns(rank)[1:], strict=False))
        assert sum(timeline.end_ns(rank)) - sum(timeline.start_ns(rank)) == timeline.busy_ns[rank]
    by_resource: dict[str, list[tuple[int, int, int]]] = {}
    for t in timeline.transfers:
        link = problem.link(t.source, t.destination)
        by_resource.setdefault(link.trunk or f"{t.source}>{t.destination}", []).append((t.ready_ns, t.start_ns, t.left_ns))
        assert t.left_ns - t.start_ns == link.occupancy_ns(problem.message_bytes(t.op))
        assert t.arrival_ns == t.left_ns + link.latency_ns
    for uses in by_resource.values():
        uses.sort(key=lambda use: (use[1], use[2]))
        for (ready_ns, _, left_ns), (next_ready_ns, next_start_ns, _) in pairwise(uses):
            assert next_start_ns == max(left_ns, next_ready_ns)
            assert ready_ns <= next_ready_ns


@given(cases(), st.integers(2, 1000))
def test_scaling_every_duration_scales_the_result(case: tuple[Problem, Schedule], factor: int) -> None:
    problem, schedule = case
    schedule = Schedule(  # parts round to whole nanoseconds, so only whole blocks scale exactly
        orders=tuple(tuple(op._replace(part=-1) for op in order if op.part <= 0) for order in schedule.orders)
    )
    scaled = dataclasses.replace(
        problem,
        stages=tuple(
            dataclasses.replace(
                stage,
                forward_ns=tuple(value * factor for value in stage.forward_ns),
                backward_input_ns=tuple(value * factor for value in stage.backward_input_ns),
                backward_weight_ns=tuple(value * factor for value in stage.backward_weight_ns),
                backward_ns=tuple(value * factor for value in stage.backward_ns),
            )
            for stage in problem.stages
        ),
        links=tuple(
            dataclasses.replace(link, latency_ns=link.latency_ns * factor, transfer_ns=(link.transfer_ns or 0) * factor)
            for link in problem.links
        ),
    )
    try:
        timeline = simulate(problem, schedule)
    except CheckFailed:  # moving the later parts of a block forward can close a cycle
        with pytest.raises(CheckFailed):
            simulate(scaled, schedule)
        return
    larger = simulate(scaled, schedule)
    assert (larger.starts_ns == timeline.starts_ns * factor).all()
    assert larger.makespan_ns == timeline.makespan_ns * factor


@given(cases())
def test_the_memory_curve_integrates(case: tuple[Problem, Schedule]) -> None:
    """Bytes × time under the curve equals, block by block, what is held for as long as it is held; the peak is the curve's."""
    problem, schedule = case
    timeline = simulate(problem, schedule)
    spans = spans_of(problem, schedule, timeline)
    peaks = peak_bytes(problem, schedule)
    for rank in range(problem.ranks):
        curve = memory_curve(problem, schedule, timeline, rank)
        assert curve[-1][1] == 0
        area = sum(held * (later - now) for (now, held), (later, _) in pairwise(curve))
        expected = 0
        for stage, microbatch in problem.blocks():
            costs = problem.stages[stage]
            if costs.rank != rank:
                continue
            start_ns = spans[F, stage, microbatch][0]
            if (BW, stage, microbatch) in spans:
                expected += costs.activation_bytes * (spans[BW, stage, microbatch][1] - start_ns)
                continue
            kept = costs.activation_after_input_bytes
            expected += (costs.activation_bytes - kept) * (spans[B, stage, microbatch][1] - start_ns)
            expected += kept * (spans[W, stage, microbatch][1] - start_ns)
        assert area == expected
        assert max(held for _, held in curve) <= peaks[rank]


@given(cases())
def test_the_compiled_loop_gives_the_same(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    plain = event_loop
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("schedc.analysis.simulation.simulate.event_loop_for", lambda _: (plain, False))
        interpreted = simulate(problem, schedule)
    with pytest.MonkeyPatch.context() as patch:
        loop = compiled(plain)
        patch.setattr("schedc.analysis.simulation.simulate.event_loop_for", lambda _: (loop, True))
        by_machine = simulate(problem, schedule)
        flow = flow_of(problem, schedule)
        (first, _), (again, _) = times_of(flow), times_of(flow)
    assert (first.starts_ns == again.starts_ns).all() and (again.starts_ns == by_machine.starts_ns).all()  # a flow may run again
    assert (interpreted.starts_ns == by_machine.starts_ns).all()
    assert interpreted.transfers == by_machine.transfers
