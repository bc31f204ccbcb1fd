"""Periods by small questions: what some ranks refute, beside brute force over all, and what is found near a schedule."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.period_problems import as_period, tiny_period
from inputs.problems import make_problem
from oracles.modulo_brute_force import TooMany, least_period

from schedc.analysis.bounds.period import period_bounds
from schedc.analysis.simulation.period import steady_state
from schedc.ir import Versions
from schedc.solvers.common.base import Limits, SolverStatus
from schedc.solvers.exact.modulo import repeat
from schedc.solvers.exact.modulo_parts import ask_of_parts, climb
from schedc.solvers.exact.modulo_questions import Known, Near, ask
from schedc.solvers.heuristics.steady import SteadyList
from schedc.solvers.templates.overlapping import one_by_one
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir import Problem, Schedule

LIMITS = Limits(workers=1, deterministic=30.0)


def known_of(problem: Problem, schedule: Schedule) -> Known:
    bound_ns = max(value_ns for _, value_ns, _ in period_bounds(problem))
    return Known(problem, LIMITS, schedule, steady_state(problem, schedule).period_ns, bound_ns, lambda _: None, lambda _: None)


@pytest.mark.parametrize("seed", range(200, 212))
def test_what_few_ranks_refute_is_below_the_least_period(seed: int) -> None:
    problem = tiny_period(Random(seed))
    known = known_of(problem, SteadyList()(problem))
    try:
        least_ns = least_period(problem, depth=1, upper=known.best_ns, most=20_000) or known.best_ns
    except TooMany:
        least_ns = known.best_ns
    ask_of_parts(known, 1.0)
    assert known.lower_ns <= least_ns


@pytest.mark.parametrize(("seed", "least_ns"), [(9, 54), (24, 48), (40, 47), (102, 52), (124, 57)])
def test_few_ranks_prove_what_the_bound_does_not(seed: int, least_ns: int) -> None:
    problem = tiny_period(Random(seed))
    known = known_of(problem, SteadyList()(problem))
    assert known.lower_ns < known.best_ns == least_ns
    ask_of_parts(known, 1.0)
    assert known.lower_ns == least_ns


@pytest.mark.parametrize(("seed", "least_ns"), [(3, 93), (16, 36), (24, 48), (79, 35), (87, 33), (177, 35)])
def test_near_a_schedule_better_ones_are_found(seed: int, least_ns: int) -> None:
    """From all ops one by one to the optimum, which brute force confirms where it is in its reach."""
    problem = tiny_period(Random(seed))
    known = known_of(problem, one_by_one(problem))
    lower_ns = known.lower_ns
    climb(known, 1.0)
    assert known.best_ns == least_ns == steady_state(problem, known.best).period_ns
    assert verify_schedule(problem, known.best) == ()
    assert known.lower_ns == lower_ns  # what is not near is not refuted


def test_a_refuted_neighbourhood_is_no_proof() -> None:
    problem = tiny_period(Random(24))
    known = known_of(problem, SteadyList()(problem))
    near = Near(range(problem.ranks), 0)
    assert ask(known, known.best_ns, 1.0, near=near) is SolverStatus.OPTIMAL
    assert ask(known, known.best_ns - 1, 1.0, near=near) is SolverStatus.INFEASIBLE
    assert known.lower_ns < known.best_ns


@pytest.mark.parametrize("mode", [Versions.STASH, Versions.TWO_BUFFERED])
def test_a_step_of_many_microbatches_repeats_one_of_few(mode: Versions) -> None:
    problem = as_period(make_problem(3, 6, costs_ns=[(5, 7, 3), (4, 9, 2), (6, 5, 4)]), mode)
    known = known_of(problem, one_by_one(problem))
    assert known.lower_ns == 90 < known.best_ns
    repeat(known)
    assert known.best_ns == steady_state(problem, known.best).period_ns == known.lower_ns
    assert verify_schedule(problem, known.best) == ()
