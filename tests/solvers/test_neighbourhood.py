"""Large-neighbourhood search: the optimum of tiny problems where nothing is given, other rhythms, and orders that are kept."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from inputs.problems import make_problem, with_fused_backward
from inputs.tiny_problems import tiny_problem
from oracles.brute_force import SearchTooLarge, optimum

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir import BoundName, Objective, Problem, Schedule
from schedc.models.cpsat.extract import schedule_of_cpsat
from schedc.solvers.common.base import Climbing, Limits, SearchSettings
from schedc.solvers.common.incumbent import Incumbent
from schedc.solvers.exact.cpsat import run, solver_of
from schedc.solvers.heuristics.greedy import Greedy
from schedc.solvers.search import neighbourhood
from schedc.solvers.search.neighbourhood import Lns, later_part
from schedc.solvers.search.polish import polish_schedule
from schedc.study.bench.instances import M70_NS
from schedc.study.bench.pipelines import LinkTimes, both_ways, pipeline
from schedc.verify.schedule.checks import verify_schedule

LIMITS = Limits(deterministic=10.0)
LINKS = both_ways((0,), LinkTimes(9_500_000, 76_000_000))
PAIRS = pipeline("pairs", 2, 8, M70_NS, in_flight=2, placement="loop", slow=LINKS)
"""A loop over a slow link in which the optimum, 2451 ms, runs microbatches in pairs."""


def improved(problem: Problem, start: Schedule, limits: Limits = LIMITS) -> Incumbent:
    incumbent = Incumbent(problem=problem, bound_ns=1, bound_by=BoundName.WORK, settings=SearchSettings())
    incumbent.offer(start, "start")
    Lns().improve(incumbent, limits)
    assert incumbent.schedule is not None
    assert not verify_schedule(problem, incumbent.schedule)
    return incumbent


@pytest.mark.parametrize("seed", range(40))
def test_ends_at_the_optimum_of_tiny_problems(seed: int) -> None:
    """Where all is settled nothing is given at last; brute force agrees, also in odd nanoseconds and with BW cheaper."""
    problem = replace(tiny_problem(Random(seed), most_ops=14), objective=Objective.MAKESPAN)
    if seed % 2:
        problem = with_fused_backward(problem, 8)
    try:
        least_ns, start = optimum(problem, most_states=30_000), Greedy(n_sub=1)(problem)
    except (SearchTooLarge, Unsupported):
        return
    assert least_ns is not None
    assert least_ns <= improved(problem, start).objective_ns <= (1 + 2 * neighbourhood.LEAST_GAIN) * least_ns + 1


@pytest.mark.slow
def test_finds_a_rhythm_that_polish_does_not() -> None:
    polished = polish_schedule(PAIRS, [Greedy(n_sub=1)(PAIRS)], Climbing(rounds=2)).schedule
    assert simulate(PAIRS, polished).makespan_ns > 2_500_000_000
    assert improved(PAIRS, polished).objective_ns == 2_451_000_000


@pytest.mark.parametrize("numerator", [8, 10])
@pytest.mark.parametrize("given", [0.3, 0.5])
def test_ops_of_the_first_part_keep_their_order(given: float, numerator: int) -> None:
    problem = make_problem(
        2, 4, placement="loop", chunks=2, costs_ns=(7, 9, 4), in_flight=2, links={(0, 1): (5, 20), (1, 0): (5, 20)}
    )
    problem = with_fused_backward(problem, numerator)
    start = Greedy()(replace(problem, split_backward=False)) if numerator < 10 else Greedy(n_sub=1)(problem)
    before = simulate(problem, start)
    variables = later_part(problem, start, given, 1)
    assert variables is not None
    solver = solver_of(replace(LIMITS, workers=1))
    run(solver, variables.model)
    found = schedule_of_cpsat(variables, problem, solver.value)
    assert simulate(problem, found).makespan_ns < before.makespan_ns
    for rank, order in enumerate(start.orders):
        first = [op for op, start_ns in zip(order, before.start_ns(rank), strict=True) if start_ns < given * before.makespan_ns]
        assert [op for op in found.orders[rank] if op in first] == first


def test_ends_with_its_limits() -> None:
    start = Greedy(n_sub=1)(PAIRS)
    assert improved(PAIRS, start, Limits(time_s=0.0)).cut_short
    once, twice = (improved(PAIRS, start, Limits(deterministic=0.4)) for _ in range(2))
    assert (once.whole, once.work) == (twice.whole, twice.work)
    assert not once.cut_short


def test_a_bound_above_which_nothing_is_better_ends_it() -> None:
    start = Greedy(n_sub=1)(PAIRS)
    assert later_part(PAIRS, start, 0.0, simulate(PAIRS, start).makespan_ns) is None
