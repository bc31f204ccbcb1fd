"""What the commands print: tables and pictures for people, JSON objects for machines. Results go to standard output."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from schedc.io.location import one_line
from schedc.io.outputs import is_standard
from schedc.ir.plan import Scope
from schedc.ir.problem import Objective
from schedc.spelling import counted
from schedc.units import format_bytes, format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from schedc.analysis.bounds.lower_bounds import Bound
    from schedc.analysis.bounds.own_layout import OwnLayout
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.compile.driver import Compiled
    from schedc.ir.plan import Certificate, Plan
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.solvers.common.incumbent import Candidate
    from schedc.solvers.templates import Template
    from schedc.verify.violation import Violation


def console(*, stderr: bool = False, piped_width: int | None = None) -> Console:
    """Standard output, or standard error. Text is shown as it is: brackets and colons mean nothing.

    Args:
        stderr: whether it is standard error.
        piped_width: columns where it is no terminal and COLUMNS does not say how many there are; None: 80.
    """
    out = Console(highlight=False, soft_wrap=False, markup=False, emoji=False, stderr=stderr)
    if piped_width is not None and not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = piped_width
    return out


def plain_table(title: str | None = None, right: Iterable[str] = ()) -> Table:
    """A table without lines, its title above it; `right` are the headers of columns of numbers, which begin it."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for header in right:
        table.add_column(header, justify="right")
    return table


def print_fitting(out: Console, table: Table, least: Sequence[str]) -> None:
    """Print a table; where the terminal is too narrow for it, without some columns, which a line names.

    Args:
        out: where.
        table: one of `plain_table`.
        least: the headers of columns that may be left out, in the order in which they are.
    """
    left: list[str] = []
    if table.title is not None:  # a line of its own: a table's title is wrapped where its columns end
        out.print(table.title, style="italic", soft_wrap=True)
        table.title = None
    for header in least:
        if out.measure(table, options=out.options.update(max_width=10_000)).maximum <= out.width:
            break
        kept = [column for column in table.columns if column.header != header]
        if len(kept) == len(table.columns):
            continue
        left.append(header)
        narrower = plain_table()
        for column in kept:
            narrower.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap, overflow=column.overflow)
        for row, cells in zip(table.rows, zip(*(column.cells for column in kept), strict=True), strict=True):
            narrower.add_row(*cells, style=row.style)
        table = narrower
    out.print(table)
    if left:
        out.print(f"not shown in {out.width} columns: {', '.join(left)}", soft_wrap=True)


def print_json(value: object) -> None:
    """One JSON object on standard output."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def certificate_lines(plan: Plan) -> list[str]:
    """The certificate in words; where a layout was open, also what is known of the plan's own layout."""
    from schedc.analysis.bounds.own_layout import own_layout

    certificate, own = plan.certificate, own_layout(plan)
    where = " in any layout that the job leaves open" if certificate.scope is Scope.LAYOUT else ""
    objective = f"{certificate.objective} {format_duration_ns(certificate.objective_ns)}, "
    lines = [
        objective + _worth(certificate, bool(certificate.solver_log_sha256), where, certificate.lower_bound_ns, certificate.bound)
    ]
    if own is not None:
        lines.append("in this layout alone: " + _worth(own, own.of_whole_blocks, "", own.bound.value_ns, own.bound.name))
    held = f"peak activations {format_bytes(max(certificate.peak_activation_bytes))}"
    return [*lines, f"bubble ratio {certificate.bubble_ratio:.2%}, {held}"]


def _worth(known: Certificate | OwnLayout, of_whole_blocks: bool, where: str, bound_ns: int, bound_by: str) -> str:
    worth = f"gap {known.gap:.2%}" if known.gap > 0 else "proven optimal"
    worth += " among schedules of whole blocks" if of_whole_blocks else ""
    return f"{worth}{where} (lower bound {format_duration_ns(bound_ns)}, by {bound_by})"


