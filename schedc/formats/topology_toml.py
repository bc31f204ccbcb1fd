"""Links as a topology file, TOML that a job names by `[topology] path`, with notes for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLink:
    """A directed link."""

    source: int
    destination: int
    latency_ns: int
    bytes_per_second: int | None
    """None: the size of a message made no difference."""
    note: str = ""
    """For people, on one line."""


def links_toml(links: Sequence[MeasuredLink], *, sites: Sequence[int] = (), notes: Sequence[str] = ()) -> bytes:
    """The bytes of a topology file of measured links.

    Args:
        links: one for each directed pair.
        sites: ranks per datacenter, in order; empty: the file says nothing of sites.
        notes: comment lines at the top.
    """
    return topology_toml(((_values(link), link.note) for link in links), sites=sites, notes=notes)


def _values(link: MeasuredLink) -> dict[str, object]:
    values: dict[str, object] = {"ranks": [link.source, link.destination], "directed": True}
    values["latency"] = format_duration_ns(link.latency_ns)
    if link.bytes_per_second is not None:
        values["bandwidth"] = _bandwidth(link.bytes_per_second)
    return values


def _bandwidth(bytes_per_second: int) -> str:
    """`1.234 GB/s`, to four digits or a byte per second."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if bytes_per_second >= factor:
            return f"{bytes_per_second / factor:.3f}".rstrip("0").rstrip(".") + f" {unit}/s"
    return f"{bytes_per_second} B/s"


def topology_toml(
    links: Iterable[tuple[Mapping[str, object], str]], *, sites: Sequence[int] = (), notes: Iterable[str] = ()
) -> bytes:
    """The file's bytes; they end with a newline.

    Args:
        links: for each, its keys and values, and a note for people on one line, or none.
        sites: ranks per datacenter, in order; empty: the file says nothing of sites.
        notes: comment lines at the top.
    """
    import tomlkit

    document, tables = tomlkit.document(), tomlkit.aot()
    for note in notes:
        document.add(tomlkit.comment(note))
    if sites:
        document["sites"] = list(sites)
    for values, note in links:
        table = tomlkit.table()
        if note:
            table.comment(note)
        table.update(values)
        tables.append(table)
    if tables:
        document["link"] = tables
    return tomlkit.dumps(document).encode()
