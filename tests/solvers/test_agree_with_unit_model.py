"""Bounds and solvers against `unit_model`, which shares no file with them: 12 to 27 ops, every other problem in odd large numbers.

Ranks mostly have several stages, and half of the problems minimize the stage span. Brute force settles no problems of this size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from inputs.claim_problems import drawn_problem
from inputs.odd_numbers import odd
from oracles.unit_model import search

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.ir.problem import Objective
from schedc.solvers.common.base import Limits
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.exact.milp import solve_milp
from schedc.solvers.exact.refute import refute
from schedc.solvers.heuristics.greedy import Greedy
from schedc.verify.schedule.checks import verify_schedule


def check(seed: int, counts: Counter[str]) -> None:
    """What is proven of the problem of this number is true, and what is called optimal is."""
    random = Random(seed)
    problem = drawn_problem(random, least_ops=12, most_ops=27, most_units=80)
    if seed % 2:
        problem = odd(problem, random).problem
    truth = search(problem, work=0.3)
    if truth.found_ns is None or truth.schedule is None:
        return
    assert not verify_schedule(problem, truth.schedule)
    assert simulate(problem, truth.schedule).objective_ns(problem.objective) == truth.found_ns
    bound_ns = best_bound(problem).value_ns
    assert bound_ns <= truth.found_ns, seed
    start = Greedy(n_sub=1)(problem)
    start = truth.schedule if verify_schedule(problem, start) else start
    limits = Limits(workers=1, deterministic=0.1)
    if problem.objective is Objective.MAKESPAN:
        start_ns = simulate(problem, start).makespan_ns
        assert refute(problem, bound_ns=bound_ns, objective_ns=start_ns, limits=limits).lower_bound_ns <= truth.found_ns, seed
    for solve, work in ((solve_cpsat, 0.1), (solve_milp, 1)):
        solved = solve(problem, start, limits=replace(limits, deterministic=work))
        assert solved.lower_bound_ns <= truth.found_ns, (seed, solve.__name__)
        assert truth.least_ns is not None and truth.least_ns <= solved.objective_ns, (seed, solve.__name__)
        if solved.lower_bound_ns == solved.objective_ns:
            counts[solve.__name__] += 1
            counts[f"of {problem.objective}"] += 1
    counts["settled"] += truth.is_settled


def test_what_is_proven_is_true() -> None:
    counts: Counter[str] = Counter()
    for seed in range(8, 23):
        check(seed, counts)
    assert min(counts[name] for name in ("solve_cpsat", "solve_milp", "of makespan", "of stage-span", "settled")) >= 2, counts
