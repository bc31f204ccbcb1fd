"""`schedc schema`: the JSON Schemas of files."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class SchemaName(StrEnum):
    """The files that have a schema."""

    job = "job"
    plan = "plan"
    tune = "tune"


def schema_command(file: Annotated[SchemaName, typer.Argument(metavar="job|plan|tune", help="Which file.")]) -> None:
    """Print the JSON Schema of the job, the plan, or the job of tune."""
    from schedc.view.terminal import results

    if file is SchemaName.job:
        from schedc.frontend.job_file import job_schema

        results.print_json(job_schema())
    elif file is SchemaName.tune:
        from schedc.io.quantities import schema_of
        from schedc.study.tune.tune_file import TuneFile

        results.print_json(schema_of(TuneFile, "schedc tune job"))
    else:
        from schedc.formats.plan.plan_structs import plan_schema

        results.print_json(plan_schema())
