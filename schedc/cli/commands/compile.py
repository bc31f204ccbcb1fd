"""`schedc compile`: a job in, a plan out; with `--robust` one plan for links that change."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from schedc.cli import options
from schedc.errors import Defect, InvalidInput
from schedc.io.outputs import check_outputs, is_standard, write_atomically, write_output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.frontend.job import Job

SAMPLES = 64
"""How many states of the links `--robust` looks at, where the user does not say."""


def compile_command(
    job: options.JobArgument,
    output: Annotated[Path, options.output_to("PLAN", "Where to write the plan; - is standard output.")],
    values: options.SetOption = None,
    layout: options.LayoutOption = None,
    write_job: Annotated[
        Path | None,
        Option("--write-job", metavar="FILE", help='Write the job with the layout chosen in place of "auto", comments kept.'),
    ] = None,
    method: Annotated[str | None, Option(help="auto, or a method, its options in braces: greedy{n_sub=2}.")] = None,
    time_limit: Annotated[str | None, Option(metavar="TIME", help="Stop searching after this long, as in 60s.")] = None,
    gap: options.GapOption = None,
    seed: options.SeedOption = None,
    workers: options.WorkersOption = 8,
    deterministic_limit: Annotated[
        float | None, Option(min=0, help="Stop after this much work, not time: the same plan on every machine.")
    ] = None,
    robust: Annotated[
        str | None,
        Option(metavar="LINKTRACE|DISTRIBUTION", help='Links that change: a link trace (CSV), or "normal(30 ms, 10 ms)".'),
    ] = None,
    robust_percentile: Annotated[
        float | None, Option(min=0, max=100, help="With --robust: minimize this percentile, not the mean.")
    ] = None,
    robust_samples: Annotated[
        int | None, Option(min=1, max=4096, help="With --robust: how many states of the links. Default: 64.")
    ] = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Compile a job into a plan."""
    for option, value in (("--robust-percentile", robust_percentile), ("--robust-samples", robust_samples)):
        if robust is None and value is not None:
            raise InvalidInput(f"{option}: found {value:g} without --robust LINKTRACE|DISTRIBUTION, expected both or neither")
    if robust_percentile == 0:
        raise InvalidInput("--robust-percentile: found 0, expected a number above 0 and at most 100")
    if write_job is not None and (robust is not None or str(write_job) == "-"):
        found = "-" if robust is None else "--robust"
        raise InvalidInput(f"--write-job: found {found}, expected a file, and no --robust, which chooses no layout")
    from schedc.solvers.common.interruption import Interruption

    # Standard input first: to wait for it must end at a signal.
    given = options.read_job(job, values, layout) if is_standard(job) else None
    interruption = Interruption()
    with interruption.listening():  # also while the rest is loaded: from here on a signal means that the best plan is written
        from schedc.compile.driver import compile_job
        from schedc.compile.settings import search_settings
        from schedc.formats.plan.plan_file import plan_json
        from schedc.frontend.chosen_layout import check_job_can_be_written, job_text_in_layout
        from schedc.lower.layout_report import layout_report
        from schedc.view.terminal import results
        from schedc.view.terminal.progress import live
        from schedc.view.terminal.show import console, show

        if robust is not None:
            from schedc.study.robust.requests import is_drawn, states_named
            from schedc.study.robust.robust import compile_robust
            from schedc.study.robust.scenarios import Criterion
            from schedc.view.terminal.studies import robust_json, shown_robust

        loaded = given or options.read_job(job, values, layout)
        read = loaded.files if robust is None or is_drawn(robust) else (*loaded.files, Path(robust))
        check_outputs({"-o": output, "--write-job": write_job}, read, standard=True, as_json=as_json)
        if write_job is not None:
            check_job_can_be_written(loaded.source)
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
        settings = replace(settings, interruption=interruption)
        states = robustly = None
        if robust is not None:
            samples = robust_samples or SAMPLES
            states = states_named(robust, loaded.problem, samples=samples, seed=settings.limits.seed, option="--robust")
        with _defects_kept(loaded, output), live(loaded, settings, hidden=quiet or as_json) as told:
            if states is None:
                compiled = compile_job(loaded, told)
            else:
                aim = Criterion(robust_percentile)
                robustly = compile_robust(loaded.problem, states, aim, told, job_sha256=loaded.sha256)
                compiled = robustly.compiled
        write_output(output, plan_json(compiled.plan))
        if write_job is not None:
            write_output(write_job, job_text_in_layout(loaded.source, compiled.plan, write_job))
        options.say_defects(compiled.failures, "the plan was written and does not rest on it")
        as_object = results.compiled_json(compiled)
        if robustly is not None:
            as_object |= {"robust": robust_json(robustly)}
            document = shown_robust(robustly, output)
        else:
            chosen_layout = compiled.layout or loaded.layout
            is_given = loaded.open_layout is None or loaded.open_layout.layers_of_stage is not None
            report = layout_report(loaded.workload, chosen_layout, compiled.plan.problem, is_given=is_given)
            as_object |= results.layout_json(report, chosen_layout)
            document = results.shown_compiled(compiled, report, output, interrupted=interruption.requested)
        if as_json:
            show(as_object)
        elif not quiet:
            show(document, console(stderr=is_standard(output)))
    if interruption.requested and (quiet or as_json):
        options.say_interrupted(output)


@contextmanager
def _defects_kept(job: Job, output: Path) -> Iterator[None]:
    """Where a verifier refuses schedc's own result, keep all of it in one file to send with a report, and name that in the message.

    It has the version, the message, the text of the job, the values set in it, the files that it names, and the plan.

    Args:
        job: what is compiled.
        output: where the plan was to be written; the file goes beside it, into a temporary folder where that cannot be.

    Raises:
        Defect: the same one, its message with the file.
    """
    import json
    import tempfile

    from schedc import __version__

    try:
        yield
    except Defect as defect:
        source = job.source
        files = {source.place.file: source.content.decode("utf-8-sig")}
        files |= {str(path): path.read_text(encoding="utf-8") for path in job.files if path != source.path and path.is_file()}
        plan = json.loads(defect.plan_json) if defect.plan_json else None
        values = [override.canonical for override in source.overrides]
        report = {"schedc": __version__, "message": str(defect), "set": values, "files": files, "plan": plan}
        content = json.dumps(report, indent=1).encode()
        path = Path("plan.defect.json") if is_standard(output) else output.with_name(f"{output.name}.defect.json")
        try:
            write_atomically(path, content)
        except InvalidInput:  # the plan could not have been written there either
            path = Path(tempfile.mkdtemp(prefix="schedc-")) / path.name
            write_atomically(path, content)
        raise Defect(f"{defect}; this is a defect of schedc: please report it with {path}", defect.plan_json) from defect
