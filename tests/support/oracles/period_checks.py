"""The least period of tiny problems: bounds, the list scheduler, and CP-SAT's proofs, against brute force over orders and steps.

Problem number n is the same everywhere and always: in any mode, with one or two stages on a rank, with backwards that may be fused
or split, short of memory, in half of them of times so short that many are equal and some are none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING

from inputs.period_problems import tiny_mixture, tiny_period
from ortools.sat.python.cp_model import INFEASIBLE, CpSolver

from oracles.findings import Finding
from oracles.modulo_brute_force import TooMany, least_period
from schedc.analysis.bounds.period import period_bounds
from schedc.analysis.simulation.period import steady_state
from schedc.analysis.simulation.unroll import depth_of
from schedc.models.modulo import build_modulo
from schedc.solvers.common.base import Limits, SolverStatus
from schedc.solvers.exact.modulo import solve_modulo
from schedc.solvers.heuristics.steady import SteadyList
from schedc.solvers.templates.overlapping import one_by_one
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir import Problem

DEPTH = 2
"""Brute force tries schedules whose ops are of fewer steps than this before or behind."""
MOST_OPS = 7
"""Of a step on a rank, updates included: of more there are too many orders."""
LIMITS = Limits(workers=1, deterministic=3.0)
EQUAL = "CP-SAT's period is brute force's"


def drawn_period(number: int) -> Problem:
    """The problem of this number; every third may fuse some backwards and split others."""
    random = Random(number)
    problem = (tiny_mixture if number % 3 == 0 else tiny_period)(random)
    if random.random() < 0.5:
        return problem
    divisor = random.choice((2, 4, 8))

    def short(times_ns: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(each // divisor for each in times_ns)

    stages = [
        replace(
            stage,
            forward_ns=short(stage.forward_ns),
            backward_input_ns=short(stage.backward_input_ns),
            backward_weight_ns=short(stage.backward_weight_ns),
            backward_ns=short(stage.backward_ns),
            update_ns=stage.update_ns // divisor,
        )
        for stage in problem.stages
    ]
    return replace(problem, stages=tuple(stages))


def check_period(number: int, counts: Counter[str]) -> list[Finding]:
    """Everything that is false of what is claimed of the problem of this number; what is checked is counted."""
    return check_least_period(drawn_period(number), counts, limits=LIMITS, most=40_000)


def check_least_period(problem: Problem, counts: Counter[str], *, limits: Limits, most: int) -> list[Finding]:
    """The same of any problem; brute force tries at most that many combinations of orders."""
    findings: list[Finding] = []
    counts["several stages on a rank"] += len(problem.stages) > problem.ranks
    counts["ops that take no time"] += any(0 in stage.forward_ns + stage.backward_weight_ns for stage in problem.stages)
    bound_ns = max(value_ns for _, value_ns, _ in period_bounds(problem))
    first = SteadyList()(problem)
    solved = solve_modulo(problem, first, limits=limits, known_bound_ns=bound_ns)
    for name, schedule in (("steady", first), ("modulo", solved.schedule)):
        if violations := verify_schedule(problem, schedule):
            findings.append(Finding(f"{name}: rule {violations[0].rule}", str(violations[0])))
    found_ns, lower_ns = steady_state(problem, solved.schedule).period_ns, solved.lower_bound_ns
    first_ns, by_one_ns = (steady_state(problem, each).period_ns for each in (first, one_by_one(problem)))
    periods_ns = [bound_ns, lower_ns, found_ns, first_ns, by_one_ns]
    if periods_ns != sorted(periods_ns) or found_ns != solved.objective_ns:
        findings.append(Finding("bounds and periods are not in their order", f"{periods_ns}, objective {solved.objective_ns}"))
    counts["proven optimal"] += solved.status is SolverStatus.OPTIMAL
    for size in range(1, problem.ranks + 1):
        for ranks in combinations(range(problem.ranks), size):
            solver = CpSolver()
            solver.parameters.num_workers, solver.parameters.max_deterministic_time = 1, 5.0
            if solver.solve(build_modulo(problem, max(1, found_ns), ranks).model) == INFEASIBLE:
                findings.append(Finding("a period that was found is refuted", f"{found_ns} ns, ranks {ranks}"))
    blocks, kinds = Counter(problem.stages[stage].rank for stage, _ in problem.blocks()), 3 if problem.split_backward else 2
    ops = [len(problem.stages_on(rank)) + kinds * blocks[rank] for rank in range(problem.ranks)]
    try:
        if max(ops) > MOST_OPS:
            raise TooMany
        least_ns = least_period(problem, depth=DEPTH - 1, upper=found_ns, most=most)
    except TooMany:
        counts["too many orders for brute force"] += 1
        return findings
    is_deep = depth_of(problem, solved.schedule) >= DEPTH
    if least_ns is None and not is_deep and found_ns:
        findings.append(Finding("brute force has no schedule of the period that was found", f"{found_ns} ns"))
    if least_ns is not None:
        counts["compared"] += 1
        counts[EQUAL] += least_ns == found_ns
        if lower_ns > least_ns:
            findings.append(Finding("the bound is too high", f"{lower_ns} ns, but {least_ns} ns is possible"))
    return findings
