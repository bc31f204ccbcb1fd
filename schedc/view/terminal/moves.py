"""What `schedc assign` and `schedc repartition` show: the step before and after, and what moves where."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from schedc.spelling import counted
from schedc.units import format_bytes, format_duration_ns
from schedc.view.document import Block, Line, Table, left, right
from schedc.view.terminal.show import picked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from schedc.adapt.node_mapping import Assignment
    from schedc.adapt.repartition import Repartition
    from schedc.ir.plan import Plan


def shown_assignment(found: Assignment, *, exact_links: bool) -> Iterator[Block]:
    """What a step takes, which nodes move, and what the search has proven."""
    nodes, process_of, ranks = found.nodes, found.process_of, found.given.problem.ranks
    sought, before, after = nodes.sought, found.before, found.after
    shape = f"{counted(len(before.pipelines_ns), 'replica')} of {counted(ranks, 'rank')}"
    step = f"step {format_duration_ns(before.step_ns)} before, {format_duration_ns(after.step_ns)} after"
    yield Line(f"{found.given.name}: {shape}; {step}", "bold")
    rows = []
    for node in nodes.moved:
        place = nodes.node_of.index(node)
        rows.append(tuple(map(str, (process_of[node], node // ranks, node % ranks, place // ranks, place % ranks))))
    yield Table(columns=right("node", "replica", "rank", "takes replica", "rank"), rows=rows) if rows else "no node moves"
    yield Line(f"hosts in the order of processes: {' '.join(map(str, found.hosts))}", soft=True)
    slowest = (
        ("slowest pipeline", max(before.pipelines_ns), max(after.pipelines_ns)),
        ("slowest ring", max(before.rings_ns), max(after.rings_ns)),
    )
    times = [(what, *map(format_duration_ns, both_ns)) for what, *both_ns in slowest]
    yield Table(columns=[*left(""), *right("before", "after")], rows=times)
    said = "no assignment is better" if sought.proven else f"no assignment takes less than {format_duration_ns(sought.bound_ns)}"
    how = "which has the links as they are given" if exact_links else "which has links that are alike as equal"
    yield f"in the search, {how}, {format_duration_ns(sought.after.step_ns)}: {said}"


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


def shown_repartition(given: Plan, found: Repartition, *, slow: Mapping[int, float], steps: int) -> Iterator[Block]:
    """What the step takes, which layers move, and what that is worth."""
    ranks = ", ".join(f"rank {rank} takes {factor:g} times as long" for rank, factor in sorted(slow.items()))
    runs = f"step {format_duration_ns(found.running_ns)} as it runs, {format_duration_ns(found.stay_ns)} with the best orders"
    moves = f", {format_duration_ns(found.objective_ns)} with the best layers" if found.moved else ""
    yield Line(f"{given.name}: {ranks + '; ' if ranks else ''}{runs}{moves}", "bold", soft=True)
    if not found.moved:
        yield Line("no layer moves: no other layout gains more than the move takes", soft=True)
        return
    rows = [(layers, str(source), str(destination)) for layers, (source, destination) in _runs(found.moved)]
    yield Table(columns=right("layers", "leave rank", "for rank"), rows=rows)
    sent = f"{format_bytes(found.moved_bytes)} move in each pipeline"
    if not found.moved_bytes:
        sent = "sending is not counted, as the job does not say how large its layers are"
    took = f"the move takes {format_duration_ns(found.move_ns)}; {counted(steps, 'step')} gain {format_duration_ns(found.gain_ns)}"
    yield Line(f"{sent}; {took}", soft=True)


def repartition_json(given: Plan, found: Repartition) -> dict[str, Any]:
    """The object of `repartition --json`."""
    moved = [{"layer": layer, "from": source, "to": destination} for layer, (source, destination) in sorted(found.moved.items())]
    times = picked(found, "running_ns stay_ns objective_ns moved_bytes move_ns gain_ns")
    return {"plan": given.name, "moved": moved, **times}


def _runs(moved: Mapping[int, tuple[int, int]]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Layers in a row that go the same way: `4-6`, and from which rank to which."""
    for (_, pair), run in groupby(enumerate(sorted(moved)), key=lambda entry: (entry[1] - entry[0], moved[entry[1]])):
        layers = [layer for _, layer in run]
        yield (f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else str(layers[0])), pair
