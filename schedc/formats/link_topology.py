"""A problem's links as a topology file, exactly: each an override of its own, from which the front end makes the same links.

A problem does not say which ranks form a site, only which links share a trunk, and the trunks' names say which sites they join.
Sites are consecutive ranks: they are laid out so that every trunk joins the sites of its name; links that cross the border of
two sites without sharing their trunk are marked as lines of their own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from schedc.errors import Unsupported
from schedc.formats.topology_toml import topology_toml
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from schedc.ir.problem import Link, Problem

_TRUNK = re.compile(r"site(0|[1-9]\d*)>site(0|[1-9]\d*)", re.ASCII)


def link_topology_toml(problem: Problem) -> bytes:
    """The file's bytes; they end with a newline.

    Raises:
        Unsupported: a trunk is not named after two sites, or the sites cannot be consecutive ranks.
    """
    sites = _sites(problem)
    sizes = [sites.count(site) for site in range(sites[-1] + 1)]
    return topology_toml(((_values(link, sites), "") for link in problem.links), sites=sizes)


def _values(link: Link, sites: list[int]) -> dict[str, object]:
    values: dict[str, object] = {"ranks": [link.source, link.destination], "directed": True}
    if sites[link.source] != sites[link.destination] and link.trunk is None:
        values["trunk"] = False
    values["latency"] = format_duration_ns(link.latency_ns, 9)
    if link.transfer_ns is not None:
        values["transfer"] = format_duration_ns(link.transfer_ns, 9)
    elif link.bytes_per_second is not None:
        values["bandwidth"] = f"{link.bytes_per_second} B/s"
    return values


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
