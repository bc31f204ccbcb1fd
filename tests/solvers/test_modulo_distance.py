"""Periods by two microbatches alone: against brute force, against another proof, and what is repeated with updates elsewhere."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.period_problems import as_period, tiny_period
from inputs.problems import make_problem
from oracles.modulo_brute_force import least_period

from schedc.analysis.bounds.period import period_bounds
from schedc.analysis.simulation.period import steady_state
from schedc.ir import Versions
from schedc.solvers.common.base import Limits
from schedc.solvers.exact.modulo import repeat, solve_modulo
from schedc.solvers.exact.modulo_distance import ask_of_distances, has_distance_bound
from schedc.solvers.exact.modulo_questions import Known
from schedc.solvers.heuristics.steady import SteadyList
from schedc.solvers.heuristics.steady_repeat import repeats
from schedc.solvers.templates.overlapping import one_by_one
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir import Problem


def known_of(problem: Problem) -> Known:
    first = SteadyList()(problem)
    bound_ns = max(value_ns for _, value_ns, _ in period_bounds(problem))
    limits = Limits(workers=1, deterministic=30.0)
    return Known(problem, limits, first, steady_state(problem, first).period_ns, bound_ns, lambda _: None, lambda _: None)


def crossing(seed: int) -> Problem:
    """A wave over three ranks, of which the second has room for two activations: microbatches cross each other on the third."""
    random = Random(seed)
    costs = [(random.randint(1, 9), random.randint(1, 9), random.randint(1, 5)) for _ in range(6)]
    line = make_problem(3, 2, placement="wave", chunks=2, costs_ns=costs, activation=[(1, 0)] * 6)
    line = replace(line, memory_limit_bytes=(None, 2, None), split_backward=False)
    return as_period(line, Versions.BOUNDED, most_delay=4)


@pytest.mark.parametrize(("seed", "bound_ns", "least_ns"), [(6, 100, 112), (8, 100, 112), (9, 110, 118), (10, 98, 100)])
def test_what_crosses_on_the_way_costs_time_that_no_other_bound_knows(
    seed: int, bound_ns: int, least_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = crossing(seed)
    known = known_of(problem)
    assert known.lower_ns == bound_ns
    ask_of_distances(known)
    assert known.lower_ns == known.best_ns == least_ns
    monkeypatch.setattr("schedc.solvers.exact.modulo.ask_of_distances", lambda known: None)
    limits = Limits(workers=1, deterministic=10.0)
    solved = solve_modulo(problem, known.best, limits=limits, known_bound_ns=bound_ns)
    assert solved.lower_bound_ns == least_ns


def test_two_microbatches_alone_need_no_longer_than_brute_force() -> None:
    """Their bound is the least period where they are all that counts, and never above it."""
    equal = 0
    for seed in (47, 49, 53, 111, 121, 125, 140, 149, 152, 190):
        problem = tiny_period(Random(seed))
        known = known_of(problem)
        least_ns = least_period(problem, depth=1, upper=known.best_ns)
        assert least_ns is not None and has_distance_bound(problem), seed
        known.lower_ns, known.best_ns = 0, 1 << 40  # other bounds do not count, and no proof ends it
        ask_of_distances(known)
        assert 0 < known.lower_ns <= least_ns, seed
        equal += known.lower_ns == least_ns
    assert equal >= 4


def test_a_backward_that_takes_memory_is_no_case_for_two_alone() -> None:
    problem = crossing(6)
    assert has_distance_bound(problem)
    stage = replace(problem.stages[1], recompute=True, recomputed_bytes=1)
    assert not has_distance_bound(replace(problem, stages=(problem.stages[0], stage, *problem.stages[2:])))
    assert not has_distance_bound(replace(problem, memory_limit_bytes=(None,) * 3))


@pytest.mark.parametrize("mode", [Versions.STASH, Versions.TWO_BUFFERED])
def test_updates_run_where_a_rank_waits(mode: Versions) -> None:
    """One microbatch at a time: the last rank waits while it is under way on the others, but not behind a step's last backward."""
    line = make_problem(2, 4, costs_ns=[(5, 7, 3), (4, 9, 2)], links={(0, 1): (8, 0), (1, 0): (8, 0)}, in_flight=1)
    problem = as_period(replace(line, split_backward=False), mode, update_ns=[3, 1])
    trip_ns = 5 + 8 + 4 + 11 + 8 + 10
    known = known_of(problem)
    known.best, known.best_ns = (first := one_by_one(problem)), steady_state(problem, first).period_ns
    alone = [steady_state(problem, each).period_ns for each in repeats(problem, SteadyList()) if not verify_schedule(problem, each)]
    repeat(known)
    assert verify_schedule(problem, known.best) == ()
    assert steady_state(problem, known.best).period_ns == 4 * trip_ns < min(alone)


def test_a_step_of_few_microbatches_without_room_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limits are what versions leave: less than one microbatch takes, so that bounds of it are above its only period."""
    costs = [(8, 8, 4), (5, 7, 6), (6, 2, 4), (8, 9, 1)]
    line = make_problem(
        2, 4, placement="loop", chunks=2, costs_ns=costs, activation=[(1, 0), (2, 0), (4, 3), (1, 1)], links={(0, 1): (25, 0)}
    )
    line = replace(line, memory_limit_bytes=(None, 4), split_backward=False)
    problem = as_period(line, Versions.STASH, update_ns=[0, 0, 34, 20], version_bytes=[2, 2, 0, 1])
    monkeypatch.setattr("schedc.solvers.exact.modulo.ask_of_distances", lambda known: None)
    known = known_of(problem)
    limits = Limits(workers=1, deterministic=0.25)
    solved = solve_modulo(problem, known.best, limits=limits, known_bound_ns=known.lower_ns)
    assert verify_schedule(problem, solved.schedule) == ()
