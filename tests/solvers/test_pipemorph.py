"""PipeMorph's planning: its formulas by hand, its published figures, and schedules that are valid under any limit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.problems import MS, make_problem, problems
from suite.example_counts import examples

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import InvalidInput, Unsupported
from schedc.ir.ops import Kind
from schedc.solvers.driver.registry import constructive
from schedc.solvers.heuristics.pipemorph import PipeMorph, Policy, adapted_warm_up, initial_warm_up, planned_warm_up
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


def paper_problem(first_link_ms: int = 0) -> Problem:
    """Section 3.1: 4 stages, 12 microbatches, F = B = W = 10 ms, a delay between stages 0 and 1."""
    delay = (first_link_ms * MS, 0)
    return make_problem(4, 12, costs_ns=(10 * MS, 10 * MS, 10 * MS), links={(0, 1): delay, (1, 0): delay})


def test_section_3_1() -> None:
    """390 ms without delay; the same order takes 400 and 440 ms with a first link of 10 and 20 ms."""
    schedule = PipeMorph(warm_up=(7, 5, 3, 1))(paper_problem())
    assert simulate(paper_problem(), schedule).makespan_ns == 390 * MS
    assert simulate(paper_problem(10), schedule).makespan_ns == 400 * MS
    assert simulate(paper_problem(20), schedule).makespan_ns == 440 * MS


def test_adapting_absorbs_the_delay_of_section_3_1() -> None:
    """Only the link's own delay remains: there and back for the first microbatch, less what warm-up hides."""
    problem = paper_problem(20)
    assert simulate(problem, PipeMorph()(problem)).makespan_ns == 410 * MS


def test_initial_warm_up_by_hand() -> None:
    """Algorithm 1: x_0 = x_max, and x_max - 1 spread over the S - 1 slacknesses, the larger ones first."""
    assert initial_warm_up(4, 12, 7) == (7, 5, 3, 1)
    assert initial_warm_up(4, 12, 8) == (8, 5, 3, 1)
    assert initial_warm_up(4, 12, 9) == (9, 6, 3, 1)
    assert initial_warm_up(8, 32, 8) == (8, 7, 6, 5, 4, 3, 2, 1)
    assert initial_warm_up(5, 32, 3) == (3, 2, 1, 1, 1)
    assert initial_warm_up(1, 4, 3) == (3,)


def test_initial_warm_up_above_the_microbatches_is_clipped() -> None:
    assert initial_warm_up(4, 5, 10) == (5, 5, 4, 1)
    assert initial_warm_up(1, 2, 5) == (2,)


def test_initial_warm_up_needs_room_for_one() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        initial_warm_up(4, 12, 0)


def test_adapted_warm_up_by_hand() -> None:
    """Algorithm 2 as Equation 1 asks: ceil((t_i^F + t_i^B + 2 c_i) / (t_{i+1}^F + t_{i+1}^B)), at least 2, at most N - 2S."""
    ten = [10] * 4
    assert adapted_warm_up(ten, ten, [0, 0, 0], 12) == (7, 5, 3, 1)
    assert adapted_warm_up(ten, ten, [40, 0, 0], 12) == (8, 5, 3, 1)  # (20 + 40) / 20 = 3
    assert adapted_warm_up(ten, ten, [41, 0, 0], 12) == (9, 5, 3, 1)  # 61 / 20, rounded up: 4
    assert adapted_warm_up(ten, ten, [0, 0, 1000], 12) == (9, 7, 5, 1)  # clipped at N - 2S = 4
    assert adapted_warm_up(ten, ten, [0, 0, 1000], 30) == (27, 25, 23, 1)  # clipped at 22


def test_adapted_warm_up_uses_the_stages_own_backward() -> None:
    """t_i^B, not t_{i+1}^B: (10 + 50) / (10 + 5) = 4 for the first stage; the printed formula would give 1, so 2."""
    assert adapted_warm_up([10, 10], [50, 5], [0], 20) == (5, 1)


def test_adapted_warm_up_with_few_microbatches() -> None:
    """N < 2S: N - 2S is negative, but a slackness is not; no count exceeds N."""
    ten = [10] * 4
    assert adapted_warm_up(ten, ten, [0, 0, 0], 5) == (5, 5, 3, 1)
    assert adapted_warm_up(ten, ten, [500, 500, 500], 3) == (3, 3, 3, 1)
    assert adapted_warm_up([10], [10], [], 3) == (1,)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(0, 400)), min_size=2, max_size=8),
    st.integers(1, 60),
)
def test_adapted_warm_up_satisfies_equation_1(costs: list[tuple[int, int, int]], microbatches: int) -> None:
    """Wherever neither N - 2S nor N clips."""
    counts = adapted_warm_up([c[0] for c in costs], [c[1] for c in costs], [c[2] for c in costs[:-1]], microbatches)
    assert counts[-1] == 1
    assert max(counts) <= microbatches
    for i, slackness in enumerate(before - after for before, after in pairwise(counts)):
        assert slackness >= 0
        if counts[i] < microbatches and slackness < microbatches - 2 * len(costs):
            assert costs[i][0] + costs[i][1] + costs[i][2] <= slackness * (costs[i + 1][0] + costs[i + 1][1])


