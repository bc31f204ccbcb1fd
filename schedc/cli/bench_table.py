"""`schedc bench`: runs methods side by side on a set of instances and shows what each reached, as a table and as CSV."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from schedc.cli.quantities import option_value
from schedc.io.outputs import check_outputs
from schedc.ir.problem import Objective
from schedc.solvers.common.base import Limits
from schedc.solvers.driver.registry import check_method
from schedc.study.bench.instances import instances
from schedc.study.bench.run import run, split_methods, write_rows
from schedc.units import format_bytes
from schedc.view.terminal.results import console, plain_table, print_fitting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.table import Table

    from schedc.study.bench.instances import Instance
    from schedc.study.bench.run import BenchRow

PIPED_WIDTH = 160
"""Columns where standard output is no terminal: as many as the widest table needs."""


def run_bench(set_name: str, methods: str, time_limit: str, csv: Path | None, fused_backward: float | None = None) -> None:
    """Run the methods on the set; print the table, and keep the CSV file complete after every row, so that a stop loses nothing.

    Args:
        set_name: one of `schedc.study.bench.instances.SETS`.
        methods: names separated by commas.
        time_limit: of each cell, as in `60s`.
        csv: where the rows go, too; None: nowhere.
        fused_backward: BW as a multiple of B plus W; None: as the set has it.

    Raises:
        InvalidInput: the set, a method, the time limit or the multiple is wrong, or the file cannot be written.
    """
    chosen, names = instances(set_name, fused_backward), split_methods(methods)
    limits = Limits(time_s=option_value("--time-limit", time_limit) / 1e9)
    rows: list[BenchRow] = []
    check_outputs({"--csv": csv}, ())
    for name in names:
        check_method(name)
    try:
        for row in _with_progress(chosen, names, limits):
            rows.append(row)
            if csv is not None:
                write_rows(csv, rows)
    finally:  # an interrupt shows what is known so far
        if rows:
            _print_rows(set_name, rows)


def _with_progress(chosen: Sequence[Instance], names: Sequence[str], limits: Limits) -> Iterator[BenchRow]:
    """The rows, with what is done and how long it has taken on standard error, where that is a terminal."""
    errors = console(stderr=True)
    text = TextColumn("{task.completed:.0f} of {task.total:.0f} {task.description}", markup=False)
    columns = (SpinnerColumn(), text, TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("cells", total=len(chosen) * len(names))
        for row in run(chosen, names, limits=limits):
            bar.update(task, advance=1, description=f"cells, last {row.instance.name} by {row.method}")
            yield row


def _print_rows(set_name: str, rows: Sequence[BenchRow]) -> None:
    out = console(piped_width=PIPED_WIDTH)
    print_fitting(out, _rows_table(set_name, rows), ("memory", "seconds", "published best"))
    for (method, why_not), names in _unsolved(rows).items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        out.print(Text(f"{method} on {names[0]}{more}: {why_not}", "dim"))
    for row in rows:
        if row.answer.objective_ns is not None and row.answer.error:
            out.print(Text(f"{row.instance.name} by {row.method}: a defect of schedc, please report it: {row.answer.error}"))
    out.print()
    out.print(_methods_table(rows))


def _rows_table(set_name: str, rows: Sequence[BenchRow]) -> Table:
    """One line for each cell; the best of an instance is highlighted."""
    spans = any(row.instance.problem.objective is Objective.STAGE_SPAN for row in rows)
    table = plain_table(f"{set_name}: times in ms" + (", bound, gap and ratio of the stage span" if spans else ""))
    table.add_column("instance", overflow="fold")
    table.add_column("method", overflow="fold")
    for header in ("makespan", *(("stage span",) if spans else ()), "bound", "gap", "seconds", "memory", "published best", "ratio"):
        table.add_column(header, justify="right")
    best_ns: dict[str, int] = {}
    for row in rows:
        if row.answer.objective_ns is not None:
            name = row.instance.name
            best_ns[name] = min(row.answer.objective_ns, best_ns.get(name, row.answer.objective_ns))
    previous = ""
    for row in rows:
        answer, name = row.answer, row.instance.name
        published = row.instance.published_best()
        table.add_row(
            "" if name == previous else name,
            row.method + (f" → {answer.won_by}" if answer.won_by not in ("", row.method) else ""),
            _ms(answer.makespan_ns),
            *((_ms(answer.objective_ns),) if spans else ()),
            _ms(answer.bound_ns),
            "–" if answer.gap is None else f"{answer.gap:.2%}",
            "–" if answer.seconds is None else f"{answer.seconds:.2f}",
            "–" if answer.peak_memory_bytes is None else format_bytes(answer.peak_memory_bytes, 0),
            "–" if published is None else f"{_ms(published[1])} {published[0]}",
            "–" if row.ratio is None else f"{row.ratio:.3f}",
            style="bold" if answer.objective_ns is not None and answer.objective_ns == best_ns[name] else "",
        )
        previous = name
    return table


def _unsolved(rows: Sequence[BenchRow]) -> dict[tuple[str, str], list[str]]:
    """The instances that a method did not solve, by the method and the reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.answer.objective_ns is None:
            found.setdefault((row.method, row.answer.error), []).append(row.instance.name)
    return found


def _methods_table(rows: Sequence[BenchRow]) -> Table:
    """One line for each method: how often it solved and proved, its mean gap, its geometric mean ratio to the published best."""
    table = plain_table("by method")
    table.add_column("method")
    for header in ("solved", "proven optimal", "mean gap", "mean ratio", "seconds"):
        table.add_column(header, justify="right")
    for method in dict.fromkeys(row.method for row in rows):
        mine = [row for row in rows if row.method == method]
        gaps = [row.answer.gap for row in mine if row.answer.gap is not None]
        ratios = [row.ratio for row in mine if row.ratio is not None]
        table.add_row(
            method,
            f"{len(gaps)} of {len(mine)}",
            str(sum(gap <= 0 for gap in gaps)),
            f"{math.fsum(gaps) / len(gaps):.2%}" if gaps else "–",
            f"{math.exp(math.fsum(map(math.log, ratios)) / len(ratios)):.3f}" if ratios else "–",
            f"{math.fsum(row.answer.seconds or 0 for row in mine):.2f}",
        )
    return table


def _ms(duration_ns: int | None) -> str:
    return "–" if duration_ns is None else f"{duration_ns / 1e6:.1f}"
