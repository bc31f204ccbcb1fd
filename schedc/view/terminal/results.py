"""What the commands about one plan show: candidates, certificate, layout, violations, times, bounds, templates, moves."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from schedc.analysis.simulation.memory import peak_bytes
from schedc.compile.plans import OwnLayout, own_layout
from schedc.io.location import one_line
from schedc.io.outputs import is_standard
from schedc.ir import BoundName, Certificate, Layout, Objective, Plan, Problem, Schedule, Scope
from schedc.spelling import counted
from schedc.view.document import Block, Column, Line, Table, duration, left, picked, right, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from schedc.adapt.node_mapping import Assignment
    from schedc.adapt.repartition import Repartition
    from schedc.analysis.bounds.lower_bounds import Bound
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.compile.driver import Compiled
    from schedc.lower.layout_report import LayoutReport
    from schedc.solvers.common.incumbent import Candidate
    from schedc.solvers.common.method import Template
    from schedc.verify.violation import Violation

MOST_STAGES = 64
"""`compile` has a table of at most this many."""


def certificate_lines(plan: Plan) -> list[str]:
    """The certificate in words; where a layout was open, also what is known of the plan's own layout."""
    certificate, own = plan.certificate, own_layout(plan)
    where = " in any layout that the job leaves open" if certificate.scope is Scope.LAYOUT else ""
    worth = _worth(certificate, where, certificate.lower_bound_ns, certificate.bound)
    what = "period" if plan.is_period else certificate.objective
    lines = [f"{what} {duration(certificate.objective_ns)}, {worth}"]
    if own is not None:
        lines.append("in this layout alone: " + _worth(own, "", own.bound.value_ns, own.bound.name))
    updates = plan.problem.updates
    held = f"peak activations {'and versions ' if updates else ''}{size(max(certificate.peak_activation_bytes))}"
    lines.append(f"bubble ratio {certificate.bubble_ratio:.2%}, {held}")
    if updates is not None:
        delays, versions = (", ".join(map(str, each)) for each in (certificate.delays, certificate.versions))
        lines.append(f"{updates.versions}: stages' delays {delays} updates, versions {versions}")
    return lines


def _worth(known: Certificate | OwnLayout, where: str, bound_ns: int, bound_by: BoundName) -> str:
    worth = f"gap {known.gap:.2%}" if known.gap > 0 else "proven optimal"
    worth += f" among schedules {bound_by.only}" if bound_by.only else ""
    return f"{worth}{where} (lower bound {duration(bound_ns)}, by {bound_by})"


def shown_candidates(candidates: Sequence[Candidate], best: str | None, title: str, *, problem: Problem) -> Iterator[Block]:
    """How each method did, the best by the objective first, then those that could not and why."""
    objective, spans = problem.objective, problem.objective is Objective.STAGE_SPAN
    first = "period" if problem.updates is not None and problem.updates.is_period else "makespan"
    solved = sorted((c for c in candidates if c.objective_ns is not None), key=lambda c: c.objective_ns or 0)
    chosen = next((c for c in solved if best in (c.method, c.method.partition("{")[0])), None)
    rows = [
        (
            candidate.method,
            duration(candidate.makespan_ns or 0),
            *((duration(candidate.objective_ns),) if spans else ()),
            f"+{(candidate.objective_ns or 0) / (solved[0].objective_ns or 1) - 1:.2%}",
            f"{candidate.seconds * 1e3:.1f} ms" if candidate.seconds < 1 else f"{candidate.seconds:.2f} s",
            "◀" if candidate is chosen else "",
        )
        for candidate in solved
    ]
    numbers = right(first, *((objective,) if spans else ()), "over best", "took", wrap="never")
    yield Table(title=title, columns=[*left("method"), *numbers, Column("", wrap="never")], rows=rows, may_go=["took"])
    for candidate in candidates:
        if candidate.objective_ns is None:
            yield Line(f"not {candidate.method}: {candidate.why_not.removeprefix(candidate.method).strip()}", "dim")


