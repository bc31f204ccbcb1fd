"""Jobs in child processes: every job once, whatever happens to the processes. The children do not compile here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from inputs.sweeps import STAND_IN, sweep_in

from schedc.study import executors as executors_module
from schedc.study.executors import LocalExecutor, processes_for, run_tasks
from schedc.study.sweep.run import Journal, kept_keys, run
from schedc.study.task import CompileRow, Status

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.study.sweep.jobs import Sweep


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Forty jobs, with 1 to 40 microbatches."""
    return sweep_in(tmp_path, f'job = "job.toml"\ngrid = {{"pipeline.microbatches" = {list(range(1, 41))}}}')


def stand_in(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Let another program answer instead of the compiler."""
    monkeypatch.setattr(executors_module, "WORKER", ("-c", STAND_IN.format(body=body.replace("\n", "\n    "))))


def run_all(sweep: Sweep, path: Path, processes: int = 2) -> dict[int, CompileRow]:
    """The answers by microbatches, each of which must come once."""
    found = []
    with Journal(path) as journal:
        for answers in run(sweep, journal, processes=processes):
            found += [key for key, _ in answers]
        assert len(found) == len(set(found))
        return {each: answer for job in sweep.jobs if (answer := journal.answers.get(job.key)) for each in [microbatches(job)]}


def microbatches(job: object) -> int:
    value = job.columns["pipeline.microbatches"]  # type: ignore[attr-defined]
    assert isinstance(value, int)
    return value


def test_processes_that_die_cost_no_job_and_double_none(sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    died = tmp_path / "died"
    stand_in(
        monkeypatch,
        f"""if microbatches in (1, 7, 8, 40) and not os.path.exists(f"{died}{{microbatches}}"):
    open(f"{died}{{microbatches}}", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
if microbatches == 20: sys.exit("boom")""",
    )
    answers = run_all(sweep, tmp_path / "journal")
    assert sorted(answers) == list(range(1, 41))
    assert {each for each, answer in answers.items() if answer.attempts == 2} == {1, 7, 8, 40}
    crashed = answers.pop(20)
    assert crashed == CompileRow(
        status=Status.CRASHED, attempts=3, error="its process died 3 times, and last ended with status 1: boom"
    )
    assert all(answer.makespan_ns == each for each, answer in answers.items())
    with Journal(tmp_path / "journal") as journal:
        assert len(kept_keys(sweep, journal)) == 39
    stand_in(monkeypatch, "pass")
    again = run_all(sweep, tmp_path / "journal")
    assert again == answers | {20: CompileRow(status=Status.PLANNED, makespan_ns=20)}, "the others are not run again"


def test_a_job_far_beyond_its_limit_is_killed(sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "if microbatches == 3: time.sleep(1000)")
    tasks = {}
    for job in sweep.jobs[:4]:
        tasks[job.key] = replace(job.task, kill_after_s=1.0 if job is sweep.jobs[2] else 100.0)
    answers = {key: answer for some in run_tasks(tasks, LocalExecutor(1)) for key, answer in some}
    assert [answers[key].status for key in tasks] == ["planned", "planned", "timed-out", "planned"]
    assert answers[sweep.jobs[2].key].error == "killed after 1 s, far beyond its time limit"


def test_tasks_that_wait_for_others_are_submitted_later(sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors_module, "MOST_SUBMITTED", 3)
    stand_in(monkeypatch, "pass")
    assert sorted(run_all(sweep, tmp_path / "journal")) == list(range(1, 41))


def test_closing_the_run_ends_its_processes(sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "if microbatches > 2: time.sleep(1000)")
    with Journal(tmp_path / "journal") as journal:
        running = run(sweep, journal, processes=2)
        while len(journal.answers) < 2:
            next(running)
        running.close()
        assert len(journal.answers) == 2


def test_a_mistake_in_a_thread_is_not_swallowed(sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "return b'no json'")
    with Journal(tmp_path / "journal") as journal, pytest.raises(ValueError, match="Expecting value"):
        list(run(sweep, journal, processes=2))


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert [processes_for(workers) for workers in ([1], [1, 3], [20], [])] == [8, 2, 1, 8]
