"""`schedc explain`: where a plan's time goes, and what would shorten its step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from schedc.cli.options import INTERRUPTED, JsonOption, PlanArgument, SetOption, check_set, option_value, read_given_job, read_step


def explain_command(
    plan: PlanArgument,
    job: Annotated[
        Path | None, Option("--job", metavar="JOB", help="The plan's job, to try other choices in it; - is standard input.")
    ] = None,
    values: SetOption = None,
    time_limit: Annotated[
        str, Option(metavar="TIME", help="Limit for the whole command: what is cheap is tried first, then searches.")
    ] = "30s",
    most: Annotated[int, Option(min=0, help="Solve again for at most this many links, and as many ranks.")] = 6,
    allowed: Annotated[
        float, Option("--allow", min=0, max=1, help="For tolerated delays: how much longer the step may be.")
    ] = 0.05,
    as_json: JsonOption = False,
    quiet: Annotated[bool, Option("--quiet", help="No progress.")] = False,
) -> None:
    """Say where a plan's time goes: critical path, idle time by cause, tolerated delays, and what would help, each solved again."""
    from schedc.analysis.bounds.clock import Clock
    from schedc.solvers.common.interruption import Interruption

    check_set(job, values, "--job JOB")
    limit_s = option_value("--time-limit", time_limit) / 1e9
    interruption, clock = Interruption(), Clock(limit_s)
    with interruption.listening():  # from here on a signal means that what is known is printed
        from schedc.study.explain.explain import explain_plan
        from schedc.view.terminal.explanation import WIDTH, explanation_json, shown_explanation
        from schedc.view.terminal.progress import working
        from schedc.view.terminal.show import console, show

        loaded, read = read_given_job(job, values), read_step(plan)
        with working("reading the plan", hidden=quiet or as_json) as progress:
            explanation = explain_plan(
                read,
                loaded,
                time_limit_s=limit_s,
                most=most,
                allowed=allowed,
                on_work=lambda what: progress(f"solving again: {what}; Ctrl-C prints what is known", 0),
                interruption=interruption,
                clock=clock,
            )
        if as_json:
            show(explanation_json(read, explanation))
        else:
            show(shown_explanation(read, explanation), console(piped_width=WIDTH, most=WIDTH))
    if explanation.interrupted:
        raise typer.Exit(INTERRUPTED)
