"""`schedc tune`: what to run on a cluster, for a model, a number of devices and a global batch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from schedc.cli import options
from schedc.cli.options import option_value, output_to
from schedc.errors import InvalidInput
from schedc.io.location import Location
from schedc.io.outputs import is_standard

ON_CLUSTER = 8
"""Candidates that are planned at the same time on a cluster."""


def tune_command(
    output: Annotated[Path, output_to("FOLDER", "Where the table goes, and the best as job, profile and plan.")],
    job: Annotated[Path | None, Argument(metavar="JOB", help="The job of tune (TOML); - is standard input.")] = None,
    model: Annotated[str | None, Option(metavar="NAME|CONFIG.json", help="Instead of JOB: a model, as of schedc costs.")] = None,
    device: Annotated[str | None, Option(metavar="NAME", help="With --model: what it runs on. Default: h100.")] = None,
    devices: options.DevicesOption = None,
    batch: options.BatchOption = None,
    sequence: options.SequenceOption = None,
    sites: options.SitesOption = 1,
    latency: options.LatencyOption = None,
    bandwidth: options.BandwidthOption = None,
    values: options.SetOption = None,
    method: Annotated[str | None, Option(metavar="NAME", help="auto, or the one method that is run on each candidate.")] = None,
    time_limit: Annotated[
        str | None, Option("--time-limit", metavar="TIME", help="Limit for the whole command. Default: 300s.")
    ] = None,
    candidate_time: Annotated[
        str, Option("--candidate-time", metavar="TIME", help="Limit for the search of one candidate.")
    ] = "20s",
    why: Annotated[
        str | None,
        Option("--why", metavar="COLUMN=VALUE,...", help="Say, by cause, why the best is faster than the best of these."),
    ] = None,
    processes: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Candidates at the same time on this machine, or on --cluster. Default: 1, or 8."),
    ] = None,
    cluster: Annotated[
        str | None, Option(metavar="ADDRESS", help="Plan on the workers of this Dask scheduler, tcp://HOST:PORT.")
    ] = None,
    gap: options.GapOption = None,
    seed: options.SeedOption = None,
    workers: options.WorkersOption = 8,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Try the ways to divide a cluster and a batch, with a pipeline and without; write the best as a plan."""
    from schedc.solvers.common.interruption import Interruption

    if job is not None:
        given = {"model": model, "device": device, "devices": devices, "batch": batch, "sequence": sequence, "latency": latency}
        given |= {"bandwidth": bandwidth, "sites": None if sites == 1 else sites}
        for name in (name for name, value in given.items() if value is not None):
            raise InvalidInput(f"found --{name} beside JOB, expected one or the other; --set changes a value of JOB")
        source = options.read_source(job, values)
    elif model is None or devices is None or batch is None:
        raise InvalidInput("expected JOB, or --model, --devices and --batch instead of it")
    else:
        from schedc.frontend.job_source import option_override, source_of_table
        from schedc.study.tune.request import tune_table

        table = tune_table(
            model,
            device or "h100",
            Path(),
            devices=devices,
            batch=batch,
            sites=sites,
            sequence=sequence,
            latency=latency,
            bandwidth=bandwidth,
        )
        overrides = [option_override(text) for text in values or ()]
        source = source_of_table(table, directory=Path(), name=Path(model).stem, overrides=overrides)
    interruption = Interruption()
    with interruption.listening():
        from schedc.solvers.common.base import Limits, SearchSettings
        from schedc.solvers.driver.registry import check_method
        from schedc.study.tune.folder import prepared_folder, write_folder
        from schedc.study.tune.planner import KEPT, Planner
        from schedc.study.tune.request import read_request
        from schedc.study.tune.search import tune
        from schedc.view.terminal import studies as view
        from schedc.view.terminal.progress import say, working
        from schedc.view.terminal.show import console, show

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
        candidate_s = option_value("--candidate-time", candidate_time) / 1e9
        limits = Limits(
            time_s=view.DEFAULT_TIME_S if limit_ns is None else limit_ns / 1e9,
            gap=settings.gap if gap is None else gap,
            seed=settings.seed if seed is None else seed,
            workers=workers,
        )
        hidden = quiet or as_json
        at_once = processes or (1 if cluster is None else ON_CLUSTER)
        with prepared_folder(output, request.files), Planner(output / KEPT, processes=at_once, cluster=cluster) as planner:
            say(f"{request.name}: Ctrl-C keeps the best plan so far", hidden=hidden)
            with working("reading candidates", hidden=hidden) as progress:
                tuned = tune(
                    request,
                    SearchSettings(method=chosen, limits=limits, interruption=interruption),
                    candidate_s=candidate_s,
                    against=_columns(why),
                    planner=planner,
                    report=lambda known: progress(view.progress_line(known), 0),
                )
        write_folder(output, request, tuned)
        if tuned.is_done:
            planner.forget()
        options.say_defects(tuned.failures, "no plan rests on it")
        if as_json:
            show(view.tuned_json(tuned))
        elif not quiet:
            out = console(piped_width=view.PIPED_WIDTH)
            show(view.shown_tuned(tuned, output, interrupted=interruption.requested), out)
    if interruption.requested and hidden:
        options.say_interrupted(output)


def _columns(why: str | None) -> dict[str, str]:
    """The values by the columns of the table."""
    found = dict(part.partition("=")[::2] for part in why.split(",")) if why else {}
    if why is not None and not all(name and value for name, value in found.items()):
        raise InvalidInput(f"--why: found {why!r}, expected columns of the table and their values, as in ranks=4,tp=2")
    return found
