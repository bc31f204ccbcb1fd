"""`schedc show`: the picture of a plan in the terminal, with ranks, links and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from schedc.analysis.memory import memory_curve, peak_bytes
from schedc.cli.gantt import Window, legend, memory_row, rank_row, resource_rows, ruler
from schedc.cli.render import certificate_lines, console
from schedc.ir.index import tables_of
from schedc.units import format_bytes, format_duration_ns

if TYPE_CHECKING:
    from schedc.analysis.timeline import Timeline
    from schedc.ir.plan import Plan

__all__ = ["print_plan"]


def print_plan(plan: Plan, timeline: Timeline, from_ns: int, to_ns: int | None) -> None:
    """Print the plan between two times, fitted to the terminal's width."""
    out = console()
    problem, schedule = plan.problem, plan.schedule()
    resources = tables_of(problem).resources
    label_width = (
        max(len(f"rank {problem.ranks - 1}"), *(len(each.label) for each in resources if each.kind != "collectives"), 0) + 1
    )
    peaks = peak_bytes(problem, schedule)
    amounts = [_of_limit(peak, limit) for peak, limit in zip(peaks, problem.memory_limit_bytes, strict=True)]
    tail_width = max(len(text) for text in [*amounts, "100.0% busy"]) + 1
    last_ns = timeline.makespan_ns if to_ns is None else min(to_ns, timeline.makespan_ns)
    window = Window(from_ns, max(last_ns, from_ns + 1), max(20, out.width - label_width - tail_width))

    out.print(Text(f"{plan.name}: {problem.ranks} ranks, {problem.microbatches} microbatches, by {plan.made_by.method}", "bold"))
    for line in certificate_lines(plan.certificate):
        out.print(line)
    out.print(legend())

    def put(label: str, row: Text, tail: str = "") -> None:
        line = Text(label.ljust(label_width), "bold").append_text(row)
        out.print(line.append(f" {tail}" if tail else "", "not bold dim"), no_wrap=True, overflow="crop")

    put("", ruler(window, f" {format_duration_ns(window.from_ns)} to {format_duration_ns(window.to_ns)} "))
    for rank, busy_ns in enumerate(timeline.busy_ns):
        put(f"rank {rank}", rank_row(window, timeline, rank), f"{busy_ns / max(1, timeline.makespan_ns):.1%} busy")
    for label, row in resource_rows(window, timeline, resources):
        put(label, row)
    for rank, amount in enumerate(amounts):
        curve = memory_curve(problem, schedule, timeline, rank)
        put(f"mem {rank}", memory_row(window, curve, problem.memory_limit_bytes[rank] or max(peaks)), amount)


def _of_limit(peak: int, limit: int | None) -> str:
    return format_bytes(peak) if limit is None else f"{format_bytes(peak)} of {format_bytes(limit)}"
