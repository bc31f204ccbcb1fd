"""`schedc templates`: the known schedules, and how they do on a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from schedc.cli.options import LayoutOption, SetOption, check_set, read_job
from schedc.errors import InvalidInput


def templates_command(
    job: Annotated[Path | None, Argument(metavar="[JOB]", help="Time each template on this job; - is standard input.")] = None,
    values: SetOption = None,
    layout: LayoutOption = None,
) -> None:
    """List the known schedules; with a job, how each does on it, or why it cannot."""
    from schedc.compile.driver import time_methods
    from schedc.solvers.templates import ALL_TEMPLATES, OVERLAPPING_TEMPLATES, TEMPLATES
    from schedc.view.terminal.results import shown_candidates, shown_templates
    from schedc.view.terminal.show import show

    check_set(job, values, "JOB")
    if job is None and layout is not None:
        raise InvalidInput(f"--layout: found {layout} without a job, expected JOB, too")
    if job is None:
        show([shown_templates(ALL_TEMPLATES.values())])
        return
    problem = read_job(job, values, layout).problem
    candidates = time_methods(problem, tuple(TEMPLATES if problem.updates is None else OVERLAPPING_TEMPLATES))
    show(shown_candidates(candidates, None, f"{problem.name}: the known schedules", problem=problem))
