"""Writing measured links as a topology file, TOML that a job names by `[topology] path`, with notes for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.files.atomic_write import write_atomically
from schedc.text.topology_toml import topology_toml
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["MeasuredLink", "links_toml", "write_links"]


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


def write_links(path: Path | str, links: Sequence[MeasuredLink], *, sites: Sequence[int] = (), notes: Sequence[str] = ()) -> None:
    """Write the file, whole or not at all.

    Args:
        path: of the file.
        links: one for each directed pair.
        sites: ranks per datacenter, in order; empty: the file says nothing of sites.
        notes: comment lines at the top.

    Raises:
        InvalidInput: it cannot be written.
    """
    write_atomically(path, links_toml(links, sites=sites, notes=notes))


def links_toml(links: Sequence[MeasuredLink], *, sites: Sequence[int] = (), notes: Sequence[str] = ()) -> bytes:
    """The file's bytes. The arguments are those of `write_links`."""
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
