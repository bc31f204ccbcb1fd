"""The stage span: what both formulations prove where a rank may begin with a microbatch that arrives late, against brute force."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.problems import make_problem
from oracles.brute_force import SearchTooLarge, optimum

from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.ir.problem import Objective
from schedc.solvers.common.base import Limits
from schedc.solvers.driver.registry import constructive
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.exact.milp import solve_milp
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


def spans(problem: Problem) -> Problem:
    return replace(problem, objective=Objective.STAGE_SPAN)


LATE = spans(make_problem(2, 2, placement="loop", chunks=2, costs_ns=[(5, 1, 1), (2, 1, 20), (5, 1, 1), (2, 1, 20)]))
"""The second rank spans least where it begins with microbatch 1, which arrives after microbatch 0."""

CROSSING = spans(
    make_problem(
        2,
        2,
        placement="bidirectional",
        costs_ns=[(6, 1, 1), (5, 3, 1), (3, 2, 20), (4, 2, 1)],
        links={(0, 1): (3, 0), (1, 0): (0, 2)},
    )
)
"""Each rank would span less if the path that enters there began later than it can."""


def test_a_rank_where_a_path_enters_does_not_wait_with_it() -> None:
    """Both once proved 36, which no order of ops gives, as they had its first forward start at any time."""
    best = optimum(CROSSING)
    start = constructive("greedy{n_sub=1}")(CROSSING)
    assert best == 40
    for solve in (solve_cpsat, solve_milp):
        solved = solve(CROSSING, start, limits=Limits(workers=1))
        assert solved.objective_ns == solved.lower_bound_ns == best


def test_a_rank_that_begins_with_what_arrives_late() -> None:
    """Both once proved more than is best, as they had each rank begin as soon as it can."""
    best = optimum(LATE)
    start = constructive("greedy{n_sub=1}")(LATE)
    assert best == 95
    cpsat = solve_cpsat(LATE, start, limits=Limits(workers=1))
    milp = solve_milp(LATE, start, limits=Limits(workers=1))
    assert cpsat.objective_ns == cpsat.lower_bound_ns == milp.objective_ns == milp.lower_bound_ns == best
    assert not verify_schedule(LATE, cpsat.schedule)
    assert not verify_schedule(LATE, milp.schedule)


def drawn(seed: int) -> Problem:
    """Several stages, of a path or two, on each of two ranks, or three ranks with one; long W's, so that beginning late can pay."""
    random = Random(seed)
    placement, ranks, chunks = random.choice(
        [("loop", 2, 2), ("wave", 2, 2), ("unidirectional", 3, 1), ("unidirectional", 2, 1), ("bidirectional", 2, 2)]
    )
    costs = [(random.randint(1, 6), random.randint(1, 3), random.choice([1, 1, 4, 20])) for _ in range(ranks * chunks)]
    links = {(a, b): (random.choice([0, 3]), random.choice([0, 0, 2])) for a in range(ranks) for b in range(ranks) if a != b}
    microbatches = 2 if chunks == 2 else 3
    in_flight = random.choice([None, 1, 2])
    chunks = 1 if placement == "bidirectional" else chunks  # its two stages on each rank are of two paths
    return spans(
        make_problem(ranks, microbatches, placement=placement, chunks=chunks, costs_ns=costs, links=links, in_flight=in_flight)
    )


def check(seed: int) -> None:
    problem = drawn(seed)
    try:
        best = optimum(problem, most_states=20_000)
    except SearchTooLarge:
        return
    if best is None:
        return
    assert all(bound.value_ns <= best for bound in lower_bounds(problem))
    start = constructive("greedy{n_sub=1}")(problem)
    for solve in (solve_cpsat, solve_milp):
        solved = solve(problem, start, limits=Limits(workers=1, deterministic=0.3))
        assert solved.lower_bound_ns <= best <= solved.objective_ns, (seed, solve.__name__)
        assert not verify_schedule(problem, solved.schedule)


def test_no_bound_is_above_the_optimum() -> None:
    for seed in range(5):
        check(seed)


@pytest.mark.slow
def test_no_bound_is_above_the_optimum_of_many() -> None:
    for seed in range(5, 30):
        check(seed)
