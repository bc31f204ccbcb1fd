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
from schedc.io.location import Location, one_line, show
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
            line = Location(f"{file}: line {lines.line_num}")
            if not row:
                continue
            if len(row) != len(HEADER):
                raise line.refuse(f"{len(row)} values", f"{len(HEADER)}, an empty one for what stays as planned")
            time_ns = _number(row, 0, NS_PER_MS, line)
            if time_ns is None:
                raise (line / HEADER[0]).refuse("nothing", "a time")
            if time_ns < before_ns:
                raise (line / HEADER[0]).refuse(row[0].strip(), f"at least the {before_ns / NS_PER_MS:g} of the row before")
            before_ns = time_ns
            state = LinkState(
                latency_ns=_number(row, 2, NS_PER_MS, line), bytes_per_second=_number(row, 3, BYTES_PER_GB, line, least=1)
            )
            for link in _links(row[1].strip(), links, ranks, line / HEADER[1]):
                yield time_ns, link, state
    except csv.Error as error:
        raise InvalidInput(f"{file}: line {lines.line_num}: found text that is not CSV ({error}), expected CSV") from error


def _number(row: list[str], column: int, factor: float, line: Location, least: int = 0) -> int | None:
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
        raise (line / HEADER[column]).refuse(show(text), f"a number {above} 0 (up to {MAX_QUANTITY / factor:.3g})")
    return round(value)


def _links(text: str, links: Collection[tuple[int, int]], ranks: int, at: Location) -> list[tuple[int, int]]:
    """The directed links of the plan that a row names."""
    match = _RANKS.fullmatch(text)
    if match is None:
        raise at.refuse(show(text), "two ranks: 3-4 for the links both ways, 3>4 for one")
    first, second = int(match[1]), int(match[3])
    if max(first, second) >= ranks:
        raise at.refuse(show(text), f"ranks of the plan, 0 to {ranks - 1}")
    ways = [(first, second)] if match[2] == ">" else [(first, second), (second, first)]
    found = [way for way in ways if way in links]
    if not found:
        known = ", ".join(f"{source}>{destination}" for source, destination in sorted(links)[:12])
        raise at.refuse(show(text), f"links of the plan: {known or 'it has none'}{', …' * (len(links) > 12)}")
    return found
