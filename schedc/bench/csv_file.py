"""The rows of a bench as CSV: plain numbers, nanoseconds and bytes, an empty field where there is none."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from schedc.files.atomic_write import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from schedc.bench.run import Row

__all__ = ["COLUMNS", "write_rows"]

COLUMNS = (
    "instance",
    "method",
    "won_by",
    "objective",
    "objective_ns",
    "makespan_ns",
    "bound_ns",
    "bound",
    "gap",
    "seconds",
    "peak_memory_bytes",
    "published_by",
    "published_ns",
    "ratio",
    "why_not",
)


def write_rows(path: Path | str, rows: Iterable[Row]) -> None:
    """Write the rows below a line with `COLUMNS`, whole or not at all.

    Raises:
        InvalidInput: the file cannot be written; says why.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        answer = row.answer
        published_by, published_ns = row.instance.published_best() or ("", None)
        writer.writerow(
            (
                row.instance.name,
                row.method,
                answer.won_by,
                row.instance.problem.objective,
                answer.objective_ns,
                answer.makespan_ns,
                answer.bound_ns,
                answer.bound,
                answer.gap,
                answer.seconds,
                answer.peak_memory_bytes,
                published_by,
                published_ns,
                row.ratio,
                answer.why_not,
            )
        )
    write_atomically(path, text.getvalue().encode())
