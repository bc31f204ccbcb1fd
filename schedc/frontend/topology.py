"""[topology] read: the sites and the costs of links, from the job or from a file of their own, as a `Network`.

What is said of a pair of ranks wins over what is said of their sites, and that over `between` and `within`, each for its latency
and its occupancy (bandwidth or transfer) on its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from schedc.frontend.job_source import read_named
from schedc.frontend.topology_keys import LinkCost, LinkOverride, SiteLinkOverride, TopologyFile, TopologySection
from schedc.io.location import Location, show
from schedc.io.tables import parse_toml
from schedc.ir import FREE, Link, MessageCost, Network, SiteLink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.frontend.job_source import JobSource

PairOverride = TypeVar("PairOverride", LinkOverride, SiteLinkOverride)


def read_topology(section: TopologySection, source: JobSource) -> tuple[TopologyFile, Location]:
    """The topology and its place: the job's own table, or the file that it names, with the values that are set in it.

    Raises:
        InvalidInput: the file cannot be used.
    """
    if section.path is None:
        return section, source.place / "topology"
    return read_named(source, "topology", section.path, TopologyFile, parse_toml)


def read_network(topology: TopologyFile, ranks: int, location: Location) -> Network:
    """What the topology says of any two ranks; `location` is its place.

    Raises:
        InvalidInput: sites that do not add up to the ranks, sites or ranks that do not exist, or a pair given twice.
    """
    sites = (ranks,) if topology.sites is None else topology.sites
    if sum(sites) != ranks:
        raise (location / "sites").refuse(
            f"{show(sites)}, {sum(sites)} in all", f"sites that add up to the {ranks} of pipeline.ranks"
        )
    site = tuple(site for site, size in enumerate(sites) for _ in range(size))
    if topology.between is not None and site[-1] == 0:
        raise (location / "between").refuse("a table where all ranks are in one site", "two or more sites in topology.sites")
    if topology.inbound and site[-1] > 0:
        raise (location / "inbound").refuse("true with several sites, whose links share trunks", "one site, or no such key")
    between = None if topology.between is None else _over(FREE, topology.between)
    of_sites = _directed(topology.site_link, site[-1] + 1, location / "site_link", "sites")
    network = Network(
        site_of_rank=site,
        within=FREE if topology.within is None else _over(FREE, topology.within),
        between=between,
        inbound=topology.inbound,
        site_links=tuple(
            SiteLink(source=source, destination=destination, cost=_over(between or FREE, override))
            for (source, destination), override in of_sites.items()
        ),
    )
    links = []
    for (source, destination), override in _directed(topology.link, ranks, location / "link", "ranks").items():
        cost = _over(network.cost(source, destination) or FREE, override)
        trunk = network.trunk(source, destination) if override.trunk else None
        links.append(Link.of(source, destination, cost, trunk))
    return replace(network, links=tuple(links))


def check_connected(network: Network, pairs: Sequence[tuple[int, int]], location: Location) -> None:
    """Refuse a topology, whose place is `location`, that says nothing of a pair of ranks that transfers cross.

    Raises:
        InvalidInput: nobody describes the trunk of their sites.
    """
    for source, destination in pairs:
        if not network.connects(source, destination):
            here, there = network.site_of_rank[source], network.site_of_rank[destination]
            raise (location / "between").refuse(
                "nothing", f"a table, as ranks {source} and {destination} are in the sites {here} and {there}"
            )


def _over(base: MessageCost, cost: LinkCost) -> MessageCost:
    """The cost, completed by what is known of the pair otherwise."""
    latency_ns = base.latency_ns + base.setup_ns if cost.latency_ns is None else cost.latency_ns
    holds = base.setup_ns > 0 if cost.holds_latency is None else cost.holds_latency
    over = replace(base, latency_ns=0 if holds else latency_ns, setup_ns=latency_ns if holds else 0)
    if cost.bytes_per_second is None and cost.transfer_ns is None:
        return over
    return replace(over, bytes_per_second=cost.bytes_per_second, transfer_ns=cost.transfer_ns)


def _directed(
    overrides: Sequence[PairOverride], count: int, location: Location, key: str
) -> Mapping[tuple[int, int], PairOverride]:
    """Each directed pair that an override is about; `key` is its list of two, which are counted up to `count`."""
    found: dict[tuple[int, int], PairOverride] = {}
    first: dict[tuple[int, int], int] = {}
    for index, override in enumerate(overrides):
        at = location / index
        a, b = pair = override.ranks if isinstance(override, LinkOverride) else override.sites
        if min(pair) < 0 or max(pair) >= count:
            raise (at / key).refuse(
                show(pair), f"two of the {key} 0 to {count - 1}" if count > 1 else f"no pair, with one of the {key}"
            )
        for way in ((a, b),) if override.directed else ((a, b), (b, a)):
            if way in found:
                earlier = location / first[way]
                raise (at / key).refuse(
                    f"{show(pair)}, which {earlier.path} gives already", f"each pair of {key} once per direction"
                )
            found[way], first[way] = override, index
    return found
