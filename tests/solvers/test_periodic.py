"""`periodic`: valid, reproducible schedules that reach the bound where theory says so, and refusals that say why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from problems import M70_NS, make_problem

from schedc.analysis.bounds import best_bound
from schedc.analysis.simulate import simulate
from schedc.errors import Unsupported
from schedc.solvers.base import Limits
from schedc.solvers.periodic import periodic, wave_of_greedy
from schedc.verify.schedule import verify_schedule


def slow_middle(microbatches, in_flight):
    slow = (76_000_000, 9_500_000)
    return make_problem(4, microbatches, costs_ns=M70_NS, in_flight=in_flight, links={(1, 2): slow, (2, 1): slow})


def test_a_thousand_microbatches_are_within_half_a_percent_where_memory_is_enough():
    problem = slow_middle(1000, 8)
    schedule = periodic(problem)
    assert verify_schedule(problem, schedule) == ()
    makespan_ns = simulate(problem, schedule).makespan_ns
    assert makespan_ns - best_bound(problem).value_ns <= makespan_ns * 0.005


def test_the_result_is_reproducible_and_depends_on_nothing_but_the_seed():
    problem = slow_middle(60, 2)
    first = periodic(problem, limits=Limits(seed=3))
    assert first == periodic(problem, limits=Limits(seed=3))
    assert verify_schedule(problem, first) == ()


def test_larger_waves_beat_single_microbatches_where_memory_is_short():
    problem = slow_middle(120, 2)
    single = simulate(problem, periodic(problem, waves=(1,))).makespan_ns
    double = simulate(problem, periodic(problem, waves=(1, 2))).makespan_ns
    assert double < single


def test_a_hint_is_a_whole_wave_of_what_greedy_does():
    problem = slow_middle(60, 4)
    wave = wave_of_greedy(problem, 4)
    assert len(wave.start_ns) == 4 * 4 * 3
    assert {op.microbatch for op in wave.start_ns} == {0, 1, 2, 3}
    assert min(wave.start_ns.values()) == 0 or wave.period_ns > 0
    assert wave.period_ns >= 4 * sum(M70_NS) * 0.9


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (make_problem(4, 8, placement="bidirectional"), "one path"),
        (make_problem(2, 8, placement="wave", chunks=2), "one stage on each rank"),
        (make_problem(2, 8, memory_limit_bytes=[1, 1]), "does not hold one activation"),
    ],
)
def test_refuses_what_it_does_not_apply_to(problem, why):
    with pytest.raises(Unsupported, match=why):
        periodic(problem)


def test_refuses_microbatches_that_differ():
    problem = make_problem(2, 3)
    stage = replace(problem.stages[0], forward_ns=(10, 11, 12))
    with pytest.raises(Unsupported, match="same time"):
        periodic(replace(problem, stages=(stage, problem.stages[1])))
