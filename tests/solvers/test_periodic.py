"""`periodic`: valid, reproducible schedules that reach the bound where theory says so, and refusals that say why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.fused_problems import with_fused
from inputs.problems import M70_NS, make_problem, problems
from suite.example_counts import examples

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.ops import Kind
from schedc.ir.schedule import Schedule
from schedc.solvers.common.base import NO_LIMITS, Limits
from schedc.solvers.heuristics.greedy import Greedy, GreedySpread, spread_problem
from schedc.solvers.search.periodic import periodic, solve_wave, unroll, wave_of_greedy
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.solvers.search.periodic import Wave


def slow_middle(microbatches: int, in_flight: int) -> Problem:
    slow = (76_000_000, 9_500_000)
    return make_problem(4, microbatches, costs_ns=M70_NS, in_flight=in_flight, links={(1, 2): slow, (2, 1): slow})


@pytest.mark.slow
def test_a_thousand_microbatches_are_within_half_a_percent_where_memory_is_enough() -> None:
    problem = slow_middle(1000, 8)
    schedule = periodic(problem)
    assert verify_schedule(problem, schedule) == ()
    makespan_ns = simulate(problem, schedule).makespan_ns
    assert makespan_ns - best_bound(problem).value_ns <= makespan_ns * 0.005


def test_the_sizes_share_a_deterministic_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float | None] = []

    def no_wave(_problem: Problem, _size: int, limits: Limits, _hint: Wave | None) -> None:
        given.append(limits.deterministic)

    monkeypatch.setattr("schedc.solvers.search.periodic.solve_wave", no_wave)
    with pytest.raises(Unsupported):
        periodic(slow_middle(40, 8), limits=Limits(deterministic=6.0))
    assert given == [1.5] * 4


@pytest.mark.slow
def test_the_result_is_reproducible_and_depends_on_nothing_but_the_seed() -> None:
    problem = slow_middle(20, 2)
    first = periodic(problem, limits=Limits(seed=3), waves=(1,))
    assert first == periodic(problem, limits=Limits(seed=3), waves=(1,))
    assert verify_schedule(problem, first) == ()


def test_larger_waves_beat_single_microbatches_where_memory_is_short() -> None:
    problem = make_problem(3, 60, costs_ns=(4, 5, 2), activation=(1, 0), in_flight=2)
    single = simulate(problem, periodic(problem, waves=(1,))).makespan_ns
    double = simulate(problem, periodic(problem, waves=(1, 2))).makespan_ns
    assert double < 0.8 * single


def test_tiled_waves_are_the_same_schedule() -> None:
    problem = slow_middle(24, 2)
    wave = solve_wave(problem, 1, NO_LIMITS)
    assert wave is not None
    assert wave.tiled(3).per_microbatch_ns == wave.per_microbatch_ns
    assert unroll(problem, wave.tiled(3)) == unroll(problem, wave)


@pytest.mark.slow
@pytest.mark.parametrize("n_sub", [1, 4])
def test_pacing_never_makes_greedy_worse_and_helps_a_link_with_latency(n_sub: int) -> None:
    slow = (76_000_000, 9_500_000)
    problem = make_problem(16, 32, costs_ns=M70_NS, in_flight=16, links={(7, 8): slow, (8, 7): slow})
    better, plain = GreedySpread(n_sub=n_sub)(problem), Greedy(n_sub=n_sub)(problem)
    assert verify_schedule(problem, better) == ()
    assert simulate(problem, better).makespan_ns < simulate(problem, plain).makespan_ns


@given(problem=problems(max_microbatches=4), share=st.floats(0, 2))
@examples(40, deadline=None)
def test_an_order_takes_no_longer_on_the_problem_s_links_than_on_spread_ones(problem: Problem, share: float) -> None:
    without_trunks = replace(problem, links=tuple(replace(link, trunk=None) for link in problem.links))
    slower = spread_problem(without_trunks, share)
    schedule = Greedy()(slower)
    assert simulate(without_trunks, schedule).makespan_ns <= simulate(slower, schedule).makespan_ns


def test_a_hint_is_a_whole_wave_of_what_greedy_does() -> None:
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
def test_refuses_what_it_does_not_apply_to(problem: Problem, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        periodic(problem)


def test_refuses_microbatches_that_differ() -> None:
    problem = make_problem(2, 3)
    stage = replace(problem.stages[0], forward_ns=(10, 11, 12))
    with pytest.raises(Unsupported, match="same time"):
        periodic(replace(problem, stages=(stage, problem.stages[1])))


def test_a_wave_may_fuse_some_backwards_and_split_others() -> None:
    """Memory for two activations, all of it held until W: mixed, it ends before what splits, or fuses, all backwards."""
    links = {(0, 1): (12, 2), (1, 0): (12, 2)}
    problem = make_problem(2, 40, costs_ns=(10, 12, 8), activation=(1, 1), in_flight=2, links=links)
    cheaper = with_fused(problem, 17)
    mixed = periodic(cheaper, waves=(1, 2))
    assert verify_schedule(cheaper, mixed) == ()
    assert {Kind.B, Kind.BW} <= {op.kind for order in mixed.orders for op in order}
    split = periodic(problem, waves=(1, 2))
    fused = periodic(replace(cheaper, split_backward=False), waves=(1, 2))
    assert simulate(cheaper, mixed).makespan_ns < min(simulate(cheaper, each).makespan_ns for each in (split, fused))


def test_a_hint_whose_waves_fuse_differently_is_compared_op_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy's own schedule, every other backward of the first rank fused: a wave of it names what it fuses."""

    construct = Greedy.construct

    def every_other(greedy: Greedy, problem: Problem) -> Schedule:
        orders = []
        for order in construct(greedy, problem).orders:
            kept = [op for op in order if op.kind is not Kind.W or op.stage or op.microbatch % 2]
            fused = [
                op._replace(kind=Kind.BW) if op.kind is Kind.B and not op.stage and not op.microbatch % 2 else op for op in kept
            ]
            orders.append(tuple(fused))
        return Schedule(orders=tuple(orders))

    problem = with_fused(make_problem(2, 30, costs_ns=(10, 12, 8)), 17)
    monkeypatch.setattr(Greedy, "construct", every_other)
    wave = wave_of_greedy(problem, 1)
    assert len(wave.start_ns) in (5, 6)
    assert wave.period_ns >= 27
    assert verify_schedule(problem, periodic(problem, waves=(1,))) == ()
