"""The devices of sites, which may differ, and which of them a candidate's ranks have.

Where a pipeline crosses sites, the replicas of a rank are in one of them. Where replicas do, each rank has devices of all sites:
they do the same at the same time, so what counts is, of each layer and collective, the slowest, and the least room.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import Link, MessageCost, Network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from fractions import Fraction

    from schedc.costs.devices import Accelerator
    from schedc.costs.efficiency import Efficiency
    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.degrees import Degrees
    from schedc.study.tune.layer_costs import LayerCosts


class OptimizerRates(NamedTuple):
    """Nanoseconds for each parameter."""

    own: Fraction
    """Of those whose state a device has."""
    every: Fraction
    """Of those whose gradient it has."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SiteDevices:
    """The devices of a site; sites whose devices are equal have the same object."""

    costs: Callable[[Degrees, int, bool, bool], LayerCosts]
    """Of the model's layers by degrees, microbatch size, whether B computes norms and activation functions again, and whether W may
    run apart from it."""
    device: Accelerator | None
    """With the nodes of the site; None: the layers are measured ones."""
    rates: Efficiency
    """Which share of the links' bandwidth collectives reach, and how long they take besides."""
    within: MessageCost
    """Of one device's link to the others of the site."""
    capacity_bytes: int
    """Of a device, as is `reserve_bytes`."""
    reserve_bytes: int
    optimizer: OptimizerRates

    @property
    def room_bytes(self) -> int:
        """What a plan may use of a device."""
        return self.capacity_bytes - self.reserve_bytes


class RankDevices(NamedTuple):
    """Those that hold a rank's stages: of each site that has some, equal ones once."""

    sites: tuple[SiteDevices, ...]

    @property
    def fullest(self) -> SiteDevices:
        """Those with the least room."""
        return min(self.sites, key=lambda each: each.room_bytes)

    @property
    def within(self) -> MessageCost:
        """Of the slowest link."""
        return slowest(each.within for each in self.sites)


def slowest(links: Iterable[MessageCost]) -> MessageCost:
    """The first of those with the least bandwidth."""
    return min(links, key=lambda link: (link.bytes_per_second is None, link.bytes_per_second or 0))


def ranks_devices(sites: tuple[SiteDevices, ...], candidate: TuneCandidate) -> tuple[RankDevices, ...]:
    """Of each rank of a pipeline."""
    if candidate.across != "pipeline":
        return (RankDevices(tuple(dict.fromkeys(sites))),) * candidate.ranks
    parts = zip(candidate.site_order, candidate.ranks_of_site, strict=True)
    return tuple(RankDevices((sites[site],)) for site, ranks in parts for _ in range(ranks))


def rank_devices(sites: tuple[SiteDevices, ...], candidate: TuneCandidate, rank: int) -> RankDevices:
    """Of one rank."""
    if candidate.across != "pipeline":
        return RankDevices(tuple(dict.fromkeys(sites)))
    ends = zip(candidate.site_order, accumulate(candidate.ranks_of_site), strict=True)
    return RankDevices((sites[next(site for site, end in ends if rank < end)],))


def first_ranks(sites: tuple[SiteDevices, ...], candidate: TuneCandidate) -> dict[int, int]:
    """Of each kind of devices that ranks have, the first rank with it, and how many have it."""
    of_ranks = ranks_devices(sites, candidate)
    return {of_ranks.index(devices): count for devices, count in Counter(of_ranks).items()}


def with_own_links(network: Network, devices: tuple[RankDevices, ...], pairs: Iterable[tuple[int, int]]) -> Network:
    """The network, whose `within` is the first rank's, with the links of the pairs that are in a site of other devices."""
    links = []
    for one, other in sorted({(min(pair), max(pair)) for pair in pairs}):
        own = devices[one].within
        if network.site_of_rank[one] == network.site_of_rank[other] and own != network.within:
            links += [Link.of(one, other, own, None), Link.of(other, one, own, None)]
    return Network(site_of_rank=network.site_of_rank, within=network.within, between=network.between, links=tuple(links))
