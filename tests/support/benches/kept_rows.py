"""The rows of a long benchmark in a CSV, each kept as soon as it is done, so that the benchmark may end and go on."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows that are there; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append_row(path: Path, row: Mapping[str, object]) -> None:
    """Add a row, below the names of the columns; None becomes an empty field."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)
