"""`schedc simulate`: the times of a plan."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from schedc.cli.jobs import JsonOption, PlanArgument, PlanJobOption, SetOption, check_set, read_job
from schedc.errors import InvalidInput


class TransfersName(StrEnum):
    """The values of `simulate --transfers`; here, as the simulator of each loads what `--help` need not."""

    decoupled = "decoupled"
    one_queue = "one-queue"
    blocking = "blocking"


def simulate_command(
    plan: PlanArgument,
    job: PlanJobOption = None,
    values: SetOption = None,
    transfers: Annotated[
        TransfersName, typer.Option(help="How transfers hold up compute: not at all, in one queue for each rank, or each one.")
    ] = TransfersName.decoupled,
    choose: Annotated[bool, typer.Option("--choose", help="Each rank chooses its next op by what has come.")] = False,
    links: Annotated[Path | None, typer.Option(metavar="LINKTRACE", help="How links change from 0 on (CSV).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Time a plan, under its own costs or a job's: makespan, stage span, bubble, and what each rank computes and holds."""
    from schedc.api import costs_for, read_plan, simulate_plan
    from schedc.view.terminal import results

    check_set(job, values, "--job JOB")
    read = read_plan(plan)
    loaded = None if job is None else read_job(job, values)
    if choose or links is not None:
        from schedc.cli.choosing_run import print_run

        if transfers is not TransfersName.decoupled:
            raise InvalidInput(f"--transfers {transfers.value}: cannot be combined with --choose or --links; leave one out")
        print_run(read, loaded, links, choose=choose, as_json=as_json)
        return
    timeline, problem = simulate_plan(read, loaded, transfers=transfers.value), costs_for(read, loaded)
    if as_json:
        results.print_json({"transfers": transfers.value, **results.timeline_json(problem, read.schedule(), timeline)})
    else:
        results.print_timeline(problem, read.schedule(), timeline)
        if transfers is not TransfersName.decoupled:
            results.print_against_decoupled(transfers.value, timeline, simulate_plan(read, loaded))
