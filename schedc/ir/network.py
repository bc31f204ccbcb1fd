"""The Network: what a message costs between any two ranks, and which of them share a trunk.

Sites and ranks are counted from 0. A Workload has a network; a Problem has the links of it that its transfers cross. Rules across
fields are in `schedc.verify.network`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from schedc.ir.costs import FREE, MessageCost


def trunk_name(source: int, destination: int) -> str:
    """The name of the trunk from one site to another, `site0>site1`."""
    return f"site{source}>site{destination}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(MessageCost):
    """The directed link from one rank to another: `arrival = max(ready, link free) + occupancy + latency`."""

    source: int
    destination: int
    trunk: str | None = None
    """Links with the same trunk are one resource; its name has a direction in it (`site0>site1`)."""

    def __post_init__(self) -> None:
        """Refuse a link from a rank to itself, and costs that cannot be."""
        MessageCost.__post_init__(self)
        if self.source == self.destination:
            raise ValueError(f"a link needs two ranks, got {self.source} twice")

    @classmethod
    def of(cls, source: int, destination: int, cost: MessageCost, trunk: str | None) -> Link:
        """The link of this cost."""
        costs = {field.name: getattr(cost, field.name) for field in fields(MessageCost)}
        return cls(source=source, destination=destination, trunk=trunk, **costs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLink:
    """What a message costs from a rank of one site to a rank of another."""

    source: int
    """A site, as is `destination`."""
    destination: int
    cost: MessageCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What a message costs between any two ranks.

    What is said of a pair of ranks wins over what is said of their sites, and that over `between`. Each pair is said completely.
    """

    site_of_rank: tuple[int, ...]
    within: MessageCost = FREE
    """Any two ranks of one site."""
    between: MessageCost | None = None
    """Any two ranks of different sites; None: only those in `site_links` and `links` are connected."""
    site_links: tuple[SiteLink, ...] = ()
    """Directed pairs of sites that differ from `between`."""
    links: tuple[Link, ...] = ()
    """Directed pairs of ranks that differ from their sites; with their trunk, if they share it."""
    inbound: bool = False
    """Whether each rank receives over one wire, which is then the trunk of all links to it. There is one site then."""
    _cost_of_sites: dict[tuple[int, int], MessageCost] = field(init=False, repr=False, compare=False)
    _link_of: dict[tuple[int, int], Link] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the lookups of `cost` and `link`."""
        object.__setattr__(self, "_cost_of_sites", {(link.source, link.destination): link.cost for link in self.site_links})
        object.__setattr__(self, "_link_of", {(link.source, link.destination): link for link in self.links})

    def link(self, source: int, destination: int) -> Link | None:
        """The link from one rank to another; None: nothing connects them."""
        link = self._link_of.get((source, destination))
        if link is not None:
            return link
        cost = self.cost(source, destination)
        return None if cost is None else Link.of(source, destination, cost, self.trunk(source, destination))

    def connects(self, source: int, destination: int) -> bool:
        """Whether there is a link from one rank to another."""
        return self.cost(source, destination) is not None or (source, destination) in self._link_of

    def cost(self, source: int, destination: int) -> MessageCost | None:
        """What a message costs from one rank to another by their sites alone; None: nothing connects these."""
        here, there = self.site_of_rank[source], self.site_of_rank[destination]
        return self.within if here == there else self._cost_of_sites.get((here, there), self.between)

    def trunk(self, source: int, destination: int) -> str | None:
        """The trunk from one rank's site to the other's, or the wire into the other; None within a site without such wires."""
        if self.inbound:
            return f">rank{destination}"
        here, there = self.site_of_rank[source], self.site_of_rank[destination]
        return None if here == there else trunk_name(here, there)
