"""Sharded weights: bounds and proofs against every order with every place of its collectives; what the search over both keeps."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, product
from random import Random

import pytest
from inputs.odd_numbers import odd
from inputs.sharded_problems import sharded_orders, sharded_problem
from oracles.sharded_step import all_orders, all_places, makespan_ns

from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.analysis.bounds.residency import minimum_limit_bytes
from schedc.analysis.simulation.memory import exceeded_limit
from schedc.compile.driver import compile_problem
from schedc.errors import Infeasible, NoPlanFound, Unsupported
from schedc.ir.problem import Objective, Problem
from schedc.ir.schedule import Schedule
from schedc.lower.sharding import placed
from schedc.solvers.common.base import Limits, SearchSettings, SolverStatus
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.verify.schedule.checks import verify_schedule

WORK = Limits(deterministic=0.3, workers=2)


def tiny(first: int, count: int) -> list[tuple[Problem, Schedule, int]]:
    """Problems with a schedule and the least makespan of all orders with all places."""
    found = []
    for seed in range(first, first + count):
        random = Random(seed)
        problem = replace(sharded_problem(random, most_ops=12), objective=Objective.MAKESPAN)
        if problem.microbatches * len(problem.paths[0]) > 3:
            continue
        orders = sharded_orders(random, problem)
        known = None if orders is None else placed(problem, orders)
        least = None if known is None else least_of(problem)
        if known is not None and least is not None:
            found.append((problem, known, least))
    return found


def least_of(problem: Problem) -> int | None:
    """The optimum of a problem that has few schedules; None: it has many."""
    best: list[int] = []
    every = all_orders(problem)
    if len(every) > 40:
        return None
    for orders in every:
        ways = [list(islice(all_places(problem, *each), 101)) for each in zip(orders, problem.memory_limit_bytes, strict=True)]
        if any(len(of_rank) > 100 for of_rank in ways):
            return None
        best += [makespan_ns(problem, Schedule(orders=orders, collectives=each)) for each in product(*ways)]
    return min(best, default=None)


def test_bounds_and_proofs_are_those_of_brute_force() -> None:
    cases, tight, limited = tiny(0, 160), 0, 0
    for problem, known, least in cases:
        bound_ns = max(bound.value_ns for bound in lower_bounds(problem))
        solved = solve_cpsat(problem, known, limits=WORK)
        assert bound_ns <= least and solved.lower_bound_ns <= least <= solved.objective_ns
        assert (solved.status, solved.objective_ns) == (SolverStatus.OPTIMAL, least)
        tight += bound_ns == least
        limited += any(limit is not None for limit in problem.memory_limit_bytes)
    assert len(cases) > 10 and limited > 5 and tight > len(cases) // 2


def test_odd_nanoseconds_and_gibibytes() -> None:
    """Proofs and schedules are those of the small numbers, times the unit, and at most the rests more."""
    tried = 0
    for problem, known, least in tiny(0, 60):
        large = odd(problem, Random(least))
        begin = placed(large.problem, replace(known, collectives=()))
        assert begin is not None
        solved = solve_cpsat(large.problem, begin, limits=WORK)
        tried += 1
        assert least * large.unit_ns <= solved.objective_ns <= least * large.unit_ns + large.slack_ns
        assert max(bound.value_ns for bound in lower_bounds(large.problem)) <= solved.objective_ns
        assert solved.lower_bound_ns <= solved.objective_ns
        assert verify_schedule(large.problem, solved.schedule) == ()
    assert tried > 4


def test_the_least_limit_is_needed() -> None:
    """Below it, no order has a place for its collectives."""
    tried = 0
    for problem, _, _ in tiny(300, 120):
        needed = minimum_limit_bytes(problem)
        below = replace(problem, memory_limit_bytes=(needed[0] - 1, *(None for _ in needed[1:])))
        tried += 1
        assert not any(next(iter(all_places(below, orders[0], needed[0] - 1)), None) for orders in all_orders(problem))
        with pytest.raises(Infeasible, match="its weights gathered"):
            compile_problem(below)
    assert tried > 5


def test_what_is_found_is_within_memory_and_no_worse_with_more_of_it() -> None:
    worse = 0
    for seed in range(3):
        problem = replace(sharded_problem(Random(1000 + seed)), objective=Objective.MAKESPAN)
        more = tuple(None if limit is None else 2 * limit for limit in problem.memory_limit_bytes)
        try:
            plan = compile_problem(problem, SearchSettings(limits=WORK)).plan
        except NoPlanFound:
            continue
        assert exceeded_limit(problem, plan.schedule()) is None
        roomy = compile_problem(replace(problem, memory_limit_bytes=more), SearchSettings(limits=WORK)).plan
        assert roomy.certificate.lower_bound_ns <= plan.certificate.makespan_ns
        worse += roomy.certificate.makespan_ns > plan.certificate.makespan_ns
    assert worse == 0


def test_cpsat_by_name() -> None:
    problem, _, least = tiny(0, 60)[0]
    plan = compile_problem(problem, SearchSettings(method="cpsat", limits=WORK)).plan
    assert plan.certificate.makespan_ns == least
    with pytest.raises(Unsupported, match="for the makespan of sharded weights"):
        compile_problem(replace(problem, objective=Objective.STAGE_SPAN), SearchSettings(method="cpsat"))
