"""`schedc family`: one plan for each of several conditions, and a table by which a job without a solver picks."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

from typer import Option

from schedc.cli import options
from schedc.errors import InvalidInput
from schedc.io.outputs import check_outputs, is_standard

if TYPE_CHECKING:
    from schedc.ir.conditions import Conditions

SAMPLES = 512
"""A trace's states, or a distribution's, of which the clusters are."""


def family_command(
    job: options.JobArgument,
    links: Annotated[
        list[str],
        Option(
            "--links",
            metavar="LINKTRACE|RANKS=TIMES|DISTRIBUTION",
            help="Conditions: 3-4=10ms,30ms; each=30ms, one pair after the other; all=30ms; or states of a link trace. Repeatable.",
        ),
    ],
    output: Annotated[Path, options.output_to("FOLDER", "Where the plans and family.json go; what fits is kept.")],
    values: options.SetOption = None,
    layout: options.LayoutOption = None,
    most: Annotated[
        int, Option(min=1, max=256, help="At most this many states of each trace or distribution, which stand for the others.")
    ] = 8,
    method: Annotated[str | None, Option(metavar="NAME", help="auto, or a method, for each plan.")] = None,
    time_limit: Annotated[str, Option("--time-limit", metavar="TIME", help="For each plan.")] = "20s",
    gap: options.GapOption = None,
    seed: options.SeedOption = None,
    workers: options.WorkersOption = 8,
    deterministic_limit: Annotated[float | None, Option(min=0, help="For each plan: stop after this much work, not time.")] = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Compile a plan for each of several conditions of the links, and a table of what each takes under all of them."""
    from schedc.compile.settings import search_settings
    from schedc.formats.family_file import FAMILY
    from schedc.lower.problem import checked_under
    from schedc.study.robust.family import compile_family, with_as_planned
    from schedc.study.robust.requests import grid_of, is_drawn, is_grid, states_named
    from schedc.study.robust.scenarios import clustered
    from schedc.view.terminal.progress import say
    from schedc.view.terminal.show import show
    from schedc.view.terminal.studies import family_json, shown_family

    if is_standard(output):
        raise InvalidInput("-o: found -, expected a folder; standard output has the table")
    loaded = options.read_job(job, values, layout)
    settings = search_settings(
        loaded,
        method=method,
        time_limit_s=options.option_seconds("--time-limit", time_limit),
        gap=gap,
        seed=seed,
        workers=workers,
        deterministic_limit=deterministic_limit,
        option="--method",
    )
    problem = loaded.problem
    given: list[tuple[str, Conditions]] = []
    for text in links:
        if is_grid(text):
            given += grid_of(text, problem, option="--links")
            continue
        states = states_named(text, problem, samples=SAMPLES, seed=settings.limits.seed, option="--links")
        name = text if is_drawn(text) else PurePath(text).name
        few = clustered(problem, states, most)
        given += [(f"{name} {number}", each) for number, each in enumerate(few.conditions, start=1)]
    conditions = with_as_planned(given)
    for name, each in conditions:
        checked_under(problem, each, f"under {name}")  # before a folder is made
    try:
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{output}: cannot be made: {error.strerror}") from error
    check_outputs({"-o": output / FAMILY}, ())

    def on_plan(number: int, name: str) -> None:
        say(f"plan {number + 1} of {len(conditions)}, for {name}", hidden=quiet or as_json)

    made = compile_family(problem, conditions, output, settings=settings, job_sha256=loaded.sha256, on_plan=on_plan)
    options.say_defects(made.failures, "no plan rests on it")
    if as_json or not quiet:
        show(family_json(made) if as_json else shown_family(made, output))
