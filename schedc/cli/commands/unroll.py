"""`schedc unroll`: a run of steps of a plan whose steps overlap."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from schedc.api import read_plan, unroll_plan
from schedc.cli.options import PlanArgument, output_to
from schedc.io.outputs import check_outputs, write_output


def unroll_command(
    plan: PlanArgument,
    steps: Annotated[int, Option(metavar="N", min=1, help="Steps of the run, which begins and ends empty.")],
    output: Annotated[Path, output_to("RUN", "Where to write the plan of the run.")],
) -> None:
    """Make the plan of a run of steps from that of one period: what a training job executes between two checkpoints."""
    from schedc.formats.plan.plan_file import plan_json
    from schedc.view.terminal.results import certificate_lines, written_to
    from schedc.view.terminal.show import show

    check_outputs({"-o": output}, (plan,), standard=True)
    run = unroll_plan(read_plan(plan), steps)
    write_output(output, plan_json(run))
    if str(output) != "-":
        show([f"{run.name}: a run of {steps} step{'s' if steps > 1 else ''}", *certificate_lines(run), written_to(output)])
