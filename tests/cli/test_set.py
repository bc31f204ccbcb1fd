"""`--set` and `-` on every command that takes a job: the same as editing the file."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from inputs.jobs import write_job
from suite.command_line import schedc
from typer.main import get_command

from schedc.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

JOB = """
name = "small"
[pipeline]
ranks = 2
microbatches = 3
[profile]
forward = "1 ms"
backward_input = "1 ms"
backward_weight = "1 ms"
message = "1 MiB"
[topology]
sites = [1, 1]
between = { latency = "5 ms" }
"""
EDITED = JOB.replace("= 3", "= 6").replace("5 ms", "7 ms")
SET = ("--set", "pipeline.microbatches=6", "--set", "topology.between.latency=7 ms")
COMMANDS = {
    "compile": "compile JOB -o made.json --method 1f1b --json",
    "bounds": "bounds JOB --json",
    "family": "family JOB -o made --links 0-1=9ms --method 1f1b --json",
    "templates": "templates JOB",
    "verify": "verify edited.json --job JOB",
    "simulate": "simulate edited.json --job JOB --json",
    "lint": "lint edited.csv --job JOB --json",
    "explain": "explain edited.json --job JOB --json --quiet --most 0",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the job, the edited job, its plan and CSV."""
    directory = tmp_path_factory.mktemp("set")
    edited, plan = write_job(directory, EDITED, "edited.toml"), directory / "edited.json"
    write_job(directory, JOB)
    assert schedc("compile", edited, "-o", plan, "--method", "1f1b").returncode == 0
    assert schedc("export", "torch", plan, "-o", directory / "edited.csv").returncode == 0
    return directory


@pytest.fixture(autouse=True)
def _inside(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)


def run(command: str, job: str, *options: str, stdin: str = "") -> tuple[int, object, str]:
    """The status, what is printed and written, without what differs between two runs, and the errors."""
    arguments = [job if part == "JOB" else part for part in shlex.split(COMMANDS[command])]
    if Path("made").exists():
        shutil.rmtree("made")  # plans of another run would be kept
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
        done = schedc(*arguments, *options)
    if command != "compile" or done.returncode:
        return done.returncode, re.sub(r" +([\d.]+ [mun]?s *$)?", " ", done.stdout, flags=re.MULTILINE), done.stderr
    plan, printed = json.loads(Path("made.json").read_text()), json.loads(done.stdout)
    del plan["made_by"]["job_sha256"]
    return 0, (plan, [printed[key] for key in ("makespan_ns", "lower_bound_ns", "layout")]), done.stderr


def test_every_command_that_takes_a_job_is_here() -> None:
    """And has the options; a new command is not forgotten."""

    def with_job(group: Any, name: str) -> Iterator[tuple[str, set[str]]]:
        for each, command in getattr(group, "commands", {}).items():
            yield from with_job(command, f"{name} {each}".strip())
        names = {parameter.name for parameter in group.params}
        if "job" in names:
            yield name, names

    found = dict(with_job(get_command(app), ""))
    elsewhere = {"tune", "repartition"}  # a job of its own kind: test_tune.py; one with layers: test_repartition.py
    assert set(found) == {*COMMANDS, *elsewhere}
    assert all("values" in names for names in found.values()), found


@pytest.mark.parametrize("command", COMMANDS)
def test_set_on_every_command_is_the_same_as_editing_the_file(command: str) -> None:
    expected = run(command, "edited.toml")
    assert expected[0] == 0, expected
    assert run(command, "job.toml", *SET) == expected
    plain = run(command, "job.toml")
    assert plain != expected
    assert plain[0] == {"verify": 1, "simulate": 1, "lint": 1, "explain": 1}.get(command, 0)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_job_from_standard_input(command: str) -> None:
    expected = run(command, "edited.toml")
    assert run(command, "-", stdin=EDITED) == expected
    assert run(command, "-", *SET, stdin=JOB) == expected
    status, _, error = run(command, "-")
    assert (status, error) == (2, "schedc: standard input: found nothing, expected a job (TOML)\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_value_is_refused_in_one_line(command: str) -> None:
    for option, says in (
        ("pipeline.microbatches=no", '--set pipeline.microbatches=no: found "no", expected a whole number from 1 to 1048576'),
        ("pipeline.microbatch=3", "--set pipeline.microbatch=3: found an unknown key, expected one of ranks, microbatches, "),
        ("pipeline", '--set: found "pipeline", expected KEY=VALUE'),
    ):
        status, printed, error = run(command, "job.toml", "--set", option)
        assert (status, printed) == (2, "")
        assert error.startswith(f"schedc: {says}") and error.count("\n") == 1


def test_the_plan_of_a_job_with_values_set_is_that_job_s_plan() -> None:
    """`verify` and `simulate` accept it with the same values, and without them say what differs."""
    assert run("compile", "job.toml", *SET)[0] == 0
    sha256 = json.loads(Path("made.json").read_text())["made_by"]["job_sha256"]
    lines = '--set pipeline.microbatches=6\n--set topology.between.latency="7 ms"\n'
    assert sha256 == hashlib.sha256(f"{JOB}{lines}".encode()).hexdigest()
    assert schedc("verify", "made.json", "--job", "job.toml", *SET).returncode == 0
    done = schedc("verify", "made.json", "--job", "job.toml", *SET[:2])
    assert done.returncode == 1 and "latency" in done.stdout
    done = schedc("verify", "made.json", "--job", "job.toml")
    assert done.returncode == 1 and "microbatches" in done.stdout


@pytest.mark.parametrize("command", ["verify edited.json", "simulate edited.json", "templates"])
def test_set_without_a_job_is_refused(command: str) -> None:
    done = schedc(*command.split(), "--set", "pipeline.ranks=3")
    expected = "JOB" if command == "templates" else "--job JOB"
    assert (done.returncode, done.stderr) == (
        2,
        f"schedc: --set: found 'pipeline.ranks=3' without a job, expected {expected}, too\n",
    )


def test_paths_in_standard_input_are_relative_to_the_current_folder(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "links.toml").write_text('sites = [1, 1]\nbetween = { latency = "7 ms" }\n')
    monkeypatch.chdir(tmp_path)
    job = f'{EDITED[: EDITED.index("[topology]")]}[topology]\npath = "links.toml"\n'
    found = run("bounds", "-", stdin=job)
    assert found == run("bounds", str(here / "edited.toml"))
