"""`schedc explain`: where a plan's time goes, and what would shorten its step."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schedc.cli.jobs import SetOption, check_set, read_job
from schedc.cli.quantities import option_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INTERRUPTED = 130
"""The exit status after an interruption, as of the other commands."""

PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file (JSON).")]
JobOption = Annotated[
    Path | None, typer.Option("--job", metavar="JOB", help="The plan's job, to try other choices in it; - is standard input.")
]


def explain_command(
    plan: PlanArgument,
    job: JobOption = None,
    values: SetOption = None,
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help="Limit for the whole command: what is cheap is tried first, then searches.")
    ] = "30s",
    most: Annotated[int, typer.Option(min=0, help="Solve again for at most this many links, and as many ranks.")] = 6,
    allowed: Annotated[
        float, typer.Option("--allow", min=0, max=1, help="For tolerated delays: how much longer the step may be.")
    ] = 0.05,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Say where a plan's time goes: critical path, idle time by cause, tolerated delays, and what would help, each solved again."""
    from schedc.analysis.bounds.clock import Clock
    from schedc.solvers.common.interruption import Interruption

    check_set(job, values, "--job JOB")
    limit_s = option_value("--time-limit", time_limit) / 1e9
    interruption, clock = Interruption(), Clock(limit_s)
    with interruption.listening():  # from here on a signal means that what is known is printed
        from schedc.formats.plan.plan_file import read_plan
        from schedc.study.explain.explain import explain_plan
        from schedc.view.terminal.explanation import explanation_json, print_explanation
        from schedc.view.terminal.results import print_json

        loaded = None if job is None else read_job(job, values)
        read = read_plan(plan)
        with _shown(hidden=quiet or as_json) as show:
            explanation = explain_plan(
                read,
                loaded,
                time_limit_s=limit_s,
                most=most,
                allowed=allowed,
                on_work=show,
                interruption=interruption,
                clock=clock,
            )
        if as_json:
            print_json(explanation_json(read, explanation))
        else:
            print_explanation(read, explanation)
    if explanation.interrupted:
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _shown(*, hidden: bool) -> Iterator[Callable[[str], None]]:
    """What says on standard error what is solved next."""
    if hidden:
        yield lambda _: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from schedc.view.terminal.progress import log_lines
    from schedc.view.terminal.results import console

    errors = console(stderr=True)
    if not errors.is_terminal:
        write = log_lines(lambda line: errors.print(line, soft_wrap=True))
        yield lambda what: write(lambda: f"solving again: {what}; Ctrl-C prints what is known")
        return
    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("reading the plan", total=None)
        yield lambda what: bar.update(task, description=f"solving again: {what}; Ctrl-C prints what is known")
