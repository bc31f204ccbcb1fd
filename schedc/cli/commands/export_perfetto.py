"""`schedc export perfetto`: a plan to look at in ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file (JSON).")]
OutputOption = Annotated[
    Path, typer.Option("-o", "--output", metavar="OUT", help="Where to write the events (JSON); - is standard output.")
]


def export_perfetto(plan: PlanArgument, output: OutputOption) -> None:
    """Write a plan for ui.perfetto.dev: ops and transfers over time, memory of ranks and messages on links as curves."""
    from schedc.compile.plans import time_plan
    from schedc.formats.plan.plan_file import read_plan
    from schedc.io.location import one_line
    from schedc.io.outputs import check_outputs, is_standard, write_output
    from schedc.view.perfetto.planned import plan_json

    check_outputs({"-o": output}, (plan,), standard=True)
    read = read_plan(plan)
    write_output(output, plan_json(read, time_plan(read)))
    if not is_standard(output):
        typer.echo(one_line(f"written to {output}; open it in https://ui.perfetto.dev"))
