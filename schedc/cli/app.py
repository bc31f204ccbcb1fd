"""The commands. Each parses its options, makes one call into the compiler, and hands the result to `schedc.cli.rendering.results`.

Heavy modules are imported inside the command that needs them, so that `schedc --help` is instant. `main` is the one place where a
`SchedcError` becomes a line on standard error and an exit status.
"""

from __future__ import annotations

import signal
import sys
from enum import StrEnum
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from schedc import __version__
from schedc.cli.compare import compare_command
from schedc.cli.diff import diff_command
from schedc.cli.emulate import emulate_command
from schedc.cli.exports.layouts import export_megatron, export_torchtitan
from schedc.cli.exports.perfetto import export_perfetto
from schedc.cli.exports.torch_csv import export_app, lint
from schedc.cli.init import init_command
from schedc.cli.jobs import JobArgument, LayoutOption, PlanJobOption, SetOption, check_set, read_job
from schedc.cli.looks.assign import assign_command
from schedc.cli.looks.explain import explain_command
from schedc.cli.looks.plot import plot_command
from schedc.cli.looks.relayout import relayout_command
from schedc.cli.looks.report import report_command
from schedc.cli.many.family import family_command
from schedc.cli.many.robust import SAMPLES, check_robust, compile_robustly
from schedc.cli.many.sweep import sweep_command
from schedc.cli.many.tune import tune_command
from schedc.cli.model import model_command
from schedc.cli.profile import profile_command
from schedc.cli.quantities import option_value
from schedc.cli.standard_output import PLAIN, standard_error, standard_output
from schedc.cli.usage import UsageError, refused
from schedc.errors import InvalidInput, SchedcError
from schedc.files.location import one_line

__all__ = ["app", "main"]

app = typer.Typer(
    help="Compile pipeline-parallel training schedules: a job in, a verified plan with an optimality certificate out.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file (JSON).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of tables.")]


INTERRUPTED = 130
"""The exit status after an interruption from the keyboard."""


class SchemaName(StrEnum):
    """The files that have a schema."""

    job = "job"
    plan = "plan"
    tune = "tune"


class TransfersName(StrEnum):
    """The values of `simulate --transfers`; here, as the simulator of each loads what `--help` need not."""

    decoupled = "decoupled"
    one_queue = "one-queue"
    blocking = "blocking"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"schedc {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Take the options before the command."""


@app.command("compile")
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
    from schedc.files.outputs import is_standard
    from schedc.solvers.common.interruption import Interruption

    # Standard input first: to wait for it must end at a signal.
    given = read_job(job, values, layout) if is_standard(job) else None
    interruption = Interruption()
    with interruption.listening():  # also while the rest is loaded: from here on a signal means that the best plan is written
        from schedc.api import search_settings
        from schedc.cli.defect import defects_kept
        from schedc.cli.rendering import results
        from schedc.cli.rendering.layout import layout_json, print_layout
        from schedc.cli.rendering.progress import live
        from schedc.compile_layouts import compile_job
        from schedc.files.outputs import check_outputs, write_output
        from schedc.frontend.chosen_layout import check_job_can_be_written, job_text_in_layout
        from schedc.lower.layout_report import layout_report
        from schedc.text.plan.plan_to_file import plan_json

        loaded = given or read_job(job, values, layout)
        check_outputs({"-o": output, "--write-job": write_job}, loaded.files, standard=True, as_json=as_json)
        if write_job is not None:
            check_job_can_be_written(loaded.source)
        chosen, limits = search_settings(
            loaded,
            method=method,
            time_limit_s=None if time_limit is None else option_value("--time-limit", time_limit) / 1e9,
            gap=gap,
            seed=seed,
            workers=workers,
            deterministic_limit=deterministic_limit,
            option="--method",
        )
        if robust is not None:
            compile_robustly(
                loaded,
                output,
                robust,
                percentile=robust_percentile,
                samples=robust_samples or SAMPLES,
                method=chosen,
                limits=limits,
                interruption=interruption,
                as_json=as_json,
                quiet=quiet,
            )
            return
        with defects_kept(loaded, output), live(loaded, chosen, limits, hidden=quiet or as_json) as shown:
            compiled = compile_job(
                loaded,
                method=chosen,
                limits=limits,
                report=shown.improved,
                on_method=shown.running,
                on_layouts=shown.layouts,
                interruption=interruption,
            )
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


