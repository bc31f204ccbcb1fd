"""`schedc compile` where a verifier refuses schedc's own result: one line that says whose mistake it is, and a file to report."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from inputs.jobs import write_job

from schedc.cli.app import main
from schedc.errors import CheckFailed
from schedc.formats.plan.plan_file import parse_plan
from schedc.verify.violation import Violation

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
[pipeline]
ranks = 2
microbatches = 2
[profile]
path = "measured.json"
"""
PROFILE = """{"format": "schedc.profile", "version": 1, "layers": [
 {"repeat": 2, "forward": "1 ms", "backward_input": "1 ms", "backward_weight": "1 ms"}]}"""


def refuse(*_: object, **__: object) -> tuple[Violation, ...]:
    """A verifier that refuses everything."""
    return (Violation("rule", "place", "is wrong"),)


def deadlock(*_: object, **__: object) -> None:
    """A method whose schedule cannot run."""
    raise CheckFailed("the ranks wait for each other")


@pytest.mark.parametrize(
    ("broken", "by", "says", "orders"),
    [
        ("certify.check_plan", refuse, "small: the plan of 1f1b breaks a rule: place: rule: is wrong", True),
        ("certify.verify_schedule", refuse, "small: the schedule of 1f1b breaks a rule: place: rule: is wrong", True),
        ("driver.solve", deadlock, "small: a schedule of 1f1b cannot run: the ranks wait for each other", False),
    ],
)
def test_a_refused_result_is_called_a_defect_and_kept(
    broken: str,
    by: Any,
    says: str,
    orders: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = write_job(tmp_path, JOB, "small.toml")
    (tmp_path / "measured.json").write_text(PROFILE)
    monkeypatch.setattr(f"schedc.compile.{broken}", by)
    plan, kept = tmp_path / "out.json", tmp_path / "out.json.defect.json"
    with pytest.raises(SystemExit) as ended:
        main(["compile", str(job), "-o", str(plan), "--method", "1f1b"])
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"schedc: {says}; this is a defect of schedc: please report it with {kept}\n"
    assert not plan.exists()
    report = json.loads(kept.read_text())
    assert report["message"] == says
    assert report["files"] == {str(job): JOB, str(tmp_path / "measured.json"): PROFILE}
    if orders:
        assert len(parse_plan(json.dumps(report["plan"]).encode(), "plan").schedule().orders[1]) == 4
    else:
        assert report["plan"] is None


def test_the_report_goes_to_a_temporary_folder_where_the_plan_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_job(tmp_path, JOB, "small.toml")
    (tmp_path / "measured.json").write_text(PROFILE)
    folder = tmp_path / "removed"
    folder.mkdir()

    def refuse_without_folder(*_: object, **__: object) -> tuple[Violation, ...]:
        folder.rmdir()
        return refuse()

    monkeypatch.setattr("schedc.compile.certify.check_plan", refuse_without_folder)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["compile", str(job), "-o", str(folder / "out.json"), "--method", "1f1b"])
    (kept,) = tmp_path.glob("schedc-*/out.json.defect.json")
    assert capsys.readouterr().err.endswith(f"please report it with {kept}\n")


def test_the_report_has_a_job_from_standard_input_and_what_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = JOB.replace("measured.json", str(tmp_path / "measured.json"))
    (tmp_path / "measured.json").write_text(PROFILE)
    monkeypatch.setattr("schedc.compile.certify.check_plan", refuse)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8"))
    with pytest.raises(SystemExit):
        main(["compile", "-", "--set", "pipeline.microbatches=3", "-o", str(tmp_path / "out.json"), "--method", "1f1b"])
    report = json.loads((tmp_path / "out.json.defect.json").read_text())
    assert report["files"] == {"standard input": text, str(tmp_path / "measured.json"): PROFILE}
    assert report["set"] == ["pipeline.microbatches=3"]
    assert parse_plan(json.dumps(report["plan"]).encode(), "plan").problem.microbatches == 3
