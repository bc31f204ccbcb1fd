"""`schedc assign`: which node of a data-parallel job takes which replica and rank, under the links between the nodes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schedc.cli.quantities import option_value

if TYPE_CHECKING:
    from schedc.ir.workload import Network

__all__ = ["assign_command"]

WORK = 20.0
"""CP-SAT's deterministic limit for each of its runs, where no time is given."""

PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file (JSON) of one pipeline.")]


class Order(StrEnum):
    """How a job numbers its processes, one on each node."""

    pipelines = "pipelines"
    """Replica × ranks + rank: a mesh (pipelines, ranks)."""
    ranks = "ranks"
    """Rank × replicas + replica: Megatron-LM's order."""


def assign_command(
    plan: PlanArgument,
    links: Annotated[
        Path, typer.Option("--links", metavar="TOPOLOGY", help="The links between all nodes (TOML), by process number.")
    ],
    gradients: Annotated[
        str, typer.Option("--gradients", metavar="SIZE", help="What the all-reduce of a rank sums: one size, or one each: 2GB,3GB.")
    ],
    replicas: Annotated[int | None, typer.Option(min=1, help="How many pipelines. Default: the plan's data_parallel.size.")] = None,
    buckets: Annotated[int, typer.Option(min=1, help="A rank's all-reduce is this many, one after the other.")] = 1,
    order: Annotated[Order, typer.Option(help="How processes are numbered: pipeline after pipeline, or rank after rank.")] = (
        Order.pipelines
    ),
    exact_links: Annotated[
        bool, typer.Option("--exact-links", help="Do not take links as equal whose costs are nearly so.")
    ] = False,
    keep_orders: Annotated[
        bool, typer.Option("--keep-orders", help="Do not plan anew: every rank keeps the plan's order.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="PLAN", help="Write the plan for the links that it has then.")
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option(metavar="TIME", help="For each search, as in 10s. Default: a fixed amount of work.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of tables.")] = False,
) -> None:
    """Say which node takes which replica and rank, so that slow links cost least, and in which order to list the hosts."""
    from dataclasses import replace

    from schedc import __version__
    from schedc.cli.rendering.assignment import assignment_json, print_assignment
    from schedc.cli.rendering.results import print_json
    from schedc.compile import certify
    from schedc.errors import InvalidInput
    from schedc.files.outputs import check_outputs, write_output
    from schedc.ir.plan import MadeBy
    from schedc.solvers.assign.nodes import assign_nodes
    from schedc.solvers.assign.value import Replicated
    from schedc.solvers.common.base import Limits
    from schedc.text.plan.plan_file import read_plan
    from schedc.text.plan.plan_to_file import plan_json
    from schedc.units import parse_bytes

    read = read_plan(plan)
    ranks, parallel = read.problem.ranks, read.problem.data_parallel
    if replicas is None:
        if parallel is None:
            raise InvalidInput(
                f"--replicas: found nothing, and {plan} has no [data_parallel]; expected how many pipelines there are"
            )
        replicas = parallel.size
    if output is not None:
        check_outputs({"-o": output}, (plan, links), standard=True, as_json=as_json)
    sizes = tuple(option_value("--gradients", text, parse_bytes) for text in gradients.split(","))
    process_of = [
        place if order is Order.pipelines else place % ranks * replicas + place // ranks for place in range(replicas * ranks)
    ]
    given = Replicated(
        problem=read.problem,
        schedule=read.schedule(),
        replicas=replicas,
        network=_network(links, process_of),
        gradient_bytes=sizes * ranks if len(sizes) == 1 else sizes,
        buckets=buckets,
    )
    limits = Limits(workers=1, deterministic=WORK)
    if time_limit is not None:
        limits = Limits(workers=1, time_s=option_value("--time-limit", time_limit) / 1e9)
    found = assign_nodes(given, limits, exact_links=exact_links, keep_orders=keep_orders)
    if output is not None:
        made_by = MadeBy(schedc=__version__, method="assign", reproducible=time_limit is None)
        made = certify(replace(found.problem, data_parallel=parallel), found.schedule, made_by)
        write_output(output, plan_json(made))
    if as_json:
        print_json(assignment_json(read, found, process_of))
    else:
        print_assignment(read, found, process_of, exact_links=exact_links)


def _network(path: Path, process_of: list[int]) -> Network:
    """The links between nodes by their places, from a file that has them by process.

    Raises:
        InvalidInput: the file cannot be used, or has other processes.
    """
    from schedc.files.conform import conform
    from schedc.files.input_file import read_bytes
    from schedc.files.location import Location
    from schedc.files.tables import parse_toml
    from schedc.frontend.job_file import TopologyFile
    from schedc.frontend.topology import read_network
    from schedc.ir.problem import Link
    from schedc.ir.workload import Network

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
