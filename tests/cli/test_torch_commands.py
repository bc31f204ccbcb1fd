"""`schedc export torch` and `schedc lint` as their users run them: files, output, exit statuses."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest
from inputs.jobs import M70, write_job
from oracles.torch_stock import dump

from schedc.cli.app import main
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from pathlib import Path

M70_ALONE = M70[: M70.index("[data_parallel]")]
TORCH = M70_ALONE.replace("microbatches = 16", 'microbatches = 16\nsemantics = "torch"')
WAVE = """\
[pipeline]
ranks = 2
microbatches = 8
placement = "wave"
chunks = 2
semantics = "torch"
[profile]
forward = "10 ms"
backward_input = "12 ms"
backward_weight = "9 ms"
"""


class Done(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def schedc(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


class Command:
    """Runs the command line."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> Done:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = self.capsys.readouterr()
        return Done(ended.value.code if isinstance(ended.value.code, int) else 0, out, err)


def compiled(schedc: Command, directory: Path, text: str, method: str = "zb-h1") -> tuple[Path, Path]:
    job, plan = write_job(directory, text), directory / "plan.json"
    done = schedc("compile", job, "-o", plan, "--method", method, "--quiet")
    assert done.status == 0, done.err
    return job, plan


@pytest.mark.parametrize("layout", ["compute_comms", "compute_only"])
def test_what_is_exported_is_sound(schedc: Command, tmp_path: Path, layout: str) -> None:
    job, plan = compiled(schedc, tmp_path, TORCH)
    done = schedc("export", "torch", plan, "-o", tmp_path / "plan.csv", "--format", layout)
    assert (done.status, done.err) == (0, "") and layout in done.out
    assert json.loads((tmp_path / "plan.stages.json").read_text())["csv_format"] == layout
    done = schedc("lint", tmp_path / "plan.csv", "--job", job)
    assert (done.status, done.err) == (0, "")
    makespan_ns = json.loads(plan.read_text())["certificate"]["makespan_ns"]
    assert f"sound, read as {layout}: 384 compute ops on 8 ranks" in done.out
    assert f"makespan {format_duration_ns(makespan_ns)}, lower bound" in done.out


def test_export_says_what_is_different_in_torch(schedc: Command, tmp_path: Path) -> None:
    job, plan = compiled(schedc, tmp_path, M70_ALONE)
    done = schedc("export", "torch", plan, "-o", tmp_path / "plan.csv")
    assert done.status == 0
    assert done.err.count("note: ") == 2 and "stage 0 splits its backward" in done.err
    done = schedc("lint", tmp_path / "plan.csv", "--job", job)
    assert done.status == 0 and 'the job does not have semantics = "torch"' in done.err


def test_what_torch_cannot_express_is_refused(schedc: Command, tmp_path: Path) -> None:
    text = M70_ALONE.replace("ranks = 8\n", 'ranks = 8\nplacement = "bidirectional"\n')
    _, plan = compiled(schedc, tmp_path, text, "chimera")
    done = schedc("export", "torch", plan, "-o", tmp_path / "plan.csv")
    assert done.status == 2 and done.out == ""
    assert done.err.startswith("schedc: ") and done.err.count("\n") == 1 and "two paths" in done.err
    assert not (tmp_path / "plan.csv").exists() and not (tmp_path / "plan.stages.json").exists()


def test_a_plan_that_does_not_hold_is_not_exported(schedc: Command, tmp_path: Path) -> None:
    _, plan = compiled(schedc, tmp_path, TORCH)
    plan.write_text(plan.read_text().replace("F0.0 F0.1", "F0.1 F0.0", 1))
    done = schedc("export", "torch", plan, "-o", tmp_path / "plan.csv")
    assert done.status == 1 and "schedc verify" in done.err and not (tmp_path / "plan.csv").exists()