@app.command()
def verify(plan: PlanArgument, job: PlanJobOption = None, values: SetOption = None, as_json: JsonOption = False) -> None:
    """Check a plan: coverage, order, memory, channels, deadlock, certificate; with a job, that it is the job's plan."""
    from schedc.api import read_plan, verify_plan
    from schedc.cli.rendering import results

    check_set(job, values, "--job JOB")
    read = read_plan(plan)
    known = None if job is None else read_job(job, values)
    violations = verify_plan(read, known)
    if as_json:
        results.print_json({"holds": not violations, "violations": [violation._asdict() for violation in violations]})
    else:
        results.print_verdict(read, violations, plan, knows_layouts=known is not None and known.open_layout is not None)
    if violations:
        raise typer.Exit(1)


@app.command()
def simulate(
    plan: PlanArgument,
    job: PlanJobOption = None,
    values: SetOption = None,
    transfers: Annotated[
        TransfersName, typer.Option(help="How transfers hold up compute: not at all, in one queue for each rank, or each one.")
    ] = TransfersName.decoupled,
    choose: Annotated[bool, typer.Option("--choose", help="Each rank chooses its next op by what has come.")] = False,
    links: Annotated[Path | None, typer.Option(metavar="LINKTRACE", help="How links change from 0 on (CSV).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Time a plan, under its own costs or a job's: makespan, stage span, bubble, and what each rank computes and holds."""
    from schedc.api import costs_for, read_plan, simulate_plan
    from schedc.cli.rendering import results

    check_set(job, values, "--job JOB")
    read = read_plan(plan)
    loaded = None if job is None else read_job(job, values)
    if choose or links is not None:
        from schedc.cli.runs.choosing import print_run

        if transfers is not TransfersName.decoupled:
            raise InvalidInput(f"--transfers {transfers.value}: cannot be combined with --choose or --links; leave one out")
        print_run(read, loaded, links, choose=choose, as_json=as_json)
        return
    timeline, problem = simulate_plan(read, loaded, transfers=transfers.value), costs_for(read, loaded)
    if as_json:
        results.print_json({"transfers": transfers.value, **results.timeline_json(problem, read.schedule(), timeline)})
    else:
        results.print_timeline(problem, read.schedule(), timeline)
        if transfers is not TransfersName.decoupled:
            results.print_against_decoupled(transfers.value, timeline, simulate_plan(read, loaded))


@app.command()
def show(
    plan: PlanArgument,
    begin: Annotated[str, typer.Option("--from", metavar="TIME", help="Show from this time on, as in 200ms.")] = "0 ns",
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Show up to this time.")] = None,
    ranks: Annotated[
        str | None, typer.Option(metavar="RANKS", help="Show these ranks, as in 0-3,8, or all. Default: some of many.")
    ] = None,
    width: Annotated[int | None, typer.Option(metavar="N", min=40, max=10_000, help="Columns. Default: the terminal's.")] = None,
) -> None:
    """Draw a plan in the terminal: ranks, links, collectives and memory over time."""
    from schedc.cli.looks.show import chosen_ranks, print_plan
    from schedc.compile import time_plan
    from schedc.text.plan.plan_file import read_plan

    from_ns, to_ns = option_value("--from", begin), None if end is None else option_value("--to", end)
    read = read_plan(plan)
    timeline = time_plan(read)
    plan_ns = max(1, timeline.makespan_ns)  # a plan of durations of 0 takes no time, and can be shown
    if not from_ns < min(plan_ns, plan_ns if to_ns is None else to_ns):
        raise InvalidInput(f"--from: found {begin!r}, expected a time before --to and before the plan's end")
    print_plan(read, timeline, from_ns, to_ns, ranks=chosen_ranks(ranks, read.problem.ranks), width=width)


@app.command()
def bounds(job: JobArgument, values: SetOption = None, as_json: JsonOption = False) -> None:
    """Print the lower bounds of a job: no schedule is faster than any of them."""
    from schedc.api import lower_bounds
    from schedc.cli.rendering import results

    loaded = read_job(job, values)
    found = lower_bounds(loaded)
    if as_json:
        results.print_json({bound.name: {"value_ns": bound.value_ns, "where": bound.detail} for bound in found})
    else:
        results.print_bounds(loaded.workload.name, found)


@app.command()
def templates(
    job: Annotated[
        Path | None, typer.Argument(metavar="[JOB]", help="Time each template on this job; - is standard input.")
    ] = None,
    values: SetOption = None,
    layout: LayoutOption = None,
) -> None:
    """List the known schedules; with a job, how each does on it, or why it cannot."""
    from schedc.cli.rendering import results
    from schedc.solvers.templates import TEMPLATES

    check_set(job, values, "JOB")
    if job is None and layout is not None:
        raise InvalidInput(f"--layout: found {layout} without a job, expected JOB, too")
    if job is None:
        results.print_templates(tuple(TEMPLATES.values()))
        return
    from schedc.compile import time_methods

    problem = read_job(job, values, layout).problem
    candidates = time_methods(problem, tuple(TEMPLATES))
    results.print_candidates(candidates, None, f"{problem.name}: the known schedules", objective=problem.objective)


@app.command()
def bench(
    instances: Annotated[str, typer.Argument(metavar="SET", help="A named set of instances; an unknown name lists them.")],
    methods: Annotated[str, typer.Option(metavar="A,B", help="The methods, separated by commas.")] = "greedy,auto",
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="Stop each search after this long.")] = "60s",
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the rows as CSV, too.")] = None,
    fused_backward: Annotated[
        float | None, typer.Option(metavar="X", help="Let each fused backward take X times B plus W; otherwise 1.")
    ] = None,
) -> None:
    """Run methods side by side on known instances: makespan, bound, gap, time, memory, published results."""
    from schedc.cli.many.bench import run_bench

    run_bench(instances, methods, time_limit, csv, fused_backward)


@app.command()
def schema(file: Annotated[SchemaName, typer.Argument(metavar="job|plan|tune", help="Which file.")]) -> None:
    """Print the JSON Schema of the job, the plan, or the job of tune."""
    from schedc.cli.rendering import results

    if file is SchemaName.job:
        from schedc.frontend.schema import job_schema

        results.print_json(job_schema())
    elif file is SchemaName.tune:
        from schedc.frontend.schema import schema_of
        from schedc.tune.tune_file import TuneFile

        results.print_json(schema_of(TuneFile, "schedc tune job"))
    else:
        from schedc.text.plan.plan_schema import plan_schema

        results.print_json(plan_schema())


app.command("profile")(profile_command)
app.command("model")(model_command)
app.command("init")(init_command)
app.command("tune")(tune_command)
app.command("family")(family_command)
app.command("emulate")(emulate_command)
app.command("compare")(compare_command)
app.command("diff")(diff_command)
app.command("report")(report_command)
app.command("explain")(explain_command)
app.command("assign")(assign_command)
app.command("relayout")(relayout_command)
app.command("plot")(plot_command)
app.command("sweep")(sweep_command)
export_app.command("megatron")(export_megatron)
export_app.command("torchtitan")(export_torchtitan)
export_app.command("perfetto")(export_perfetto)
app.add_typer(export_app, name="export")
app.command("lint")(lint)


@cache
def _command() -> Any:
    """All commands and their options; made once, which takes as long as a small command itself."""
    return get_command(app)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; the entry point of the `schedc` script. Always ends by `SystemExit`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=PLAIN)  # a terminal that cannot show a character gets a plain one, not a traceback
    if arguments is None:
        sys.stdout, sys.stderr = standard_output(), standard_error()
        if hasattr(signal, "SIGPIPE"):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `schedc show plan.json | head` ends as other programs do
    try:
        try:
            sys.exit(_command()(arguments, prog_name="schedc", standalone_mode=False) or 0)
        except UsageError as error:
            if (error.message or "").startswith("Usage: "):  # no command at all: the help
                print(error.message, file=sys.stderr)
                sys.exit(error.exit_code)
            raise refused(error) from error
        finally:
            sys.stdout.flush()  # here, and not when the interpreter ends, where a failure could not be reported in one line
    except SchedcError as error:
        print(f"schedc: {one_line(str(error))}", file=sys.stderr)
        sys.exit(error.exit_status)
    except (KeyboardInterrupt, SystemExit, typer.Abort) as end:
        # Typer makes the status of a KeyboardInterrupt, without a word.
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        print("schedc: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
