"""Links as a topology file, TOML that a job names by `[topology] path`: measured ones with notes for people, or a problem's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from schedc.errors import Unsupported
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schedc.ir.problem import Link, Problem

_TRUNK = re.compile(r"site(0|[1-9]\d*)>site(0|[1-9]\d*)", re.ASCII)


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

    A problem does not say which ranks form a site, only which links share a trunk, and the trunks' names say which sites they join.
    Sites are consecutive ranks: they are laid out so that every trunk joins the sites of its name; links that cross the border of
    two sites without sharing their trunk are marked as lines of their own.

    Returns:
        The file's bytes; they end with a newline.

    Raises:
        Unsupported: a trunk is not named after two sites, or the sites cannot be consecutive ranks.
    """
    sites, entries = _sites(problem), []
    for link in problem.links:
        values = _pair(link)
        if sites[link.source] != sites[link.destination] and link.trunk is None:
            values["trunk"] = False
        values["latency"] = format_duration_ns(link.latency_ns, 9)
        if link.transfer_ns is not None:
            values["transfer"] = format_duration_ns(link.transfer_ns, 9)
        elif link.bytes_per_second is not None:
            values["bandwidth"] = f"{link.bytes_per_second} B/s"
        entries.append((values, ""))
    return _toml(entries, [sites.count(site) for site in range(sites[-1] + 1)])


def _pair(link: Link) -> dict[str, object]:
    return {"ranks": [link.source, link.destination], "directed": True}


def _bandwidth(bytes_per_second: int) -> str:
    """`1.234 GB/s`, to four digits or a byte per second."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if bytes_per_second >= factor:
            return f"{bytes_per_second / factor:.3f}".rstrip("0").rstrip(".") + f" {unit}/s"
    return f"{bytes_per_second} B/s"


def _toml(links: Iterable[tuple[dict[str, object], str]], sites: Sequence[int], notes: Iterable[str] = ()) -> bytes:
    """The file, from the keys and values of each link with its note."""
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


def _sites(problem: Problem) -> list[int]:
    """The site of each rank."""
    known: dict[int, int] = {0: 0}
    for link in problem.links:
        if link.trunk is not None:
            match = _TRUNK.fullmatch(link.trunk)
            if match is None:
                raise Unsupported(
                    f"{problem.name}: the trunk {link.trunk!r} of the link from rank {link.source} to rank {link.destination} is"
                    " not named after two sites (site0>site1), so its links cannot be written as a topology"
                )
            for rank, site in zip((link.source, link.destination), map(int, match.groups()), strict=True):
                if known.setdefault(rank, site) != site:
                    raise Unsupported(
                        f"{problem.name}: rank {rank} is in the sites {known[rank]} and {site} by the names of trunks"
                    )
    sites: list[int] = []
    for rank in range(problem.ranks):
        ahead = next((at for at in range(rank, problem.ranks) if at in known), None)
        here = sites[-1] if sites else 0
        if ahead is not None and known[ahead] - here > ahead - rank:
            here += 1  # the sites up to that of the next rank that is known need one rank each
        if known.get(rank, here) != here:
            raise Unsupported(f"{problem.name}: by the names of trunks the sites are not consecutive ranks, see rank {rank}")
        sites.append(here)
    return sites
