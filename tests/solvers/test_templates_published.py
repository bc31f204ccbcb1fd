"""The known schedules take as long as their papers print."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from inputs.problems import MS, m70, make_problem

from schedc.analysis.simulation.simulate import simulate
from schedc.solvers.templates import TEMPLATES
from schedc.study.bench.published import ZERO_BUBBLE_METHODS, ZERO_BUBBLE_PROFILES, Profile

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


def makespan_ns(name: str, problem: Problem) -> int:
    return simulate(problem, TEMPLATES[name].construct(problem)).makespan_ns


@pytest.mark.parametrize(
    ("name", "latency", "occupancy", "expected_ms"),
    [
        ("1f1b", 0, 0, 2415),
        ("1f1b", 0.25, 0.25, 2681),
        ("1f1b", 0.25, 2, 3612),
        ("1f1b", 2, 2, 4543),
        ("zb-h1", 0, 0, 2128),
        ("zb-h1", 2, 2, 4174),
    ],
)
def test_m70(name: str, latency: float, occupancy: float, expected_ms: int) -> None:
    assert makespan_ns(name, m70(latency, occupancy)) == expected_ms * MS


@pytest.mark.parametrize("profile", ZERO_BUBBLE_PROFILES, ids=lambda profile: f"{profile.model}-{profile.microbatches}")
@pytest.mark.parametrize("name", ["1F1B", "ZB-H1", "ZB-H2"])
def test_zero_bubble_table_5(profile: Profile, name: str) -> None:
    """To the last of the four decimals that the paper prints, for every profile of its table 9."""
    f, b, w = profile.forward_ns, profile.backward_input_ns, profile.backward_weight_ns
    pairs = (pair for rank in range(profile.ranks - 1) for pair in ((rank, rank + 1), (rank + 1, rank)))
    links = dict.fromkeys(pairs, (profile.latency_ns, 0))
    problem = make_problem(profile.ranks, profile.microbatches, costs_ns=(f, b, w), links=links)
    cost_ns = simulate(problem, TEMPLATES[name.lower()].construct(problem)).stage_span_ns
    rate = Decimal(cost_ns - profile.microbatches * (f + b + w)) / cost_ns
    assert f"{rate:.4f}" == f"{profile.bubble_rates[ZERO_BUBBLE_METHODS.index(name)]:.4f}"


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 8), (4, 4), (4, 9), (8, 16), (8, 40)])
def test_bubbles_of_equal_blocks(ranks: int, microbatches: int) -> None:
    """F = B = W = 1: GPipe's and 1F1B's (p − 1)(F + B + W), ZB-H1's (p − 1)(F + B − W)."""
    problem = make_problem(ranks, microbatches, costs_ns=(1, 1, 1))
    assert makespan_ns("gpipe", problem) == 3 * microbatches + 3 * (ranks - 1)
    assert makespan_ns("1f1b", problem) == 3 * microbatches + 3 * (ranks - 1)
    assert makespan_ns("zb-h1", problem) == 3 * microbatches + ranks - 1


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 8), (4, 7), (4, 9), (8, 16), (8, 40)])
def test_no_rank_waits_once_it_has_started(ranks: int, microbatches: int) -> None:
    """ZB-H2 and ZB-V for F = B = W, from 2p − 1 microbatches on: every rank's span is its work."""
    for name, placement, chunks in (("zb-h2", "unidirectional", 1), ("zb-v", "wave", 2)):
        problem = make_problem(ranks, microbatches, placement=placement, chunks=chunks, costs_ns=(1, 1, 1))
        timeline = simulate(problem, TEMPLATES[name].construct(problem))
        assert timeline.stage_span_ns == 3 * microbatches * chunks
        assert timeline.makespan_ns == 3 * microbatches * chunks + ranks - 1


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize("groups", [1, 2, 5])
def test_interleaved_bubble(ranks: int, chunks: int, groups: int) -> None:
    """(p − 1)(F + BW) / v: as much as one chunk's fill and drain (Narayanan et al., section 2.2)."""
    problem = make_problem(ranks, groups * ranks, placement="loop", chunks=chunks, costs_ns=(1, 1, 1))
    assert makespan_ns("interleaved", problem) == 3 * chunks * groups * ranks + 3 * (ranks - 1)


@pytest.mark.parametrize("ranks", [2, 4, 6, 8])
@pytest.mark.parametrize("units", [1, 2, 5])
def test_chimera_bubble(ranks: int, units: int) -> None:
    """(p − 2) / (3m/2 + p − 2) of the makespan for BW = 2F (Li and Hoefler, 2021)."""
    microbatches = units * ranks
    problem = make_problem(ranks, microbatches, placement="bidirectional", costs_ns=(1, 1, 1))
    assert makespan_ns("chimera", problem) == 2 * (3 * microbatches // 2 + ranks - 2)
