"""`schedc profile`: the factories it takes, the profile it writes, and what it refuses before it measures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer
from inputs.jobs import read_problem, write_job
from typer.testing import CliRunner

from schedc.cli.commands.profile import profile_command
from schedc.errors import InvalidInput
from schedc.runtime.profiling import load_model

FACTORY = """
import torch
from torch import nn
from schedc.runtime.profiling import Model

def model():
    blocks = [(f"block.{index}", nn.Linear(8, 8)) for index in range(6)]
    return Model(layers=blocks, inputs=torch.randn(4, 8), name="six")

def failing():
    raise KeyError("no weights")

def other():
    return nn.Linear(1, 1)

def ending():
    raise SystemExit(3)

number = 3
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with modules that have factories."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "six_layers.py").write_text(FACTORY)
    (tmp_path / "broken_layers.py").write_text("import torch\n\nimport not_a_module_at_all\n")
    for name in ("six_layers", "broken_layers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("six_layers", "found 'six_layers', expected module:function"),
        ("missing_layers:model", "found no module 'missing_layers' in .* or among those installed"),
        ("six_layers:modell", "six_layers has no 'modell'; did you mean 'model'"),
        ("six_layers:number", "six_layers:number is int, expected a function"),
        ("six_layers:failing", r"six_layers:failing fails: KeyError: 'no weights' \(six_layers\.py, line 11\)"),
        ("six_layers:ending", r"six_layers:ending fails: SystemExit: 3 \(six_layers\.py, line 17\)"),
        ("six_layers:other", "six_layers:other gives torch.nn.modules.linear.Linear, expected a schedc.runtime.profiling.Model"),
        (
            "broken_layers:model",
            r"importing broken_layers fails: ModuleNotFoundError: .*not_a_module_at_all.*broken_layers\.py, line 3",
        ),
    ],
)
def test_a_factory_that_cannot_be_used_is_refused(directory: Path, spec: str, expected: str) -> None:
    with pytest.raises(InvalidInput, match=expected):
        load_model(spec)


def test_the_command_writes_a_profile_that_a_job_uses(directory: Path) -> None:
    app = typer.Typer()
    app.command()(profile_command)
    options = ["--model", "six_layers:model", "--device", "cpu", "--repeats", "3", "--warmup", "1"]
    done = CliRunner().invoke(app, [*options, "-o", "profile.json"])
    assert done.exit_code == 0, done.output
    assert "block.1 … block.5" in done.stdout
    assert "wrote profile.json" in done.stdout
    job = write_job(directory, '[pipeline]\nranks = 2\nmicrobatches = 4\npartition = [2, 4]\n[profile]\npath = "profile.json"\n')
    problem = read_problem(job)
    first, second = problem.stages
    assert first.layers == (0, 2)
    assert second.forward_ns[0] > 0
    assert second.backward_ns[0] != second.backward_input_ns[0] + second.backward_weight_ns[0]  # measured on its own
    assert first.message_bytes == 4 * 8 * 4

    done = CliRunner().invoke(app, [*options, "-o", "apart.json", "--no-merge", "--json", "--dtype", "fp64"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [entry["name"] for entry in found["layers"]] == [f"block.{index}" for index in range(6)]
    assert {entry["samples"]["forward"] for entry in found["layers"]} == {3}
    assert json.loads((directory / "apart.json").read_text())["layers"][5]["message"] == "256 B"


def test_the_command_refuses_before_it_measures(directory: Path) -> None:
    with pytest.raises(InvalidInput, match="expected one of --model, to measure, --operators, to measure"):
        profile_command(output=Path("profile.json"))
    with pytest.raises(InvalidInput, match="--accelerator: found nothing, expected what this device is"):
        profile_command(output=Path("profile.json"), operators="llama3-8b")
    with pytest.raises(InvalidInput, match="expected --operators without --json, --dtype and --autocast"):
        profile_command(output=Path("table.json"), operators="llama3-8b", accelerator="h100", dtype="float32")
    with pytest.raises(InvalidInput, match="with --operators alone"):
        profile_command(output=Path("profile.json"), model="six_layers:model", tp=[2])
    with pytest.raises(InvalidInput, match=r"missing/profile\.json: cannot be written: the directory .*missing does not exist"):
        profile_command(output=Path("missing/profile.json"), model="six_layers:model")
    assert not Path("profile.json").exists()
    with pytest.raises(InvalidInput, match=r"six_layers\.py: cannot be written: this command reads it"):
        profile_command(output=Path("six_layers.py"), model="six_layers:model", device="cpu")
    assert (directory / "six_layers.py").read_text() == FACTORY
