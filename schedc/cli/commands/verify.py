"""`schedc verify`: the checks of a plan."""

from __future__ import annotations

import typer

from schedc.api import read_plan, verify_plan
from schedc.cli.options import JsonOption, PlanArgument, PlanJobOption, SetOption, check_set, read_given_job


def verify_command(plan: PlanArgument, job: PlanJobOption = None, values: SetOption = None, as_json: JsonOption = False) -> None:
    """Check a plan: coverage, order, memory, channels, deadlock, certificate; with a job, that it is the job's plan."""
    from schedc.view.terminal.results import shown_verdict
    from schedc.view.terminal.show import show

    check_set(job, values, "--job JOB")
    read, known = read_plan(plan), read_given_job(job, values)
    violations = verify_plan(read, known)
    knows_layouts = known is not None and known.open_layout is not None
    found = {"holds": not violations, "violations": violations}
    show(found if as_json else shown_verdict(read, violations, plan, knows_layouts=knows_layouts))
    if violations:
        raise typer.Exit(1)
