"""`schedc verify`: the checks of a plan."""

from __future__ import annotations

import typer

from schedc.cli.jobs import JsonOption, PlanArgument, PlanJobOption, SetOption, check_set, read_job


def verify_command(plan: PlanArgument, job: PlanJobOption = None, values: SetOption = None, as_json: JsonOption = False) -> None:
    """Check a plan: coverage, order, memory, channels, deadlock, certificate; with a job, that it is the job's plan."""
    from schedc.api import read_plan, verify_plan
    from schedc.view.terminal import results

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
