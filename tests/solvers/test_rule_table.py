"""The fixed table of rules: valid schedules on any placement, the same each time, near the proven optimum."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, strategies as st
from inputs.problems import m70, make_problem, problems, with_fused_backward
from suite.example_counts import examples

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.ops import BLOCKS, Kind
from schedc.ir.problem import Objective
from schedc.solvers.heuristics.rule_table import RuleTable
from schedc.solvers.kernel.climb import Climber, PackedRule, climbing_scheduler
from schedc.solvers.kernel.tables import NEVER
from schedc.study.bench.instances import instances
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.solvers.kernel.tables import SchedulerState


@examples(30)
@given(problems(max_ranks=4, max_microbatches=4))
def test_schedules_are_valid_on_any_placement(problem: Problem) -> None:
    assert verify_schedule(problem, RuleTable(climb_ops=200)(problem)) == ()


def test_the_same_problem_gives_the_same_schedule() -> None:
    assert RuleTable()(m70(2, 2)) == RuleTable()(m70(2, 2))


@pytest.mark.parametrize(("latency", "optimum_ms", "most"), [(0, 2128, 1.0), (2, 2736, 1.03)])
def test_it_is_near_the_proven_optimum(latency: float, optimum_ms: int, most: float) -> None:
    """M70, 8 ranks, 16 microbatches, memory for 8 (design notes, values to check against)."""
    problem = m70(latency, latency)
    assert simulate(problem, RuleTable()(problem)).makespan_ns <= most * optimum_ms * 1_000_000


@pytest.mark.parametrize("microbatches", [96, 128, 256])
def test_it_fills_the_warm_up_as_zero_bubble_does(microbatches: int) -> None:
    """ZB-2p's published rates of 28.3B (Zero Bubble, table 5), which only an unhindered first backward reaches."""
    (instance,) = (each for each in instances("zero-bubble-span") if each.name == f"zb-28.3B-p32-n{microbatches}-linear-2p-span")
    span_ns = simulate(instance.problem, RuleTable(climb_ops=0)(instance.problem)).objective_ns(Objective.STAGE_SPAN)
    work_ns = microbatches * sum(instance.problem.duration_ns(kind, 0, 0) for kind in (Kind.F, Kind.B, Kind.W))
    assert round(1 - work_ns / span_ns, 4) <= instance.published["ZB-2p"]


def test_climbs_make_it_better() -> None:
    (problem,) = (instance.problem for instance in instances("random") if instance.name == "random-09")
    climbed, table = (simulate(problem, RuleTable(climb_ops=ops)(problem)).makespan_ns for ops in (40_000, 0))
    assert climbed < table


@pytest.mark.slow
@examples(10)
@given(problems(max_ranks=4, max_microbatches=4), st.integers(5, 9))
def test_where_fusing_pays_it_is_never_worse_than_split(problem: Problem, tenths: int) -> None:
    fused = with_fused_backward(dataclasses.replace(problem, split_backward=True), tenths)
    split = with_fused_backward(fused, 10)
    options = RuleTable(climb_ops=200)
    found = options(fused)
    assert verify_schedule(fused, found) == ()
    without = simulate(split, options(split)).objective_ns(split.objective)
    # On a shared trunk the kernel's clock is not quite the simulator's.
    assert any(link.trunk for link in fused.links) or simulate(fused, found).objective_ns(fused.objective) <= without


def test_it_mixes_fused_and_split_backwards() -> None:
    problem = with_fused_backward(m70(2, 2), 9)
    found = RuleTable()(problem)
    assert {op.kind for order in found.orders for op in order} == set(BLOCKS)
    unsplit = dataclasses.replace(problem, split_backward=False)
    only = (RuleTable()(with_fused_backward(problem, 10)), RuleTable()(unsplit))
    assert simulate(problem, found).makespan_ns < min(simulate(problem, each).makespan_ns for each in only)


def test_where_every_rule_strands_without_reserves_it_keeps_them() -> None:
    """Memory for one microbatch on two chunks: a second one on the first chunk would leave no room for the second chunk."""
    problem = make_problem(2, 3, placement=[0, 1, 0, 1], activation=(1, 0), memory_limit_bytes=[2, 2])
    rule = PackedRule([3] * 4, [0] * 4, [0] * 12, [0], [])
    assert climb_plain(climbing_scheduler(problem), rule) == NEVER
    assert climb_plain(climbing_scheduler(problem, reserves=True), rule) < NEVER
    assert verify_schedule(problem, RuleTable(climb_ops=0)(problem)) == ()


def climb_plain(scheduler: SchedulerState, rule: PackedRule) -> int:
    """What the rule is worth."""
    return Climber(scheduler, plain=True).run(PackedRule(*map(np.array, rule)))


def test_a_limit_below_one_microbatch_is_refused() -> None:
    with pytest.raises(Unsupported, match="one microbatch holds"):
        RuleTable()(make_problem(2, 3, in_flight=0))
