"""A training job imports little of schedc: what it runs on can be read in an afternoon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from imported_lines import lines_of_a_step
from plans import plan_of
from problems import make_problem
from rank_processes import rank_processes

from schedc.solvers.driver.registry import constructive
from schedc.text.plan.plan_to_file import write_plan

if TYPE_CHECKING:
    from pathlib import Path

MOST_LINES = {"fused": 5_150, "split": 5_550}
"""`python benchmarks/runtime/imported_lines.py` prints the modules. Lower it when it falls; look twice before it is raised."""


@pytest.mark.slow
@pytest.mark.parametrize("backward", MOST_LINES)
def test_a_training_job_imports_few_lines(tmp_path: Path, backward: str) -> None:
    problem = make_problem(2, 4, split_backward=backward == "split")
    path = tmp_path / "plan.json"
    write_plan(plan_of(problem, constructive("greedy")(problem)), path)
    with rank_processes(2, tmp_path) as processes:  # fresh ones: those of other tests have imported more
        ranks = processes.run(lines_of_a_step, str(path))
    for rank, lines in enumerate(ranks):
        assert isinstance(lines, dict), lines
        verifier = sum(count for name, count in lines.items() if name.startswith("schedc.verify"))
        assert sum(lines.values()) - verifier <= MOST_LINES[backward], lines
        assert bool(verifier) == (rank == 0)  # which verifies the plan for all
