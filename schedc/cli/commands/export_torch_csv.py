"""`schedc export torch` and `schedc lint`: plans out to PyTorch's schedule CSVs, and anyone's CSV checked against a job."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedc.cli.jobs import LayoutOption, SetOption, read_job
from schedc.cli.sound_plan import read_sound_plan
from schedc.spelling import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.analysis.bounds.lower_bounds import Bound
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.formats.torch_csv.lint.actions import Finding
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

MOST_FINDINGS = 40
MOST_OF_A_RULE = 10
LONGEST = 240
"""What `lint` prints: of many findings some, and lines that can be read."""

PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file (JSON).")]
CsvOption = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        metavar="CSV",
        help="Where to write the CSV, with NAME.stages.json beside it; - is standard output, without it.",
    ),
]
CsvArgument = Annotated[Path, typer.Argument(metavar="CSV", help="A schedule CSV of torch.distributed.pipelining.")]
JobOption = Annotated[
    Path, typer.Option("--job", metavar="JOB", help="The job (TOML) of the CSV: ranks, stages, costs; - is standard input.")
]

export_app = typer.Typer(help="Write a plan in another tool's format.", no_args_is_help=True, rich_markup_mode=None)


class CsvFormat(StrEnum):
    """What torch's `_load_csv` calls `format`."""

    compute_comms = "compute_comms"
    compute_only = "compute_only"


class LintFormat(StrEnum):
    """The same, or whichever the file looks like."""

    auto = "auto"
    compute_comms = "compute_comms"
    compute_only = "compute_only"


@export_app.command("torch")
def export_torch(
    plan: PlanArgument,
    output: CsvOption,
    layout: Annotated[
        CsvFormat, typer.Option("--format", help="compute_comms: all actions. compute_only: torch adds the transfers.")
    ] = CsvFormat.compute_comms,
) -> None:
    """Write a plan as the CSV that torch.distributed.pipelining loads, with a stage map beside it."""
    from schedc.formats.torch_csv.exporter import stage_map_path, torch_csv, write_torch_csv
    from schedc.formats.torch_csv.stage_map import notes
    from schedc.io.location import one_line
    from schedc.io.outputs import check_outputs, is_standard, write_output

    standard = is_standard(output)
    beside = None if standard else stage_map_path(output)
    check_outputs({"-o": output, "the stage map of -o": beside}, (plan,), standard=True)
    read = read_sound_plan(plan)
    if standard:
        write_output(output, torch_csv(read, layout.value).encode())
    else:
        write_torch_csv(read, output, layout.value)
        typer.echo(one_line(f"written to {output} ({layout.value}), the stage map to {beside}"))
    for note in notes(read):
        typer.echo(f"note: {note}", err=True)


def lint(
    csv: CsvArgument,
    job: JobOption,
    values: SetOption = None,
    layout: LayoutOption = None,
    actions: Annotated[
        LintFormat, typer.Option("--format", help="auto: compute_comms if it has anything but compute.")
    ] = LintFormat.auto,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of lines.")] = False,
) -> None:
    """Check a schedule CSV of torch by row and cell; if it is sound, time it under the job's costs."""
    from schedc.analysis.bounds.lower_bounds import best_bound
    from schedc.analysis.simulation.simulate import simulate
    from schedc.formats.torch_csv.lint.actions import layout_of, read_rows
    from schedc.formats.torch_csv.lint.linter import schedule_of_rows, verify_torch_csv
    from schedc.io.input_file import read_bytes
    from schedc.view.terminal import results

    problem = read_job(job, values, layout).problem
    rows = read_rows(read_bytes(csv), str(csv))
    chosen = layout_of(rows) if actions is LintFormat.auto else actions.value
    findings = verify_torch_csv(rows, problem, chosen)
    if findings:
        if as_json:
            results.print_json({"sound": False, "format": chosen, "findings": [finding._asdict() for finding in findings]})
        else:
            _print_findings(csv, chosen, findings)
        raise typer.Exit(1)
    schedule = schedule_of_rows(rows, problem)
    timeline, bound = simulate(problem, schedule), best_bound(problem)
    if as_json:
        results.print_json({"sound": True, "format": chosen, "findings": [], **_worth(problem, schedule, timeline, bound)})
    else:
        _print_sound(csv, chosen, problem, timeline, bound)


def _print_findings(csv: Path, layout: str, findings: Sequence[Finding]) -> None:
    """All, or of more than can be read the first of each rule; and how many there are."""
    from schedc.io.location import one_line

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


def _worth(problem: Problem, schedule: Schedule, timeline: Timeline, bound: Bound) -> dict[str, Any]:
    from schedc.analysis.gap import relative_gap
    from schedc.view.terminal.results import timeline_json

    return {
        **timeline_json(problem, schedule, timeline),
        "lower_bound_ns": bound.value_ns,
        "bound": bound.name,
        "gap": relative_gap(timeline.objective_ns(problem.objective), bound.value_ns, bound.name),
    }


def _print_sound(csv: Path, layout: str, problem: Problem, timeline: Timeline, bound: Bound) -> None:
    from schedc.analysis.gap import relative_gap
    from schedc.io.location import one_line
    from schedc.units import format_duration_ns

    objective_ns = timeline.objective_ns(problem.objective)
    gap = relative_gap(objective_ns, bound.value_ns, bound.name)
    path = one_line(str(csv))
    typer.echo(
        f"{path}: sound, read as {layout}: {counted(len(timeline.ops), 'compute op')}"
        f" on {counted(timeline.ranks, 'rank')}, every rule checked"
    )
    typer.echo(
        f"under the costs of {problem.name} its compute takes {problem.objective} {format_duration_ns(objective_ns)}, lower bound"
        f" {format_duration_ns(bound.value_ns)} (by {bound.name}), gap {gap:.2%}, bubble ratio {timeline.bubble_ratio:.2%}"
    )
    if problem.cut_blocks:
        note = 'the job does not have semantics = "torch" in [pipeline], and in torch the first stage does not split its backward'
        typer.echo(f"note: {note}", err=True)
