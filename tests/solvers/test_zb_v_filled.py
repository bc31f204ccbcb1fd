"""ZB-V's heuristic beside a rebuilding that shares no code with it, and within any limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benches.peers_v import Costs, bubble_filling
from hypothesis import given
from inputs.problems import make_problem, problems, with_fused_backward
from suite.example_counts import examples

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir import Problem
from schedc.solvers.heuristics.zb_v_filled import ZBVFilled
from schedc.study.bench.pipelines import pipeline
from schedc.verify.schedule.checks import verify_schedule


@pytest.mark.parametrize(
    "costs",
    [Costs(4, 8, 10, 10, 10, 0), Costs(4, 11, 101, 53, 34, 7), Costs(5, 13, 97, 180, 120, 250), Costs(8, 17, 1009, 1301, 811, 97)],
    ids=str,
)
def test_no_longer_than_the_peers(costs: Costs) -> None:
    """Of the peers' four forms, rebuilt, none is shorter: each is among those that are compared."""
    ways = {(x, y): (costs.message, 0) for x in range(costs.ranks) for y in range(costs.ranks) if x != y}
    times = (costs.forward, costs.backward, costs.weight)
    problem = make_problem(
        costs.ranks, costs.microbatches, placement="wave", chunks=2, costs_ns=times, in_flight=costs.ranks, links=ways
    )
    ours_ns = simulate(problem, ZBVFilled()(problem)).makespan_ns
    theirs = [bubble_filling(costs, forward, backward)[0] for forward in (True, False) for backward in (True, False)]
    assert all(not verify_schedule(problem, each) for each in theirs)
    assert ours_ns <= min(simulate(problem, each).makespan_ns for each in theirs)


@examples(200)
@given(problem=problems(placements=("wave",), max_microbatches=9))
def test_any_v_within_its_limits(problem: Problem) -> None:
    """Every schedule runs, and none holds more than its rank may; or the heuristic says that it has none."""
    try:
        schedule = ZBVFilled()(problem)
    except Unsupported:
        return
    assert not verify_schedule(problem, schedule)
    assert exceeded_limit(problem, schedule) is None


@examples(100)
@given(problem=problems(placements=("wave",), max_microbatches=9))
def test_fused_in_the_middle_it_keeps_the_limits_too(problem: Problem) -> None:
    try:
        schedule = ZBVFilled(fused="steady")(with_fused_backward(problem, 9))
    except Unsupported:
        return
    assert not verify_schedule(with_fused_backward(problem, 9), schedule)
    assert exceeded_limit(problem, schedule) is None


def test_fused_in_the_middle_a_long_wave_is_nearly_as_short_as_its_bound() -> None:
    """With BW 10 % cheaper: all split it is 5.9 % above the bound; with only the first and last ones split, less than 1.5 %."""
    problem = with_fused_backward(pipeline("v", 8, 48, (20, 20, 16), in_flight=8, placement="wave"), 9)
    split_ns, fused_ns = (simulate(problem, ZBVFilled(fused=which)(problem)).makespan_ns for which in ("none", "steady"))
    bound_ns = best_bound(problem).value_ns
    assert fused_ns < 1.015 * bound_ns < 1.05 * bound_ns < split_ns


@pytest.mark.parametrize("limit_bytes", [28, 31])
def test_a_backward_has_room_to_compute_its_forward_again(limit_bytes: int) -> None:
    """Stages hold 3 bytes of each microbatch and take up to 3 more in a backward; that fits, but without it one F more would."""
    problem = make_problem(4, 9, placement="wave", chunks=2, activation=(3, 1), memory_limit_bytes=[limit_bytes] * 4)
    stages = tuple(replace(stage, recompute=True, recomputed_bytes=at % 4) for at, stage in enumerate(problem.stages))
    problem = replace(problem, stages=stages)
    assert not verify_schedule(problem, ZBVFilled()(problem))


def test_what_it_is_not_for() -> None:
    with pytest.raises(Unsupported, match="wave"):
        ZBVFilled()(make_problem(2, 4))
    with pytest.raises(Unsupported, match="split_backward"):
        ZBVFilled()(make_problem(2, 4, placement="wave", chunks=2, split_backward=False))
