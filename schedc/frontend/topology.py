"""[topology] made into the problem's links.

Takes the sites and the costs of links, from the job or from a file of their own; gives one `Link` for each directed pair of ranks
that a transfer crosses. What is said of a pair of ranks wins over what is said of their sites, and that over `between` and
`within`, each for its latency and its occupancy (bandwidth or transfer) on its own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from schedc.errors import InvalidInput
from schedc.files.conform import conform
from schedc.files.input_file import read_bytes
from schedc.files.location import Location, show
from schedc.files.tables import parse_toml
from schedc.frontend.job_file import LinkCost, LinkOverride, SiteLinkOverride, TopologyFile, TopologySection
from schedc.ir.problem import Link

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from schedc.frontend.placement import Placed

__all__ = ["build_links", "read_topology", "trunk_name"]

Override = TypeVar("Override", LinkOverride, SiteLinkOverride)


def read_topology(section: TopologySection, directory: Path, root: Location) -> tuple[TopologyFile, Location]:
    """The topology and the place where it stands: the job's own table, or the file that it names.

    Raises:
        InvalidInput: the file cannot be used, or the table has other keys beside its path.
    """
    at = root / "topology"
    if section.path is None:
        return section, at
    if section != TopologySection(path=section.path):
        raise at.refuse("other keys beside topology.path", "the topology here or in the file, not in both")
    path = directory / section.path
    try:
        content = read_bytes(path)
    except InvalidInput as error:
        raise (at / "path").error(f"found {show(section.path)}; {error}") from error
    file = Location(str(path))
    return conform(parse_toml(content, str(path)), TopologyFile, file), file


def trunk_name(source: int, destination: int) -> str:
    """The name of the trunk from one site to another, `site0>site1`."""
    return f"site{source}>site{destination}"


def _site_of_ranks(topology: TopologyFile, ranks: int, location: Location) -> tuple[int, ...]:
    """The site of each rank.

    Raises:
        InvalidInput: the sites do not add up to the ranks.
    """
    sites = (ranks,) if topology.sites is None else topology.sites
    if sum(sites) != ranks:
        raise (location / "sites").refuse(
            f"{show(sites)}, {sum(sites)} in all", f"sites that add up to the {ranks} of pipeline.ranks"
        )
    return tuple(site for site, size in enumerate(sites) for _ in range(size))


def build_links(topology: TopologyFile, placed: Placed, ranks: int, location: Location) -> tuple[Link, ...]:
    """The links that transfers cross, by source and destination; `location` is the topology's place.

    Raises:
        InvalidInput: sites or ranks that do not exist, a pair given twice, or sites whose trunk nobody describes.
    """
    site = _site_of_ranks(topology, ranks, location)
    _check_cost(topology.within, location / "within")
    _check_cost(topology.between, location / "between")
    if topology.between is not None and site[-1] == 0:
        raise (location / "between").refuse("a table where all ranks are in one site", "two or more sites in topology.sites")
    of_sites = _directed(topology.site_link, site[-1] + 1, location / "site_link", "sites")
    of_ranks = _directed(topology.link, ranks, location / "link", "ranks")
    links = []
    for source, destination in _crossed(placed):
        here, there = site[source], site[destination]
        override = of_ranks.get((source, destination))
        if here == there:
            base, trunk = topology.within or LinkCost(), None
        else:
            between = of_sites.get((here, there))
            if topology.between is None and between is None and override is None:
                raise (location / "between").refuse(
                    "nothing", f"a table, as ranks {source} and {destination} are in the sites {here} and {there}"
                )
            base = _over(topology.between or LinkCost(), between)
            trunk = trunk_name(here, there) if override is None or override.trunk else None
        cost = _over(base, override)
        links.append(
            Link(
                source=source,
                destination=destination,
                latency_ns=cost.latency_ns or 0,
                transfer_ns=cost.transfer_ns,
                bytes_per_second=cost.bytes_per_second,
                trunk=trunk,
            )
        )
    return tuple(links)


def _crossed(placed: Placed) -> list[tuple[int, int]]:
    """The directed pairs of ranks that activations, and on the way back gradients, cross."""
    rank = placed.rank_of_stage
    forth = {(rank[a], rank[b]) for path in placed.paths for a, b in pairwise(path) if rank[a] != rank[b]}
    return sorted(forth | {(b, a) for a, b in forth})


def _over(base: LinkCost, cost: LinkCost | None) -> LinkCost:
    """The cost, completed by what is known of the pair otherwise."""
    if cost is None:
        return base
    occupancy = base if cost.bytes_per_second is None and cost.transfer_ns is None else cost
    latency_ns = base.latency_ns if cost.latency_ns is None else cost.latency_ns
    return LinkCost(latency_ns=latency_ns, bytes_per_second=occupancy.bytes_per_second, transfer_ns=occupancy.transfer_ns)


def _directed(overrides: Sequence[Override], count: int, location: Location, key: str) -> Mapping[tuple[int, int], Override]:
    """Each directed pair that an override is about; `key` is its list of two, which are counted up to `count`."""
    found: dict[tuple[int, int], Override] = {}
    first: dict[tuple[int, int], int] = {}
    for index, override in enumerate(overrides):
        at = location / index
        a, b = pair = override.ranks if isinstance(override, LinkOverride) else override.sites
        if min(pair) < 0 or max(pair) >= count:
            raise (at / key).refuse(
                show(pair), f"two of the {key} 0 to {count - 1}" if count > 1 else f"no pair, with one of the {key}"
            )
        if a == b:
            raise (at / key).refuse(show(pair), f"two different {key}")
        _check_cost(override, at)
        silent = override.latency_ns is None and override.bytes_per_second is None and override.transfer_ns is None
        if silent and not (isinstance(override, LinkOverride) and not override.trunk):
            raise at.refuse("neither latency nor bandwidth nor transfer", "one of them or more")
        for way in ((a, b),) if override.directed else ((a, b), (b, a)):
            if way in found:
                earlier = location / first[way]
                raise (at / key).refuse(
                    f"{show(pair)}, which {earlier.path} gives already", f"each pair of {key} once for a direction"
                )
            found[way], first[way] = override, index
    return found


def _check_cost(cost: LinkCost | None, location: Location) -> None:
    if cost is not None and cost.bytes_per_second is not None and cost.transfer_ns is not None:
        raise (location / "transfer").refuse("both bandwidth and transfer", "one of them")
