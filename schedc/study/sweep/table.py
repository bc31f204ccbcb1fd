"""The table of a sweep: one row for each job, in the order of the sweep, as CSV or Parquet by the name's ending.

Columns: what the sweep says of the job, then the fields of its `CompileRow`, each of its own type. The column of a setting is one
of numbers, of true and false, or of text. Where values are lists or of several kinds, they are JSON; text stays as it is.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from schedc.errors import InvalidInput
from schedc.io.outputs import csv_bytes, write_atomically
from schedc.study.task import CompileRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from schedc.study.sweep.jobs import Sweep

ENDINGS = (".csv", ".parquet")
_TYPES = {"int | None": "int64", "int": "int64", "float | None": "double", "bool | None": "bool"}
"""By the annotation of an answer's field; text otherwise."""


def check_format(path: Path) -> None:
    """Refuse a table whose format is unknown.

    Raises:
        InvalidInput: its name has another ending.
    """
    if path.suffix not in ENDINGS:
        raise InvalidInput(f"-o: found {path.name!r}, expected a name that ends with {' or '.join(ENDINGS)}")


def write_table(path: Path, sweep: Sweep, answers: Mapping[str, CompileRow]) -> int:
    """Write the rows of the jobs of which something is known, whole or not at all.

    Args:
        path: its ending says the format.
        sweep: the jobs, whose order is that of the rows.
        answers: by the jobs' keys; others are left out.

    Returns:
        The number of rows.

    Raises:
        InvalidInput: the file cannot be written.
    """
    known = [(job, answers[job.key]) for job in sweep.jobs if job.key in answers]
    columns = {name: _uniform([job.columns.get(name) for job, _ in known]) for name in sweep.columns}
    columns |= {field.name: [getattr(answer, field.name) for _, answer in known] for field in fields(CompileRow)}
    if path.suffix == ".csv":
        rows = zip(*columns.values(), strict=True)
        cells = ([str(each).lower() if isinstance(each, bool) else each for each in row] for row in rows)
        write_atomically(path, csv_bytes([columns, *cells]))
    else:
        write_atomically(path, _parquet(columns))
    return len(known)


def _uniform(values: Sequence[object]) -> list[Any]:
    """The values, all numbers, all true or false, or all text; None where there is none."""
    kinds = {type(value) for value in values if value is not None}
    if any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in values):
        kinds.add(object)  # no column of numbers has room for it
    if len(kinds) <= 1 and kinds <= {bool, int, float, str}:
        return list(values)
    if kinds <= {int, float}:
        return [None if value is None else float(str(value)) for value in values]
    return [value if value is None or isinstance(value, str) else json.dumps(value, default=str) for value in values]


def _parquet(columns: Mapping[str, Sequence[Any]]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    types = {field.name: _TYPES.get(str(field.type), "string") for field in fields(CompileRow)}
    arrays = {
        name: pyarrow.array(values, type=types.get(name) or (None if any(v is not None for v in values) else "string"))
        for name, values in columns.items()
    }
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(arrays), sink)
    return bytes(sink.getvalue())
