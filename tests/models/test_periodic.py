"""The cyclic model: its least period is the true one on small cases, and what it repeats is always valid."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.fused_problems import with_fused
from inputs.problems import make_problem, problems
from oracles.bounds import bound_of
from ortools.sat.python import cp_model
from suite.example_counts import examples

from schedc.analysis.simulation.simulate import simulate
from schedc.ir.ops import Kind
from schedc.ir.plan import BoundName
from schedc.models.blocks import grid_of
from schedc.models.periodic import build_cycle, held_pairs
from schedc.solvers.common.base import NO_LIMITS
from schedc.solvers.search.periodic import solve_wave, unroll
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


GIB = 1 << 30


def least_period(problem: Problem, wave: int) -> int:
    cycle = build_cycle(problem, grid_of(problem, 100_000), wave, 4_000)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(cycle.model) == cp_model.OPTIMAL
    return solver.value(cycle.steps) * cycle.step


def test_period_is_the_busiest_rank_s_work_where_memory_is_plenty() -> None:
    problem = make_problem(3, 20, costs_ns=[(5, 7, 3), (4, 6, 2), (5, 5, 4)], in_flight=8, links={(0, 1): (9, 4), (1, 0): (9, 4)})
    assert least_period(problem, 1) == 15


def test_period_is_the_round_trip_where_memory_holds_one_activation() -> None:
    problem = make_problem(2, 20, costs_ns=(5, 7, 3), activation=(1, 0), in_flight=1, links={(0, 1): (10, 2), (1, 0): (20, 1)})
    assert least_period(problem, 1) == 2 * (5 + 7) + 33  # W lie in the wait
    assert least_period(replace(problem, split_backward=False), 1) == 2 * (5 + 7 + 3) + 33


def test_a_slow_link_is_the_period_where_it_is_busiest() -> None:
    problem = make_problem(2, 20, costs_ns=(5, 7, 3), links={(0, 1): (0, 40)})
    assert least_period(problem, 1) == 40


def test_waves_are_shorter_per_microbatch_than_single_ones_where_memory_is_short() -> None:
    """Three ranks, room for two activations: a period of 18 for one microbatch, of 27 for two that share a wave."""
    problem = make_problem(3, 20, costs_ns=(4, 5, 2), activation=(1, 0), in_flight=2)
    assert (least_period(problem, 1), least_period(problem, 2)) == (18, 27)


def test_backwards_are_fused_where_nobody_waits() -> None:
    problem = make_problem(1, 20, costs_ns=(5, 7, 3))
    assert [least_period(with_fused(problem, fused_ns), 2) for fused_ns in (6, 9, 10, 12)] == [22, 28, 30, 30]


@examples(200)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 60), st.integers(1, 12))
def test_pairs_of_held_microbatches_are_the_largest_that_fit(whole: int, kept: int, limit: int, most: int) -> None:
    kept = min(kept, whole)
    limit = max(limit, whole)
    counts = range(1, most + 1)
    fit = [(b, w) for b in counts for w in counts if b <= w and b * (whole - kept) + w * kept <= limit]
    largest = [(b, w) for b, w in fit if not any(c >= b and x >= w and (c, x) != (b, w) for c, x in fit)]
    assert sorted(held_pairs(whole, kept, limit, most)) == sorted(largest)


@pytest.mark.parametrize("between", [0, 1, GIB // 2 + 1, GIB - 1, GIB])
def test_bytes_are_not_counted_one_by_one(between: int) -> None:
    """Between B and W is held nearly nothing, or nearly all: the model is no larger than in units."""
    problem = make_problem(3, 40, activation=(GIB, between), memory_limit_bytes=[5 * GIB] * 3)
    cycle = build_cycle(problem, grid_of(problem, 100_000), 2, 4_000)
    in_units = make_problem(3, 40, activation=(1000, 1000 * between // GIB), memory_limit_bytes=[5000] * 3)
    assert len(cycle.model.proto.constraints) <= 1.1 * len(
        build_cycle(in_units, grid_of(problem, 100_000), 2, 4_000).model.proto.constraints
    )


@pytest.mark.parametrize(("kept", "split", "mixed", "fused"), [(0, 57, 57, 61), (1, 60, 59, 61)])
def test_each_backward_of_a_wave_is_fused_or_split(kept: int, split: int, mixed: int, fused: int) -> None:
    """Room for one activation, F of 5, B of 7, W of 3, BW of 9: the last rank splits, as its gradient is waited for.

    Where all is held until W, the first rank fuses: 5 + 5 + 7 + 9 and 33 on links; else W lies in the wait.
    """
    links = {(0, 1): (10, 2), (1, 0): (20, 1)}
    problem = make_problem(2, 20, costs_ns=(5, 7, 3), activation=(1, kept), in_flight=1, links=links)
    cheaper = with_fused(problem, 9)
    assert least_period(problem, 1) == split
    assert least_period(cheaper, 1) == mixed
    assert least_period(replace(cheaper, split_backward=False), 1) == fused
    wave = solve_wave(cheaper, 1, NO_LIMITS)
    assert wave is not None
    kinds = {(op.kind, op.stage) for op in wave.start_ns}
    assert {(Kind.B, 1), (Kind.W, 1)} <= kinds
    assert (Kind.BW, 0) in kinds or not kept
    assert verify_schedule(cheaper, unroll(cheaper, wave)) == ()


@given(
    problem=problems(max_ranks=2, placements=("unidirectional",), shared_trunks=False),
    wave=st.integers(1, 2),
    share=st.sampled_from([0.6, 0.8, 0.9, 1.0]),
    kept=st.booleans(),
)
@examples(16, deadline=None)
def test_what_repeats_is_valid_and_takes_the_period(problem: Problem, wave: int, share: float, kept: bool) -> None:
    if share < 1:
        problem = with_fused(problem, *(int(share * (s.backward_input_ns[0] + s.backward_weight_ns[0])) for s in problem.stages))
    if kept:
        stages = tuple(replace(stage, activation_after_input_bytes=stage.activation_bytes) for stage in problem.stages)
        problem = replace(problem, stages=stages)
    found = solve_wave(replace(problem, microbatches=8 * wave, path_of=(0,) * (8 * wave)), wave, NO_LIMITS)
    assert found is not None
    wave_ends_ns = max(at_ns + problem.duration_ns(op.kind, op.stage, 0) for op, at_ns in found.start_ns.items())
    for waves in (1, 8):
        longer = replace(problem, microbatches=waves * wave, path_of=(0,) * (waves * wave))
        schedule = unroll(longer, found)
        assert verify_schedule(longer, schedule) == ()
        makespan_ns = simulate(longer, schedule).makespan_ns
        assert bound_of(BoundName.IDLE_GAPS, longer).value_ns <= makespan_ns <= wave_ends_ns + (waves - 1) * found.period_ns


def test_a_last_wave_may_be_cut_off() -> None:
    problem = make_problem(3, 12, costs_ns=(5, 7, 3), in_flight=2, links={(0, 1): (9, 4), (1, 0): (9, 4)})
    found = solve_wave(problem, 2, NO_LIMITS)
    assert found is not None
    for microbatches in (1, 2, 5, 6, 7):
        shorter = replace(problem, microbatches=microbatches, path_of=(0,) * microbatches)
        assert verify_schedule(shorter, unroll(shorter, found)) == ()
