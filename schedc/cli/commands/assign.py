"""`schedc assign`: which node of a data-parallel job takes which replica and rank, under the links between the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from schedc.api import assign_plan
from schedc.cli.options import JsonOption, option_seconds, option_value, output_to, read_step
from schedc.errors import InvalidInput
from schedc.io.outputs import check_outputs, write_output
from schedc.units import parse_bytes


def assign_command(
    plan: Annotated[Path, Argument(metavar="PLAN", help="The plan file (JSON) of one pipeline.")],
    links: Annotated[Path, Option("--links", metavar="TOPOLOGY", help="The links between all nodes (TOML), by process number.")],
    gradients: Annotated[
        str, Option("--gradients", metavar="SIZE", help="What the all-reduce of a rank sums: one size, or one each: 2GB,3GB.")
    ],
    replicas: Annotated[int | None, Option(min=1, help="How many pipelines. Default: the plan's data_parallel.size.")] = None,
    buckets: Annotated[int, Option(min=1, help="A rank's all-reduce is this many, one after the other.")] = 1,
    order: Annotated[
        Literal["pipelines", "ranks"], Option(help="How processes are numbered: pipeline after pipeline, or rank after rank.")
    ] = "pipelines",
    exact_links: Annotated[bool, Option("--exact-links", help="Do not take links as equal whose costs are nearly so.")] = False,
    keep_orders: Annotated[bool, Option("--keep-orders", help="Do not plan anew: every rank keeps the plan's order.")] = False,
    output: Annotated[Path | None, output_to("PLAN", "Write the plan for the links that it has then.")] = None,
    time_limit: Annotated[
        str | None, Option(metavar="TIME", help="For each search, as in 10s. Default: a fixed amount of work.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which node takes which replica and rank, so that slow links cost least, and in which order to list the hosts."""
    from schedc.formats.plan.plan_file import plan_json
    from schedc.view.terminal.results import assignment_json, shown_assignment
    from schedc.view.terminal.show import show

    read = read_step(plan)
    if replicas is None and read.problem.data_parallel is None:
        raise InvalidInput(f"--replicas: found nothing, and {plan} has no [data_parallel]; expected how many pipelines there are")
    if output is not None:
        check_outputs({"-o": output}, (plan, links), standard=True, as_json=as_json)
    found = assign_plan(
        read,
        links,
        gradient_bytes=[option_value("--gradients", text, parse_bytes) for text in gradients.split(",")],
        replicas=replicas,
        buckets=buckets,
        order=order,
        exact_links=exact_links,
        keep_orders=keep_orders,
        time_limit_s=option_seconds("--time-limit", time_limit),
    )
    if output is not None:
        write_output(output, plan_json(found.plan()))
    show(assignment_json(found) if as_json else shown_assignment(found, exact_links=exact_links))
