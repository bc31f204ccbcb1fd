"""What the commands about one plan show: candidates, certificate, layout, violations, times, bounds, templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedc.analysis.simulation.memory import peak_bytes
from schedc.compile.plans import OwnLayout, own_layout
from schedc.io.location import one_line
from schedc.io.outputs import is_standard
from schedc.ir.plan import Certificate, Plan, Scope
from schedc.ir.problem import Objective, Problem
from schedc.spelling import counted
from schedc.units import format_bytes, format_duration_ns
from schedc.view.document import Block, Column, Line, Table, left, right
from schedc.view.terminal.show import picked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from schedc.analysis.bounds.lower_bounds import Bound
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.compile.driver import Compiled
    from schedc.ir.layout import Layout
    from schedc.ir.schedule import Schedule
    from schedc.lower.layout_report import LayoutReport
    from schedc.solvers.common.failure import Failure
    from schedc.solvers.common.incumbent import Candidate
    from schedc.solvers.templates import Template
    from schedc.verify.violation import Violation

MOST_STAGES = 64
"""`compile` has a table of at most this many."""


def certificate_lines(plan: Plan) -> list[str]:
    """The certificate in words; where a layout was open, also what is known of the plan's own layout."""
    certificate, own = plan.certificate, own_layout(plan)
    where = " in any layout that the job leaves open" if certificate.scope is Scope.LAYOUT else ""
    worth = _worth(certificate, bool(certificate.solver_log_sha256), where, certificate.lower_bound_ns, certificate.bound)
    lines = [f"{certificate.objective} {format_duration_ns(certificate.objective_ns)}, {worth}"]
    if own is not None:
        lines.append("in this layout alone: " + _worth(own, own.of_whole_blocks, "", own.bound.value_ns, own.bound.name))
    held = f"peak activations {format_bytes(max(certificate.peak_activation_bytes))}"
    return [*lines, f"bubble ratio {certificate.bubble_ratio:.2%}, {held}"]


def _worth(known: Certificate | OwnLayout, of_whole_blocks: bool, where: str, bound_ns: int, bound_by: str) -> str:
    worth = f"gap {known.gap:.2%}" if known.gap > 0 else "proven optimal"
    worth += " among schedules of whole blocks" if of_whole_blocks else ""
    return f"{worth}{where} (lower bound {format_duration_ns(bound_ns)}, by {bound_by})"


def shown_candidates(candidates: Sequence[Candidate], best: str | None, title: str, *, objective: Objective) -> Iterator[Block]:
    """How each method did, the best by the objective first, then those that could not and why."""
    spans = objective is Objective.STAGE_SPAN
    solved = sorted((c for c in candidates if c.objective_ns is not None), key=lambda c: c.objective_ns or 0)
    chosen = next((c for c in solved if best in (c.method, c.method.partition("{")[0])), None)
    rows = []
    for candidate in solved:
        least_ns, objective_ns = solved[0].objective_ns or 1, candidate.objective_ns or 0
        rows.append(
            (
                candidate.method,
                format_duration_ns(candidate.makespan_ns or 0),
                *((format_duration_ns(objective_ns),) if spans else ()),
                f"+{objective_ns / least_ns - 1:.2%}",
                f"{candidate.seconds * 1e3:.1f} ms" if candidate.seconds < 1 else f"{candidate.seconds:.2f} s",
                "◀" if candidate is chosen else "",
            )
        )
    numbers = right("makespan", *((objective,) if spans else ()), "over best", "took", wrap="never")
    yield Table(title=title, columns=[*left("method"), *numbers, Column("", wrap="never")], rows=rows, may_go=["took"])
    for candidate in candidates:
        if candidate.objective_ns is None:
            yield Line(f"not {candidate.method}: {candidate.why_not.removeprefix(candidate.method).strip()}", "dim")


def shown_compiled(compiled: Compiled, report: LayoutReport, output: Path, *, interrupted: bool) -> Iterator[Block]:
    """What is to say of the layout, how each candidate did, the certificate, and why the work ended."""
    plan = compiled.plan
    yield from _shown_layout(report, is_chosen=compiled.layout is not None)
    title, best = f"{plan.name}: {len(compiled.candidates)} candidates", compiled.chosen or plan.made_by.method
    yield from shown_candidates(compiled.candidates, best, title, objective=plan.problem.objective)
    yield from certificate_lines(plan)
    late = ", interrupted" if interrupted and compiled.ended != "interrupted" else ""  # what came when the search was over
    yield f"{written_to(output)} in {compiled.seconds:.2f} s: {compiled.ended}{late}"


def written_to(output: Path) -> str:
    """Where a result went."""
    return f"written to {'standard output' if is_standard(output) else one_line(str(output))}"


def compiled_json(compiled: Compiled) -> dict[str, Any]:
    """The object of `compile --json`."""
    costs = "makespan_ns stage_span_ns objective objective_ns lower_bound_ns"
    return {
        **picked(compiled.plan.certificate, f"{costs} gap bound scope"),
        **picked(compiled, "layouts seconds ended solver_log"),
        **picked(compiled.plan.made_by, "method reproducible"),
        "candidates": [
            picked(each, "method why_not seconds" if each.makespan_ns is None else "method makespan_ns objective_ns seconds")
            for each in compiled.candidates
        ],
        "failures": failures_json(compiled.failures),
        "history": [picked(step, "seconds makespan_ns objective_ns lower_bound_ns found_by") for step in compiled.history],
    }


