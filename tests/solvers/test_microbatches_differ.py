"""Microbatches that differ: exact solvers beside brute force over all orders, no bound above it, no method below it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from inputs.differing_problems import differing_problem, scaled
from inputs.problems import make_problem
from oracles.brute_force import SearchTooLarge, optimum

from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.alike import groups_of
from schedc.ir.ops import Kind
from schedc.ir.problem import Objective, Problem
from schedc.models.blocks import TimeGrid, blocks_of
from schedc.solvers.common.base import NO_LIMITS, Climbing, Limits
from schedc.solvers.driver.portfolio import candidate_names
from schedc.solvers.driver.registry import constructive
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.exact.milp import solve_milp
from schedc.solvers.exact.refute import refute
from schedc.solvers.heuristics.greedy import Greedy
from schedc.solvers.search.polish import polish_schedule
from schedc.verify.schedule.checks import verify_schedule

LIMITS = Limits(workers=1)
MOST_STATES = 20_000


def compared(problem: Problem) -> tuple[bool, bool] | None:
    """Check everything against brute force: whether CP-SAT's and MILP's optimum is that; None where brute force gives up."""
    try:
        best_ns = optimum(problem, most_states=MOST_STATES)
    except SearchTooLarge:
        return None
    assert best_ns is not None
    for bound in lower_bounds(problem):
        assert bound.value_ns <= best_ns
    start = Greedy(n_sub=1)(problem)
    tight = []
    for found in (solve_cpsat(problem, start, limits=LIMITS), solve_milp(problem, start, limits=NO_LIMITS)):
        assert found.status == ("OPTIMAL" if found.lower_bound_ns == found.objective_ns else "RELAXED")
        assert verify_schedule(problem, found.schedule) == ()
        assert simulate(problem, found.schedule).objective_ns(problem.objective) == found.objective_ns
        assert found.lower_bound_ns <= best_ns <= found.objective_ns
        tight.append(found.lower_bound_ns == best_ns == found.objective_ns)
    if problem.objective is Objective.MAKESPAN:
        known_ns = simulate(problem, start).makespan_ns
        assert refute(problem, bound_ns=0, objective_ns=known_ns, limits=LIMITS).lower_bound_ns <= best_ns
    return tight[0], tight[1]


def check_all(seeds: range) -> None:
    """Each problem with its microbatches in any order, and in order; CP-SAT bounds no stage span here."""
    tight: Counter[Objective] = Counter()
    count: Counter[Objective] = Counter()
    dearer = 0
    for seed in seeds:
        free = differing_problem(seed)
        for problem in (free, replace(free, in_order=True)):
            outcome = compared(problem)
            if outcome is not None:
                count[problem.objective] += 1
                tight[problem.objective] += outcome[0 if problem.objective is Objective.MAKESPAN else 1]
        if outcome is not None:
            best_ns = [optimum(each, most_states=MOST_STATES) for each in (free, problem)]
            assert best_ns[0] is not None and best_ns[1] is not None and best_ns[0] <= best_ns[1]
            dearer += best_ns[0] < best_ns[1]
    assert dearer
    # The rest are problems where a link serves messages in another order than the models'.
    assert all(tight[objective] > 0.85 * count[objective] > 0 for objective in Objective)


@pytest.mark.slow
def test_exact_solvers_bounds_and_brute_force() -> None:
    check_all(range(14))


@pytest.mark.slow
def test_exact_solvers_bounds_and_brute_force_on_more_problems() -> None:
    check_all(range(14, 40))


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 15), marks=pytest.mark.slow)])
def test_every_method_enters_in_order_and_is_no_better_than_the_optimum(seeds: range) -> None:
    """Constructive methods and the local search over orders, which moves forwards on the first stage, too."""
    tried = 0
    for seed in seeds:
        problem = replace(differing_problem(seed, most_ops=12), in_order=True)
        try:
            best_ns = optimum(problem, most_states=MOST_STATES)
        except SearchTooLarge:
            continue
        unlimited = replace(problem, memory_limit_bytes=(None,) * problem.ranks)  # templates know no limits
        for name in (*candidate_names(problem), "rule-table{climb_ops=200}"):
            try:
                schedule = constructive(name)(problem)
            except Unsupported:
                continue
            assert verify_schedule(unlimited, schedule) == (), name
            if verify_schedule(problem, schedule) == () and not schedule.parts:
                tried += 1
                assert best_ns is not None and simulate(problem, schedule).objective_ns(problem.objective) >= best_ns, name
        found = polish_schedule(problem, [Greedy(n_sub=1)(problem)], Climbing(evaluations=100, rounds=1))
        assert verify_schedule(problem, found.schedule) == ()
    assert tried > 5 * len(seeds)


def test_groups_are_of_one_path_and_equal_durations() -> None:
    problem = make_problem(2, 6, placement="bidirectional")
    assert groups_of(problem) == (0, 1, 0, 1, 0, 1)
    assert groups_of(scaled(problem, [1, 1, 2, 1, 1, 3])) == (0, 1, 2, 1, 0, 5)
    assert groups_of(replace(problem, stages=tuple(replace(s, forward_ns=(5,) * 6) for s in problem.stages))) == (0, 1, 0, 1, 0, 1)


def test_chains_are_groups_and_what_enters_in_order() -> None:
    """Of three microbatches, the first and the last alike."""
    problem = scaled(make_problem(2, 3), [1, 2, 1])
    kinds = (Kind.F, Kind.B, Kind.W)
    chains = {(c[0].stage, c[0].kind, tuple(op.microbatch for op in c)) for c in blocks_of(problem, GRID).chains}
    assert chains == {(stage, kind, group) for stage in range(2) for kind in kinds for group in ((0, 2), (1,))}
    in_order = {
        (c[0].stage, c[0].kind, tuple(op.microbatch for op in c)) for c in blocks_of(replace(problem, in_order=True), GRID).chains
    }
    assert in_order == chains - {(0, Kind.F, (0, 2)), (0, Kind.F, (1,))} | {(0, Kind.F, (0, 1, 2))}


GRID = TimeGrid(1, True)
