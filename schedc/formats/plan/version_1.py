"""What a plan of version 1 did not say: where its costs came from, made up for from the stages and the names of trunks.

Its stages know their layers of the model, which are those of a job whose layers were measured one by one. Its trunks are named
after the sites that they join; sites are consecutive ranks.
"""

from __future__ import annotations

import re

from schedc.ir import Network, Origin, Problem

_TRUNK = re.compile(r"site(0|[1-9]\d*)>site(0|[1-9]\d*)", re.ASCII)


def origin_of(problem: Problem) -> Origin:
    """The origin of a plan's problem, with no more links than it has. Where stages do not know their layers, each has one."""
    layers = tuple(stage.layers for stage in problem.stages if stage.layers is not None)
    if len(layers) < len(problem.stages):
        layers = tuple((stage, stage + 1) for stage in range(len(problem.stages)))
    return Origin(layers_of_stage=layers, network=Network(site_of_rank=_sites(problem), links=problem.links))


def _sites(problem: Problem) -> tuple[int, ...]:
    """The site of each rank, such that every trunk joins the two that it is named after; all in one where there is no such way."""
    known: dict[int, int] = {0: 0}
    for link in problem.links:
        match = _TRUNK.fullmatch(link.trunk or "")
        if match is not None:
            for rank, site in zip((link.source, link.destination), map(int, match.groups()), strict=True):
                if known.setdefault(rank, site) != site:
                    return (0,) * problem.ranks
    sites: list[int] = []
    for rank in range(problem.ranks):
        ahead = next((at for at in range(rank, problem.ranks) if at in known), None)
        here = sites[-1] if sites else 0
        if ahead is not None and known[ahead] - here > ahead - rank:
            here += 1  # the sites up to that of the next rank that is known need one rank each
        if known.get(rank, here) != here:
            return (0,) * problem.ranks
        sites.append(here)
    return tuple(sites)
