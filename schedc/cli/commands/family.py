"""`schedc family`: one plan for each of several conditions, and a table by which a job without a solver picks."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from schedc.cli.jobs import JobArgument, LayoutOption, SetOption, read_job
from schedc.cli.quantities import option_value
from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from schedc.ir.conditions import Conditions
    from schedc.ir.problem import Problem

TIME_LIMIT = "20s"
SAMPLES = 512
"""A trace's states, or a distribution's, of which the clusters are."""


def family_command(
    job: JobArgument,
    links: Annotated[
        list[str],
        typer.Option(
            "--links",
            metavar="LINKTRACE|RANKS=TIMES|DISTRIBUTION",
            help="Conditions: 3-4=10ms,30ms; each=30ms, one pair after the other; all=30ms; or states of a link trace. Repeatable.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where the plans and family.json go; what fits is kept.")
    ],
    values: SetOption = None,
    layout: LayoutOption = None,
    most: Annotated[
        int,
        typer.Option(min=1, max=256, help="At most this many states of each trace or distribution, which stand for the others."),
    ] = 8,
    method: Annotated[str | None, typer.Option(metavar="NAME", help="auto, or a method, for each plan.")] = None,
    time_limit: Annotated[str, typer.Option("--time-limit", metavar="TIME", help="For each plan.")] = TIME_LIMIT,
    gap: Annotated[float | None, typer.Option(min=0.0, max=0.999, help="Stop a search at this relative gap.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**31 - 1, help="Seed of random numbers.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=1024, help="Search threads of CP-SAT.")] = 8,
    deterministic_limit: Annotated[
        float | None, typer.Option(min=0, help="For each plan: stop after this much work, not time.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table.")] = False,
) -> None:
    """Compile a plan for each of several conditions of the links, and a table of what each takes under all of them."""
    from schedc.compile.settings import search_settings
    from schedc.io.outputs import is_standard
    from schedc.study.robust.family import compile_family, with_as_planned
    from schedc.view.terminal.results import console, print_json
    from schedc.view.terminal.robust import family_json, print_family

    if is_standard(output):
        raise InvalidInput("-o: found -, expected a folder; standard output has the table")
    loaded = read_job(job, values, layout)
    settings = search_settings(
        loaded,
        method=method,
        time_limit_s=option_value("--time-limit", time_limit) / 1e9,
        gap=gap,
        seed=seed,
        workers=workers,
        deterministic_limit=deterministic_limit,
        option="--method",
    )
    problem = loaded.problem
    conditions = with_as_planned([each for text in links for each in _conditions(text, problem, most, settings.limits.seed)])
    _make_folder(output)
    errors = console(stderr=True)

    def on_plan(number: int, name: str) -> None:
        if not (quiet or as_json):
            errors.print(f"plan {number + 1} of {len(conditions)}, for {name}", soft_wrap=True)

    made = compile_family(problem, conditions, output, settings=settings, job_sha256=loaded.sha256, on_plan=on_plan)
    for failure in made.failures:
        typer.echo(f"schedc: a defect of schedc, please report it: {failure}; no plan rests on it", err=True)
    if as_json:
        print_json(family_json(made))
    elif not quiet:
        print_family(made, output)


def _conditions(text: str, problem: Problem, most: int, seed: int) -> list[tuple[str, Conditions]]:
    """What one `--links` says."""
    from pathlib import PurePath

    from schedc.study.robust.requests import grid_of, is_drawn, is_grid, states_named
    from schedc.study.robust.scenarios import clustered

    if is_grid(text):
        return grid_of(text, problem, option="--links")
    states = states_named(text, problem, samples=SAMPLES, seed=seed, option="--links")
    name = text if is_drawn(text) else PurePath(text).name
    few = clustered(problem, states, most)
    return [(f"{name} {number}", each) for number, each in enumerate(few.conditions, start=1)]


def _make_folder(folder: Path) -> None:
    from schedc.formats.family_file import FAMILY
    from schedc.io.outputs import check_outputs

    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder}: cannot be made: {error.strerror}") from error
    check_outputs({"-o": folder / FAMILY}, ())