def test_occupancy_counts_as_delay() -> None:
    latency = make_problem(4, 20, links={(0, 1): (30, 0), (1, 0): (30, 0)})
    occupancy = make_problem(4, 20, links={(0, 1): (0, 30), (1, 0): (0, 30)})
    assert planned_warm_up(latency, Policy.ADAPTED) == planned_warm_up(occupancy, Policy.ADAPTED) == (9, 5, 3, 1)


def test_policies_plan_differently() -> None:
    problem = make_problem(4, 20, in_flight=10, links={(0, 1): (30, 0), (1, 0): (30, 0)})
    assert planned_warm_up(problem, Policy.ADAPTED) == (9, 5, 3, 1)
    assert planned_warm_up(problem, Policy.INITIAL) == (10, 7, 4, 1)
    assert planned_warm_up(replace(problem, memory_limit_bytes=(None,) * 4), Policy.INITIAL) == (7, 5, 3, 1)
    assert planned_warm_up(replace(problem, split_backward=False), Policy.ADAPTED) == (8, 5, 3, 1)  # (30 + 60) / 30


def test_warm_up_runs_forwards_only() -> None:
    """The first B of stage 1 could run at 11, long before its other F come at 20, 30 and 40; it waits for them."""
    problem = make_problem(2, 6, costs_ns=[(10, 1, 1), (1, 1, 1)])
    schedule = PipeMorph(warm_up=(5, 4))(problem)
    assert [op.kind for op in schedule.orders[0][:6]] == [Kind.F] * 5 + [Kind.B]
    assert [op.kind for op in schedule.orders[1][:5]] == [Kind.F] * 4 + [Kind.B]
    assert [op.kind for op in PipeMorph(warm_up=(0, 0))(problem).orders[1][:3]] == [Kind.F, Kind.B, Kind.W]


def test_ranks_may_be_permuted() -> None:
    problem = make_problem(4, 12, placement=[2, 0, 3, 1], costs_ns=(10 * MS, 10 * MS, 10 * MS))
    schedule = PipeMorph(warm_up=(7, 5, 3, 1))(problem)
    assert simulate(problem, schedule).makespan_ns == 390 * MS
    assert [op.kind for op in schedule.orders[2][:8]] == [Kind.F] * 7 + [Kind.B]


@examples(60)
@given(
    problems(placements=("unidirectional",), max_microbatches=10),
    st.one_of(st.sampled_from(Policy), st.tuples(*[st.integers(0, 20)] * 4)),
)
def test_any_one_stage_per_rank_problem_gets_a_valid_schedule(problem: Problem, plan: Policy | tuple[int, ...]) -> None:
    """Warm-up counts may be above N, above memory, or rise along the path: then they cannot be met, and are lowered."""
    options = PipeMorph(policy=plan) if isinstance(plan, Policy) else PipeMorph(warm_up=plan[: problem.ranks])
    schedule = options(problem)
    assert schedule == options(problem)
    assert schedule.parts == ()
    assert verify_schedule(problem, schedule) == ()
    for peak, limit in zip(peak_bytes(problem, schedule), problem.memory_limit_bytes, strict=True):
        assert limit is None or peak <= limit


@pytest.mark.parametrize("placement", ["wave", "loop", "bidirectional", [0, 1, 0]])
def test_other_placements_are_refused(placement: str | list[int]) -> None:
    problem = make_problem(2, 4, placement=placement, chunks=2 if placement in ("loop", "wave") else 1)
    with pytest.raises(Unsupported, match="one path and one stage on each rank"):
        PipeMorph()(problem)


def test_memory_below_one_microbatch_is_refused() -> None:
    with pytest.raises(Unsupported, match="rank 1: one microbatch holds"):
        PipeMorph()(make_problem(2, 4, memory_limit_bytes=[2, 1]))


def test_options_that_mean_nothing() -> None:
    with pytest.raises(InvalidInput, match='policy: found "best", expected "adapted" or "initial"'):
        constructive("pipemorph{policy=best}")
    with pytest.raises(InvalidInput, match=r"warm_up: found \[3, 2, 1\], expected a list of 2 counts"):
        constructive("pipemorph{warm_up=3,2,1}")(make_problem(2, 2))
    with pytest.raises(InvalidInput, match=r"warm_up\[1\]: found -1, expected a whole number from 0"):
        constructive("pipemorph{warm_up=2,-1}")
    with pytest.raises(InvalidInput, match="warm_up: found 2, expected a list"):
        constructive("pipemorph{warm_up=2}")
