"""The runner: rows of real cells, and of cells that refuse, crash, or have to be killed; the rows as CSV."""

from __future__ import annotations

import csv
import json
import pickle
import sys
from typing import TYPE_CHECKING

import pytest

from schedc.errors import InvalidInput
from schedc.io.child import Child
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.study.bench import run as run_module
from schedc.study.bench.instances import Instance, PublishedUnit
from schedc.study.bench.pipelines import LinkTimes, both_ways, pipeline
from schedc.study.bench.run import BenchRow, run, split_methods, write_rows
from schedc.study.task import CompileRow, CompileTask, ProblemSource, Status

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000
LIMITS = Limits(time_s=60)
PUBLISHED_MS = 100


@pytest.fixture(scope="module")
def instance() -> Instance:
    """Two ranks, three microbatches, a slow link."""
    problem = pipeline("tiny", 2, 3, (10 * MS, 10 * MS, 10 * MS), in_flight=2, slow=both_ways((0,), LinkTimes(5 * MS, 0)))
    return Instance(problem=problem, published={"them": PUBLISHED_MS, "others": 50}, unit=PublishedUnit.MS, comparable=("them",))


@pytest.fixture(scope="module")
def rows(instance: Instance) -> list[BenchRow]:
    return list(run([instance], ["1f1b", "greedy", "zb-v"], limits=LIMITS))


def test_rows_say_what_each_method_reached(rows: list[BenchRow]) -> None:
    assert [row.method for row in rows] == ["1f1b", "greedy", "zb-v"]
    one, greedy, _ = (row.answer for row in rows)
    # by hand, starts in ms: rank 1 F0 15, BW0 25, F1 45, BW1 55; rank 0 BW0 50, F2 70, BW1 80; rank 1 F2 85, BW2 95; rank 0 BW2 120
    assert one.makespan_ns == one.objective_ns == 140 * MS
    assert one.bound_ns is not None
    assert one.gap == (140 * MS - one.bound_ns) / (140 * MS)
    assert greedy.makespan_ns is not None
    assert one.bound_ns <= greedy.makespan_ns < 140 * MS
    assert rows[0].ratio == 1.4


def test_a_method_that_cannot_is_a_row_with_its_reason(rows: list[BenchRow]) -> None:
    answer = rows[2].answer
    assert answer.makespan_ns is None
    assert rows[2].ratio is None
    assert "zb-v needs a wave placement" in answer.error
    assert not answer.error.startswith("tiny")


def test_peak_memory_is_the_cells_own(instance: Instance) -> None:
    ballast = b"\1" * (256 << 20)
    (row,) = run([instance], ["1f1b"], limits=LIMITS)
    assert len(ballast) == 256 << 20
    assert row.answer.peak_memory_bytes is not None
    assert 4 << 20 < row.answer.peak_memory_bytes < 256 << 20


def test_an_unknown_method_ends_the_run(instance: Instance) -> None:
    with pytest.raises(InvalidInput, match="'1f1c' is unknown; did you mean '1f1b'"):
        list(run([instance], ["1f1c"], limits=LIMITS))


@pytest.mark.parametrize(
    ("script", "time_s", "status", "why_not"),
    [
        ("echo one >&2; echo Boom >&2; exit 3", 60, Status.CRASHED, "crashed, ended with status 3: Boom"),
        ("kill -KILL $$", 60, Status.CRASHED, "crashed, ended by SIGKILL"),
        ("sleep 1000 & sleep 1000", 0.125, Status.TIMED_OUT, "killed after 0.5 s, its time limit being 0.125 s"),
    ],
)
def test_a_cell_that_dies_is_a_row_and_the_run_goes_on(
    instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, time_s: float, status: Status, why_not: str
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(run_module, "GRACE_S", 0.25)
    found = list(run([instance, instance], ["1f1b"], limits=Limits(time_s=time_s)))
    assert [row.answer for row in found] == [CompileRow(status=status, error=why_not)] * 2


STAND_IN = """
import os, time
from schedc.study import executors, task
executors.row_of = lambda request: {body}
executors.serve_tasks()
"""


def test_what_a_solver_prints_does_not_spoil_the_answer(instance: Instance) -> None:
    body = 'os.write(1, b"noise") and print("more") or task.CompileRow(status="planned", won_by=request.source.settings.method)'
    source = ProblemSource(problem=instance.problem, settings=SearchSettings(method="1f1b"))
    asked = CompileTask(source=source, workers=1, kill_after_s=None)
    with Child(["-c", STAND_IN.format(body=body), "0"]) as child:
        answer = child.ask(pickle.dumps(asked))
    assert CompileRow(**json.loads(answer)) == CompileRow(status=Status.PLANNED, won_by="1f1b")


def test_a_child_has_no_more_threads_than_there_are_cores(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 'task.CompileRow(status="planned", won_by=os.environ["OMP_NUM_THREADS"])'
    monkeypatch.setattr("schedc.study.executors.WORKER", ("-c", STAND_IN.format(body=body)))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    for workers, threads in ((8, "3"), (2, "2")):
        (row,) = run([instance], ["1f1b"], limits=Limits(time_s=60, workers=workers))
        assert row.answer.won_by == threads


def test_the_csv_file_holds_the_rows_as_plain_numbers(rows: list[BenchRow], tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    write_rows(path, rows)
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.csv"]
    with path.open(newline="") as file:
        one, greedy, zb_v = csv.DictReader(file)
    assert " ".join(one) == (
        "instance method won_by objective objective_ns makespan_ns bound_ns bound gap seconds peak_memory_bytes"
        " published_by published_ns ratio why_not"
    )
    assert one["instance"] == "tiny"
    assert (one["method"], one["won_by"], one["objective"]) == ("1f1b", "1f1b", "makespan")
    assert int(one["makespan_ns"]) == int(one["objective_ns"]) == 140 * MS
    assert float(one["gap"]) == rows[0].answer.gap
    assert float(one["seconds"]) == rows[0].answer.seconds
    assert int(one["peak_memory_bytes"]) == rows[0].answer.peak_memory_bytes
    assert (one["published_by"], int(one["published_ns"]), float(one["ratio"])) == ("them", 100 * MS, 1.4)
    assert one["why_not"] == ""
    assert int(greedy["bound_ns"]) == rows[1].answer.bound_ns
    assert (zb_v["makespan_ns"], zb_v["gap"], zb_v["seconds"], zb_v["ratio"]) == ("", "", "", "")
    assert "zb-v needs a wave placement" in zb_v["why_not"]


def test_commas_inside_braces_belong_to_a_method() -> None:
    assert split_methods("1f1b, greedy{n_sub=2,depth=3},auto") == ("1f1b", "greedy{n_sub=2,depth=3}", "auto")


@pytest.mark.parametrize(("text", "message"), [("", "empty name"), ("1f1b,,auto", "empty name"), ("a,b,a", "a is a duplicate")])
def test_method_lists_that_cannot_be_meant_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        split_methods(text)
