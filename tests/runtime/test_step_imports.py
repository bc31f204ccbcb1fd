"""A training job imports few packages of schedc: what it runs on can be read in an afternoon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs.imported_lines import lines_of_a_step
from runs.processes import rank_processes

from schedc.formats.plan.plan_file import write_plan
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = {
    "schedc",
    "schedc.formats",
    "schedc.formats.plan",
    "schedc.io",
    "schedc.ir",
    "schedc.runtime",
    "schedc.runtime.common",
    "schedc.runtime.execution",
    "schedc.runtime.session",
    "schedc.runtime.stage",
    "schedc.runtime.transports",
}
"""What a step with fused backwards imports from; `python benchmarks/runtime/imported_lines.py` prints the modules."""
WHERE_SPLIT = {"schedc.runtime.stage.splitting"}
VERIFIER = {"schedc.verify", "schedc.verify.plan", "schedc.verify.schedule"}
"""Rank 0 verifies the plan for all."""


ADAPTING = {
    "schedc.runtime.adapt",
    "schedc.runtime.adapt.monitoring",
    "schedc.runtime.measure",
}
"""Where a job adapts, it measures; it imports no emulation and no profiling."""


@pytest.mark.slow
@pytest.mark.parametrize("backward", ["fused", "split"])
@pytest.mark.parametrize("adapts", [False, True])
def test_a_training_job_imports_few_packages(tmp_path: Path, backward: str, *, adapts: bool) -> None:
    problem = make_problem(2, 4, split_backward=backward == "split")
    path = tmp_path / "plan.json"
    write_plan(plan_of(problem, constructive("greedy")(problem)), path)
    with rank_processes(2, tmp_path) as processes:  # fresh ones: those of other tests have imported more
        ranks = processes.run(lines_of_a_step, str(path), adapts)
    for rank, lines in enumerate(ranks):
        assert isinstance(lines, dict), lines
        packages = {name.rpartition(".")[0] or name for name in lines} | {"schedc"}
        allowed = PACKAGES | (WHERE_SPLIT if backward == "split" else set()) | (VERIFIER if rank == 0 else set())
        assert packages == allowed | (ADAPTING if adapts else set())
