"""The example with slices and a split head trains, and its gradients are those of the model in one piece."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from runs.forked import run_on_ranks
from suite.command_line import schedc

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("sliced", [True, False])
def test_it_trains(tmp_path: Path, sliced: bool) -> None:
    text = (EXAMPLES / "train_long_job" / "job.toml").read_text()
    job, plan = tmp_path / "job.toml", tmp_path / "plan.json"
    job.write_text(text if sliced else text.replace("[slices]\nlengths = [13, 10, 9]\n", ""))
    (tmp_path / "profile.json").write_bytes((EXAMPLES / "train_long_job" / "profile.json").read_bytes())
    assert schedc("compile", job, "-o", plan, "--method", "greedy").returncode == 0
    done = run_on_ranks("train_long.py", ["--plan", str(plan), "--check", "--steps", "21"], 4, tmp_path, folder=EXAMPLES)
    assert [each.status for each in done] == [0] * 4, done
    stdout = "".join(each.stdout for each in done)
    losses = [float(loss) for loss in re.findall(r"step +\d+  loss (\S+)", stdout)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 4 > 1.9 > losses[-1]
    (unseen,) = re.findall(r"unseen +loss (\S+)", stdout)
    assert float(unseen) < 1.9
    errors = [float(error) for error in re.findall(r"rank \d: .*? are within (\S+) of", stdout)]
    assert len(errors) == 4
    assert max(errors) < 1e-9


@pytest.mark.slow
def test_another_plan_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert schedc("compile", EXAMPLES / "train_gpt_jobs" / "two-sites.toml", "-o", plan, "--method", "greedy").returncode == 0
    for done in run_on_ranks("train_long.py", ["--plan", str(plan)], 4, tmp_path, folder=EXAMPLES):
        assert done.status != 0
        assert "plan 'two-sites' has no split head; compile a job with head = \"split\"" in done.stderr
