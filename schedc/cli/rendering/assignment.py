"""What `schedc assign` prints: the step before and after, who moves where, and the order of hosts; or one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedc.cli.rendering.results import console, plain_table
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan
    from schedc.solvers.assign.nodes import Nodes
    from schedc.solvers.assign.value import Step

__all__ = ["assignment_json", "print_assignment"]


def print_assignment(plan: Plan, found: Nodes, process_of: Sequence[int], *, exact_links: bool) -> None:
    """Print it; `process_of` says the process number of each place, and a node is named by its process before."""
    out = console()
    sought, ranks = found.sought, plan.problem.ranks
    before, after = found.before, found.after
    replicas = len(before.pipelines_ns)
    out.print(
        f"{plan.name}: {replicas} replicas of {ranks} ranks; step {_time(before.step_ns)} before, {_time(after.step_ns)} after",
        style="bold",
    )
    table = plain_table(right=("node", "replica", "rank"))
    table.add_column("takes replica", justify="right")
    table.add_column("rank", justify="right")
    for node in found.moved:
        place = found.node_of.index(node)
        table.add_row(*map(str, (process_of[node], node // ranks, node % ranks, place // ranks, place % ranks)))
    if found.moved:
        out.print(table)
    else:
        out.print("no node moves")
    names = _hosts(found, process_of)
    out.print(f"hosts in the order of processes: {' '.join(map(str, names))}", soft_wrap=True)
    rows = plain_table()
    rows.add_column("")
    for header in ("before", "after"):
        rows.add_column(header, justify="right")
    rows.add_row("slowest pipeline", _time(max(before.pipelines_ns)), _time(max(after.pipelines_ns)))
    rows.add_row("slowest ring", _time(max(before.rings_ns)), _time(max(after.rings_ns)))
    out.print(rows)
    said = "no assignment is better" if sought.proven else f"no assignment takes less than {_time(sought.bound_ns)}"
    how = "which has the links as they are given" if exact_links else "which has links that are alike as equal"
    out.print(f"in the search, {how}, {_time(sought.after.step_ns)}: {said}")


def assignment_json(plan: Plan, found: Nodes, process_of: Sequence[int]) -> dict[str, Any]:
    """The object of `assign --json`."""
    sought, ranks = found.sought, plan.problem.ranks
    return {
        "plan": plan.name,
        "nodes": [
            {
                "node": process_of[node],
                "from": {"replica": node // ranks, "rank": node % ranks},
                "to": {"replica": place // ranks, "rank": place % ranks},
            }
            for node, place in sorted(
                ((node, place) for place, node in enumerate(found.node_of)), key=lambda each: process_of[each[0]]
            )
        ],
        "hosts": _hosts(found, process_of),
        "moved": sorted(process_of[node] for node in found.moved),
        "before": _step_json(found.before),
        "after": _step_json(found.after),
        "sought_ns": sought.after.step_ns,
        "bound_ns": sought.bound_ns,
        "proven": sought.proven,
    }


def _hosts(found: Nodes, process_of: Sequence[int]) -> list[int]:
    """The node of each process number."""
    node_of_process = {process_of[place]: process_of[node] for place, node in enumerate(found.node_of)}
    return [node_of_process[process] for process in range(len(process_of))]


def _step_json(step: Step) -> dict[str, Any]:
    return {"step_ns": step.step_ns, "pipelines_ns": list(step.pipelines_ns), "rings_ns": list(step.rings_ns)}


def _time(time_ns: int) -> str:
    return format_duration_ns(time_ns)
