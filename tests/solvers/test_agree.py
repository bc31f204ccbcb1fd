"""Exact solvers agree: MILP, CP-SAT and brute force find the same optima of small random problems."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

import pytest
from inputs.small_problems import small_problem
from oracles.brute_force import SearchTooLarge, optimum

from schedc.ir.ops import Kind
from schedc.ir.problem import Objective
from schedc.solvers.common.base import NO_LIMITS, Limits
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.exact.milp import solve_milp
from schedc.solvers.heuristics.greedy import Greedy
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.solvers.common.base import Solved

MOST_STATES = 3_000
"""Brute force gives up on larger searches."""


def said_of(found: Solved) -> str:
    """A link's order may be another one in truth, and MILP's grid coarser than the durations: then only the bound is proven."""
    return "OPTIMAL" if found.lower_bound_ns == found.objective_ns else "RELAXED"


def milp(problem: Problem) -> Solved:
    found = solve_milp(problem, Greedy(n_sub=1)(problem), limits=NO_LIMITS)
    assert found.status == said_of(found)
    assert verify_schedule(problem, found.schedule) == ()
    assert found.lower_bound_ns <= found.objective_ns
    return found


def agree(problem: Problem) -> None:
    """Both models have the same optimum, which is their bound; what comes of it differs where a link's order is theirs.

    The MILP rounds odd nanoseconds of seconds down to a coarser grid, and so its bound by less than a thousandth.
    """
    one = milp(problem)
    other = solve_cpsat(problem, Greedy(n_sub=1)(problem), limits=Limits(workers=1))
    assert other.status == said_of(other)
    if gcd(*(time for stage in problem.stages for time in stage.durations_ns(Kind.F))) < 100 < one.objective_ns >> 20:
        assert 0.999 * other.lower_bound_ns < one.lower_bound_ns <= other.lower_bound_ns <= one.objective_ns
        return
    assert one.lower_bound_ns == other.lower_bound_ns
    if one.lower_bound_ns == one.objective_ns:
        assert one.objective_ns == other.objective_ns or other.objective_ns > other.lower_bound_ns


def brute_force(problem: Problem) -> int | None:
    """The optimum, or None where the search is too large or does not know the problem's collectives."""
    several = len(problem.stages) > problem.ranks
    try:
        return None if several and problem.data_parallel else optimum(problem, most_states=MOST_STATES)
    except SearchTooLarge:
        return None


@pytest.mark.parametrize("seed", range(25))
def test_milp_equals_cpsat(seed: int) -> None:
    agree(small_problem(seed))


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_milp_equals_cpsat_on_trunks(seed: int) -> None:
    agree(small_problem(seed, shared_trunks=True))


@pytest.mark.parametrize("seed", [713, 1289, 2127])
def test_no_bound_is_above_brute_force_where_fused_backwards_decide_who_is_first_on_a_trunk(seed: int) -> None:
    """Of the first 2,500 numbers those on which models do not know that, and claim 1 ns more than is possible."""
    problem = small_problem(seed, shared_trunks=True, may_be_odd=False)
    best_ns = optimum(problem)
    assert best_ns is not None
    assert milp(problem).lower_bound_ns <= best_ns
    assert solve_cpsat(problem, Greedy(n_sub=1)(problem), limits=Limits(workers=1)).lower_bound_ns <= best_ns


@pytest.mark.slow
def test_milp_equals_cpsat_on_more_problems() -> None:
    """In small numbers, with those above; but for two on which HiGHS takes as long as on all others together."""
    for seed in {*range(25, 135)} - {83, 101}:
        agree(small_problem(seed, shared_trunks=seed % 2 == 1, may_be_odd=False))


@pytest.mark.slow
@pytest.mark.parametrize("objective", list(Objective))
def test_milp_equals_brute_force(objective: Objective) -> None:
    """Where the model leaves nothing to a link, its optimum is the optimum; elsewhere its bound is below it."""
    equal = 0
    for seed in range(30):
        problem = small_problem(seed, objective=objective, may_be_odd=False)
        expected_ns = brute_force(problem)
        if expected_ns is None:
            continue
        found = milp(problem)
        assert found.lower_bound_ns <= expected_ns <= found.objective_ns
        equal += found.lower_bound_ns == expected_ns == found.objective_ns
    assert equal >= 15
