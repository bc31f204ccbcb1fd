"""The Workload: what must be trained and on what. No stage is in it; a Layout says which rank has which layers.

The front end makes it from a job's files; `schedc.lower.problem` makes a Problem of it and a Layout. Layers, ranks, sites and
microbatches are counted from 0. Rules across fields are in `schedc.verify.workload`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from schedc.ir.costs import FREE, BlockCosts, MessageCost
from schedc.ir.problem import DataParallel, Link, Objective


class Semantics(StrEnum):
    """Whose B and W a stage has (`schedc.lower.problem`)."""

    SCHEDC = "schedc"
    TORCH = "torch"


def trunk_name(source: int, destination: int) -> str:
    """The name of the trunk from one site to another, `site0>site1`."""
    return f"site{source}>site{destination}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(BlockCosts):
    """A layer of the model, or a piece of it whose layers nobody measured apart: what no layout cuts.

    Its messages are what it sends and gets back if a stage ends with it.
    """

    forward_again_ns: tuple[int, ...] | None = None
    """The forward that runs again where its stage recomputes; None: takes what the forward takes."""
    parameters: int = 0
    """How many weights it has."""
    expert_parameters: int = 0
    """Those of them that are of routed experts; expert parallelism leaves them fewer replicas than the others have."""
    static_bytes: int = 0
    """What its stage holds for it all the time: weights, gradients, optimizer state."""
    position: tuple[int, int] | None = None
    """Which of the model's layers it is, [first, last); None: not known. Two with the same position are one piece of the model that
    costs something else on another path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a rank computes on: how fast it is, and how much it can hold, in at most one of three ways; in none: without limit."""

    speed: Fraction = Fraction(1)
    """Blocks take here their layers' durations divided by it."""
    limit_bytes: int | None = None
    """Of activations."""
    in_flight: int | None = None
    """Of activations, in microbatches: this many times what one of them holds on the rank, all its stages of one path together."""
    capacity_bytes: int | None = None
    """Of everything; activations get what the rank's stages do not hold all the time."""


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
        """The trunk from one rank's site to the other's; None within a site."""
        here, there = self.site_of_rank[source], self.site_of_rank[destination]
        return None if here == there else trunk_name(here, there)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training step: a model's layers, the devices and the network that it runs on, and what is sought.

    What is given for stages (`static_bytes` and the durations of `data_parallel`) is one value for each stage of any layout, or a
    list for the one layout that the job fixes.
    """

    name: str
    microbatches: int
    layers: tuple[Layer, ...]
    """In the order of the forward."""
    devices: tuple[Device, ...]
    """One for each rank."""
    network: Network
    static_bytes: tuple[int, ...] = (0,)
    """What a stage holds all the time besides what its layers say."""
    data_parallel: DataParallel | None = None
    split_backward: bool = True
    """Whether B and W may run apart."""
    in_order: bool = True
    """Whether microbatches enter the pipeline in the order of their numbers; False: in any order."""
    semantics: Semantics = Semantics.SCHEDC
    objective: Objective = Objective.MAKESPAN

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.devices)
