"""Every backward fused or split, each on its own: CP-SAT and MILP against brute force over all mixtures and all orders.

The brute force takes for granted neither that backwards run in microbatch order nor where fusing pays.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest
from inputs.fused_problems import fused_problem, with_fused
from inputs.problems import make_problem
from oracles.bounds import models_are_exact
from oracles.brute_force import SearchTooLarge, optimum

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.ops import Kind, Op
from schedc.ir.problem import Objective
from schedc.ir.schedule import Parts, Schedule
from schedc.solvers.common.base import Limits
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.exact.milp import solve_milp
from schedc.solvers.exact.refute import refute
from schedc.solvers.heuristics.greedy import Greedy
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.solvers.common.base import Solved

LIMITS = Limits(workers=1)
MILP_OPS = 12
"""HiGHS takes minutes for some larger problems."""
MILP_OPS_OF_ONE_RANK = 6
"""Where nothing but the order on one rank is to be found, HiGHS tries most to prove a makespan: up to a second for 12 ops."""
SEARCHED_OPS = 18
"""Brute force mostly gives up on larger problems, after it has visited all the states that it may."""


def suits_milp(problem: Problem) -> bool:
    alone = problem.ranks == 1 and problem.objective is Objective.MAKESPAN
    return problem.num_ops <= (MILP_OPS_OF_ONE_RANK if alone else MILP_OPS)


def is_mixed(schedule: Schedule) -> bool:
    return {Kind.B, Kind.BW} <= {op.kind for order in schedule.orders for op in order}


def compare(problem: Problem, best_ns: int, found: Solved) -> None:
    """What a solver says against the optimum."""
    assert found.status == ("OPTIMAL" if found.lower_bound_ns == found.objective_ns else "RELAXED")
    assert verify_schedule(problem, found.schedule) == ()
    assert simulate(problem, found.schedule).objective_ns(problem.objective) == found.objective_ns
    assert found.lower_bound_ns <= best_ns <= found.objective_ns
    if models_are_exact(problem):
        assert found.lower_bound_ns == found.objective_ns == best_ns


def compared(seed: int, *, most_states: int) -> bool | None:
    """Compare the solvers with brute force on this problem: whether the optimum mixes both; None where nothing was compared."""
    problem = fused_problem(seed)
    if problem.num_ops > SEARCHED_OPS:
        return None
    try:
        start = Greedy(n_sub=1)(problem)
        best_ns = optimum(problem, symmetry=seed % 4 != 0, most_states=most_states)
    except (SearchTooLarge, Unsupported):
        return None
    assert best_ns is not None
    solved = solve_cpsat(problem, start, limits=LIMITS)
    compare(problem, best_ns, solved)
    if suits_milp(problem):
        compare(problem, best_ns, solve_milp(problem, solved.schedule, limits=LIMITS))
    if problem.objective is Objective.MAKESPAN and seed % 4 == 1:
        refuted = refute(problem, bound_ns=0, objective_ns=solved.objective_ns, limits=LIMITS)
        assert refuted.lower_bound_ns <= best_ns
    return models_are_exact(problem) and is_mixed(solved.schedule)


@pytest.mark.parametrize("seed", range(20))
def test_equals_brute_force(seed: int) -> None:
    compared(seed, most_states=1_000)


@pytest.mark.slow
def test_equals_brute_force_on_many_problems() -> None:
    """Cheap ones: brute force gives up on the others. The MILP solves more than half of them, too; many optima are mixtures."""
    results = (compared(seed, most_states=500) for seed in count(100))
    taken = [mixed for mixed, _ in zip((each for each in results if each is not None), range(140), strict=False)]
    assert sum(taken) >= 21


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 30))])
def test_weights_in_halves_beside_fused_backwards(seed: int) -> None:
    problem = replace(fused_problem(seed, even_weights=True), objective=Objective.MAKESPAN)
    parts = tuple(Parts(kind=Kind.W, stage=stage, shares=(1, 1)) for stage in range(len(problem.stages)))
    if problem.num_ops > MILP_OPS:
        return
    try:
        best_ns = optimum(problem, parts, most_states=4_000)
    except SearchTooLarge:
        return
    assert best_ns is not None
    compare(problem, best_ns, solve_milp(problem, Greedy(n_sub=1)(problem), limits=LIMITS, weight_parts=2))


@pytest.mark.parametrize("solve", [solve_cpsat, solve_milp])
def test_a_mixed_schedule_is_a_start_and_the_proof_keeps_it(solve: object) -> None:
    """One microbatch: the last rank sends its gradient early, the first fuses: 10 + 10 + 10 + 19. All fused, 58; all split, 50."""
    problem = with_fused(make_problem(2, 1), 19)
    assert callable(solve)
    fused = Schedule(orders=tuple((Op(Kind.F, stage, 0), Op(Kind.BW, stage, 0)) for stage in range(2)))
    first = solve(problem, fused, limits=LIMITS)
    assert first.objective_ns == first.lower_bound_ns == 49
    assert first.schedule.orders[0] == (Op(Kind.F, 0, 0), Op(Kind.BW, 0, 0))
    assert first.schedule.orders[1] == (Op(Kind.F, 1, 0), Op(Kind.B, 1, 0), Op(Kind.W, 1, 0))
    again = solve(problem, first.schedule, limits=LIMITS)
    assert again.schedule is first.schedule
    assert again.lower_bound_ns == 49


def test_a_fused_release_overtakes_a_weight_that_waits() -> None:
    """All is held until W: the third forward waits for a release, and that of the second microbatch comes first in some schedules.

    Brute force takes no order for granted; the model counts what has been released.
    """
    for seed in range(400, 440):
        problem = fused_problem(seed)
        stages = tuple(replace(stage, activation_bytes=2, activation_after_input_bytes=2) for stage in problem.stages)
        limits = tuple(3 + 2 * (seed % 2) for _ in range(problem.ranks))
        held = replace(problem, stages=stages, memory_limit_bytes=limits, objective=Objective.MAKESPAN)
        if len(problem.stages) > problem.ranks or problem.ranks > 2 or not models_are_exact(held):
            continue
        best_ns = optimum(held, symmetry=False, most_states=20_000)
        assert best_ns is not None
        compare(held, best_ns, solve_cpsat(held, Greedy(n_sub=1)(held), limits=LIMITS))
