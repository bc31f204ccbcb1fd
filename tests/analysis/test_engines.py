"""Engines whose transfers hold up compute: against one that runs nanosecond by nanosecond, Megatron's own code path, and bounds."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st
from inputs.plans import one_f_one_b
from inputs.problems import make_problem
from inputs.random_schedules import cases
from oracles.waiting_engines import blocking_rank, megatron_rank, one_queue_rank, run

from schedc.analysis.simulation.engines import Transfers, simulate_engine
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import CheckFailed
from schedc.ir.ops import Kind, Op
from schedc.ir.schedule import Schedule

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.problem import Problem

F, B, W, BW = Kind.F, Kind.B, Kind.W, Kind.BW
PROGRAMS = {Transfers.ONE_QUEUE: one_queue_rank, Transfers.BLOCKING: blocking_rank}


def starts_of(schedule: Schedule, timeline: Timeline) -> dict[Op, int]:
    """Per op, its start."""
    return {op: ns for rank, order in enumerate(schedule.orders) for op, ns in zip(order, timeline.start_ns(rank), strict=True)}


@pytest.mark.parametrize("transfers", sorted(PROGRAMS))
@settings(max_examples=30)
@given(case=cases())
def test_it_equals_an_engine_run_nanosecond_by_nanosecond(transfers: Transfers, case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    found = run(problem, schedule, PROGRAMS[transfers])
    if found is None:
        assert transfers is Transfers.BLOCKING, "one queue never deadlocks"
        with pytest.raises(CheckFailed, match=r"wait for each other indefinitely: rank \d+ to "):
            simulate_engine(problem, schedule, transfers)
        return
    timeline = simulate_engine(problem, schedule, transfers)
    assert starts_of(schedule, timeline) == found[0]
    assert timeline.makespan_ns == found[1]


@given(
    st.integers(2, 5),
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)), min_size=5, max_size=5),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=8, max_size=8),
)
def test_blocking_1f1b_is_megatrons(
    ranks: int, microbatches: int, costs_ns: list[tuple[int, int, int]], link_ns: list[tuple[int, int]]
) -> None:
    """Its warm-up, its fused exchanges and its cool-down follow from the one rule about peers."""
    pairs = [pair for rank in range(ranks - 1) for pair in ((rank, rank + 1), (rank + 1, rank))]
    links = dict(zip(pairs, link_ns, strict=False))
    problem = make_problem(ranks, microbatches, costs_ns=costs_ns[:ranks], links=links)
    schedule = one_f_one_b(problem)
    theirs = run(problem, schedule, megatron_rank)
    assert theirs is not None
    assert starts_of(schedule, simulate_engine(problem, schedule, Transfers.BLOCKING)) == theirs[0]


@given(cases(collectives=False))
def test_each_wait_only_adds_where_no_link_is_shared(case: tuple[Problem, Schedule]) -> None:
    """Op by op; a blocking engine waits for all that one queue waits for, and this one for all that decoupled transfers do."""
    problem, schedule = case
    problem = dataclasses.replace(problem, links=tuple(dataclasses.replace(link, trunk=None) for link in problem.links))
    decoupled, queued = simulate(problem, schedule), simulate_engine(problem, schedule, Transfers.ONE_QUEUE)
    assert (decoupled.starts_ns <= queued.starts_ns).all()
    try:
        blocking = simulate_engine(problem, schedule, Transfers.BLOCKING)
    except CheckFailed:
        return
    assert (queued.starts_ns <= blocking.starts_ns).all()


@settings(max_examples=20)
@given(cases(collectives=False))
def test_in_one_queue_free_transfers_hold_up_nothing(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    links = tuple(dataclasses.replace(link, latency_ns=0, transfer_ns=0, trunk=None) for link in problem.links)
    free = dataclasses.replace(problem, links=links)
    assert (simulate_engine(free, schedule, Transfers.ONE_QUEUE).starts_ns == simulate(free, schedule).starts_ns).all()


def gpipe(ranks: int, microbatches: int) -> Schedule:
    """All forwards, then all fused backwards."""
    return Schedule(
        orders=tuple(
            tuple(Op(kind, rank, microbatch) for kind in (F, BW) for microbatch in range(microbatches)) for rank in range(ranks)
        )
    )


def test_what_each_engine_makes_of_three_activations() -> None:
    """F takes 10 and a transfer 25 with 5 of occupancy, on two ranks; worked out by hand.

    Decoupled, the activations arrive at 35, 45, 55. In one queue the first enters at 10 and is through at 35, so the rank waits
    from 20, when the second F has ended, until then. The third F starts at 35; so they arrive at 35, 60, 85. Blocking, each F
    starts when the activation before has arrived; rank 1 comes to the second transfer after its own F, at 45, as rank 0 does.
    """
    problem = make_problem(2, 3, costs_ns=(10, 10, 10), links={(0, 1): (20, 5), (1, 0): (20, 5)})
    schedule = gpipe(2, 3)
    arrivals = {
        transfers: [t.arrival_ns for t in simulate_engine(problem, schedule, transfers).transfers if t.op.kind is F]
        for transfers in Transfers
    }
    assert arrivals == {
        Transfers.DECOUPLED: [35, 45, 55],
        Transfers.ONE_QUEUE: [35, 60, 85],
        Transfers.BLOCKING: [35, 70, 105],
    }
    assert simulate_engine(problem, schedule, Transfers.ONE_QUEUE).start_ns(0)[:3] == [0, 10, 35]
    assert simulate_engine(problem, schedule, Transfers.BLOCKING).start_ns(0)[:3] == [0, 35, 70]


def test_crossing_orders_deadlock_where_transfers_block_and_the_cycle_is_named() -> None:
    """Rank 0 is two forwards further ahead than 1F1B: it sends its third while rank 1 sends the first gradient."""
    problem = make_problem(2, 4)
    schedule = Schedule(orders=(gpipe(2, 4).orders[0], one_f_one_b(problem).orders[1]))
    assert simulate(problem, schedule).makespan_ns == 150
    assert simulate_engine(problem, schedule, Transfers.ONE_QUEUE).makespan_ns == 150
    with pytest.raises(CheckFailed) as caught:
        simulate_engine(problem, schedule, Transfers.BLOCKING)
    assert str(caught.value) == (
        "where transfers block, the ranks wait for each other indefinitely:"
        " rank 0 to send F0.2 to rank 1, rank 1 to send BW1.0 to rank 0"
    )


def test_on_a_shared_trunk_one_queue_may_be_faster() -> None:
    """Decoupled, rank 2 sends all activations at once, and what is more urgent waits behind them; one queue keeps them back."""
    links = {(0, 1): (0, 1), (1, 0): (0, 1), (1, 2): (0, 1), (2, 1): (0, 7)}
    problem = make_problem(3, 3, placement=[2, 1, 0, 0], costs_ns=(1, 1, 1), links=links, trunks=dict.fromkeys(links, "east"))
    orders = (
        tuple(op for m in range(3) for op in (Op(F, 2, m), Op(F, 3, m), Op(BW, 3, m), Op(BW, 2, m))),
        tuple(op for m in range(3) for op in (Op(F, 1, m), Op(BW, 1, m))),
        tuple(Op(kind, 0, m) for kind in (F, BW) for m in range(3)),
    )
    schedule = Schedule(orders=orders)
    assert simulate(problem, schedule).makespan_ns == 57
    assert simulate_engine(problem, schedule, Transfers.ONE_QUEUE).makespan_ns == 53
