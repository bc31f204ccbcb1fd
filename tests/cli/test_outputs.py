"""No command writes where it cannot: each says so in one line, before it works, and leaves everything as it was.

The options that name an output are found in the commands themselves, so that none is forgotten.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from inputs.traces import trace_of_timelines
from inputs.tune_jobs import write_tiny
from suite.command_line import content, run
from typer.main import get_command

from schedc.analysis.simulation.simulate import simulate
from schedc.cli.app import app
from schedc.formats.plan.plan_file import read_plan
from schedc.formats.trace_file import write_trace_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMANDS = {
    "compile --output": "compile job.toml --method greedy -o {}/plan.json",
    "compile --robust": "compile job.toml --method greedy --robust links.csv -o {}/plan.json",
    "compile --write-job": "compile job.toml --method greedy -o new.json --write-job {}/job.toml",
    "bench --csv": "bench m70 --csv {}/table.csv",
    "profile --output": "profile --from-trace trace.json -o {}/profile.json",
    "costs --output": "costs llama3-8b -o {}/profile.json",
    "init --output": "init --model llama3-8b --ranks 2 -o {}/job.toml",
    "tune --output": "tune tune.toml -o {}/folder",
    "family --output": "family job.toml --links links.csv --method greedy -o {}/folder",
    "emulate --trace": "emulate plan.json --trace {}/trace.json",
    "unroll --output": "unroll period.json --steps 2 -o {}/run.json",
    "compare --profile": "compare plan.json trace.json --profile {}/profile.json",
    "compare --topology": "compare plan.json trace.json --topology {}/links.toml",
    "compare --perfetto": "compare plan.json trace.json --perfetto {}/lanes.json",
    "report --output": "report plan.json -o {}/page.html",
    "assign --output": "assign plan.json --links links.toml --gradients '1 GB' --replicas 2 -o {}/plan.json",
    "repartition --output": "repartition plan.json --job job.toml --slow 1=1.3 -o {}/plan.json",
    "interference --output": "interference -o {}/model.json",
    "plot --output": "plot plan.json -o {}/picture.svg",
    "sweep --output": "sweep sweep.toml -o {}/table.csv",
    "export torch --output": "export torch plan.json -o {}/torch.csv",
    "export megatron --output": "export megatron plan.json --profile job.profile.json -o {}/options.txt",
    "export torchtitan --output": "export torchtitan plan.json --profile job.profile.json -o {}/options.txt",
    "export automodel --output": "export automodel plan.json --profile job.profile.json -o {}/recipe.yaml",
    "export perfetto --output": "export perfetto plan.json -o {}/lanes.json",
}
"""What must fail; `{}` is a folder in which nothing can be written."""
FOLDERS = {"tune --output", "family --output"}
"""These write a folder."""
PLACES = ["missing", "plan.json", "protected"]
"""No folder, a file in its place, and one that is read-only."""


def writers(command: Any, name: str = "") -> Iterator[str]:
    """The options of all commands that name an output."""
    for inner, one in getattr(command, "commands", {}).items():
        yield from writers(one, f"{name} {inner}".strip())
    for param in command.params:
        text = (getattr(param, "help", None) or "").casefold()
        if "--output" in param.opts or (param.metavar == "FILE" and text.startswith("write ")) or param.name == "robust":
            yield f"{name} {max(param.opts, key=len)}"


def test_all_options_that_name_an_output_are_here() -> None:
    assert set(writers(get_command(app))) == set(COMMANDS)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a good input for each command."""
    directory = tmp_path_factory.mktemp("good")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        write_tiny(directory)
        (directory / "sweep.toml").write_text('job = "job.toml"\n[compile]\nmethod = "greedy"\n')
        (directory / "links.csv").write_text("time_ms,ranks,latency_ms,bandwidth_GBps\n0,0-1,5,\n")
        (directory / "links.toml").write_text('sites = [2]\n[within]\nlatency = "1 ms"\nbandwidth = "50 GB/s"\n')
        commands = ["init --model config.json --ranks 2 -o job.toml", "compile job.toml -o plan.json --method 1f1b --quiet"]
        overlap = "--set pipeline.mode=asynchronous --set pipeline.versions=stash"
        commands.append(f"compile job.toml -o period.json --method pipedream {overlap} --quiet")
        assert [run(command) for command in commands] == [0, 0, 0]
    plan = read_plan(directory / "plan.json")
    write_trace_file(trace_of_timelines(plan, [simulate(plan.problem, plan.schedule())]), directory / "trace.json")
    return directory


def refused(command: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says that must leave everything as it is."""
    capsys.readouterr()
    before = content(directory)
    assert run(command) == 2, command
    out, err = capsys.readouterr()
    assert content(directory) == before
    assert out == ""
    (line,) = err.splitlines()
    return line


@pytest.mark.parametrize("option", COMMANDS)
def test_an_output_without_a_place(
    option: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "here"
    shutil.copytree(good, directory)
    monkeypatch.chdir(directory)
    protected = directory / "protected"
    protected.mkdir(mode=0o555)
    for place in PLACES if os.geteuid() else PLACES[:2]:  # root may write anywhere
        line = refused(COMMANDS[option].format(place), directory, capsys)
        assert line.startswith("schedc: ") and place in line and ("cannot be written: " in line or "cannot be made: " in line), line
    name = COMMANDS[option].rsplit("{}/", 1)[1]
    if option in FOLDERS:
        (directory / name).write_text("a file")
        line = refused(COMMANDS[option].format("."), directory, capsys)
    else:
        shutil.rmtree(protected)
        (directory / "taken" / name).mkdir(parents=True)
        line = refused(COMMANDS[option].format("taken"), directory, capsys)
        assert "found a directory; expected a file or nothing" in line, line