def shown_compiled(compiled: Compiled, report: LayoutReport, output: Path, *, interrupted: bool) -> Iterator[Block]:
    """What is to say of the layout, how each candidate did, the certificate, and why the work ended."""
    plan = compiled.plan
    yield from _shown_layout(report, is_chosen=compiled.layout is not None)
    title, best = f"{plan.name}: {len(compiled.candidates)} candidates", compiled.chosen or plan.made_by.method
    yield from shown_candidates(compiled.candidates, best, title, problem=plan.problem)
    yield from certificate_lines(plan)
    if compiled.whole_ns is not None:
        lengths = ", ".join(map(str, plan.problem.slices))
        yield f"{len(plan.problem.slices)} slices of {lengths} tokens; whole microbatches take {duration(compiled.whole_ns)}"
    late = ", interrupted" if interrupted and compiled.ended != "interrupted" else ""  # what came when the search was over
    yield f"{written_to(output)} in {compiled.seconds:.2f} s: {compiled.ended}{late}"


def written_to(output: Path) -> str:
    """Where a result went."""
    return f"written to {'standard output' if is_standard(output) else one_line(str(output))}"


def compiled_json(compiled: Compiled) -> dict[str, Any]:
    """The object of `compile --json`."""
    costs = "makespan_ns stage_span_ns objective objective_ns lower_bound_ns"
    return {
        **picked(
            compiled.plan.certificate, f"{costs} gap bound scope{' delays versions' if compiled.plan.problem.updates else ''}"
        ),
        **picked(compiled, f"layouts seconds ended solver_log{' whole_ns' if compiled.whole_ns is not None else ''}"),
        **picked(compiled.plan.made_by, "method reproducible"),
        "candidates": [
            picked(each, "method why_not seconds" if each.makespan_ns is None else "method makespan_ns objective_ns seconds")
            for each in compiled.candidates
        ],
        "failures": compiled.failures,
        "history": [picked(step, "seconds makespan_ns objective_ns lower_bound_ns found_by") for step in compiled.history],
    }


