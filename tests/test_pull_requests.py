"""The pre-commit hooks and the example workflow, run as their users' tools would run them, without a network."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from suite.command_line import schedc

from schedc.cli.hook import run

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
JOB = """\
pipeline = { ranks = 2, microbatches = 4, semantics = "torch" }
profile = { forward = "1 ms", backward_input = "1 ms", backward_weight = "1 ms" }
"""
OTHER_JOB = JOB.replace("1 ms", "2 ms")


def read_yaml(path: Path) -> Any:
    return import_module("yaml").safe_load(path.read_text(encoding="utf-8"))


HOOKS = {hook["id"]: hook for hook in read_yaml(ROOT / ".pre-commit-hooks.yaml")}
STEPS = {
    step["name"]: step for step in read_yaml(ROOT / "examples/pull-requests/plan.yml")["jobs"]["plan"]["steps"] if "name" in step
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job, its plan and its CSV; the current directory."""
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB)
    assert schedc("compile", "job.toml", "-o", "plan.json", "--method", "1f1b", "--quiet").returncode == 0
    assert schedc("export", "torch", "plan.json", "-o", "plan.csv").returncode == 0
    return tmp_path


@pytest.fixture
def run_hook(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs a hook as pre-commit does: its entry, the arguments of the user's configuration, the files that match."""

    def run_it(name: str, *args: str, pass_filenames: bool = True) -> tuple[int, str]:
        entry = shlex.split(HOOKS[name]["entry"])
        assert entry[:3] == ["python", "-m", "schedc.cli.hook"]
        files = sorted(path.name for path in here.iterdir() if re.search(HOOKS[name]["files"], path.name))
        status = run([*entry[3:], *args, *(files if pass_filenames else ())])
        out, err = capsys.readouterr()
        return status, out + err

    return run_it


def test_hooks_have_what_pre_commit_needs() -> None:
    assert set(HOOKS) == {"schedc-verify", "schedc-lint"}
    for hook in HOOKS.values():
        assert {"id", "name", "entry", "language", "files"} <= set(hook)
        assert hook["language"] == "python"


def test_verify_checks_every_plan(run_hook: Callable[..., tuple[int, str]]) -> None:
    assert run_hook("schedc-verify")[0] == 0
    text = Path("plan.json").read_text()
    Path("broken.plan.json").write_text(text.replace('"F0.0 F0.1', '"F0.1 F0.0', 1))
    status, said = run_hook("schedc-verify")
    assert status == 1
    assert "broken.plan.json: " in said and "\nplan.json: holds" in said
    Path("broken.plan.json").write_text("{")
    assert run_hook("schedc-verify")[0] == 2


def test_verify_with_a_job(run_hook: Callable[..., tuple[int, str]]) -> None:
    given = ("plan.json", "--job", "job.toml")
    assert run_hook("schedc-verify", *given, pass_filenames=False)[0] == 0
    assert run_hook("schedc-verify", *given[1:])[0] == 0
    Path("job.toml").write_text(OTHER_JOB)
    status, said = run_hook("schedc-verify", *given, pass_filenames=False)
    assert status == 1 and "compile the job again" in said
    assert run_hook("schedc-verify", *given, "--set", "profile.forward=1 ms", pass_filenames=False)[0] == 1


def test_lint_checks_every_csv(run_hook: Callable[..., tuple[int, str]]) -> None:
    assert run_hook("schedc-lint", "--job", "job.toml")[0] == 0
    Path("other.plan.csv").write_text(Path("plan.csv").read_text().replace("0F0,", "", 1))
    status, said = run_hook("schedc-lint", "--job", "job.toml")
    assert status == 1 and "other.plan.csv: " in said
    assert run_hook("schedc-lint")[0] == 2  # no job


@pytest.mark.slow
def test_the_workflow_on_a_branch(here: Path) -> None:
    """A plan that is new, the same, another one, and one that no longer fits its job."""
    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "empty")
    assert ran("Difference", here) == (0, "```\nplan.json is new\n```\n")
    git("add", ".")
    git("commit", "-q", "-m", "plan")
    status, comment = ran("Difference", here)
    assert status == 0 and comment.endswith(": the plans are equal\n```\n")
    assert schedc("compile", "job.toml", "-o", "plan.json", "--method", "zb-h1", "--quiet").returncode == 0
    status, comment = ran("Difference", here)
    assert status == 0 and "method: 1f1b → zb-h1" in comment
    assert ran("Verify", here)[0] == 0
    Path("job.toml").write_text(OTHER_JOB)
    assert ran("Verify", here)[0] == 1
    Path("plan.json").write_text("{")
    assert ran("Difference", here)[0] == 1


def git(*arguments: str) -> None:
    name = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *name, *arguments], check=True, timeout=250)


def ran(step: str, here: Path) -> tuple[int, str]:
    """The status of a step's script under the shell that GitHub uses, and the comment that it wrote."""
    temporary = here / "temporary"
    temporary.mkdir(exist_ok=True)
    program = temporary / "schedc"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m schedc "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{temporary}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PLAN": "plan.json",
        "JOB": "job.toml",
        "BASE": "main",
        "RUNNER_TEMP": str(temporary),
        "GITHUB_STEP_SUMMARY": str(temporary / "summary.md"),
    }
    done = subprocess.run(["bash", "-e", "-c", STEPS[step]["run"]], env=environment, check=False, capture_output=True, timeout=250)
    comment = temporary / "comment.md"
    return done.returncode, comment.read_text() if comment.exists() else ""
