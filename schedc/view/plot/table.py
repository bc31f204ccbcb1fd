"""The table of a sweep or of tune as columns, and which of them are the axes of a picture.

Takes a CSV or Parquet file; gives `Columns`. Settings are text with units in a sweep's table (`19 ms`, `8 GiB`, `40 Gb/s`), plain
numbers in tune's; both become numbers where all values of a column are.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from statistics import median_high
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.io.input_file import read_bytes
from schedc.units import parse_bandwidth, parse_bytes, parse_duration_ns
from schedc.view.plot.figure import BANDWIDTHS, BYTES, TIMES, AxisUnit, unit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

OBJECTIVES = ("objective_ns", "step_ns", "makespan_ns")
"""What is drawn unless another column is named: the first of these that the table has."""
BOUND = "bound_ns"
FIRST = ("latency", "bandwidth", "memory", "limit", "in_flight", "microbatches", "chunks", "ranks")
"""The settings that make an x axis, the first before the others; a key counts by what it contains."""
NOT_SETTINGS = (
    "status",
    "state",
    "won_by",
    "method",
    "makespan_ns",
    "step_ns",
    "objective",
    "objective_ns",
    "stage_span_ns",
    "bound",
    BOUND,
)
"""Where a sweep's and tune's settings end: the first of these columns begins the results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotColumn:
    """One column, with its values as they are drawn."""

    name: str
    texts: tuple[str, ...]
    """As in the file; empty where there is none."""
    numbers: tuple[float | None, ...] | None
    """In the base unit; None where some value is no number."""
    units: tuple[AxisUnit, ...]
    """Those of its quantity; one without a name for plain numbers."""

    @property
    def unit(self) -> AxisUnit:
        """The unit that its middle value asks for: from 4 GB/s to 1024 GB/s they are not thousandths of a TB/s."""
        return unit_of(median_high([abs(each) for each in self.numbers or () if each is not None] or [1.0]), self.units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A table."""

    path: str
    columns: dict[str, PlotColumn]
    settings: tuple[str, ...]
    """The columns that say what each row is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What is drawn against what."""

    x: PlotColumn
    y: PlotColumn
    by: tuple[PlotColumn, ...]
    """One curve for each of their values."""
    bound: PlotColumn | None
    """The lower bound of y, if the table has it."""
    is_cloud: bool
    """x is a result, too, as memory is: each row is a point by itself."""
    objective: str
    """What y is, where the table says it and it is the same in all rows; else empty."""


def read_columns(path: Path) -> Columns:
    """The table in a file.

    Raises:
        InvalidInput: it cannot be read, or is no table with rows.
    """
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path)
    if len(rows) < 2 or not rows[0]:
        raise InvalidInput(f"{path}: found no rows, expected the table of a sweep or of tune (CSV or Parquet)")
    names = rows[0]
    if any(len(row) != len(names) for row in rows):
        raise InvalidInput(f"{path}: found rows of different lengths, expected the table of a sweep or of tune (CSV or Parquet)")
    columns = {name: _column(name, [row[at] for row in rows[1:]]) for at, name in enumerate(names)}
    ends = [at for at, name in enumerate(names) if name in NOT_SETTINGS]
    settings = tuple(names[: ends[0]] if ends else names)
    return Columns(path=str(path), columns=columns, settings=settings)


def choose_axes(table: Columns, x: str | None, y: str | None, by: Sequence[str]) -> Axes:
    """The axes that are named; for those that are not, what the table is about.

    Args:
        table: the table.
        x: a column of numbers. None: a setting that varies, latencies before bandwidths, memory and microbatches.
        y: a column of numbers. None: the objective.
        by: columns. Empty: all other settings that vary.

    Raises:
        InvalidInput: the table has no such column, or none of numbers that varies.
    """
    varying = [table.columns[name] for name in table.settings if len(set(table.columns[name].texts)) > 1]
    y = y or next((name for name in OBJECTIVES if name in table.columns), None)
    if y is None:
        raise InvalidInput(f"{table.path}: found no column {', '.join(OBJECTIVES)}, expected the column to draw (--y)")
    if x is None:
        numeric = [column for column in varying if column.numbers is not None]
        if not numeric:
            raise InvalidInput(f"{table.path}: found no setting of numbers that varies, expected the column of the x axis (--x)")
        x = min(numeric, key=lambda each: next((at for at, word in enumerate(FIRST) if word in each.name), len(FIRST))).name
    named = (("--x", x), ("--y", y), *(("--by", name) for name in by))
    for option, name in named:
        if name not in table.columns:
            raise InvalidInput(f"{option}: found {name!r}, expected a column of {table.path}: {', '.join(table.columns)}")
        if option != "--by" and table.columns[name].numbers is None:
            raise InvalidInput(f"{option}: found the column {name}, which has other values than numbers")
    said = {text for text in table.columns["objective"].texts if text} if "objective" in table.columns else set()
    names = {"objective_ns": said.pop().replace("-", " ") if len(said) == 1 else "", "step_ns": "step"}
    return Axes(
        x=table.columns[x],
        y=table.columns[y],
        by=tuple(table.columns[name] for name in by) or tuple(each for each in varying if each.name not in (x, y)),
        bound=table.columns.get(BOUND) if y in OBJECTIVES and x in table.settings else None,
        is_cloud=x not in table.settings,
        objective=names.get(y, ""),
    )


def _csv_rows(path: Path) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(read_bytes(path).decode()), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: found no CSV ({error}), expected the table of a sweep or of tune") from error


def _parquet_rows(path: Path) -> list[list[str]]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(pyarrow.BufferReader(read_bytes(path)))
    except pyarrow.ArrowException as error:
        raise InvalidInput(f"{path}: found no Parquet file ({str(error).splitlines()[0]})") from error
    columns = [["" if value is None else _text(value) for value in column.to_pylist()] for column in table.columns]
    return [list(table.column_names), *map(list, zip(*columns, strict=True))]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


PLAIN = (AxisUnit("", 1.0),)
PARSERS: tuple[tuple[Callable[[str], float], tuple[AxisUnit, ...]], ...] = (
    (float, PLAIN),
    (parse_duration_ns, TIMES),
    (parse_bytes, BYTES),
    (parse_bandwidth, BANDWIDTHS),
)


def _column(name: str, texts: Sequence[str]) -> PlotColumn:
    """With numbers where all values are some of one kind, and not all are empty."""
    for parse, units in PARSERS if any(texts) else ():
        try:
            numbers = tuple(None if text == "" else float(parse(text)) for text in texts)
        except ValueError:
            continue
        named = TIMES if name.endswith("_ns") else BYTES if name.endswith("_bytes") else units
        return PlotColumn(name=name, texts=tuple(texts), numbers=numbers, units=named)
    return PlotColumn(name=name, texts=tuple(texts), numbers=None, units=PLAIN)
