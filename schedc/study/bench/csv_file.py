"""The rows of a bench as CSV: plain numbers, nanoseconds and bytes, an empty field where there is none."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from schedc.io.atomic_write import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from schedc.study.bench.run import BenchRow


def write_rows(path: Path | str, rows: Iterable[BenchRow]) -> None:
    """Write the rows below a line with the names of their columns, whole or not at all; there is at least one.

    Raises:
        InvalidInput: the file cannot be written; says why.
    """
    columns = [_columns(row) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(columns)
    write_atomically(path, text.getvalue().encode())


def _columns(row: BenchRow) -> dict[str, str | float | None]:
    answer = row.answer
    published_by, published_ns = row.instance.published_best() or ("", None)
    return {
        "instance": row.instance.name,
        "method": row.method,
        "won_by": answer.won_by,
        "objective": row.instance.problem.objective,
        "objective_ns": answer.objective_ns,
        "makespan_ns": answer.makespan_ns,
        "bound_ns": answer.bound_ns,
        "bound": answer.bound,
        "gap": answer.gap,
        "seconds": answer.seconds,
        "peak_memory_bytes": answer.peak_memory_bytes,
        "published_by": published_by,
        "published_ns": published_ns,
        "ratio": row.ratio,
        "why_not": answer.why_not,
    }
