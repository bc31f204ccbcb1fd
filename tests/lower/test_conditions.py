"""A problem under conditions: what they name changes, and nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from inputs.problems import MS, make_problem, with_fused_backward

from schedc.ir.conditions import AS_PLANNED, Conditions, LinkState
from schedc.ir.ops import Kind
from schedc.lower.problem import problem_under

PROBLEM = make_problem(3, 4, costs_ns=(10 * MS, 12 * MS, 8 * MS), links={(0, 1): (5 * MS, 2 * MS), (1, 0): (5 * MS, 2 * MS)})


def test_nothing_differs() -> None:
    assert problem_under(PROBLEM, AS_PLANNED) == PROBLEM
    assert problem_under(PROBLEM, Conditions(links={(0, 1): LinkState()}, slowdown={(0, Kind.F): 1.0})) == PROBLEM


def test_a_latency_keeps_the_occupancy_and_the_other_direction() -> None:
    found = problem_under(PROBLEM, Conditions(links={(0, 1): LinkState(latency_ns=30 * MS)}))
    assert found.link(0, 1) == replace(PROBLEM.link(0, 1), latency_ns=30 * MS)
    assert found.link(1, 0) == PROBLEM.link(1, 0)
    assert replace(found, links=PROBLEM.links) == PROBLEM


def test_a_bandwidth_takes_the_place_of_an_occupancy() -> None:
    link = problem_under(PROBLEM, Conditions(links={(1, 0): LinkState(bytes_per_second=1000)})).link(1, 0)
    assert link.latency_ns == 5 * MS
    assert link.occupancy_ns(10) == 10 * MS


def test_links_that_the_problem_lacks_count_for_nothing() -> None:
    assert problem_under(PROBLEM, Conditions(links={(2, 0): LinkState(latency_ns=1)})) == PROBLEM


def test_a_slow_rank() -> None:
    found = problem_under(PROBLEM, Conditions(slowdown={(1, Kind.F): 1.5, (1, Kind.B): 2.0, (1, Kind.W): 1.25}))
    assert found.stages[0] == PROBLEM.stages[0]
    slow = found.stages[1]
    assert (slow.forward_ns, slow.backward_input_ns, slow.backward_weight_ns) == ((15 * MS,), (24 * MS,), (10 * MS,))
    assert slow.backward_ns == (34 * MS,)


def test_a_fused_backward_slows_down_as_its_halves_together() -> None:
    problem = with_fused_backward(PROBLEM, 9)
    slow = problem_under(problem, Conditions(slowdown={(0, Kind.B): 2.0, (0, Kind.W): 1.0})).stages[0]
    assert slow.backward_ns == (round(problem.stages[0].backward_ns[0] * 32 / 20),)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_a_slowdown_must_be_a_number_above_0(factor: float) -> None:
    with pytest.raises(ValueError, match="the slowdown of F on rank 2"):
        Conditions(slowdown={(2, Kind.F): factor})


@pytest.mark.parametrize("key", [(2, Kind.BW), (2, "F")])
def test_a_slowdown_is_of_f_b_or_w(key: Any) -> None:
    with pytest.raises(ValueError, match=r"of a rank and Kind\.F, Kind\.B or Kind\.W, got \(2, "):
        Conditions(slowdown={key: 2.0})


@pytest.mark.parametrize("latency_ns", [-1, 30e6, math.nan, 2**53])
def test_link_states_that_cannot_be(latency_ns: Any) -> None:
    with pytest.raises(ValueError, match="latency_ns must be a whole number from 0 to "):
        LinkState(latency_ns=latency_ns)
    with pytest.raises(ValueError, match="bytes_per_second must be a whole number from 1 to "):
        LinkState(bytes_per_second=min(0, latency_ns) if latency_ns == latency_ns else latency_ns)
