"""A link trace as CSV: at which time a link takes which latency and bandwidth.

```csv
time_ms,ranks,latency_ms,bandwidth_GBps
0,3-4,30,
1500,3>4,60,12.5
4000,3-4,,
```
`3-4` is the links both ways, `3>4` the one from rank 3 to rank 4. An empty value keeps what the plan has: the third row ends the
slowdown. Times do not fall from one row to the next.
"""

from __future__ import annotations

import csv
import math
import re
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.io.input_file import read_bytes, without_mark
from schedc.io.location import one_line, show
from schedc.ir.conditions import LinkState, LinkTrace
from schedc.units import MAX_QUANTITY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from schedc.ir.problem import Problem

HEADER = ("time_ms", "ranks", "latency_ms", "bandwidth_GBps")
NS_PER_MS, BYTES_PER_GB = 1e6, 1e9
_RANKS = re.compile(r"([0-9]{1,9})([->])([0-9]{1,9})", re.ASCII)


def read_link_trace(path: Path | str, problem: Problem) -> LinkTrace:
    """The trace in a file.

    Args:
        path: the CSV file.
        problem: whose links it is about.

    Raises:
        InvalidInput: it cannot be read, or is no link trace of this problem.
    """
    try:
        text = without_mark(read_bytes(path)).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{one_line(str(path))}: found a byte that is not UTF-8, expected UTF-8") from error
    return parse_link_trace(text, problem, file=str(path))


def parse_link_trace(text: str, problem: Problem, *, file: str = "links") -> LinkTrace:
    """As `read_link_trace`, from the file's text; errors name `file`."""
    links = {(link.source, link.destination) for link in problem.links}
    return LinkTrace.of(_changes(text, links, problem.ranks, one_line(file)))


def _changes(
    text: str, links: Collection[tuple[int, int]], ranks: int, file: str
) -> Iterator[tuple[int, tuple[int, int], LinkState]]:
    lines = csv.reader(text.splitlines(), strict=True)
    try:
        header = tuple(next(lines, ()))
        if header != HEADER:
            raise InvalidInput(f"{file}: line 1: found {show(','.join(header))}, expected {','.join(HEADER)}")
        before_ns = 0
        for row in lines:
            line = _Line(f"{file}: line {lines.line_num}")
            if not row:
                continue
            if len(row) != len(HEADER):
                raise line.refuse("", f"{len(row)} values", f"{len(HEADER)}, an empty one for what stays as planned")
            time_ns = line.number(row, 0, NS_PER_MS)
            if time_ns is None:
                raise line.refuse(HEADER[0], "nothing", "a time")
            if time_ns < before_ns:
                raise line.refuse(HEADER[0], row[0].strip(), f"at least the {before_ns / NS_PER_MS:g} of the row before")
            before_ns = time_ns
            state = LinkState(
                latency_ns=line.number(row, 2, NS_PER_MS), bytes_per_second=line.number(row, 3, BYTES_PER_GB, least=1)
            )
            for link in line.links(row[1].strip(), links, ranks):
                yield time_ns, link, state
    except csv.Error as error:
        raise InvalidInput(f"{file}: line {lines.line_num}: found text that is not CSV ({error}), expected CSV") from error


class _Line:
    """A row of the file."""

    def __init__(self, place: str) -> None:
        self._place = place

    def refuse(self, key: str, found: str, expected: str) -> InvalidInput:
        where = f"{self._place}: {key}" if key else self._place
        return InvalidInput(f"{where}: found {found}, expected {expected}")

    def number(self, row: list[str], column: int, factor: float, least: int = 0) -> int | None:
        """A value, in whole small units; None where it is empty."""
        text = row[column].strip()
        if not text:
            return None
        try:
            value = float(text) * factor
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and least <= round(value) <= MAX_QUANTITY and value >= 0):
            above = "above" if least else "of at least"
            raise self.refuse(HEADER[column], show(text), f"a number {above} 0 (up to {MAX_QUANTITY / factor:.3g})")
        return round(value)

    def links(self, text: str, links: Collection[tuple[int, int]], ranks: int) -> list[tuple[int, int]]:
        """The directed links of the plan that a row names."""
        match = _RANKS.fullmatch(text)
        if match is None:
            raise self.refuse(HEADER[1], show(text), "two ranks: 3-4 for the links both ways, 3>4 for one")
        first, second = int(match[1]), int(match[3])
        for rank in (first, second):
            if rank >= ranks:
                raise self.refuse(HEADER[1], show(text), f"ranks of the plan, 0 to {ranks - 1}")
        ways = [(first, second)] if match[2] == ">" else [(first, second), (second, first)]
        found = [way for way in ways if way in links]
        if not found:
            known = ", ".join(f"{source}>{destination}" for source, destination in sorted(links)[:12])
            raise self.refuse(HEADER[1], show(text), f"links of the plan: {known or 'it has none'}{', …' * (len(links) > 12)}")
        return found
