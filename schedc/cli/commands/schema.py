"""`schedc schema`: the JSON Schemas of files."""

from __future__ import annotations

from typing import Annotated, Literal

from typer import Argument


def schema_command(file: Annotated[Literal["job", "plan", "tune"], Argument(metavar="job|plan|tune", help="Which file.")]) -> None:
    """Print the JSON Schema of the job, the plan, or the job of tune."""
    from schedc.formats.plan.plan_structs import plan_schema
    from schedc.frontend.job_file import job_schema
    from schedc.frontend.tune_file import TuneFile
    from schedc.io.conform import schema_of
    from schedc.view.terminal.show import show

    if file == "job":
        show(job_schema())
    else:
        show(plan_schema() if file == "plan" else schema_of(TuneFile, "schedc tune job"))
