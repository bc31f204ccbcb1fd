"""What several commands take, declared once, and how it is read: jobs with `--set` and `-`, plans, times and sizes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from schedc.errors import CheckFailed, InvalidInput
from schedc.io.location import one_line
from schedc.io.outputs import is_standard
from schedc.units import parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from schedc.frontend.job import Job
    from schedc.frontend.job_source import JobSource
    from schedc.ir.plan import Plan
    from schedc.solvers.common.incumbent import Failure


def output_to(metavar: str, help: str) -> Any:
    """The option `-o`: where what a command makes goes."""
    return Option("-o", "--output", metavar=metavar, help=help)


JobArgument = Annotated[Path, Argument(metavar="JOB", help="The job file (TOML); - is standard input.")]
PlanJobOption = Annotated[
    Path | None, Option("--job", metavar="JOB", help="The job to check or time the plan against; - is standard input.")
]
SetOption = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help='Set a value of the job, as in pipeline.microbatches=32 or topology.between.latency="9 ms". Repeatable.',
    ),
]
LayoutOption = Annotated[
    Path | None, Option("--layout", metavar="PLAN", help='Take the layout of this plan where the job leaves it open with "auto".')
]
PlanArgument = Annotated[Path, Argument(metavar="PLAN", help="The plan file (JSON).")]
JsonOption = Annotated[bool, Option("--json", help="Print one JSON object on standard output instead of tables.")]
JsonNotLinesOption = Annotated[bool, Option("--json", help="Print one JSON object on standard output instead of lines.")]
QuietOption = Annotated[bool, Option("--quiet", help="No progress and no table.")]
SeedOption = Annotated[int | None, Option(min=0, max=2**31 - 1, help="Seed of random numbers.")]
GapOption = Annotated[float | None, Option(min=0, max=0.999, help="Stop when proven to be within this gap, as in 0.01.")]
WorkersOption = Annotated[int, Option(min=1, max=1024, help="Search threads of CP-SAT.")]
DevicesOption = Annotated[int | None, Option(min=1, metavar="N", help="Of a job of tune: devices, which --sites share.")]
BatchOption = Annotated[int | None, Option(min=1, metavar="N", help="Of a job of tune: sequences of a training step.")]
SitesOption = Annotated[int, Option(min=1, help="Datacenters, which share the ranks or the devices.")]
LatencyOption = Annotated[str | None, Option(metavar="TIME", help='Between sites, as in "10 ms".')]
BandwidthOption = Annotated[str | None, Option(metavar="RATE", help='Between sites, of all devices together, as in "100 Gb/s".')]
SequenceOption = Annotated[int | None, Option(min=1, help="Tokens in a sequence. Default: as of schedc costs.")]
TensorOption = Annotated[int, Option(min=1, help="Tensor parallel size.")]
ContextOption = Annotated[int, Option(min=1, help="Context parallel size.")]
ExpertOption = Annotated[int, Option(min=1, help="Expert parallel size.")]
MicrobatchOption = Annotated[int, Option(min=1, help="Sequences in a microbatch.")]

INTERRUPTED = 130
"""The exit status after an interruption from the keyboard."""


def option_value(option: str, text: str, parse: Callable[[str], int] = parse_duration_ns) -> int:
    """What the parser of a unit makes of an option's text: nanoseconds, if none is given.

    Raises:
        InvalidInput: the text is none of that unit; names the option.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidInput(f"{option}: found {text!r}, {error}") from None


def option_seconds(option: str, text: str | None) -> float | None:
    """The seconds of an option's time, if there is one.

    Raises:
        InvalidInput: the text is no time.
    """
    return None if text is None else option_value(option, text) / 1e9


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
    from schedc.frontend.job_source import option_override, source_of_file, source_of_standard_input

    overrides = [option_override(text) for text in values or ()]
    return source_of_standard_input(overrides) if is_standard(path) else source_of_file(path, overrides)


def read_given_job(path: Path | None, values: list[str] | None) -> Job | None:
    """The job that `--job` names, if it does; see `read_job`."""
    return None if path is None else read_job(path, values)


def check_set(path: Path | None, values: list[str] | None, job: str) -> None:
    """Refuse `--set` where no job is given; `job` is what would give one.

    Raises:
        InvalidInput: there is nothing to set it in.
    """
    if path is None and values:
        raise InvalidInput(f"--set: found {values[0]!r} without a job, expected {job}, too")


def read_run(path: Path) -> Plan:
    """The plan in the file, for commands that time it; of a period, a run of it from empty to empty, with two whole periods.

    The run's name says how many steps it has: figures and pictures are of the run, not of the period.
    """
    from dataclasses import replace

    from schedc.analysis.simulation.unroll import depth_of
    from schedc.formats.plan.plan_file import read_plan
    from schedc.lower.run import run_of

    read = read_plan(path)
    if not read.is_period:
        return read
    steps = depth_of(read.problem, read.schedule()) + 2
    run = run_of(read, steps)
    return replace(run, problem=replace(run.problem, name=f"{run.problem.name}, a run of {steps} steps"))


def read_step(path: Path) -> Plan:
    """The plan in the file, for commands that ask something of a step that ends before the next begins.

    Raises:
        InvalidInput: its steps overlap.
    """
    from schedc.formats.plan.plan_file import read_plan

    read = read_plan(path)
    if read.problem.updates is not None:
        expected = 'a plan of one step for this command, of a job without mode = "asynchronous"'
        raise InvalidInput(f"{path}: pipeline.updates: the plan's steps overlap, expected {expected}")
    return read


def read_sound_plan(path: Path) -> Plan:
    """The plan in the file, for commands that write it in another tool's format.

    Raises:
        InvalidInput: its steps overlap, which other tools' formats cannot say.
        CheckFailed: its verifier refuses it.
    """
    from schedc.compile.certify import check_plan

    read = read_step(path)
    violations = check_plan(read)
    if violations:
        raise CheckFailed(f"{path}: {violations[0]} (`schedc verify` lists all {len(violations)})")
    return read


def say_defects(failures: Iterable[Failure], end: str) -> None:
    """A line on standard error for each method that ended with an exception of its own; `end` is what follows from it."""
    for failure in failures:
        typer.echo(f"schedc: a defect of schedc, please report it: {failure}; {end}", err=True)


def say_interrupted(output: Path) -> None:
    """Say on standard error that the plan is the best so far, where no table does."""
    sys.stdout.flush()
    where = "standard output" if is_standard(output) else one_line(str(output))
    typer.echo(f"schedc: the best plan so far is written to {where}: interrupted", err=True)
