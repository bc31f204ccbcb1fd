"""One microbatch after another: what comes out is valid within any limit, and ahead of the list schedulers where ways are long."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from inputs.problems import M70_NS, MS, make_problem, problems
from suite.example_counts import examples

from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir import Kind, Problem
from schedc.solvers.heuristics.greedy import Greedy
from schedc.solvers.heuristics.in_turn import InTurn
from schedc.verify.schedule.checks import verify_schedule


@examples(200)
@given(problem=problems(placements=("unidirectional",), max_microbatches=9), n_sub=st.integers(1, 5))
def test_any_line_within_its_limits(problem: Problem, n_sub: int) -> None:
    """Every schedule runs, and none holds more than its rank may."""
    if not problem.split_backward:
        with pytest.raises(Unsupported):
            InTurn(n_sub=n_sub)(problem)
        return
    schedule = InTurn(n_sub=n_sub)(problem)
    assert not verify_schedule(problem, schedule)
    assert exceeded_limit(problem, schedule) is None


def test_two_ranks_by_hand() -> None:
    """F 10, B 10, W 10 on two ranks with room for two: F1 waits on rank 1 for B0, whose way is reserved."""
    problem = make_problem(2, 2, in_flight=2)
    schedule = InTurn(n_sub=1)(problem)
    names = ["".join(f"{op.kind.name}{op.microbatch} " for op in order).strip() for order in schedule.orders]
    assert names == ["F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1 W0 W1"]
    assert simulate(problem, schedule).makespan_ns == 70


def test_a_long_pipeline_over_a_slow_link() -> None:
    """16 ranks and a slow link, memory for 16: waits on the way decide, and the list scheduler has them at every rank."""
    slow = {(7, 8): (76 * MS, 76 * MS), (8, 7): (76 * MS, 76 * MS)}
    problem = make_problem(16, 192, costs_ns=M70_NS, in_flight=16, links=slow)
    in_turn, greedy = (simulate(problem, method(problem)).makespan_ns for method in (InTurn(), Greedy()))
    assert in_turn < 0.98 * greedy


def test_parts_that_run_together_are_whole() -> None:
    schedule = InTurn(n_sub=4)(make_problem(1, 3))
    assert [(op.kind, op.part) for op in schedule.orders[0][:3]] == [(Kind.F, -1), (Kind.B, -1), (Kind.F, -1)]
    assert all(op.part == -1 for op in schedule.orders[0])


@pytest.mark.parametrize(
    "problem",
    [make_problem(2, 4, placement="loop", chunks=2), make_problem(2, 4, in_flight=0.5), make_problem(2, 4, costs_ns=(10, 0, 10))],
)
def test_what_it_is_not_for(problem: Problem) -> None:
    with pytest.raises(Unsupported, match="in-turn"):
        InTurn()(problem)
