"""Stages that processes share, in torchtitan's trainer with plans: each cell trains as torchtitan's own 1F1B does with its degrees.

A cell is a way to share the stages, with blocks compiled or not, and an activation checkpointing; every pair of these is in one. In
each a plan with B and W apart runs, and in some one with backwards fused.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from inputs.jobs import write_job
from runs.processes import Ranks, rank_processes
from suite.command_line import schedc
from suite.optional_packages import MODULES, importing

with importing("torchtitan"):
    from runs.torchtitan_runs import Run, trained

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
pipeline = { ranks = 2, microbatches = 4, partition = [4, 4] }
profile = { forward = "10 ms", backward_input = "12 ms", backward_weight = "9 ms", message = "1 MiB" }
"""
EXPERTS = {"model": "deepseek_v3"}
SHARED: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "FSDP": ({}, {}),
    "tensor": ({"tensor_parallel": 2}, {}),
    "context": ({"context_parallel": 2}, {}),
    "experts": ({"expert_parallel": 2}, EXPERTS),
    "experts and tensor": ({"expert_parallel": 2, "tensor_parallel": 2}, EXPERTS),
}
"""By name the degrees beside the pipeline's on four processes, FSDP's being what is left; and what a `Run` has besides."""
RECOMPUTED = (None, "full", "selective")


def cells() -> list[tuple[str, bool, str | None]]:
    """How stages are shared, whether blocks are compiled, and what is recomputed."""
    rows = []
    for (at, shared), (number, recomputed) in product(enumerate(SHARED), enumerate(RECOMPUTED)):
        # torch 2.13 compiles no selective region with tensor parallelism (it asserts that none saves a mesh), and not what stands
        # here for flex attention's kernel.
        compiled = (at + number) % 2 == 1 and (recomputed != "selective" or "tensor" not in shared) and shared != "context"
        rows.append((shared, compiled, recomputed))
    return rows


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Plan files for two ranks."""
    found = {}
    for name, method in {"fused": "1f1b", "split": "greedy"}.items():
        folder = tmp_path_factory.mktemp(name)
        found[name] = str(folder / "plan.json")
        settings = ["--set", "pipeline.split_backward=false"] if name == "fused" else []
        done = schedc("compile", write_job(folder, JOB), "-o", found[name], "--method", method, "--quiet", *settings)
        assert done.returncode == 0, done.stderr
    return found


def run_of(shared: str, **changes: Any) -> Run:
    """Two steps of a job whose stages are shared so."""
    degrees, others = SHARED[shared]
    options: dict[str, Any] = {f"parallelism.{name}_degree": degree for name, degree in degrees.items()}
    options |= {"parallelism.pipeline_parallel_degree": 2, "parallelism.spmd_backend": "partial_dtensor"}
    if shared == "context":
        options["training.seq_len"] = 256  # masks are in blocks of 128 tokens
    return Run(steps=2, options=options, **others, **changes)


@pytest.mark.parametrize(("shared", "compiled", "recomputed"), cells())
def test_cells_are_equal_bit_by_bit(
    four: Ranks, plans: dict[str, str], shared: str, compiled: bool, recomputed: str | None
) -> None:
    run = run_of(shared, compiled=compiled, recompute=recomputed)
    found = [trained(four, replace(run, plan=plans[name])) for name in (("split",) if recomputed else ("fused", "split"))]
    own = trained(four, run)
    assert all(one == own for one in found)


@pytest.mark.parametrize(("shared", "recomputed"), [("FSDP", "full"), ("tensor", None), ("tensor", "selective")])
def test_jobs_of_dtensors_alone(four: Ranks, plans: dict[str, str], shared: str, recomputed: str | None) -> None:
    """`full_dtensor`: batches, what crosses stages, and losses."""
    validated = {"validator.enable": True, "validator.freq": 1, "validator.steps": 1}
    run = run_of(shared, recompute=recomputed)
    run = replace(run, options={**run.options, **validated, "parallelism.spmd_backend": "full_dtensor"})
    assert trained(four, replace(run, plan=plans["split"])) == trained(four, run)


def test_tensor_parallelism_without_sequences_in_parts(four: Ranks, plans: dict[str, str]) -> None:
    run = run_of("tensor")
    run = replace(run, options={**run.options, "parallelism.enable_sequence_parallel": False})
    own, found = trained(four, run), trained(four, replace(run, plan=plans["split"]))
    # A gradient that is a partial sum is summed before it goes to the stage before, where torch sends the parts.
    assert found[0] == pytest.approx(own[0], rel=1e-6)
    assert found[1] == pytest.approx(own[1], rel=1e-6)


@pytest.mark.parametrize("shared", ["tensor", "experts and tensor"])
def test_fsdp_beside_others_on_eight_processes(tmp_path: Path, plans: dict[str, str], shared: str) -> None:
    with rank_processes(8, tmp_path, *MODULES) as eight:
        run = run_of(shared)
        assert trained(eight, replace(run, plan=plans["split"])) == trained(eight, run)