def _shown_layout(report: LayoutReport, *, is_chosen: bool) -> Iterator[Block]:
    """The notes, if there are any; the table where the layout was chosen, or its partition is far from balanced."""
    if (is_chosen or report.balanced is not None) and len(report.stages) <= MOST_STAGES:
        total_ns = max(1, sum(row.work_ns for row in report.stages))
        rows = [
            (
                str(stage),
                str(row.rank),
                "" if row.layers is None else f"{row.layers[0]} to {row.layers[1] - 1}",
                duration(row.work_ns),
                f"{row.work_ns / total_ns:.1%}",
                size(row.activation_bytes),
                size(row.static_bytes),
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
            **({"slices": layout.slices} if layout.slices else {}),
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
    makespan, span = duration(timeline.makespan_ns), duration(timeline.stage_span_ns)
    yield f"{problem.name}: makespan {makespan}, stage span {span}, bubble ratio {timeline.bubble_ratio:.2%}"
    rows, whole_ns = [], timeline.makespan_ns
    limits = ["none" if limit is None else size(limit) for limit in problem.memory_limit_bytes]
    for rank, of_rank in enumerate(zip(timeline.busy_ns, peak_bytes(problem, schedule), limits, strict=True)):
        busy_ns, peak, limit = of_rank
        idle_ns = whole_ns - busy_ns
        rows.append((str(rank), duration(busy_ns), duration(idle_ns), f"{idle_ns / max(1, whole_ns):.2%}", size(peak), limit))
    yield Table(columns=right("rank", "busy", "idle", "idle share", "peak activations", "limit"), rows=rows)


def shown_templates(templates: Iterable[Template]) -> Table:
    """The known schedules, what each needs, and where it was published."""
    rows = [(each.name, each.placements, each.summary, each.source) for each in templates]
    return Table(columns=left("template", "placement", "what it is", "source"), rows=rows)


def shown_bounds(name: str, bounds: Iterable[Bound]) -> Table:
    """Each lower bound of what has the name, the one that binds first."""
    ordered = sorted(bounds, key=lambda bound: -bound.value_ns)
    rows = [(bound.name, duration(bound.value_ns), bound.detail) for bound in ordered]
    return Table(title=f"{name}: no schedule is faster than", columns=[*left("bound"), *right("value"), *left("where")], rows=rows)


def shown_assignment(found: Assignment, *, exact_links: bool) -> Iterator[Block]:
    """What a step takes, which nodes move, and what the search has proven."""
    nodes, process_of, ranks = found.nodes, found.process_of, found.given.problem.ranks
    sought, before, after = nodes.sought, found.before, found.after
    shape = f"{counted(len(before.pipelines_ns), 'replica')} of {counted(ranks, 'rank')}"
    step = f"step {duration(before.step_ns)} before, {duration(after.step_ns)} after"
    yield Line(f"{found.given.name}: {shape}; {step}", "bold")
    rows = []
    for node in nodes.moved:
        place = nodes.node_of.index(node)
        rows.append([*map(str, (process_of[node], node // ranks, node % ranks, place // ranks, place % ranks))])
    yield Table(columns=right("node", "replica", "rank", "takes replica", "rank"), rows=rows) if rows else "no node moves"
    yield Line(f"hosts in the order of processes: {' '.join(map(str, found.hosts))}", soft=True)
    pairs = (
        ("slowest pipeline", before.pipelines_ns, after.pipelines_ns),
        ("slowest ring", before.rings_ns, after.rings_ns),
    )
    times = [(what, *(duration(max(times_ns)) for times_ns in both_ns)) for what, *both_ns in pairs]
    yield Table(columns=[*left(""), *right("before", "after")], rows=times)
    said = "no assignment is better" if sought.proven else f"no assignment takes less than {duration(sought.bound_ns)}"
    how = "which has the links as they are given" if exact_links else "which has links that are alike as equal"
    yield f"in the search, {how}, {duration(sought.after.step_ns)}: {said}"


def assignment_json(found: Assignment) -> dict[str, Any]:
    """The object of `assign --json`."""
    sought, ranks = found.nodes.sought, found.given.problem.ranks
    nodes = [
        {
            "node": found.process_of[node],
            "from": {"replica": node // ranks, "rank": node % ranks},
            "to": {"replica": place // ranks, "rank": place % ranks},
        }
        for place, node in enumerate(found.nodes.node_of)
    ]
    return {
        "plan": found.given.name,
        "nodes": sorted(nodes, key=lambda node: node["node"]),
        **picked(found, "hosts moved before after"),
        "sought_ns": sought.after.step_ns,
        **picked(sought, "bound_ns proven"),
    }


def shown_repartition(
    given: Plan, found: Repartition, *, slow: Mapping[int, float], limits: Mapping[int, int], steps: int
) -> Iterator[Block]:
    """What the step takes, which layers move, and what that is worth."""
    changed = [f"rank {rank} takes {factor:g} times as long" for rank, factor in sorted(slow.items())]
    changed += [f"rank {rank} can hold {size(limit)}" for rank, limit in sorted(limits.items())]
    ranks = ", ".join(changed)
    runs = f"step {duration(found.running_ns)} as it runs{'' if found.running_fits else ', for which there is no room'}"
    runs += f", {duration(found.stay_ns)} with the best orders" if found.stay_fits else ", nor for other orders"
    moves = f", {duration(found.objective_ns)} with the best layers" if found.moved else ""
    yield Line(f"{given.name}: {ranks + '; ' if ranks else ''}{runs}{moves}", "bold", soft=True)
    if not found.moved:
        yield Line("no layer moves: no other layout gains more than the move takes", soft=True)
        return
    rows = [(layers, str(source), str(destination)) for layers, (source, destination) in _runs(found.moved)]
    yield Table(columns=right("layers", "leave rank", "for rank"), rows=rows)
    sent = f"{size(found.moved_bytes)} move in each pipeline"
    if not found.moved_bytes:
        sent = "sending is not counted, as the job does not say how large its layers are"
    gain = f"gain {duration(found.gain_ns)}" if found.stay_fits else f"take {duration(-found.gain_ns)} longer than as it runs"
    took = f"the move takes {duration(found.move_ns)}; {counted(steps, 'step')} {gain}"
    yield Line(f"{sent}; {took}", soft=True)


def repartition_json(given: Plan, found: Repartition) -> dict[str, Any]:
    """The object of `repartition --json`."""
    moved = [{"layer": layer, "from": source, "to": destination} for layer, (source, destination) in sorted(found.moved.items())]
    times = picked(found, "running_ns running_fits stay_ns stay_fits objective_ns moved_bytes move_ns gain_ns")
    return {"plan": given.name, "moved": moved, **times}


def _runs(moved: Mapping[int, tuple[int, int]]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Layers in a row that go the same way: `4-6`, and from which rank to which."""
    for (_, pair), run in groupby(enumerate(sorted(moved)), key=lambda entry: (entry[1] - entry[0], moved[entry[1]])):
        layers = [layer for _, layer in run]
        yield (f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else str(layers[0])), pair
