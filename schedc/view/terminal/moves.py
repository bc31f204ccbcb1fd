"""What `schedc assign` and `schedc repartition` print: the step before and after, what moves where; or a JSON object."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from schedc.spelling import counted
from schedc.units import format_bytes, format_duration_ns
from schedc.view.terminal.results import console, plain_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from schedc.adapt.node_mapping import Assignment
    from schedc.adapt.repartition import Repartition
    from schedc.ir.plan import Plan
    from schedc.solvers.node_mapping.value import AssignedStep


def print_assignment(found: Assignment, *, exact_links: bool) -> None:
    """Print it."""
    out = console()
    nodes, process_of, ranks = found.nodes, found.process_of, found.given.problem.ranks
    sought, before, after = nodes.sought, found.before, found.after
    replicas = len(before.pipelines_ns)
    shape = f"{counted(replicas, 'replica')} of {counted(ranks, 'rank')}"
    step = f"step {format_duration_ns(before.step_ns)} before, {format_duration_ns(after.step_ns)} after"
    out.print(f"{found.given.name}: {shape}; {step}", style="bold")
    table = plain_table(right=("node", "replica", "rank"))
    table.add_column("takes replica", justify="right")
    table.add_column("rank", justify="right")
    for node in nodes.moved:
        place = nodes.node_of.index(node)
        table.add_row(*map(str, (process_of[node], node // ranks, node % ranks, place // ranks, place % ranks)))
    if nodes.moved:
        out.print(table)
    else:
        out.print("no node moves")
    out.print(f"hosts in the order of processes: {' '.join(map(str, found.hosts))}", soft_wrap=True)
    rows = plain_table()
    rows.add_column("")
    for header in ("before", "after"):
        rows.add_column(header, justify="right")
    rows.add_row("slowest pipeline", format_duration_ns(max(before.pipelines_ns)), format_duration_ns(max(after.pipelines_ns)))
    rows.add_row("slowest ring", format_duration_ns(max(before.rings_ns)), format_duration_ns(max(after.rings_ns)))
    out.print(rows)
    said = "no assignment is better" if sought.proven else f"no assignment takes less than {format_duration_ns(sought.bound_ns)}"
    how = "which has the links as they are given" if exact_links else "which has links that are alike as equal"
    out.print(f"in the search, {how}, {format_duration_ns(sought.after.step_ns)}: {said}")


def assignment_json(found: Assignment) -> dict[str, Any]:
    """The object of `assign --json`."""
    process_of, sought, ranks = found.process_of, found.nodes.sought, found.given.problem.ranks
    return {
        "plan": found.given.name,
        "nodes": [
            {
                "node": process_of[node],
                "from": {"replica": node // ranks, "rank": node % ranks},
                "to": {"replica": place // ranks, "rank": place % ranks},
            }
            for node, place in sorted(
                ((node, place) for place, node in enumerate(found.nodes.node_of)), key=lambda each: process_of[each[0]]
            )
        ],
        "hosts": list(found.hosts),
        "moved": list(found.moved),
        "before": _step_json(found.before),
        "after": _step_json(found.after),
        "sought_ns": sought.after.step_ns,
        "bound_ns": sought.bound_ns,
        "proven": sought.proven,
    }


def print_repartition(given: Plan, found: Repartition, *, slow: Mapping[int, float], steps: int) -> None:
    """Print what the step takes, which layers move, and what that is worth."""
    out = console()
    ranks = ", ".join(f"rank {rank} takes {factor:g} times as long" for rank, factor in sorted(slow.items()))
    runs = f"step {format_duration_ns(found.running_ns)} as it runs, {format_duration_ns(found.stay_ns)} with the best orders"
    moves = f", {format_duration_ns(found.objective_ns)} with the best layers" if found.moved else ""
    out.print(f"{given.name}: {ranks + '; ' if ranks else ''}{runs}{moves}", style="bold", soft_wrap=True)
    if not found.moved:
        out.print("no layer moves: no other layout gains more than the move takes", soft_wrap=True)
        return
    table = plain_table(right=("layers", "leave rank", "for rank"))
    for layers, (source, destination) in _runs(found.moved):
        table.add_row(layers, str(source), str(destination))
    out.print(table)
    sent = f"{format_bytes(found.moved_bytes)} move in each pipeline"
    if not found.moved_bytes:
        sent = "sending is not counted, as the job does not say how large its layers are"
    took = f"the move takes {format_duration_ns(found.move_ns)}; {counted(steps, 'step')} gain {format_duration_ns(found.gain_ns)}"
    out.print(f"{sent}; {took}", soft_wrap=True)


def repartition_json(given: Plan, found: Repartition) -> dict[str, Any]:
    """The object of `repartition --json`."""
    return {
        "plan": given.name,
        "moved": [
            {"layer": layer, "from": source, "to": destination} for layer, (source, destination) in sorted(found.moved.items())
        ],
        "running_ns": found.running_ns,
        "stay_ns": found.stay_ns,
        "objective_ns": found.objective_ns,
        "moved_bytes": found.moved_bytes,
        "move_ns": found.move_ns,
        "gain_ns": found.gain_ns,
    }


def _runs(moved: Mapping[int, tuple[int, int]]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Layers in a row that go the same way: `4-6`, and from which rank to which."""
    for (_, pair), run in groupby(sorted(moved), key=lambda layer: (layer - sorted(moved).index(layer), moved[layer])):
        layers = list(run)
        yield (f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else str(layers[0])), pair


def _step_json(step: AssignedStep) -> dict[str, Any]:
    return {"step_ns": step.step_ns, "pipelines_ns": list(step.pipelines_ns), "rings_ns": list(step.rings_ns)}
