"""What `schedc bench` shows: a row for each cell, what was not solved and why, and a row for each method."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from schedc.ir.problem import Objective
from schedc.units import format_bytes
from schedc.view.document import Block, Column, Line, Table, left, right

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.study.bench.run import BenchRow

PIPED_WIDTH = 160
"""Columns where standard output is no terminal: as many as the widest table needs."""


def shown_bench(set_name: str, rows: Sequence[BenchRow]) -> Iterator[Block]:
    """All of it."""
    yield _rows_table(set_name, rows)
    unsolved: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.answer.objective_ns is None:
            unsolved.setdefault((row.method, row.answer.error), []).append(row.instance.name)
    for (method, why_not), names in unsolved.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Line(f"{method} on {names[0]}{more}: {why_not}", "dim")
    for row in rows:
        if row.answer.objective_ns is not None and row.answer.error:
            yield f"{row.instance.name} by {row.method}: a defect of schedc, please report it: {row.answer.error}"
    yield ""
    yield _methods_table(rows)


def _rows_table(set_name: str, rows: Sequence[BenchRow]) -> Table:
    """One row for each cell; the best of an instance is highlighted."""
    spans = any(row.instance.problem.objective is Objective.STAGE_SPAN for row in rows)
    best_ns: dict[str, int] = {}
    for row in rows:
        if row.answer.objective_ns is not None:
            name = row.instance.name
            best_ns[name] = min(row.answer.objective_ns, best_ns.get(name, row.answer.objective_ns))
    shown, bold, previous = [], set(), ""
    for number, row in enumerate(rows):
        answer, name = row.answer, row.instance.name
        published = row.instance.published_best()
        shown.append(
            (
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
            )
        )
        if answer.objective_ns is not None and answer.objective_ns == best_ns[name]:
            bold.add(number)
        previous = name
    numbers = ("makespan", *(("stage span",) if spans else ()), "bound", "gap", "seconds", "memory", "published best", "ratio")
    return Table(
        title=f"{set_name}: times in ms" + (", bound, gap and ratio of the stage span" if spans else ""),
        columns=[Column("instance", wrap="fold"), Column("method", wrap="fold"), *right(*numbers)],
        rows=shown,
        bold=bold,
        may_go=("memory", "seconds", "published best"),
    )


def _methods_table(rows: Sequence[BenchRow]) -> Table:
    """One row for each method: how often it solved and proved, its mean gap, its geometric mean ratio to the published best."""
    shown = []
    for method in dict.fromkeys(row.method for row in rows):
        mine = [row for row in rows if row.method == method]
        gaps = [row.answer.gap for row in mine if row.answer.gap is not None]
        ratios = [row.ratio for row in mine if row.ratio is not None]
        shown.append(
            (
                method,
                f"{len(gaps)} of {len(mine)}",
                str(sum(gap <= 0 for gap in gaps)),
                f"{math.fsum(gaps) / len(gaps):.2%}" if gaps else "–",
                f"{math.exp(math.fsum(map(math.log, ratios)) / len(ratios)):.3f}" if ratios else "–",
                f"{math.fsum(row.answer.seconds or 0 for row in mine):.2f}",
            )
        )
    numbers = right("solved", "proven optimal", "mean gap", "mean ratio", "seconds")
    return Table(title="by method", columns=[*left("method"), *numbers], rows=shown)


def _ms(duration_ns: int | None) -> str:
    return "–" if duration_ns is None else f"{duration_ns / 1e6:.1f}"
