"""`schedc compile`: a job in, a plan out."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from schedc.cli.compile_robustly import SAMPLES, check_robust, compile_robustly
from schedc.cli.jobs import JobArgument, JsonOption, LayoutOption, SetOption, read_job
from schedc.cli.quantities import option_value
from schedc.errors import InvalidInput
from schedc.io.location import one_line


def compile_command(
    job: JobArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="PLAN", help="Where to write the plan; - is standard output.")],
    values: SetOption = None,
    layout: LayoutOption = None,
    write_job: Annotated[
        Path | None,
        typer.Option("--write-job", metavar="FILE", help='Write the job with the layout chosen in place of "auto", comments kept.'),
    ] = None,
    method: Annotated[str | None, typer.Option(help="auto, or a method, its options in braces: greedy{n_sub=2}.")] = None,
    time_limit: Annotated[str | None, typer.Option(metavar="TIME", help="Stop searching after this long, as in 60s.")] = None,
    gap: Annotated[float | None, typer.Option(min=0, max=0.999, help="Stop when proven to be within this gap, as in 0.01.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**31 - 1, help="Seed of random numbers.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Search threads of CP-SAT.")] = 8,
    deterministic_limit: Annotated[
        float | None, typer.Option(min=0, help="Stop after this much work, not time: the same plan on every machine.")
    ] = None,
    robust: Annotated[
        str | None,
        typer.Option(metavar="LINKTRACE|DISTRIBUTION", help='Links that change: a link trace (CSV), or "normal(30 ms, 10 ms)".'),
    ] = None,
    robust_percentile: Annotated[
        float | None, typer.Option(min=0, max=100, help="With --robust: minimize this percentile, not the mean.")
    ] = None,
    robust_samples: Annotated[
        int | None, typer.Option(min=1, max=4096, help="With --robust: how many states of the links. Default: 64.")
    ] = None,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table.")] = False,
) -> None:
    """Compile a job into a plan."""
    check_robust(robust, robust_percentile, robust_samples)
    if write_job is not None and (robust is not None or str(write_job) == "-"):
        found = "-" if robust is None else "--robust"
        raise InvalidInput(f"--write-job: found {found}, expected a file, and no --robust, which chooses no layout")
    from schedc.io.outputs import is_standard
    from schedc.solvers.common.interruption import Interruption

    # Standard input first: to wait for it must end at a signal.
    given = read_job(job, values, layout) if is_standard(job) else None
    interruption = Interruption()
    with interruption.listening():  # also while the rest is loaded: from here on a signal means that the best plan is written
        from schedc.cli.defect import defects_kept
        from schedc.compile.driver import compile_job
        from schedc.compile.settings import search_settings
        from schedc.formats.plan.plan_file import plan_json
        from schedc.frontend.chosen_layout import check_job_can_be_written, job_text_in_layout
        from schedc.io.outputs import check_outputs, write_output
        from schedc.lower.layout_report import layout_report
        from schedc.view.terminal import results
        from schedc.view.terminal.layout import layout_json, print_layout
        from schedc.view.terminal.progress import live

        loaded = given or read_job(job, values, layout)
        check_outputs({"-o": output, "--write-job": write_job}, loaded.files, standard=True, as_json=as_json)
        if write_job is not None:
            check_job_can_be_written(loaded.source)
        settings = search_settings(
            loaded,
            method=method,
            time_limit_s=None if time_limit is None else option_value("--time-limit", time_limit) / 1e9,
            gap=gap,
            seed=seed,
            workers=workers,
            deterministic_limit=deterministic_limit,
            option="--method",
        )
        settings = replace(settings, interruption=interruption)
        if robust is not None:
            compile_robustly(
                loaded,
                output,
                robust,
                settings,
                percentile=robust_percentile,
                samples=robust_samples or SAMPLES,
                as_json=as_json,
                quiet=quiet,
            )
            return
        with defects_kept(loaded, output), live(loaded, settings, hidden=quiet or as_json) as shown:
            compiled = compile_job(loaded, shown.told(settings))
        write_output(output, plan_json(compiled.plan))
        if write_job is not None:
            write_output(write_job, job_text_in_layout(loaded.source, compiled.plan, write_job))
        for failure in compiled.failures:
            typer.echo(
                f"schedc: a defect of schedc, please report it: {failure}; the plan was written and does not rest on it", err=True
            )
        chosen_layout = compiled.layout or loaded.layout
        is_given = loaded.open_layout is None or loaded.open_layout.layers_of_stage is not None
        report = layout_report(loaded.workload, chosen_layout, compiled.plan.problem, is_given=is_given)
        if as_json:
            results.print_json(results.compiled_json(compiled) | layout_json(report, chosen_layout))
        elif not quiet:
            print_layout(report, stderr=is_standard(output), is_chosen=compiled.layout is not None)
            results.print_compiled(compiled, output, interrupted=interruption.requested)
    if interruption.requested and (quiet or as_json):
        sys.stdout.flush()
        where = "standard output" if is_standard(output) else one_line(str(output))
        typer.echo(f"schedc: the best plan so far is written to {where}: interrupted", err=True)
