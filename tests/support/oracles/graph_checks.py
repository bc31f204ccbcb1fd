"""Bounds and exact solvers of one tiny graph, or of microbatches in slices, held against brute force over all schedules.

CP-SAT and MILP prove the optimum, but where the models are relaxations: on trunks that several links share; where values wait for
others on a rank with a limit; for some stage spans.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from inputs.graphs import graph_problem, random_order
from inputs.shared_links import with_shared_links
from inputs.small_problems import small_problem

from oracles.brute_force import SearchTooLarge, best_schedule
from oracles.findings import Finding
from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.plan import BoundName
from schedc.ir.problem import Objective
from schedc.solvers.common.base import NO_LIMITS, Limits
from schedc.solvers.driver.registry import constructive
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.exact.milp import solve_milp
from schedc.solvers.exact.refute import refute
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections import Counter

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

MOST_STATES = 8_000
"""Brute force gives up on larger searches."""
STARTS = 40
"""As many random schedules are drawn for the solvers to start from, until one fits the limits; else they start from the best."""
LEAST_BLOCKS = 33
"""Of a larger graph."""
WITH_TRUNKS = 6
"""Every problem whose number this divides has trunks that links share; every second of these is a chain of whole microbatches."""


def small_graph(number: int) -> Problem:
    """2 or 3 ranks, up to 5 stages, up to 3 microbatches or slices: a graph, slices, or both, or a chain with trunks; a third of
    the others has collectives."""
    if number % (2 * WITH_TRUNKS) == 0:
        return small_problem(number // (2 * WITH_TRUNKS), shared_trunks=True, may_be_odd=False)
    problem = graph_problem(Random(number), most_ops=22, most_stages=5, collectives=number % 3 == 0)
    if number % WITH_TRUNKS == 0:
        return with_shared_links(problem, Random(number), sized=True)
    parallel = problem.data_parallel
    return replace(
        problem,
        links=tuple(replace(link, trunk=None) for link in problem.links),
        data_parallel=None if parallel is None else replace(parallel, trunk=None),
    )


def check_graph(number: int, counts: Counter[str]) -> list[Finding]:
    """Everything that is false of what is claimed of the problem of this number; what is checked is counted."""
    problem = small_graph(number)
    try:
        least_ns, best = best_schedule(problem, most_states=MOST_STATES)
    except SearchTooLarge:
        counts["too large for brute force"] += 1
        return []
    if least_ns is None or best is None:
        counts["without any schedule"] += 1
        return []
    counts["compared with brute force"] += 1
    counts["  " + ("graphs" if problem.edges else "chains") + (" in slices" if problem.slices else "")] += 1
    drawn = (random_order(Random(at), problem) for at in range(STARTS))
    start = next((order for order in drawn if order is not None and _is_valid(problem, order)), best)
    findings = []
    bounds = {bound.name: bound.value_ns for bound in lower_bounds(problem)}
    counts["the largest analytic bound is the optimum"] += max(bounds.values()) == least_ns
    found = {
        "cpsat": solve_cpsat(problem, start, limits=Limits(workers=1)),
        "milp": solve_milp(problem, start, limits=NO_LIMITS),
    }
    claims: dict[str, int] = {str(name): bound_ns for name, bound_ns in bounds.items()}
    claims |= {name: solved.lower_bound_ns for name, solved in found.items()}
    if problem.objective is Objective.MAKESPAN:
        limits = Limits(workers=1)
        claims["refute"] = refute(problem, bound_ns=max(bounds.values()), objective_ns=least_ns, limits=limits).lower_bound_ns
    for name, bound_ns in claims.items():
        if bound_ns > least_ns:
            findings.append(Finding(f"{name}: too high", f"{bound_ns} ns, but {least_ns} ns is possible"))
    for name, solved in found.items():
        wanted = "OPTIMAL" if solved.objective_ns == solved.lower_bound_ns else "RELAXED"
        if solved.status != wanted or not _is_valid(problem, solved.schedule) or solved.objective_ns < least_ns:
            message = f"{solved.status}, {solved.objective_ns} ns of a schedule; the optimum is {least_ns} ns"
            findings.append(Finding(f"{name}: no optimum, or no schedule", message))
        counts[f"{name} ends with its relaxed model"] += solved.status == "RELAXED"
        counts[f"{name} proves the optimum"] += solved.lower_bound_ns == least_ns
    one, other = found["cpsat"].lower_bound_ns, found["milp"].lower_bound_ns
    counts["cpsat and milp prove the same"] += one == other
    if one < other or (one > other and not _values_may_wait(problem)):
        findings.append(Finding("cpsat and milp differ", f"{one} ns and {other} ns; the optimum is {least_ns} ns"))
    if one < least_ns:
        counts[f"cpsat proves less{_why_less(problem)}"] += 1
    return findings


def check_bounds(number: int, counts: Counter[str]) -> list[Finding]:
    """Analytic bounds of one tiny graph above what brute force finds; and of a larger one, how far methods are above the bounds.

    A tenth of the numbers has a larger one. Gaps are summed in thousandths of a percent, as counts are integers.
    """
    problem, findings = small_graph(number), []
    try:
        least_ns, _ = best_schedule(problem, most_states=MOST_STATES)
    except SearchTooLarge:
        least_ns = None
    counts["compared with brute force"] += least_ns is not None
    for bound in lower_bounds(problem):
        if least_ns is not None and bound.value_ns > least_ns:
            findings.append(Finding(f"{bound.name}: too high", f"{bound.value_ns} ns, but {least_ns} ns is possible"))
    if number % 10:
        return findings
    random, blocks = Random(f"larger {number}"), 0
    while blocks < LEAST_BLOCKS:
        problem = graph_problem(random, most_ranks=4, most_stages=8, most_microbatches=16, most_ops=300, edges=True)
        blocks = sum(1 for _ in problem.blocks())
    made = {name: _reached_ns(problem, name) for name in ("greedy", "rule-table")}
    reached_ns = min((each_ns for each_ns in made.values() if each_ns is not None), default=None)
    if reached_ns is None:
        return findings
    values_ns = {bound.name: bound.value_ns for bound in lower_bounds(problem)}
    best_ns = max(values_ns.values())
    others_ns = max(value_ns for name, value_ns in values_ns.items() if name not in (BoundName.WARM_UP, BoundName.IDLE_GAPS))
    if best_ns > reached_ns:
        findings.append(Finding("a bound of a larger graph: too high", f"{values_ns}, but {reached_ns} ns is possible"))
    counts["larger graphs"] += 1
    counts["larger graphs: raised by warm-up or idle gaps"] += best_ns > others_ns
    counts["larger graphs: gaps without these, in 0.001 %"] += round(1e5 * (reached_ns - others_ns) / reached_ns)
    counts["larger graphs: gaps with these, in 0.001 %"] += round(1e5 * (reached_ns - best_ns) / reached_ns)
    return findings


def _reached_ns(problem: Problem, name: str) -> int | None:
    try:
        return simulate(problem, constructive(name)(problem)).objective_ns(problem.objective)
    except Unsupported:
        return None


def _is_valid(problem: Problem, schedule: Schedule) -> bool:
    return not verify_schedule(problem, schedule) and exceeded_limit(problem, schedule) is None


def _values_may_wait(problem: Problem) -> bool:
    return bool(problem.edges) and any(limit is not None for limit in problem.memory_limit_bytes)


def _why_less(problem: Problem) -> str:
    if any(link.trunk for link in problem.links):
        return ": a trunk"
    if problem.objective is Objective.STAGE_SPAN:
        return ": a stage span"
    return ": values wait where memory is limited" if _values_may_wait(problem) else ": the order on a link"
