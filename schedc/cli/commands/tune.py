"""`schedc tune`: what to run on a cluster, for a model, a number of devices and a global batch."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from schedc.cli.jobs import JobArgument, SetOption, read_source
from schedc.cli.quantities import option_value
from schedc.errors import InvalidInput
from schedc.io.location import Location, one_line


def tune_command(
    job: JobArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where the table goes, and the best as job, profile and plan.")
    ],
    values: SetOption = None,
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="auto, or the one method that is run on each candidate.")
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option("--time-limit", metavar="TIME", help="Limit for the whole command. Default: 300s.")
    ] = None,
    candidate_time: Annotated[
        str, typer.Option("--candidate-time", metavar="TIME", help="Limit for the search of one candidate.")
    ] = "20s",
    gap: Annotated[float | None, typer.Option(min=0.0, max=0.999, help="Stop a search at this relative gap.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of random numbers.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=1024, help="Search threads of CP-SAT.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table.")] = False,
) -> None:
    """Try the ways to divide a cluster and a batch: ranks, data parallelism, microbatches, placement; write the best as a plan."""
    from schedc.io.outputs import is_standard
    from schedc.solvers.common.interruption import Interruption

    source = read_source(job, values)
    interruption = Interruption()
    with interruption.listening():
        from schedc.solvers.driver.registry import check_method
        from schedc.study.tune.folder import prepared_folder, write_folder
        from schedc.study.tune.request import read_request
        from schedc.study.tune.search import TuneLimits, tune
        from schedc.view.terminal import tune as rendering
        from schedc.view.terminal.results import print_json

        if is_standard(output):
            raise InvalidInput("-o: found -, expected a folder; standard output has the table")
        request = read_request(source)
        settings = request.file.solver
        chosen = settings.method if method is None else method
        try:
            check_method(chosen)
        except InvalidInput as error:
            place = Location("--method") if method is not None else source.place / "solver" / "method"
            raise place.error(str(error)) from error
        limit_ns = settings.time_limit_ns if time_limit is None else option_value("--time-limit", time_limit)
        limits = TuneLimits(
            time_s=rendering.DEFAULT_TIME_S if limit_ns is None else limit_ns / 1e9,
            candidate_s=option_value("--candidate-time", candidate_time) / 1e9,
            gap=settings.gap if gap is None else gap,
            seed=settings.seed if seed is None else seed,
            workers=workers,
        )
        with prepared_folder(output, request.files), rendering.live_tune(request.name, hidden=quiet or as_json) as report:
            tuned = tune(request, method=chosen, limits=limits, interruption=interruption, report=report)
        write_folder(output, request, tuned)
        for failure in tuned.failures:
            typer.echo(f"schedc: a defect of schedc, please report it: {failure}; no plan rests on it", err=True)
        if as_json:
            print_json(rendering.tuned_json(tuned))
        elif not quiet:
            rendering.print_tuned(tuned, output, interrupted=interruption.requested)
    if interruption.requested and (quiet or as_json):
        sys.stdout.flush()
        typer.echo(f"schedc: the best plan so far is written to {one_line(str(output))}: interrupted", err=True)
