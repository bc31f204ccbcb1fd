"""Local search: valid schedules on any placement, its own clock right, the same seed the same schedule."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from inputs.problems import M70_NS, m70, make_problem, problems, with_fused_backward
from suite.example_counts import examples

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.ops import BLOCKS
from schedc.ir.problem import Objective
from schedc.solvers.common.base import Climbing
from schedc.solvers.kernel.climb import MOVES
from schedc.solvers.search.local import local_search
from schedc.solvers.search.polish import polish_schedule
from schedc.study.bench.instances import instances
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


@examples(60)
@given(problems(max_ranks=4, max_microbatches=5))
def test_schedules_are_valid_on_any_placement(problem: Problem) -> None:
    found = local_search(problem, Climbing(evaluations=8, rounds=2))
    assert not verify_schedule(problem, found.schedule)
    assert not found.cut_short


@examples(60)
@given(problems(max_ranks=4, max_microbatches=5, shared_trunks=False))
def test_without_shared_trunks_its_clock_is_the_simulators(problem: Problem) -> None:
    found = local_search(problem, Climbing(evaluations=8, rounds=2))
    assert found.end_ns == simulate(problem, found.schedule).objective_ns(problem.objective)


@examples(30)
@given(problems(max_ranks=4, max_microbatches=5, shared_trunks=False))
def test_mixed_backwards_are_valid_and_its_clock_the_simulators(problem: Problem) -> None:
    problem = with_fused_backward(dataclasses.replace(problem, split_backward=True), 8)
    found = local_search(problem, Climbing(evaluations=8, rounds=2))
    assert not verify_schedule(problem, found.schedule)
    assert found.end_ns == simulate(problem, found.schedule).objective_ns(problem.objective)


def test_it_mixes_fused_and_split_backwards() -> None:
    problem = with_fused_backward(m70(2, 2), 9)
    found = local_search(problem, Climbing(evaluations=100, rounds=3))
    assert {op.kind for order in found.schedule.orders for op in order} == set(BLOCKS)


@pytest.mark.parametrize("number", [1, 3, 7])
def test_reaches_the_bound_of_long_pipelines(number: int) -> None:
    """M70 with 32 microbatches, BW being 0.9 (B + W): the best schedule fuses in the steady phase, not before and after."""
    problem = instances("m70", 0.9)[number].problem
    bound_ns = best_bound(problem).value_ns
    found = local_search(problem, Climbing(rounds=4, good_enough_ns=bound_ns))
    assert simulate(problem, found.schedule).makespan_ns == bound_ns
    assert {op.kind for order in found.schedule.orders for op in order} == set(BLOCKS)


def test_it_counts_the_moves_that_paid() -> None:
    """A chain whose microbatches are alike and are not fused has rules without patience, and no order to change."""
    paid = local_search(m70(2, 2), Climbing(evaluations=100, rounds=2)).paid
    assert set(paid) == set(MOVES) and sum(paid.values()) > 0
    assert not (paid["patience"] or paid["edge"] or paid["enter"])
    mixed = local_search(with_fused_backward(m70(2, 2), 9), Climbing(evaluations=100, rounds=2)).paid
    assert mixed["patience"] + mixed["edge"] > 0 and not mixed["enter"]


def test_the_same_seed_gives_the_same_schedule() -> None:
    first, again = (local_search(m70(2, 2), Climbing(evaluations=60, rounds=3, seed=1)) for _ in range(2))
    assert first == again


@pytest.mark.slow
def test_it_keeps_the_memory_limit_and_beats_zb_v_on_a_slow_wave() -> None:
    """CrossPipe's wave at (2, .25): its own schedule was measured at 148 ms per microbatch, ZB-V takes 205."""
    slow = (2 * M70_NS[0], M70_NS[0] // 4)
    f, b, w = M70_NS
    problem = make_problem(
        8, 16, placement="wave", chunks=2, costs_ns=(f // 2, b // 2, w // 2), in_flight=8, links={(3, 4): slow, (4, 3): slow}
    )
    found = local_search(problem, Climbing(rounds=3))
    assert max(peak_bytes(problem, found.schedule)) <= 32
    assert simulate(problem, found.schedule).makespan_ns < 16 * 160_000_000


def test_it_stops_when_the_objective_is_good_enough() -> None:
    problem = make_problem(1, 4, costs_ns=(3, 4, 5))
    found = local_search(problem, Climbing(rounds=10**6, good_enough_ns=48))
    assert found.end_ns == 48


@pytest.mark.slow
def test_where_every_rule_strands_without_reserves_it_keeps_them() -> None:
    problem = make_problem(2, 3, placement=[0, 1, 0, 1], activation=(1, 0), memory_limit_bytes=[2, 2])
    for rounds in (1, 2):
        assert not verify_schedule(problem, local_search(problem, Climbing(evaluations=5, rounds=rounds)).schedule)


def test_memory_for_less_than_one_microbatch_is_refused() -> None:
    """One unit of memory for two chunks of one unit each: no schedule exists."""
    problem = make_problem(1, 1, placement=[0, 0], activation=(1, 0), memory_limit_bytes=[1])
    with pytest.raises(Unsupported, match="rank 0: one microbatch holds 2 B"):
        local_search(problem, Climbing(evaluations=5, rounds=2))


@pytest.mark.slow
def test_stage_span_is_what_it_minimizes_when_asked() -> None:
    problem = dataclasses.replace(m70(0, 0), objective=Objective.STAGE_SPAN)
    found = local_search(problem, Climbing(rounds=4))
    assert found.end_ns == simulate(problem, found.schedule).stage_span_ns


def test_ops_of_many_stages_have_codes_of_their_own() -> None:
    """The code of W of stage 10,922, 3 × 10,923 − 1, is beyond 16 bits. Only two of the stages are visited, so it is soon done."""
    stages = 10_923
    problem = make_problem(2, 1, placement=[stage % 2 for stage in range(stages)], links={(0, 1): (3, 2), (1, 0): (3, 2)})
    problem = dataclasses.replace(problem, paths=((stages - 2, stages - 1), tuple(range(stages - 2))))
    found = local_search(problem, Climbing(evaluations=1, rounds=1))
    assert not verify_schedule(problem, found.schedule)
    better = polish_schedule(problem, [found.schedule], Climbing(evaluations=5, rounds=1))
    assert not verify_schedule(problem, better.schedule)
    assert found.end_ns == better.end_ns == simulate(problem, better.schedule).makespan_ns == 60
