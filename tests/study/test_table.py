"""The table: order of rows, types of columns, and the same values in both formats."""

from __future__ import annotations

import csv
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest
from inputs.sweeps import sweep_in
from pyarrow import parquet

from schedc.errors import InvalidInput
from schedc.study.sweep.run import check_format, write_table
from schedc.study.task import CompileRow, Status

if TYPE_CHECKING:
    from pathlib import Path

SWEEP = """
job = "job.toml"
[compile]
seed = [0, 1]
[[cases]]
name = "one, with \\"commas\\""
set.pipeline = { partition = [1, 2], chunks = 1, microbatches = 7, split_backward = true }
set.solver = { gap = 1, time_limit = "1 ms" }
[[cases]]
name = "two"
set.pipeline = { partition = "auto", chunks = "auto", microbatches = 8, split_backward = false }
set.solver = { gap = 0.5, time_limit = "2 ms" }
[[cases]]
name = "three"
"""


def test_both_formats_have_the_rows_in_the_order_of_the_sweep(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path, SWEEP)
    planned = CompileRow(status=Status.PLANNED, won_by="greedy", makespan_ns=2**53, gap=0.25, reproducible=True, seconds=0.5)
    refused = CompileRow(status=Status.REFUSED, error='job.toml: found "x", expected 1')
    answers = {job.key: planned for job in reversed(sweep.jobs)} | {sweep.jobs[3].key: refused, "another": planned}
    del answers[sweep.jobs[1].key]
    for name in ("t.csv", "t.parquet"):
        assert write_table(tmp_path / name, sweep, answers) == 5
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = parquet.read_table(tmp_path / "t.parquet")
    typed = table.to_pylist()
    assert list(rows[0]) == list(typed[0]) == [*sweep.columns, *(field.name for field in fields(CompileRow))]
    for row, same in zip(rows, typed, strict=True):
        assert {key: "" if value is None else str(value) for key, value in same.items()} == {
            key: value.capitalize() if value in ("true", "false") else value for key, value in row.items()
        }
    settings = [name for name in sweep.columns if name.startswith(("pipeline.", "solver."))]
    assert [[row[name] for name in settings] for row in (typed[0], typed[1], typed[3])] == [
        ["[1, 2]", "1", 7, True, 1.0, "1 ms"],
        ["auto", "auto", 8, False, 0.5, "2 ms"],
        [None] * 6,
    ]
    assert [str(table.schema.field(name).type) for name in settings] == ["string", "string", "int64", "bool", "double", "string"]
    assert [row["compile.seed"] for row in typed] == [0, 0, 1, 0, 1]
    assert typed[2]["status"] == "refused"
    assert typed[0]["makespan_ns"] == 2**53


def test_numbers_that_no_column_has_room_for_are_text(tmp_path: Path) -> None:
    """They cannot be used, and the rows of their jobs say so: the table is written like any other."""
    sweep = sweep_in(tmp_path, f'job = "job.toml"\n[grid]\n"pipeline.microbatches" = [4, {2**63}]\n')
    refused = CompileRow(status=Status.REFUSED, error="found a number")
    for name in ("t.csv", "t.parquet"):
        assert write_table(tmp_path / name, sweep, {job.key: refused for job in sweep.jobs}) == 2
    assert parquet.read_table(tmp_path / "t.parquet")["pipeline.microbatches"].to_pylist() == ["4", str(2**63)]


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path, SWEEP)
    for name in ("t.csv", "t.parquet"):
        assert write_table(tmp_path / name, sweep, {}) == 0
    assert (tmp_path / "t.csv").read_text().startswith("job,case,pipeline.partition,")
    assert parquet.read_table(tmp_path / "t.parquet").num_rows == 0


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"-o: found 'table.json', expected a name that ends with .csv or .parquet"):
        check_format(tmp_path / "table.json")
