"""The idle-gap bound: never above the optimum, equal to it where theory says so, and as strong as one rank's own relaxation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, strategies as st
from inputs.problems import M70_NS, m70, make_problem, problems
from oracles.bounds import bound_of
from oracles.brute_force import SearchTooLarge, optimum
from suite.example_counts import examples

from schedc.analysis.simulation.simulate import simulate
from schedc.ir.ops import Kind
from schedc.ir.plan import BoundName
from schedc.ir.problem import Objective
from schedc.ir.schedule import Parts
from schedc.solvers.templates import TEMPLATES

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

SMALL = problems(max_ranks=3, max_microbatches=3, placements=("unidirectional", "bidirectional", "explicit"))


@pytest.mark.slow
@given(problem=SMALL, objective=st.sampled_from(Objective), cut=st.sampled_from([None, Kind.F, Kind.B, Kind.W]))
@examples(30, deadline=None)
def test_never_above_the_optimum(problem: Problem, objective: Objective, cut: Kind | None) -> None:
    problem = replace(problem, objective=objective)
    parts = [Parts(kind=cut, stage=0, shares=(1, 1))] if cut is not None and problem.split_backward else []
    try:
        best_ns = optimum(problem, parts, most_states=4_000)
    except (SearchTooLarge, ValueError):
        assume(False)
    assert best_ns is None or bound_of(BoundName.IDLE_GAPS, problem).value_ns <= best_ns


@pytest.mark.slow
@given(
    costs=st.lists(st.tuples(*[st.integers(1, 12)] * 3), min_size=2, max_size=2),
    fused=st.integers(-6, 3),
    link=st.tuples(st.integers(0, 40), st.integers(0, 8)),
    held=st.tuples(st.integers(1, 3), st.integers(0, 1)),
    in_flight=st.integers(1, 3),
)
@examples(30, deadline=None)
def test_never_above_the_optimum_with_slow_links_and_fast_fused_backwards(
    costs: list[tuple[int, int, int]], fused: int, link: tuple[int, int], held: tuple[int, int], in_flight: int
) -> None:
    problem = make_problem(2, 3, costs_ns=costs, activation=held, in_flight=in_flight, links={(0, 1): link, (1, 0): link})
    stages = tuple(replace(stage, backward_ns=(max(1, stage.backward_ns[0] + fused),)) for stage in problem.stages)
    problem = replace(problem, stages=stages)
    try:
        best_ns = optimum(problem, most_states=10_000)
    except SearchTooLarge:
        assume(False)
    assert best_ns is not None
    assert bound_of(BoundName.IDLE_GAPS, problem).value_ns <= best_ns


@pytest.mark.parametrize(("ranks", "microbatches"), [(4, 8), (8, 16), (32, 64), (8, 1024)])
def test_proves_zb_h1_where_no_link_is_slow(ranks: int, microbatches: int) -> None:
    problem = make_problem(ranks, microbatches, costs_ns=M70_NS, in_flight=ranks)
    forward, gradient, weight = M70_NS
    expected = microbatches * sum(M70_NS) + (ranks - 1) * (forward + gradient - weight)
    assert bound_of(BoundName.IDLE_GAPS, problem).value_ns == expected
    assert simulate(problem, TEMPLATES["zb-h1"].construct(problem)).makespan_ns == expected


def test_is_what_cp_sat_proves_for_one_rank() -> None:
    """Rank 0 of M70 at (2, 2) alone: CP-SAT proves 2736 ms for 16 microbatches (the whole problem's optimum too), 6738 for 48."""
    assert bound_of(BoundName.IDLE_GAPS, m70(2, 2)).value_ns == 2736_000_000
    assert bound_of(BoundName.IDLE_GAPS, m70(2, 2, microbatches=48)).value_ns == 6738_000_000
