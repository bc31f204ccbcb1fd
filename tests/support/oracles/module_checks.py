"""The search over layouts of several modules and the bound over them, held against brute force over all layouts and schedules."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random
from typing import TYPE_CHECKING

from inputs.all_layouts import best_of_all, tiny_workload

from oracles.brute_force import SearchTooLarge, best_schedule
from oracles.findings import Finding
from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.simulation.memory import exceeded_limit
from schedc.compile.driver import OpenLayouts, compile_question
from schedc.errors import Infeasible
from schedc.ir.graph import Edge
from schedc.ir.layout import OpenLayout
from schedc.ir.problem import Objective
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.layout.climb import LayoutClimb
from schedc.verify.layout import verify_open_layout
from schedc.verify.schedule.checks import verify_schedule
from schedc.verify.workload import verify_workload

if TYPE_CHECKING:
    from collections import Counter

    from schedc.ir.problem import Problem
    from schedc.ir.workload import Workload

MOST_STATES = 20_000
"""Brute force gives up on larger searches."""
EVALUATIONS, WORK = 300, 0.5


def tiny_modules(number: int) -> tuple[Workload, OpenLayout]:
    """Two or three modules of 1 to 3 layers, on 2 or 3 ranks: encoders one behind the other or beside each other; many with ids."""
    random = Random(number)
    ranks = random.choice([2, 2, 3])
    sizes = random.choice([(1, 2), (2, 1), (2, 2), (1, 3), (1, 1, 1), (1, 1, 2)])
    workload = tiny_workload(random, layers=sum(sizes), ranks=ranks, microbatches=random.choice([1, 2, 2]), differ=True)
    starts = [0, *accumulate(sizes)]
    edges = [(layer, layer + 1, True) for first, end in pairwise(starts) for layer in range(first, end - 1)]
    *encoders, decoder = pairwise(starts)
    beside = random.random() < 0.7
    for at, (_, end) in enumerate(encoders):
        edges.append((end - 1, decoder[0] if beside else starts[at + 1], True))
    if sizes[0] > 1 and random.random() < 0.7:
        edges.append((0, decoder[0], False))
    graph = tuple(
        Edge(
            source=source,
            destination=destination,
            message_bytes=workload.layers[source].message_bytes if has_gradient else 1,
            gradient_message_bytes=workload.layers[source].gradient_message_bytes if has_gradient else None,
            value=int(not has_gradient),
        )
        for source, destination, has_gradient in edges
    )
    return replace(workload, edges=graph, modules=sizes), OpenLayout(chunks=2)


def check_modules(number: int, counts: Counter[str]) -> list[Finding]:
    """Everything that is false of what is claimed of the workload of this number; what is checked is counted."""
    workload, open_layout = tiny_modules(number)
    assert not verify_workload(workload)

    def optimum(problem: Problem) -> int | None:
        return best_schedule(problem, most_states=MOST_STATES)[0]

    try:
        least_ns = best_of_all(workload, open_layout, optimum)
    except SearchTooLarge:
        counts["too large for brute force"] += 1
        return []
    try:
        bound_ns = layout_bound(workload, open_layout).value_ns
    except Infeasible:
        return [] if least_ns is None else [Finding("no layout", f"but {least_ns} ns is possible")]
    search = LayoutClimb(workload, open_layout, seed=number, plain=True)
    search.run(evaluations=EVALUATIONS)
    found = search.scheduled()
    if least_ns is None:
        counts["without any schedule"] += 1
        return [Finding("a schedule", f"{found[0].objective_ns} ns, where brute force finds none")] if found else []
    counts["compared with brute force"] += 1
    counts["the bound over layouts is the optimum"] += bound_ns == least_ns
    findings = []
    if bound_ns > least_ns:
        findings.append(Finding("layouts: too high", f"{bound_ns} ns, but {least_ns} ns is possible"))
    for each in found:
        if (
            verify_open_layout(workload, open_layout, each.layout)
            or verify_schedule(each.problem, each.schedule)
            or exceeded_limit(each.problem, each.schedule) is not None
            or each.objective_ns < least_ns
        ):
            findings.append(
                Finding("no layout, or no schedule", f"{each.layout}, {each.objective_ns} ns, the least is {least_ns} ns")
            )
    best_ns = min((each.objective_ns for each in found), default=None)
    counts["the search finds no schedule"] += best_ns is None
    counts["the search finds the optimum"] += best_ns == least_ns
    compiled = compile_question(OpenLayouts(workload, open_layout), SearchSettings(limits=Limits(deterministic=WORK)))
    certificate = compiled.plan.certificate
    made_ns = certificate.makespan_ns if workload.objective is Objective.MAKESPAN else certificate.stage_span_ns
    if made_ns < least_ns or certificate.lower_bound_ns > least_ns:
        findings.append(
            Finding("compile", f"{made_ns} ns and the bound {certificate.lower_bound_ns} ns; the least is {least_ns} ns")
        )
    counts["compile finds the optimum"] += made_ns == least_ns
    counts["  or at most 5 % more"] += least_ns < made_ns <= 1.05 * least_ns
    return findings
