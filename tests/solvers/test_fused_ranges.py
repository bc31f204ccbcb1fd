"""The search over ranges of fused backwards: valid schedules, its own clock right, optimal where the mixture is the known one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, strategies as st
from inputs.fused_problems import fused_problem
from inputs.problems import make_problem
from suite.example_counts import examples

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.ops import BLOCKS
from schedc.solvers.common.base import Climbing, Limits
from schedc.solvers.search.fused_ranges import FusedRanges, search_fused_ranges
from schedc.study.bench.instances import instances
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.solvers.common.incumbent import Incumbent


def found(problem: Problem, *, rounds: int = 1, evaluations: int = 10, seed: int = 0) -> list[Schedule]:
    schedules: list[Schedule] = []
    cut_short = search_fused_ranges(problem, Climbing(rounds=rounds, evaluations=evaluations, seed=seed), schedules.append)
    assert not cut_short
    return schedules


@examples(30)
@given(st.integers(0, 10_000))
def test_each_schedule_is_valid_and_better_than_the_one_before(seed: int) -> None:
    problem = fused_problem(seed, may_be_odd=True)
    try:
        schedules = found(problem)
    except Unsupported:
        return
    values_ns = [simulate(problem, schedule).objective_ns(problem.objective) for schedule in schedules]
    assert values_ns == sorted(values_ns, reverse=True)
    assert all(not verify_schedule(problem, schedule) for schedule in schedules)


def test_the_same_seed_gives_the_same_schedules() -> None:
    problem = instances("m70", 0.9)[0].problem
    assert found(problem, seed=3) == found(problem, seed=3)


@pytest.mark.parametrize("number", [1, 3, 7])
def test_reaches_the_bound_of_long_pipelines(number: int) -> None:
    """M70 with 32 microbatches, BW being 0.9 (B + W): the best schedule fuses in the steady phase, not before and after."""
    problem = instances("m70", 0.9)[number].problem
    bound_ns = best_bound(problem).value_ns
    schedules: list[Schedule] = []
    search_fused_ranges(problem, Climbing(rounds=4, good_enough_ns=bound_ns), schedules.append)
    assert simulate(problem, schedules[-1]).makespan_ns == bound_ns
    assert {op.kind for order in schedules[-1].orders for op in order} == set(BLOCKS)


def test_it_ends_with_the_clock() -> None:
    assert search_fused_ranges(instances("m70", 0.9)[4].problem, Climbing(time_s=0.0), lambda _: None)


def test_is_nothing_where_fusing_gains_nothing() -> None:
    for problem in (make_problem(2, 2), replace(fused_problem(0), split_backward=False)):
        with pytest.raises(Unsupported, match="fused"):
            FusedRanges().improve(cast("Incumbent", SimpleNamespace(problem=problem)), Limits())
