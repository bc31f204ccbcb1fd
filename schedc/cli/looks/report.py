"""`schedc report`: a plan as one HTML page that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report_command"]


def report_command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file (JSON).")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write the page (HTML).")],
) -> None:
    """Write a plan as one HTML page: the step over time with zoom, what each op waited for, memory, idle time, certificate."""
    from schedc.compile import time_plan
    from schedc.files.outputs import check_outputs
    from schedc.files.atomic_write import write_atomically
    from schedc.report.page import report_html
    from schedc.text.plan.plan_file import read_plan

    check_outputs({"-o": output}, (plan,))
    read = read_plan(plan)
    write_atomically(output, report_html(read, time_plan(read)))
