"""What a plan of version 1 did not say: where its costs came from, made up for from the stages and the names of trunks.

Its stages know their layers of the model, which are those of a job whose layers were measured one by one. Its trunks are named
after the sites that they join; sites are consecutive ranks.
"""

from __future__ import annotations

import re
from itertools import chain, pairwise

from schedc.ir import Network, Origin, Problem

_TRUNK = re.compile(r"site(0|[1-9]\d*)>site(0|[1-9]\d*)", re.ASCII)


def origin_of(problem: Problem) -> Origin:
    """The origin of a plan's problem, with no more links than it has. Where stages do not know their layers, each has one.

    It is sound where the problem is not, so that a verifier names what is in the file.
    """
    links = {(link.source, link.destination): link for link in problem.links if max(link.source, link.destination) < problem.ranks}
    network = Network(site_of_rank=_sites(problem), links=tuple(links.values()))
    return Origin(layers_of_stage=_layers(problem), network=network)


def _layers(problem: Problem) -> tuple[tuple[int, int], ...]:
    """The layers of each stage, on each path from where those of the stage before end."""
    stages = range(len(problem.stages))
    layers = ((number, stage.layers) for number, stage in enumerate(problem.stages) if stage.layers is not None)
    known = {number: (first, last) for number, (first, last) in layers if first < last}
    steps = [step for path in problem.paths for step in pairwise(path)]
    if len(known) == len(stages) and all(a in known and b in known and known[a][1] == known[b][0] for a, b in steps):
        return tuple(known.values())
    number_of = {stage: number for number, stage in enumerate(dict.fromkeys((*chain(*problem.paths), *stages)))}
    return tuple((number_of[stage], number_of[stage] + 1) for stage in stages)


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
