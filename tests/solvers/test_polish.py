"""Local search over orders: never worse, valid on any placement, its clock right, moves never break a need or a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from problems import make_problem, problems

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.solvers.driver.registry import constructive
from schedc.solvers.search.polish import polish_schedule
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


@examples(60)
@given(problems(max_ranks=4, max_microbatches=5, shared_trunks=False), st.integers(0, 5))
def test_never_worse_valid_and_timed_right(problem: Problem, seed: int) -> None:
    try:
        start = constructive("greedy{n_sub=1}")(problem)
    except Unsupported:
        return
    found = polish_schedule(problem, start, evaluations=50, rounds=2, seed=seed)
    assert not verify_schedule(problem, found.schedule)
    assert found.end_ns == simulate(problem, found.schedule).objective_ns(problem.objective)
    assert found.end_ns <= simulate(problem, start).objective_ns(problem.objective)


def test_it_repairs_an_order_that_is_plainly_bad() -> None:
    """GPipe's order on unequal stages with split backwards: everything can overlap better."""
    problem = make_problem(3, 6, costs_ns=[(3, 4, 5), (5, 3, 4), (4, 5, 3)])
    start = constructive("zb-h1")(problem)
    worse = constructive("zb-h1")(make_problem(3, 6))
    assert start.orders == worse.orders
    found = polish_schedule(problem, start, rounds=4)
    assert found.end_ns < simulate(problem, start).makespan_ns


@pytest.mark.slow
def test_it_beats_the_best_peer_on_a_v_with_little_memory() -> None:
    """Zero-bubble's 1.5B profile on 8 ranks, 24 microbatches, V, memory p: the best of the peers' generators takes 1188.5 ms."""
    from schedc.bench.instances import instances

    problem = next(instance.problem for instance in instances("zero-bubble") if instance.name == "zb-1.5B-p8-n24-V-p")
    found = polish_schedule(problem, constructive("zb-v")(problem), rounds=10)
    assert simulate(problem, found.schedule).makespan_ns < 1_188_500_000


def test_the_same_seed_gives_the_same_schedule() -> None:
    problem = make_problem(
        4, 8, placement="wave", chunks=2, costs_ns=(3, 4, 5), in_flight=4, links={(1, 2): (9, 3), (2, 1): (9, 3)}
    )
    start = constructive("greedy{n_sub=1}")(problem)
    assert polish_schedule(problem, start, rounds=2, seed=4) == polish_schedule(problem, start, rounds=2, seed=4)


def test_fused_blocks_of_a_split_problem_are_refused() -> None:
    problem = make_problem(2, 2)
    with pytest.raises(ValueError, match="whole block"):
        polish_schedule(problem, constructive("1f1b")(problem))
