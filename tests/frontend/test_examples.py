"""The jobs under examples/ load, and say what they are there to say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schedc.frontend.job import load_job
from schedc.ir.layout import OpenLayout
from schedc.verify.problem import verify_problem

EXAMPLES = Path(__file__).parents[2] / "examples"
OPEN = ["open-layout"]
"""Whose layouts schedc chooses."""
JOBS = sorted({path.parent.name for path in EXAMPLES.glob("*/job.toml")} - set(OPEN))
MS = 1_000_000
GIB = 2**30


def test_all_are_here() -> None:
    assert {"llama-3b", "m70-2dc", "m70-4dc", "m70-wave", "pipemorph-4x12", "zero-bubble"} <= set(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_example(name: str) -> None:
    problem = load_job(EXAMPLES / name / "job.toml").problem
    assert verify_problem(problem) == ()
    assert problem.name == {"zero-bubble": "zb-1.5b-p8-m24"}.get(name, name)
    for rank, limit in enumerate(problem.memory_limit_bytes):
        if name == "protocol-nanogpt":  # which has none
            assert limit is None
            continue
        assert limit is not None
        assert limit >= sum(problem.stages[stage].activation_bytes for stage in problem.stages_on(rank))


@pytest.mark.parametrize("name", OPEN)
def test_open_example(name: str) -> None:
    job = load_job(EXAMPLES / name / "job.toml")
    assert job.workload.name == name
    assert job.open_layout == OpenLayout(chunks=2, recompute_is_open=True)


@pytest.mark.parametrize(("name", "slow"), [("m70-2dc", [3]), ("m70-4dc", [1, 3, 5])])
def test_m70(name: str, slow: list[int]) -> None:
    problem = load_job(EXAMPLES / name / "job.toml").problem
    for stage in problem.stages:
        assert (stage.forward_ns[0], stage.backward_input_ns[0], stage.backward_weight_ns[0]) == (38 * MS, 46_500_000, 20_500_000)
    assert problem.memory_limit_bytes == (8 * GIB,) * 8
    for link in problem.links:
        cost = 2 * 38 * MS if min(link.source, link.destination) in slow else 0
        assert (link.latency_ns, link.occupancy_ns(64 * 2**20)) == (cost, cost)


def test_wave_is_the_same_model_in_two_chunks() -> None:
    whole, wave = (load_job(EXAMPLES / name / "job.toml").problem for name in ("m70-2dc", "m70-wave"))
    assert 2 * sum(stage.forward_ns[0] for stage in whole.stages) == 2 * sum(stage.forward_ns[0] for stage in wave.stages)
    assert sum(stage.backward_ns[0] for stage in whole.stages) == sum(stage.backward_ns[0] for stage in wave.stages)
    assert whole.memory_limit_bytes == wave.memory_limit_bytes


def test_partition_of_the_llama_example_balances_it(tmp_path: Path) -> None:
    directory = EXAMPLES / "llama-3b"
    text = (directory / "job.toml").read_text(encoding="utf-8")
    (tmp_path / "profile.json").write_bytes((directory / "profile.json").read_bytes())

    def slowest_ns(partition: str) -> int:
        (tmp_path / "job.toml").write_text(re.sub(r"(?m)^partition.*$", partition, text), encoding="utf-8")
        return max(stage.forward_ns[0] + stage.backward_ns[0] for stage in load_job(tmp_path / "job.toml").problem.stages)

    given = load_job(directory / "job.toml").problem
    best_ns = max(stage.forward_ns[0] + stage.backward_ns[0] for stage in given.stages)
    assert slowest_ns("partition = [8, 8, 7, 7]") == pytest.approx(1.12 * best_ns, rel=0.01)
    assert slowest_ns("") == pytest.approx(best_ns, rel=0.001)
