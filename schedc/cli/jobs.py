"""The job of a command: its argument or option, `-` for standard input, and `--set`, alike for every command that takes a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from schedc.frontend.job import Job
    from schedc.frontend.job_source import JobSource

JobArgument = Annotated[Path, typer.Argument(metavar="JOB", help="The job file (TOML); - is standard input.")]
PlanJobOption = Annotated[
    Path | None, typer.Option("--job", metavar="JOB", help="The job to check or time the plan against; - is standard input.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help='Set a value of the job, as in pipeline.microbatches=32 or topology.between.latency="9 ms". Repeatable.',
    ),
]


LayoutOption = Annotated[
    Path | None,
    typer.Option("--layout", metavar="PLAN", help='Take the layout of this plan where the job leaves it open with "auto".'),
]


PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file (JSON).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of tables.")]


def read_job(path: Path, values: list[str] | None, layout: Path | None = None) -> Job:
    """The job at the path, or in standard input, with the values of `--set`, in the layout of that plan if one is given.

    Raises:
        InvalidInput: it, or a file that it names, cannot be read or used, a value cannot be set, or the layout is not the job's.
    """
    from schedc.formats.plan.plan_file import read_plan
    from schedc.frontend.chosen_layout import job_in_layout
    from schedc.frontend.job import checked_job

    source = read_source(path, values)
    return checked_job(source) if layout is None else job_in_layout(source, read_plan(layout), f"--layout {layout}")


def read_source(path: Path, values: list[str] | None) -> JobSource:
    """The text of a job, at the path or in standard input, with the values of `--set`, not yet checked.

    Raises:
        InvalidInput: it cannot be read or is not TOML, or a value cannot be set.
    """
    from schedc.frontend.job_source import source_of_file, source_of_standard_input
    from schedc.frontend.overrides import option_override
    from schedc.io.outputs import is_standard

    overrides = [option_override(text) for text in values or ()]
    return source_of_standard_input(overrides) if is_standard(path) else source_of_file(path, overrides)


def check_set(path: Path | None, values: list[str] | None, job: str) -> None:
    """Refuse `--set` where no job is given; `job` is what would give one.

    Raises:
        InvalidInput: there is nothing to set it in.
    """
    if path is None and values:
        raise InvalidInput(f"--set: found {values[0]!r} without a job, expected {job}, too")
