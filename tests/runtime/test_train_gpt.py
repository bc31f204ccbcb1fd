"""The example trains, and says why when it cannot."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from plans import plan_of

from schedc.frontend.job import read_problem
from schedc.solvers.driver.registry import constructive
from schedc.text.plan.plan_file import write_plan

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(plan: Path, processes: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = os.environ | ({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})
    script = [str(EXAMPLES / "train_gpt.py"), "--plan", str(plan), *options]
    return subprocess.run(command + script, capture_output=True, text=True, timeout=240, env=environment, check=False)


def compiled(job: str, directory: Path) -> Path:
    problem = read_problem(EXAMPLES / "train_gpt_jobs" / job)
    write_plan(plan_of(problem, constructive("greedy")(problem)), directory / "plan.json")
    return directory / "plan.json"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return compiled("two-sites.toml", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "options"), [("two-sites.toml", []), ("two-pipelines.toml", []), ("two-sites.toml", ["--recompute"])], ids=str
)
def test_it_trains(tmp_path: Path, job: str, options: list[str]) -> None:
    done = run(compiled(job, tmp_path), 4, "--check", "--steps", "21", "--blocks", "8", *options)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^step +\d+  loss (\S+)", done.stdout, re.MULTILINE)]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 3.4 > 1.7 > losses[-1]
    errors = [float(error) for error in re.findall(r"^rank \d.*: .* are within (\S+) of", done.stdout, re.MULTILINE)]
    assert len(errors) == 4
    assert max(errors) < 1e-9


@pytest.mark.slow
def test_another_number_of_processes(plan: Path) -> None:
    done = run(plan, 2)
    assert done.returncode != 0
    assert "plan 'two-sites' is for 4 ranks, this job has 2; start as many, or compile for as many" in done.stderr
