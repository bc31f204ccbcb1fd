"""`schedc lint`: anyone's schedule CSV of torch, checked against a job."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from schedc.cli.options import JsonNotLinesOption, LayoutOption, SetOption, read_job
from schedc.io.location import one_line
from schedc.spelling import counted
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.formats.torch_csv.lint.actions import Finding

MOST_FINDINGS = 40
MOST_OF_A_RULE = 10
LONGEST = 240
"""What `lint` prints: of many findings some, and lines that can be read."""


def lint_command(
    csv: Annotated[Path, Argument(metavar="CSV", help="A schedule CSV of torch.distributed.pipelining.")],
    job: Annotated[
        Path, Option("--job", metavar="JOB", help="The job (TOML) of the CSV: ranks, stages, costs; - is standard input.")
    ],
    values: SetOption = None,
    layout: LayoutOption = None,
    actions: Annotated[
        Literal["auto", "compute_comms", "compute_only"],
        Option("--format", help="auto: compute_comms if it has anything but compute."),
    ] = "auto",
    as_json: JsonNotLinesOption = False,
) -> None:
    """Check a schedule CSV of torch by row and cell; if it is sound, time it under the job's costs."""
    from schedc.analysis.bounds.lower_bounds import best_bound
    from schedc.analysis.gap import relative_gap
    from schedc.analysis.simulation.simulate import simulate
    from schedc.formats.torch_csv.lint.actions import layout_of, read_rows
    from schedc.formats.torch_csv.lint.linter import schedule_of_rows, timed_as, verify_torch_csv
    from schedc.io.input_file import read_bytes
    from schedc.view.terminal.results import timeline_json
    from schedc.view.terminal.show import show

    problem = read_job(job, values, layout).problem
    rows = read_rows(read_bytes(csv), str(csv))
    chosen = layout_of(rows) if actions == "auto" else actions
    findings = verify_torch_csv(rows, problem, chosen)
    said = {"sound": not findings, "format": chosen, "findings": findings}
    if findings:
        if as_json:
            show(said)
        else:
            _print_findings(csv, chosen, findings)
        raise typer.Exit(1)
    problem = timed_as(problem, chosen)
    schedule = schedule_of_rows(rows, problem)
    timeline, bound = simulate(problem, schedule), best_bound(problem)
    objective_ns = timeline.objective_ns(problem.objective)
    gap = relative_gap(objective_ns, bound.value_ns, bound.name)
    if as_json:
        bounded = {"lower_bound_ns": bound.value_ns, "bound": bound.name, "gap": gap}
        show({**said, **timeline_json(problem, schedule, timeline), **bounded})
        return
    counts = f"{counted(len(timeline.ops), 'compute op')} on {counted(timeline.ranks, 'rank')}"
    typer.echo(f"{one_line(str(csv))}: sound, read as {chosen}: {counts}, every rule checked")
    typer.echo(
        f"under the costs of {problem.name} its compute takes {problem.objective} {format_duration_ns(objective_ns)}, lower bound"
        f" {format_duration_ns(bound.value_ns)} (by {bound.name}), gap {gap:.2%}, bubble ratio {timeline.bubble_ratio:.2%}"
    )
    if problem.cut_blocks:
        note = 'the job does not have semantics = "torch" in [pipeline], and in torch the first stage does not split its backward'
        typer.echo(f"note: {note}", err=True)


def _print_findings(csv: Path, layout: str, findings: Sequence[Finding]) -> None:
    """All, or of more than can be read the first of each rule; and how many there are."""
    of_rule: Counter[str] = Counter()
    shown: list[str] = []
    for finding in findings:
        of_rule[finding.rule] += 1
        if len(findings) <= MOST_FINDINGS or (of_rule[finding.rule] <= MOST_OF_A_RULE and len(shown) < MOST_FINDINGS):
            shown.append(one_line(f"{csv}: {finding}"))
    for line in shown:
        typer.echo(line if len(line) <= LONGEST else f"{line[:LONGEST]}…")
    more = ""
    if len(shown) < len(findings):
        rules = ", ".join(f"{count} {rule}" for rule, count in of_rule.most_common(5))
        more = f" ({rules}{', …' if len(of_rule) > 5 else ''}), {len(shown)} of them above; --json has all"
    typer.echo(f"{one_line(str(csv))}: {counted(len(findings), 'finding')}{more}, read as {layout}", err=True)
