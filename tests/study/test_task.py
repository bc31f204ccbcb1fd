"""One job in this process: the certificate as an answer, and each way in which there is none."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from inputs.sweeps import sweep_in

from schedc.study.task import CompileRow, Status, row_of

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.study.task import CompileTask


def request(folder: Path, more: str = "") -> CompileTask:
    (job,) = sweep_in(folder, f'job = "job.toml"\n{more}').jobs
    return job.task


def test_a_plan_is_an_answer_with_its_certificate(tmp_path: Path) -> None:
    answer = row_of(request(tmp_path, 'compile = {method = "1f1b"}'))
    # by hand, in ms: rank 0 F0 0, F1 1; rank 1 F0 2, BW0 3, F1 5, BW1 6; rank 0 BW0 6, BW1 9, which ends at 11
    assert answer.makespan_ns == answer.objective_ns == 11_000_000
    assert answer.bound_ns == 9_000_000
    assert answer.gap == pytest.approx(2 / 11)
    assert (answer.status, answer.won_by, answer.scope, answer.objective) == ("planned", "1f1b", "schedule", "makespan")
    assert (answer.ended, answer.reproducible, answer.attempts, answer.error) == ("the method is done", True, 1, "")
    assert answer.seconds is not None
    assert answer.processor_seconds is not None
    assert answer.peak_memory_bytes is not None
    assert 0 < answer.processor_seconds < answer.seconds + 60
    assert answer.peak_memory_bytes > 4 << 20


@pytest.mark.parametrize(
    ("more", "status", "error"),
    [
        ('set = {"pipeline.ranks" = 0}', Status.REFUSED, 'sweep.toml: set."pipeline.ranks" = 0: found 0, expected a whole number'),
        ('compile = {method = "adaptis"}', Status.REFUSED, "chooses a layout, and the job gives it"),
        ('set = {"profile.path" = "none.json"}', Status.REFUSED, "profile.forward: found a value beside profile.path"),
        ('set = {"memory.limit" = "1 MiB"}', Status.INFEASIBLE, "1 MiB"),
        ('set = {"memory.in_flight" = 1}\ncompile = {method = "1f1b"}', Status.NO_PLAN, "no plan found: 1f1b: "),
    ],
)
def test_a_job_without_a_plan_is_an_answer_with_the_reason(tmp_path: Path, more: str, status: Status, error: str) -> None:
    answer = row_of(request(tmp_path, more))
    assert answer.status == status
    assert error in answer.error
    assert dataclasses.replace(answer, seconds=None, processor_seconds=None, peak_memory_bytes=None) == CompileRow(
        status=status, error=answer.error
    )


def test_other_files_than_the_sweep_read_are_not_used(tmp_path: Path) -> None:
    asked = request(tmp_path, 'compile = {method = "1f1b"}')
    with (tmp_path / "job.toml").open("a") as file:
        file.write("\n")
    error = f"{tmp_path / 'job.toml'}: it, or a file that it names, is another one here than the sweep read; run the sweep again"
    changed = row_of(asked)
    assert (changed.status, changed.error) == (Status.UNLIKE, error)
    (tmp_path / "job.toml").unlink()
    missing = row_of(asked)
    assert (missing.status, missing.error) == (Status.UNLIKE, error)


def test_another_version_of_schedc_does_not_compile(tmp_path: Path) -> None:
    answer = row_of(dataclasses.replace(request(tmp_path), version="0.0.0"))
    assert answer.status == Status.UNLIKE
    assert "and the sweep 0.0.0; install the same everywhere" in answer.error
