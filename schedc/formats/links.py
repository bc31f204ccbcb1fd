"""Links in files: a topology as TOML, that a job names by `[topology] path`, and a trace of what they cost over time as CSV.

A topology has measured links with notes for people, or a problem's. A link trace says at which time a link takes which latency and
bandwidth:

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
from collections import Counter
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput, Unsupported
from schedc.io.input_file import read_bytes, without_mark
from schedc.io.location import Location, one_line, show
from schedc.ir import Link, LinkState, LinkTrace, Network, Problem
from schedc.units import MAX_QUANTITY, format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path


def links_toml(links: Iterable[tuple[Link, str]], *, sites: Sequence[int] = (), notes: Iterable[str] = ()) -> bytes:
    """The bytes of a topology file of measured links, in numbers that people read; they end with a newline.

    Args:
        links: one for each directed pair, with a note for people on one line, or none; without a bandwidth, the size of a message
            made no difference.
        sites: ranks per datacenter, in order; empty: the file says nothing of sites.
        notes: comment lines at the top.
    """
    entries = []
    for link, note in links:
        values = {**_pair(link), "latency": format_duration_ns(link.latency_ns)}
        if link.bytes_per_second is not None:
            values["bandwidth"] = _bandwidth(link.bytes_per_second)
        entries.append((values, note))
    return _toml(entries, sites, notes)


def link_topology_toml(problem: Problem) -> bytes:
    """A problem's links, exactly: each an override of its own, from which the front end makes the same links.

    Links that cross the border of two sites without sharing their trunk are marked as lines of their own.

    Returns:
        The file's bytes; they end with a newline.

    Raises:
        Unsupported: a trunk is not named after the two sites of its ranks, sites are not consecutive ranks, or a link is held for a
            part of its latency.
    """
    sites, entries = _sites(problem), []
    site_of = [site for site, count in enumerate(sites) for _ in range(count)]
    for link in problem.links:
        values = _pair(link)
        if site_of[link.source] != site_of[link.destination] and link.trunk is None:
            values["trunk"] = False
        if link.setup_ns and link.latency_ns:
            raise Unsupported(
                f"{problem.name}: a message holds the link from rank {link.source} to rank {link.destination} for a part of its"
                " latency, which no topology says"
            )
        values["latency"] = format_duration_ns(link.latency_ns + link.setup_ns, 9)
        if link.setup_ns:
            values["holds_latency"] = True
        if link.transfer_ns is not None:
            values["transfer"] = format_duration_ns(link.transfer_ns, 9)
        elif link.bytes_per_second is not None:
            values["bandwidth"] = f"{link.bytes_per_second} B/s"
        entries.append((values, ""))
    return _toml(entries, sites, inbound=problem.origin is not None and problem.origin.network.inbound)


def _pair(link: Link) -> dict[str, object]:
    return {"ranks": [link.source, link.destination], "directed": True}


def _bandwidth(bytes_per_second: int) -> str:
    """`1.234 GB/s`, to four digits or a byte per second."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if bytes_per_second >= factor:
            return f"{bytes_per_second / factor:.3f}".rstrip("0").rstrip(".") + f" {unit}/s"
    return f"{bytes_per_second} B/s"


def _toml(
    links: Iterable[tuple[dict[str, object], str]], sites: Sequence[int], notes: Iterable[str] = (), *, inbound: bool = False
) -> bytes:
    """The file, from the keys and values of each link with its note."""
    import tomlkit

    document, tables = tomlkit.document(), tomlkit.aot()
    for note in notes:
        document.add(tomlkit.comment(note))
    if sites:
        document["sites"] = list(sites)
    if inbound:
        document["inbound"] = True
    for values, note in links:
        table = tomlkit.table()
        if note:
            table.comment(note)
        table.update(values)
        tables.append(table)
    if tables:
        document["link"] = tables
    return tomlkit.dumps(document).encode()


def _sites(problem: Problem) -> list[int]:
    """How many ranks each site has; where nobody says, there is one."""
    network = Network(site_of_rank=(0,) * problem.ranks) if problem.origin is None else problem.origin.network
    for link in problem.links:
        if link.trunk not in (None, network.trunk(link.source, link.destination)):
            raise Unsupported(
                f"{problem.name}: the trunk {link.trunk!r} of the link from rank {link.source} to rank {link.destination} is"
                " not named after two sites (site0>site1), so its links cannot be written as a topology"
            )
    counts = Counter(network.site_of_rank)
    if network.site_of_rank != tuple(sorted(network.site_of_rank)) or set(counts) != set(range(len(counts))):
        raise Unsupported(f"{problem.name}: its sites are not consecutive ranks, so they cannot be written as a topology")
    return [counts[site] for site in range(len(counts))]


HEADER = ("time_ms", "ranks", "latency_ms", "bandwidth_GBps")
NS_PER_MS, BYTES_PER_GB = 1e6, 1e9
_RANKS = re.compile(r"([0-9]{1,9})([->])([0-9]{1,9})", re.ASCII)


def read_link_trace(path: Path | str, problem: Problem) -> LinkTrace:
    """The trace in a CSV file, of the links of this problem.

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