def failures_json(failures: Iterable[Failure]) -> list[dict[str, Any]]:
    """The key `failures` of several commands."""
    return [picked(failure, "method error message place") for failure in failures]


def _shown_layout(report: LayoutReport, *, is_chosen: bool) -> Iterator[Block]:
    """The notes, if there are any; the table where the layout was chosen, or its partition is far from balanced."""
    if (is_chosen or report.balanced is not None) and len(report.stages) <= MOST_STAGES:
        total_ns = sum(row.work_ns for row in report.stages)
        rows = [
            (
                str(stage),
                str(row.rank),
                "" if row.layers is None else f"{row.layers[0]} to {row.layers[1] - 1}",
                format_duration_ns(row.work_ns),
                f"{row.work_ns / max(1, total_ns):.1%}",
                format_bytes(row.activation_bytes),
                format_bytes(row.static_bytes),
                "recomputes" if row.recomputes else "",
            )
            for stage, row in enumerate(report.stages)
        ]
        yield Table(columns=right("stage", "rank", "layers", "work", "share", "activations", "static", ""), rows=rows)
    yield from (f"note: {note}" for note in report.notes)


def layout_json(report: LayoutReport, layout: Layout) -> dict[str, Any]:
    """The keys `layout` and `notes` of `compile --json`."""
    return {
        "layout": {
            "partition": [last - first for first, last in (layout.layers_of_stage[stage] for stage in layout.paths[0])],
            "placement": layout.placement if layout.placement != "explicit" else layout.rank_of_stage,
            "recompute": [stage in layout.recomputed for stage in range(len(layout.rank_of_stage))],
            "balanced_partition": report.balanced,
            "stages": [picked(row, "rank layers work_ns activation_bytes static_bytes") for row in report.stages],
        },
        "notes": report.notes,
    }


def shown_verdict(plan: Plan, violations: Sequence[Violation], path: Path, *, knows_layouts: bool) -> Iterator[Block]:
    """Every violation on a line of its own, or that there is none, and what could not be checked."""
    for violation in violations:
        yield Line(one_line(f"{path}: {violation}"), soft=True)
    if violations:
        return
    ops = sum(len(rank.compute) for rank in plan.ranks)
    transfers = sum(len(channel.transfers) for rank in plan.ranks for channel in rank.channels if channel.receives)
    counts = f"{counted(ops, 'op')} and {counted(transfers, 'transfer')} on {counted(len(plan.ranks), 'rank')}"
    yield f"{one_line(str(path))}: holds: {counts}, every rule checked"
    yield from certificate_lines(plan)
    digest = plan.certificate.solver_log_sha256
    if digest:
        yield f"the bound is a result of {plan.certificate.bound}, not checked here; its log has the sha256 {digest}"
    elif plan.certificate.scope is Scope.LAYOUT and not knows_layouts:
        yield "the bound is over layouts, not checked here: --job with the job that leaves the layout open does it"


def timeline_json(problem: Problem, schedule: Schedule, timeline: Timeline) -> dict[str, Any]:
    """The object of `simulate --json`."""
    per_rank = {
        "busy_ns": timeline.busy_ns,
        "idle_ns": [timeline.makespan_ns - busy_ns for busy_ns in timeline.busy_ns],
        "peak_activation_bytes": peak_bytes(problem, schedule),
    }
    ranks = [{"rank": rank, **{name: each[rank] for name, each in per_rank.items()}} for rank in range(problem.ranks)]
    return {**picked(timeline, "makespan_ns stage_span_ns bubble_ratio"), **per_rank, "ranks": ranks}


def shown_timeline(problem: Problem, schedule: Schedule, timeline: Timeline) -> Iterator[Block]:
    """Makespan and bubble, and per rank what it computes, waits and holds."""
    makespan, span = format_duration_ns(timeline.makespan_ns), format_duration_ns(timeline.stage_span_ns)
    yield f"{problem.name}: makespan {makespan}, stage span {span}, bubble ratio {timeline.bubble_ratio:.2%}"
    rows = []
    for rank, (busy_ns, peak) in enumerate(zip(timeline.busy_ns, peak_bytes(problem, schedule), strict=True)):
        idle_ns, limit = timeline.makespan_ns - busy_ns, problem.memory_limit_bytes[rank]
        share, bytes_limit = f"{idle_ns / max(1, timeline.makespan_ns):.2%}", "none" if limit is None else format_bytes(limit)
        rows.append((str(rank), format_duration_ns(busy_ns), format_duration_ns(idle_ns), share, format_bytes(peak), bytes_limit))
    yield Table(columns=right("rank", "busy", "idle", "idle share", "peak activations", "limit"), rows=rows)


def shown_templates(templates: Iterable[Template]) -> Table:
    """The known schedules, what each needs, and where it was published."""
    rows = [(each.name, each.placements, each.summary, each.source) for each in templates]
    return Table(columns=left("template", "placement", "what it is", "source"), rows=rows)


def shown_bounds(name: str, bounds: Iterable[Bound]) -> Table:
    """Each lower bound of what has the name, the one that binds first."""
    ordered = sorted(bounds, key=lambda bound: -bound.value_ns)
    rows = [(bound.name, format_duration_ns(bound.value_ns), bound.detail) for bound in ordered]
    return Table(title=f"{name}: no schedule is faster than", columns=[*left("bound"), *right("value"), *left("where")], rows=rows)
