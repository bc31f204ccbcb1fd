"""Ranks that choose their next op: against an engine that runs nanosecond by nanosecond, and what must hold of every run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hypothesis import given, settings, strategies as st
from inputs.plans import one_f_one_b
from inputs.problems import make_problem
from inputs.random_schedules import cases
from oracles.choosing_engine import run_choosing

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.online import QUEUE_OF, not_before, rooms_bytes, simulate_online
from schedc.analysis.simulation.simulate import simulate
from schedc.ir.ops import Kind, Op, parse_op, token
from schedc.ir.schedule import Schedule
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


@st.composite
def tight(draw: st.DrawFn, *, collectives: bool = True) -> tuple[Problem, Schedule]:
    """A case whose memory limits leave little or nothing above what the schedule holds, or are none."""
    problem, schedule = draw(cases(collectives=collectives))
    peaks = peak_bytes(problem, schedule)
    limits = tuple(draw(st.sampled_from([None, 0, peak, peak + 1, peak + 4, 1000])) for peak in peaks)
    return dataclasses.replace(problem, memory_limit_bytes=limits), schedule


@st.composite
def changes(draw: st.DrawFn, problem: Problem) -> list[tuple[int, Problem]]:
    """What the problem costs from later times on: other latencies, occupancies and durations."""
    times_ns = sorted(draw(st.lists(st.integers(1, 60), max_size=3)))
    found = []
    for time_ns in times_ns:
        factor = draw(st.integers(1, 3))
        links = tuple(
            dataclasses.replace(link, latency_ns=draw(st.integers(0, 12)), transfer_ns=(link.transfer_ns or 0) * factor)
            for link in problem.links
        )
        stages = tuple(
            dataclasses.replace(stage, forward_ns=tuple(ns * factor for ns in stage.forward_ns)) for stage in problem.stages
        )
        found.append((time_ns, dataclasses.replace(problem, links=links, stages=stages)))
    return found


@settings(max_examples=40)
@given(case=tight(), data=st.data())
def test_it_equals_an_engine_run_nanosecond_by_nanosecond(case: tuple[Problem, Schedule], data: st.DataObject) -> None:
    problem, schedule = case
    later = data.draw(changes(problem))
    planned = simulate(problem, schedule) if data.draw(st.booleans()) else None
    planned_ns = None
    if planned is not None:
        ops = [op for order in schedule.orders for op in order]
        planned_ns = dict(zip(ops, planned.starts_ns.tolist(), strict=True))
    run = simulate_online(problem, schedule, later, planned=planned)
    starts_ns, orders, makespan_ns = run_choosing(problem, schedule, rooms_bytes(problem, schedule), later, planned_ns)
    found = {
        op: ns for rank, order in enumerate(run.schedule.orders) for op, ns in zip(order, run.timeline.start_ns(rank), strict=True)
    }
    assert found == starts_ns
    assert [list(order) for order in run.schedule.orders] == orders
    assert run.timeline.makespan_ns == makespan_ns


@settings(max_examples=40)
@given(tight())
def test_every_run_keeps_its_queues_and_its_memory_and_is_a_schedule(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    run = simulate_online(problem, schedule)
    rooms = rooms_bytes(problem, schedule)
    for planned, ran in zip(schedule.orders, run.schedule.orders, strict=True):
        for queue in range(3):
            assert [op for op in ran if QUEUE_OF[op.kind] == queue] == [op for op in planned if QUEUE_OF[op.kind] == queue]
    within = dataclasses.replace(problem, memory_limit_bytes=tuple(rooms), in_order=False)
    assert verify_schedule(within, run.schedule) == ()


@settings(max_examples=40)
@given(tight(collectives=False))
def test_a_run_takes_what_its_orders_take(case: tuple[Problem, Schedule]) -> None:
    """Choosing only decides orders: as a plan of its own, the orders that ran give the same times."""
    problem, schedule = case
    run = simulate_online(problem, schedule)
    assert (simulate(problem, run.schedule).starts_ns == run.timeline.starts_ns).all()


@settings(max_examples=40)
@given(cases())
def test_in_the_plans_order_it_is_the_simulator(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    usual, found = simulate(problem, schedule), simulate_online(problem, schedule, choose=False)
    assert found.schedule == schedule
    assert (found.timeline.starts_ns == usual.starts_ns).all()
    assert found.timeline.transfers == usual.transfers
    assert found.timeline.collectives == usual.collectives


def test_1f1b_on_a_slow_link_runs_ahead() -> None:
    """Two ranks, 4 microbatches, room for 4 on rank 0, transfers of 20 each way: worked out by hand.

    As planned, rank 0 runs F0 F1, then waits until BW1.0 has come back: F1.0 at 30 to 40, BW1.0 to 60, back at 80. Choosing, it
    runs F2 and F3 at 20 and 30, and so rank 1 never waits for them.
    """
    links = {(0, 1): (20, 0), (1, 0): (20, 0)}
    problem = make_problem(2, 4, costs_ns=(10, 10, 10), in_flight=4, links=links)
    schedule = one_f_one_b(problem)
    run = simulate_online(problem, schedule)
    assert [op for op in run.schedule.orders[0] if op.kind is Kind.F] == [Op(Kind.F, 0, number) for number in range(4)]
    assert run.timeline.start_ns(0)[:4] == [0, 10, 20, 30]
    assert run.timeline.makespan_ns < simulate(problem, schedule).makespan_ns
    tight_one = dataclasses.replace(problem, memory_limit_bytes=peak_bytes(problem, schedule))
    assert simulate_online(tight_one, schedule).schedule == schedule


def test_a_weight_gradient_that_goes_ahead_may_hold_up_what_comes_next() -> None:
    """A link that is busy for 21 with each transfer: the plan leaves rank 1 idle from 51 to 52, when F0.1 arrives.

    A rank that looks only at what has come runs W1.0 then, and so F1.1 from 61 on: 9 later, and with it all that waits for it.
    """
    problem = make_problem(2, 2, costs_ns=(10, 10, 10), links={(0, 1): (0, 21), (1, 0): (0, 0)})
    text = "F0.0 F0.1 B0.0 W0.0 B0.1 W0.1", "F1.0 B1.0 F1.1 B1.1 W1.0 W1.1"
    schedule = Schedule(orders=tuple(tuple(map(parse_op, order.split())) for order in text))
    assert simulate(problem, schedule).makespan_ns == 92
    assert simulate_online(problem, schedule).timeline.makespan_ns == 101
    assert simulate_online(problem, schedule, planned=simulate(problem, schedule)).timeline.makespan_ns == 92


def test_a_weight_gradient_lets_a_late_forward_go_ahead() -> None:
    """Activations come 30 late. At 60, after B1.0, W1.0 and F1.1 are ready: F1.1 runs, and all W of rank 1 from 100 to 130.

    As planned, rank 1 runs F, B and W in turn, B1.2 ends at 120 instead of 100, and rank 0 at 140.
    """
    planned_for = make_problem(2, 3, costs_ns=(10, 10, 10), in_flight=3, links={(0, 1): (0, 0), (1, 0): (0, 0)})
    text = "F0.0 F0.1 F0.2 B0.0 W0.0 B0.1 W0.1 B0.2 W0.2", "F1.0 B1.0 W1.0 F1.1 B1.1 W1.1 F1.2 B1.2 W1.2"
    schedule = Schedule(orders=tuple(tuple(map(parse_op, order.split())) for order in text))
    slow = dataclasses.replace(
        planned_for, links=tuple(dataclasses.replace(link, latency_ns=30 if link.source == 0 else 0) for link in planned_for.links)
    )
    run = simulate_online(slow, schedule, planned=not_before(planned_for, schedule))
    assert " ".join(map(token, run.schedule.orders[1])) == "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 W1.0 W1.1 W1.2"
    assert (run.timeline.makespan_ns, simulate(slow, schedule).makespan_ns) == (130, 140)


@settings(max_examples=40)
@given(tight())
def test_choosing_takes_no_longer_than_the_plans_order_where_all_is_as_planned(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    run = simulate_online(problem, schedule, planned=not_before(problem, schedule))
    assert run.timeline.makespan_ns <= simulate(problem, schedule).makespan_ns
