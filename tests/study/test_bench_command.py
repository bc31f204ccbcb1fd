"""`schedc bench` as a command: its table, its CSV file, and what it refuses before any work is done."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pytest
import typer
from typer.testing import CliRunner, Result

from schedc.cli.commands.bench import bench_command
from schedc.errors import InvalidInput
from schedc.ir.problem import Objective
from schedc.study.bench import instances as instances_module
from schedc.study.bench.instances import Instance, PublishedUnit
from schedc.study.bench.pipelines import pipeline
from schedc.study.bench.run import BenchRow, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.solvers.common.base import Limits

MS = 1_000_000
CsvOption = Annotated[Path | None, typer.Option("--csv")]
app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def command(
    name: str,
    methods: Annotated[str, typer.Option()] = "1f1b,zb-h1",
    time_limit: Annotated[str, typer.Option()] = "60s",
    csv_file: CsvOption = None,
    fused_backward: Annotated[float | None, typer.Option()] = None,
) -> None:
    bench_command(name, methods, time_limit, csv_file, fused_backward)


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def small_set(objective: Objective) -> tuple[Instance, ...]:
    problem = pipeline(f"small-{objective}", 2, 3, (10 * MS, 10 * MS, 10 * MS), in_flight=2, objective=objective)
    return (Instance(problem=problem, published={"them": 0.1}, unit=PublishedUnit.BUBBLE_RATE, comparable=("them",)),)


@pytest.fixture(autouse=True)
def tiny_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of one small instance, by objective."""
    for objective in Objective:
        monkeypatch.setitem(instances_module.SETS, f"tiny-{objective}", partial(small_set, objective))


@pytest.mark.slow
def test_the_table_shows_each_method_beside_what_was_published(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    result = bench("tiny-makespan", "--methods", "1f1b,auto,zb-v", "--csv", path)
    assert result.exit_code == 0, result.exception
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["instance", "method", "makespan", "bound", "gap", "seconds", "memory", "published", "best", "ratio"]
    first = lines[2].split()
    assert first[:5] == ["small-makespan", "1f1b", "120.0", "100.0", "16.67%"]
    assert first[-3:] == ["100.0", "them", "1.200"]  # 90 ms of work and a bubble rate of a tenth
    assert lines[3].split()[:2] == ["auto", "→"]
    assert "zb-v on small-makespan: no plan found: zb-v: zb-v needs a wave placement" in result.stdout
    assert ["1f1b", "1", "of", "1", "0", "16.67%", "1.200"] in [line.split()[:7] for line in lines]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["1f1b", "auto", "zb-v"]
    assert int(rows[0]["makespan_ns"]) == 120 * MS


def test_a_set_of_stage_spans_shows_them_too() -> None:
    result = bench("tiny-stage-span", "--methods", "1f1b")
    header = result.stdout.splitlines()[1].split()
    assert header[:5] == ["instance", "method", "makespan", "stage", "span"]


def test_a_set_runs_with_a_fused_backward_of_its_own() -> None:
    result = bench("tiny-makespan", "--methods", "1f1b", "--fused-backward", "0.85")
    assert result.exit_code == 0, result.exception
    row = result.stdout.splitlines()[2].split()
    assert row[:3] == ["small-makespan-bw0.85", "1f1b", "108.0"]  # four turns of F and a BW of 17 ms
    assert row[-2:] == ["–", "–"]


def test_no_line_is_wider_than_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schedc.view.terminal.studies.PIPED_WIDTH", 80)
    result = bench("tiny-makespan", "--methods", "1f1b,greedy{n_sub=2}")
    assert result.exit_code == 0, result.exception
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tiny-makespam",), "did you mean 'tiny-makespan'"),
        (("tiny-makespan", "--methods", "1f1b,"), "empty name"),
        (("tiny-makespan", "--methods", "zb-h9"), "did you mean 'zb-h"),
        (("tiny-makespan", "--time-limit", "60"), "--time-limit: found '60', expected a duration"),
        (("tiny-makespan", "--fused-backward", "0"), "--fused-backward: found 0, expected a number above 0"),
        (("tiny-makespan", "--fused-backward", "nan"), "--fused-backward: found nan, expected a number above 0"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = bench(*arguments)
    assert isinstance(result.exception, InvalidInput)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_file_that_cannot_be_written_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schedc.study.bench.run.run", None)
    result = bench("tiny-makespan", "--csv", "/no/such/folder/rows.csv")
    assert isinstance(result.exception, InvalidInput)
    assert "does not exist; create it first" in str(result.exception)


def test_an_interrupted_run_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(chosen: Sequence[Instance], names: Sequence[str], *, limits: Limits) -> Iterator[BenchRow]:
        yield from run(chosen, names[:1], limits=limits)
        raise KeyboardInterrupt

    monkeypatch.setattr("schedc.study.bench.run.run", stopped)
    path = tmp_path / "rows.csv"
    result = bench("tiny-makespan", "--csv", path)
    assert result.exit_code != 0
    assert "small-makespan" in result.stdout
    assert path.read_text().count("\n") == 2
