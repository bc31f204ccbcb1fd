"""What must hold of a Network for a number of ranks. Gives every violation, none if all is sound."""

from __future__ import annotations

from schedc.ir import Network
from schedc.verify.violation import Checks, Found, absent, negative, repeated

NETWORK: Checks[[Network, int]] = Checks()


@NETWORK
def check_sites(network: Network, ranks: int) -> Found:
    """Every rank is in a site; sites are counted from 0."""
    sites = network.site_of_rank
    if len(sites) != ranks:
        yield "network.site_of_rank", f"expected one site for each of the {ranks} ranks, found {len(sites)}"
    yield from negative("network.site_of_rank", sites)


@NETWORK
def check_link_ends(network: Network, ranks: int) -> Found:
    """What is said of two sites or of two ranks is about two that exist."""
    sites = max(network.site_of_rank, default=-1) + 1
    for index, between in enumerate(network.site_links):
        place = f"network.site_links[{index}]"
        yield from absent("site", sites, ((place, between.source), (place, between.destination)))
        if between.source == between.destination:
            yield place, f"expected two sites, found {between.source} twice"
    for index, link in enumerate(network.links):
        place = f"network.links[{index}]"
        yield from absent("rank", ranks, ((place, link.source), (place, link.destination)))


@NETWORK
def check_link_unique(network: Network, _: int) -> Found:
    """A directed pair of sites, or of ranks, is described once."""
    yield from repeated("network.site_links", ((link.source, link.destination) for link in network.site_links), "{} to {}")
    yield from repeated("network.links", ((link.source, link.destination) for link in network.links), "{} to {}")
