"""Tables in narrow terminals: what has no room is cut or named, and no column vanishes."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from inputs.plans import small_plan
from inputs.report_plans import plain_plan, slow_trace
from rich.console import Console
from suite.command_line import schedc

from schedc.formats.plan.plan_file import write_plan
from schedc.formats.trace_file import write_trace_file
from schedc.view.document import Column, Table, right
from schedc.view.terminal import show

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WIDTHS = range(30, 121)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[Table]:
    """The tables of commands about plans, and of models; the first of tune's shape, of which no column wraps."""
    folder = tmp_path_factory.mktemp("tables")
    plan, trace = folder / "plan.json", folder / "trace.json"
    write_plan(plain_plan(), plan)
    write_trace_file(slow_trace(plain_plan()), trace)
    write_plan(small_plan(), folder / "small.json")
    stiff = right("ranks", "dp", "size", "n", "placement", "chunks", "step", "bound", "gap", "memory", wrap="never")
    cells = ("16", "2", "1", "32", "unidirectional", "1", "1.034 s", "989.2 ms", "4.36%", "61.4 GiB")
    found = [Table(columns=stiff, rows=[cells], may_go=("memory", "bound", "size", "gap"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(show, "_print_table", lambda _, table: found.append(replace(table, rows=list(table.rows))))
        for command in _commands(plan, trace, folder):
            done = schedc(*command)
            assert done.returncode == 0, done
    different = {tuple(column.header for column in table.columns): table for table in found}
    assert len(different) > 10
    return list(different.values())


def _commands(plan: Path, trace: Path, folder: Path) -> Iterator[tuple[object, ...]]:
    yield "simulate", plan
    yield "compare", plan, trace
    yield "explain", plan, "--quiet", "--time-limit", "1s"
    yield "explain", folder / "small.json", "--quiet", "--time-limit", "1s"
    yield "costs", "llama3-8b", "-o", folder / "profile.json", "--operators"
    yield ("templates",)


def _lettered(table: Table) -> Table:
    """The table with the letters of each column the same, and other than those of others."""

    def lettered(at: int, text: str) -> str:
        return "".join(chr(ord("A") + at) if letter != " " else letter for letter in text)

    columns = [replace(column, header=lettered(at, column.header)) for at, column in enumerate(table.columns)]
    rows = [[lettered(at, str(cell)) for at, cell in enumerate(row)] for row in list(table.rows)[:3]]
    letters = {before.header: after.header for before, after in zip(table.columns, columns, strict=True)}
    return replace(table, title="", columns=columns, rows=rows, may_go=[letters[header] for header in table.may_go])


@pytest.mark.parametrize("width", WIDTHS)
def test_no_column_vanishes(tables: list[Table], width: int) -> None:
    for table in tables:
        out = Console(file=StringIO(), width=width, highlight=False, markup=False)
        lettered = _lettered(table)
        show.show([lettered], out)
        text = out.file.getvalue()  # type: ignore[attr-defined]
        assert max(len(line) for line in text.splitlines() if not line.startswith("not shown")) <= width
        for at, column in enumerate(lettered.columns):
            cells = [column.header, *(row[at] for row in lettered.rows if at < len(row))]
            assert not any(map(str.strip, map(str, cells))) or chr(ord("A") + at) in text, (table.columns[at].header, text)


def test_the_widest_column_gives_way_first() -> None:
    columns = [Column("change", wrap="cut"), *right("makespan", "saves", wrap="never")]
    out = Console(file=StringIO(), width=24, highlight=False)
    show.show([Table(columns=columns, rows=[("a longer text than fits", "1234567890 ns", "1.00%")])], out)
    assert out.file.getvalue().splitlines() == ["change   makespan  saves", "a long…  1234567…  1.00%"]  # type: ignore[attr-defined]