def print_candidates(
    candidates: Sequence[Candidate], best: str | None, title: str, *, objective: Objective, stderr: bool = False
) -> None:
    """How each method did, the best by the objective first, then those that could not and why."""
    spans = objective is Objective.STAGE_SPAN
    table = plain_table(title)
    table.add_column("method")
    for header in ("makespan", *((objective,) if spans else ()), "over best", "took"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    solved = sorted((c for c in candidates if c.objective_ns is not None), key=lambda c: c.objective_ns or 0)
    chosen = next((c for c in solved if best in (c.method, c.method.partition("{")[0])), None)
    for candidate in solved:
        least_ns = solved[0].objective_ns or 1
        table.add_row(
            candidate.method,
            format_duration_ns(candidate.makespan_ns or 0),
            *((format_duration_ns(candidate.objective_ns or 0),) if spans else ()),
            f"+{(candidate.objective_ns or 0) / least_ns - 1:.2%}",
            f"{candidate.seconds * 1e3:.1f} ms" if candidate.seconds < 1 else f"{candidate.seconds:.2f} s",
            "◀" if candidate is chosen else "",
        )
    out = console(stderr=stderr)
    print_fitting(out, table, ("took",))
    for candidate in candidates:
        if candidate.objective_ns is None:
            out.print(Text(f"not {candidate.method}: {candidate.why_not.removeprefix(candidate.method).strip()}", "dim"))


def print_compiled(compiled: Compiled, output: Path, *, interrupted: bool = False) -> None:
    """How each candidate did, the certificate, and why the work ended; on standard error where the plan is on standard output."""
    plan, stderr = compiled.plan, is_standard(output)
    title = f"{plan.name}: {len(compiled.candidates)} candidates"
    print_candidates(
        compiled.candidates, compiled.chosen or plan.made_by.method, title, objective=plan.problem.objective, stderr=stderr
    )
    out = console(stderr=stderr)
    for line in certificate_lines(plan):
        out.print(line)
    where = "standard output" if stderr else one_line(str(output))
    late = ", interrupted" if interrupted and compiled.ended != "interrupted" else ""  # what came when the search was over
    out.print(f"written to {where} in {compiled.seconds:.2f} s: {compiled.ended}{late}")


def compiled_json(compiled: Compiled) -> dict[str, Any]:
    """The object of `compile --json`."""
    certificate = compiled.plan.certificate
    return {
        "makespan_ns": certificate.makespan_ns,
        "stage_span_ns": certificate.stage_span_ns,
        "objective": certificate.objective,
        "objective_ns": certificate.objective_ns,
        "lower_bound_ns": certificate.lower_bound_ns,
        "gap": certificate.gap,
        "bound": certificate.bound,
        "scope": certificate.scope,
        "layouts": compiled.layouts,
        "method": compiled.plan.made_by.method,
        "seconds": compiled.seconds,
        "ended": compiled.ended,
        "candidates": [
            {
                "method": entry.method,
                "makespan_ns": entry.makespan_ns,
                "objective_ns": entry.objective_ns,
                "seconds": entry.seconds,
            }
            if entry.makespan_ns is not None
            else {"method": entry.method, "why_not": entry.why_not, "seconds": entry.seconds}
            for entry in compiled.candidates
        ],
        "failures": [
            {"method": failure.method, "error": failure.error, "message": failure.message, "place": failure.place}
            for failure in compiled.failures
        ],
        "history": [
            {
                "seconds": step.seconds,
                "makespan_ns": step.makespan_ns,
                "objective_ns": step.objective_ns,
                "lower_bound_ns": step.lower_bound_ns,
                "found_by": step.found_by,
            }
            for step in compiled.history
        ],
        "reproducible": compiled.plan.made_by.reproducible,
        "solver_log": list(compiled.solver_log),
    }


def print_verdict(plan: Plan, violations: Sequence[Violation], path: Path, *, knows_layouts: bool) -> None:
    """Every violation on a line of its own, or that there is none, and what could not be checked."""
    for violation in violations:
        sys.stdout.write(f"{one_line(f'{path}: {violation}')}\n")
    if not violations:
        ops = sum(len(rank.compute) for rank in plan.ranks)
        transfers = sum(len(channel.transfers) for rank in plan.ranks for channel in rank.channels if channel.receives)
        out = console()
        out.print(
            f"{one_line(str(path))}: holds: {counted(ops, 'op')} and {counted(transfers, 'transfer')}"
            f" on {counted(len(plan.ranks), 'rank')}, every rule checked"
        )
        for line in certificate_lines(plan):
            out.print(line)
        digest = plan.certificate.solver_log_sha256
        if digest:
            out.print(f"the bound is a result of {plan.certificate.bound}, not checked here; its log has the sha256 {digest}")
        elif plan.certificate.scope is Scope.LAYOUT and not knows_layouts:
            out.print("the bound is over layouts, not checked here: --job with the job that leaves the layout open does it")


def timeline_json(problem: Problem, schedule: Schedule, timeline: Timeline) -> dict[str, Any]:
    """The object of `simulate --json`."""
    from schedc.analysis.simulation.memory import peak_bytes

    per_rank = {
        "busy_ns": timeline.busy_ns,
        "idle_ns": [timeline.makespan_ns - busy_ns for busy_ns in timeline.busy_ns],
        "peak_activation_bytes": peak_bytes(problem, schedule),
    }
    return {
        "makespan_ns": timeline.makespan_ns,
        "stage_span_ns": timeline.stage_span_ns,
        "bubble_ratio": timeline.bubble_ratio,
        **per_rank,
        "ranks": [{"rank": rank, **{name: each[rank] for name, each in per_rank.items()}} for rank in range(problem.ranks)],
    }


def print_timeline(problem: Problem, schedule: Schedule, timeline: Timeline) -> None:
    """Makespan and bubble, and per rank what it computes, waits and holds."""
    from schedc.analysis.simulation.memory import peak_bytes

    out = console()
    out.print(
        f"{problem.name}: makespan {format_duration_ns(timeline.makespan_ns)},"
        f" stage span {format_duration_ns(timeline.stage_span_ns)}, bubble ratio {timeline.bubble_ratio:.2%}"
    )
    table = plain_table(right=("rank", "busy", "idle", "idle share", "peak activations", "limit"))
    for rank, (busy_ns, peak) in enumerate(zip(timeline.busy_ns, peak_bytes(problem, schedule), strict=True)):
        idle_ns, limit = timeline.makespan_ns - busy_ns, problem.memory_limit_bytes[rank]
        table.add_row(
            str(rank),
            format_duration_ns(busy_ns),
            format_duration_ns(idle_ns),
            f"{idle_ns / max(1, timeline.makespan_ns):.2%}",
            format_bytes(peak),
            "none" if limit is None else format_bytes(limit),
        )
    out.print(table)


def print_against_decoupled(transfers: str, timeline: Timeline, decoupled: Timeline) -> None:
    """How much longer it takes than where no transfer holds up compute."""
    longer = timeline.makespan_ns / max(1, decoupled.makespan_ns) - 1
    console().print(
        f"with {transfers} transfers; decoupled ones take {format_duration_ns(decoupled.makespan_ns)}, so these cost {longer:+.2%}"
    )


def print_templates(templates: Sequence[Template]) -> None:
    """The known schedules, what each needs, and where it was published."""
    table = plain_table()
    for header in ("template", "placement", "what it is", "source"):
        table.add_column(header)
    for template in templates:
        table.add_row(template.name, template.placements, template.summary, template.source)
    console().print(table)


def print_bounds(name: str, bounds: Sequence[Bound]) -> None:
    """Each lower bound of what has the name, the one that binds first."""
    table = plain_table(f"{name}: no schedule is faster than")
    for header in ("bound", "value", "where"):
        table.add_column(header, justify="right" if header == "value" else "left")
    for bound in sorted(bounds, key=lambda bound: -bound.value_ns):
        table.add_row(bound.name, format_duration_ns(bound.value_ns), bound.detail)
    console().print(table)
