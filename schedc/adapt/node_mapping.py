"""Which node of a data-parallel job takes which replica and rank: a plan and the links between nodes in, an order of hosts out.

The search is `solvers.node_mapping`, which knows places only. Here processes get their numbers, as the job counts them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from schedc import __version__
from schedc.compile.certify import certify
from schedc.errors import InvalidInput
from schedc.frontend.topology import read_network
from schedc.frontend.topology_keys import TopologyFile
from schedc.io.conform import conform
from schedc.io.input_file import read_bytes
from schedc.io.location import Location
from schedc.io.tables import parse_toml
from schedc.ir import Link, MadeBy, Network, Plan
from schedc.solvers.common.base import Limits
from schedc.solvers.node_mapping.nodes import Nodes, assign_nodes
from schedc.solvers.node_mapping.value import AssignedStep, Replicated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


WORK = 20.0
"""CP-SAT's deterministic limit for each of its runs, where no time is given."""


class Order(StrEnum):
    """How a job numbers its processes, one on each node."""

    pipelines = "pipelines"
    """Replica × ranks + rank: a mesh (pipelines, ranks)."""
    ranks = "ranks"
    """Rank × replicas + replica: Megatron-LM's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Who goes where, by process number, and what a step then takes. A node is named by its process before."""

    given: Plan
    """The plan of one pipeline that runs."""
    nodes: Nodes
    """The same by places, and what the search has proven."""
    process_of: tuple[int, ...]
    """The process number of each place, replica × ranks + rank."""
    limits: Limits
    """Of each search."""

    @property
    def hosts(self) -> tuple[int, ...]:
        """Of each process number, the node that has it then."""
        node_of = {self.process_of[place]: self.process_of[node] for place, node in enumerate(self.nodes.node_of)}
        return tuple(node_of[process] for process in range(len(self.process_of)))

    @property
    def moved(self) -> tuple[int, ...]:
        """The nodes that leave their place."""
        return tuple(sorted(self.process_of[node] for node in self.nodes.moved))

    @property
    def before(self) -> AssignedStep:
        """What a step takes if every node stays, and the orders too."""
        return self.nodes.before

    @property
    def after(self) -> AssignedStep:
        """What it takes then."""
        return self.nodes.after

    def plan(self) -> Plan:
        """The plan for the links that it has then, verified: at each pair of ranks the slowest of any replica."""
        made_by = MadeBy(schedc=__version__, method="assign", reproducible=self.limits.time_s is None)
        problem = replace(self.nodes.problem, data_parallel=self.given.problem.data_parallel)
        return certify(problem, self.nodes.schedule, made_by, limits=self.limits)


def assign_plan(
    plan: Plan,
    links: Path,
    gradient_bytes: Sequence[int],
    *,
    replicas: int | None = None,
    buckets: int = 1,
    order: Order = Order.pipelines,
    exact_links: bool = False,
    keep_orders: bool = False,
    time_limit_s: float | None = None,
) -> Assignment:
    """The assignment whose step is shortest.

    Arguments are those of `schedc.assign_plan`; the gradients' sizes are one for all ranks, or one for each.

    Raises:
        InvalidInput: the file cannot be used or has other processes, there is another number of sizes, or nothing says how many
            pipelines there are.
    """
    if replicas is None:
        parallel = plan.problem.data_parallel
        if parallel is None:
            raise InvalidInput(
                f"replicas: found nothing, and plan {plan.name!r} has no data_parallel; expected how many pipelines there are"
            )
        replicas = parallel.size
    ranks = plan.problem.ranks
    process_of = tuple(
        place if order is Order.pipelines else place % ranks * replicas + place // ranks for place in range(replicas * ranks)
    )
    given = Replicated(
        problem=plan.problem,
        schedule=plan.schedule(),
        replicas=replicas,
        network=_network(links, process_of),
        gradient_bytes=tuple(gradient_bytes) * (ranks if len(gradient_bytes) == 1 else 1),
        buckets=buckets,
    )
    limits = Limits(workers=1, deterministic=WORK) if time_limit_s is None else Limits(workers=1, time_s=time_limit_s)
    nodes = assign_nodes(given, limits, exact_links=exact_links, keep_orders=keep_orders)
    return Assignment(given=plan, nodes=nodes, process_of=process_of, limits=limits)


def _network(path: Path, process_of: Sequence[int]) -> Network:
    """The links between nodes by their places, from a file that has them by process.

    Raises:
        InvalidInput: the file cannot be used, or has other processes.
    """
    at = Location(str(path))
    network = read_network(conform(parse_toml(read_bytes(path), str(path)), TopologyFile, at), len(process_of), at)
    place_of = {process: place for place, process in enumerate(process_of)}
    return Network(
        site_of_rank=tuple(network.site_of_rank[process] for process in process_of),
        within=network.within,
        between=network.between,
        site_links=network.site_links,
        links=tuple(Link.of(place_of[each.source], place_of[each.destination], each, each.trunk) for each in network.links),
    )
