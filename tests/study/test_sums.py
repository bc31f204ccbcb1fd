"""Experts have replicas of their own, a reserve stays free, and the sums over the cluster are those of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from inputs.tune_jobs import EXPERTS, tiny_request

from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.errors import Defect, Infeasible, InvalidInput
from schedc.solvers.common.base import SearchSettings
from schedc.study.tune.candidates import candidates
from schedc.study.tune.estimates import simple_bound_ns
from schedc.study.tune.folder import job_table
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.replicas import collectives_ns, costs_of
from schedc.study.tune.search import tune
from schedc.study.tune.sums import check_sums, state_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.problems import CandidateProblem
    from schedc.study.tune.request import TuneRequest

EP = 4
H100 = 81559 * 2**20
"""Of its memory, as the driver says."""


def experts_request(tmp_path: Path, *, sites: tuple[int, ...] = (16,), **sections: dict[str, object]) -> TuneRequest:
    """Eight experts, divided by four pipelines."""
    chosen = {"microbatch_sizes": [1], "batch": 16, "zero_stages": [0, 1], "placements": ["unidirectional"], "recompute": ["none"]}
    tune_keys = {**chosen, "split_backward": False, **sections.pop("tune", {})}
    return tiny_request(tmp_path, sites=sites, config=EXPERTS, model={"ep": EP}, tune=tune_keys, **sections)


def parameters_by_hand() -> tuple[int, int]:
    """Of the model: those of experts, and others."""
    hidden, width, layers, vocabulary = 256, 1024, 6, 2048
    block = 4 * hidden * hidden + 8 * hidden + 2 * hidden  # attention, router, two norms
    return layers * 8 * 3 * hidden * width, 2 * vocabulary * hidden + layers * block + hidden


def cluster_bytes(candidate: TuneCandidate) -> float:
    """What all devices hold, expert by expert: a pipeline has those whose group it is, and its part of their optimizer state."""
    experts, others = parameters_by_hand()
    held = 0.0
    for pipeline in range(candidate.data_parallel):
        held += others * (6 + 12 / (candidate.data_parallel if candidate.zero_stage else 1))
        for expert in range(8):
            holders = [each for each in range(candidate.data_parallel) if each % EP == expert % EP]
            if pipeline in holders:
                held += experts / 8 * (6 + 12 / (len(holders) if candidate.zero_stage else 1))
    return held


def test_devices_hold_the_model_as_a_count_of_its_replicas_says(tmp_path: Path) -> None:
    request = experts_request(tmp_path)
    tried = candidates(request.choices)
    assert {each.data_parallel for each in tried} == {4, 8, 16} and {each.zero_stage for each in tried} == {0, 1}
    for each in tried:
        made = candidate_problem(request, each)
        held = sum(made.static_bytes) - sum(besides.total_bytes for besides in made.besides)
        assert each.data_parallel * held == pytest.approx(cluster_bytes(each), rel=1e-6)
        assert state_bytes(request, each) == pytest.approx(cluster_bytes(each), rel=1e-9)


def reduce_ns(made: CandidateProblem) -> int:
    """Of all stages."""
    parallel = made.problem.data_parallel
    assert parallel is not None
    return sum(parallel.reduce_scatter_ns)


@pytest.mark.parametrize("sites", [(16,), (8, 8)])
def test_gradients_of_experts_are_reduced_among_their_own_replicas(sites: tuple[int, ...], tmp_path: Path) -> None:
    request = experts_request(tmp_path, sites=sites, tune={"ranks": [1], "zero_stages": [1]})
    (whole,) = [each for each in candidates(request.choices) if each.across != "pipeline"]
    experts, others = (4 * count for count in parameters_by_hand())
    mine, own = experts // EP, 0.75 * 450e9  # bytes of experts; links within a node
    if len(sites) == 1:
        # Rings of sixteen and of four over two nodes: eight and two devices of a node have 50 GB/s each.
        expected_s = 15 / 16 * others / (8 * 0.75 * 50e9) + 3 / 4 * mine / (2 * 0.75 * 50e9)
    else:
        # Rings of eight and of two within a site, then the two sites exchange 4 × mine, and half of everything crosses at 10 GB/s.
        expected_s = 7 / 8 * others / own + 1 / 2 * mine / own + 1 / 2 * (others + EP * mine) / 10e9 + 2 * 1e-3
    found_ns, _ = collectives_ns(request, whole, others // 4, mine // 4)
    assert found_ns == pytest.approx(expected_s * 1e9 + 2 * 20_000, rel=1e-4)
    assert reduce_ns(candidate_problem(request, whole)) > found_ns, "then comes the optimizer's step"


def test_no_group_of_experts_is_in_two_sites(tmp_path: Path) -> None:
    """Eight pipelines in two sites are four in each, so a group of four is in one; of four pipelines it would be in both."""
    request = experts_request(tmp_path, sites=(8, 8))
    divided = {each.data_parallel for each in candidates(request.choices) if each.across == "data-parallel"}
    assert divided == {8, 16}


def test_the_first_bound_of_experts_is_never_above_the_others(tmp_path: Path) -> None:
    for sites in ((16,), (8, 8)):
        request = experts_request(tmp_path, sites=sites, topology={"within": {"latency": "20 us", "bandwidth": "1 GB/s"}})
        for each in candidates(request.choices):
            problem = candidate_problem(request, each).problem
            assert (
                0
                < simple_bound_ns(request, each, costs_of(request, each).totals)
                <= max(bound.value_ns for bound in lower_bounds(problem))
            )


def test_sums_of_the_best_and_what_they_refuse(tmp_path: Path) -> None:
    request = experts_request(tmp_path, tune={"ranks": [2]})
    found = tune(request, SearchSettings(method="greedy{n_sub=1}"))
    sums = found.sums
    assert sums.state_bytes is not None and sums.peak_share is not None
    besides = found.problem.besides
    held = found.best.candidate.data_parallel * sum(each.total_bytes for each in besides)
    assert sums.static_bytes - held == pytest.approx(sums.state_bytes, rel=1e-6)
    assert sums.static_bytes < sums.peak_bytes < sums.room_bytes == 16 * (H100 - round(0.06 * H100))
    experts, others = parameters_by_hand()
    used = others - 2048 * 256 - 13 * 256 + experts / 4  # neither the embedding nor norms; two experts of eight
    step_s = (found.best.step_ns or 0) / 1e9
    assert sums.peak_share == pytest.approx(6 * used * 16 * 1024 / (16 * 989.4e12 * step_s))
    check_sums(sums, "tiny")
    for wrong, told in (
        (replace(sums, peak_bytes=sums.room_bytes + 1), "of all devices"),
        (replace(sums, static_bytes=sums.state_bytes // 2), r"less than the .* of the model's"),
        (replace(sums, peak_share=1.01), "101% of the devices' peak"),
    ):
        with pytest.raises(Defect, match=told):
            check_sums(wrong, "tiny")


def test_a_model_that_the_cluster_cannot_hold_is_refused_with_what_would_hold_it(tmp_path: Path) -> None:
    """Sixteen devices of 47 MB lack room for 18 bytes of each of 40 million parameters and their copies; twice as many do."""
    request = experts_request(tmp_path, memory={"capacity": "48 MB", "reserve": "1 MB"}, tune={"batch": 64})
    with pytest.raises(Infeasible, match=r"none of \d+ candidates has room: .* and 16 devices have .* 2 times as many devices"):
        tune(request, SearchSettings())


def test_six_percent_stay_free_unless_the_job_says_otherwise(tmp_path: Path) -> None:
    request = experts_request(tmp_path)
    first = candidates(request.choices)[0]
    made = candidate_problem(request, first)
    memory = job_table(request, first, made)["memory"]
    assert memory["capacity"] == f"{H100} B" and memory["reserve"] == f"{round(0.06 * H100)} B"
    assert {device.capacity_bytes for device in made.workload.devices} == {H100 - round(0.06 * H100)}
    assert experts_request(tmp_path, memory={"reserve": "0 B"}).sites[0].room_bytes == H100
    with pytest.raises(InvalidInput, match=r"memory.reserve: found 79.647 GiB, expected less than the capacity"):
        experts_request(tmp_path, memory={"reserve": "81559 MiB"})
