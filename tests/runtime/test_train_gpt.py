"""The example trains, and says why when it cannot."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from inputs.jobs import read_problem
from inputs.plans import plan_of
from runs.forked import run_on_ranks
from suite.command_line import schedc

from schedc.formats.plan.plan_file import write_plan
from schedc.solvers.driver.registry import constructive

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = EXAMPLES / "train_gpt.py"


def compiled(job: str, directory: Path) -> Path:
    problem = read_problem(EXAMPLES / "train_gpt_jobs" / job)
    write_plan(plan_of(problem, constructive("greedy")(problem)), directory / "plan.json")
    return directory / "plan.json"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return compiled("two-sites.toml", tmp_path)


@pytest.fixture
def of_two_ranks(tmp_path: Path) -> Path:
    """The plan of one of the two pipelines."""
    problem = replace(read_problem(EXAMPLES / "train_gpt_jobs" / "two-pipelines.toml"), data_parallel=None)
    write_plan(plan_of(problem, constructive("greedy")(problem)), tmp_path / "of-two-ranks.json")
    return tmp_path / "of-two-ranks.json"


def assert_trains(processes: int, stdout: str) -> None:
    """The loss falls, and the gradients of all processes are those of the model without a pipeline.

    Where the ranks write to one pipe, a line can come before the line break of another.
    """
    losses = [float(loss) for loss in re.findall(r"step +\d+  loss (\S+)", stdout)]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 3.4 > 1.7 > losses[-1]
    (unseen,) = re.findall(r"unseen +loss (\S+)", stdout)
    assert float(unseen) < 1.8
    errors = [float(error) for error in re.findall(r"rank \d.*?: .*? are within (\S+) of", stdout)]
    assert len(errors) == processes
    assert max(errors) < 1e-9


TRAINING = ["--check", "--steps", "21", "--blocks", "8"]


@pytest.mark.slow
def test_it_trains_with_torchrun(of_two_ranks: Path) -> None:
    """With two processes: each of torchrun's takes seconds to import torch, and those of the other tests have it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | ({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})
    command += [str(EXAMPLE), "--plan", str(of_two_ranks), *TRAINING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert_trains(2, done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("job", "options"), [("two-pipelines.toml", []), ("two-sites.toml", ["--recompute"])], ids=str)
def test_it_trains(tmp_path: Path, job: str, options: list[str]) -> None:
    done = run_on_ranks(str(EXAMPLE), ["--plan", str(compiled(job, tmp_path)), *TRAINING, *options], 4, tmp_path)
    assert [each.status for each in done] == [0] * 4, done
    assert_trains(4, "".join(each.stdout for each in done))


@pytest.mark.slow
def test_it_goes_on_from_a_checkpoint(plan: Path, of_two_ranks: Path, tmp_path: Path) -> None:
    """In two pipelines of two ranks, where four ranks have left it."""
    kept, losses = str(tmp_path / "kept"), []
    for one, options in ((plan, ["--save", kept]), (of_two_ranks, ["--resume", kept])):
        done = run_on_ranks(str(EXAMPLE), ["--plan", str(one), "--steps", "11", *options], 4, tmp_path)
        assert [each.status for each in done] == [0] * 4, done
        losses += [float(loss) for each in done for loss in re.findall(r"step +\d+  loss (\S+)", each.stdout)]
    first, *_, last = losses
    assert first > 3.4
    assert losses[2] < losses[1] + 0.3 < first
    assert last < losses[1]


@pytest.mark.slow
def test_another_number_of_processes(plan: Path, tmp_path: Path) -> None:
    for done in run_on_ranks(str(EXAMPLE), ["--plan", str(plan)], 2, tmp_path):
        assert done.status != 0
        assert "plan 'two-sites' is for 4 ranks, this job has 2; start as many, or compile for as many" in done.stderr


@pytest.mark.slow
def test_the_profiled_model_trains_from_its_profile(tmp_path: Path) -> None:
    """As docs/first-plan.md does it, but for `profile`, whose result is in the examples, and torchrun, which is tested above."""
    profile, job, plan = EXAMPLES / "profile_gpt_job" / "profile.json", tmp_path / "job.toml", tmp_path / "plan.json"
    assert schedc("init", "--profile", profile, "--ranks", 2, "-o", job).returncode == 0
    assert schedc("compile", job, "-o", plan, "--method", "greedy").returncode == 0
    options = ["--model", "profile_gpt:model", "--plan", str(plan), "--steps", "3"]
    done = run_on_ranks("train_profiled.py", options, 2, tmp_path, folder=EXAMPLES)
    assert [each.status for each in done] == [0] * 2, done
    losses = [float(loss) for loss in re.findall(r"step \d+: loss (\S+)", done[0].stdout)]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