def test_findings_are_named_by_row_and_cell(schedc: Command, tmp_path: Path) -> None:
    job, plan = compiled(schedc, tmp_path, TORCH)
    csv = tmp_path / "plan.csv"
    schedc("export", "torch", plan, "-o", csv)
    csv.write_text(csv.read_text().replace("0F0,", "0F0junk,", 1).replace(",3REDUCE_GRAD", "", 1))
    done = schedc("lint", csv, "--job", job)
    assert done.status == 1
    first, second = done.out.splitlines()
    assert first.startswith(f"{csv}: row 1, cell 2 (0F0junk): junk: ")
    assert second.startswith(f"{csv}: row 4 (3REDUCE_GRAD): reduce-grad: ")
    assert "2 findings, read as compute_comms" in done.err


def test_of_many_findings_some_are_shown(schedc: Command, tmp_path: Path) -> None:
    """A file that is something else does not fill the terminal."""
    job, csv = write_job(tmp_path, TORCH), tmp_path / "noise.csv"
    numbers = Random(0)
    cells = [["".join(numbers.choices("FBWI012 xyz\x1b", k=5)) for _ in range(200)] for _ in range(40)]
    csv.write_text("\n".join(map(",".join, [*cells, ["z" * 9_999]])))
    done = schedc("lint", csv, "--job", job)
    assert done.status == 1
    lines = done.out.splitlines()
    assert 20 <= len(lines) <= 40 and max(map(len, lines)) <= 241 and "\x1b" not in done.out
    assert len({line.split(": ")[2] for line in lines}) > 2  # rules
    (said,) = done.err.splitlines()
    assert " findings (" in said and f"{len(lines)} of them above; --json has all, read as" in said


def test_lint_as_json(schedc: Command, tmp_path: Path) -> None:
    job = write_job(tmp_path, WAVE)
    csv = dump("ScheduleDualPipeV", 2, 8, 2, "compute_comms", tmp_path)
    done = schedc("lint", csv, "--job", job, "--json")
    said = json.loads(done.out)
    assert (done.status, said["sound"], said["format"], said["findings"]) == (0, True, "compute_comms", [])
    assert said["makespan_ns"] >= said["lower_bound_ns"] > 0
    assert said["gap"] == pytest.approx(1 - said["lower_bound_ns"] / said["makespan_ns"])
    csv.write_text(csv.read_text() + "\n")
    done = schedc("lint", csv, "--job", job, "--json")
    said = json.loads(done.out)
    assert (done.status, said["sound"]) == (1, False)
    assert [(one["rule"], one["row"], one["cell"]) for one in said["findings"]] == [("rows", 3, None)]


def test_a_csv_is_timed_as_its_plan_is(schedc: Command, tmp_path: Path) -> None:
    """DualPipeV's template is torch's schedule, so that torch's own CSV takes what the template's plan takes."""
    job, plan = compiled(schedc, tmp_path, WAVE, "dualpipe-v")
    csv = dump("ScheduleDualPipeV", 2, 8, 2, "compute_only", tmp_path)
    said = json.loads(schedc("lint", csv, "--job", job, "--json").out)
    assert said["format"] == "compute_only"
    assert said["makespan_ns"] == json.loads(plan.read_text())["certificate"]["makespan_ns"]


def test_the_format_may_be_told(schedc: Command, tmp_path: Path) -> None:
    job = write_job(tmp_path, WAVE)
    csv = dump("ScheduleZBVZeroBubble", 2, 8, 2, "compute_only", tmp_path)
    assert schedc("lint", csv, "--job", job).status == 0
    done = schedc("lint", csv, "--job", job, "--format", "compute_comms")
    assert done.status == 1 and "missing" in done.out and "reduce-grad" in done.out


def test_what_cannot_be_read_ends_with_2(schedc: Command, tmp_path: Path) -> None:
    job = write_job(tmp_path, TORCH)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\x00")
    for csv in (tmp_path / "none.csv", binary):
        done = schedc("lint", csv, "--job", job)
        assert done.status == 2 and done.err.startswith("schedc: ") and done.err.count("\n") == 1
    two_ways = write_job(tmp_path, M70_ALONE.replace("ranks = 8\n", 'ranks = 8\nplacement = "bidirectional"\n'), "two.toml")
    binary.write_text("0F0\n")
    done = schedc("lint", binary, "--job", two_ways)
    assert done.status == 2 and "not one chain" in done.err
