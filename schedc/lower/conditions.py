"""A Problem under Conditions: the same stages, paths and limits, with the costs that links and ranks have at the time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.ir.ops import Kind
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.conditions import Conditions
    from schedc.ir.problem import Problem, Stage


def problem_under(problem: Problem, conditions: Conditions) -> Problem:
    """The problem with these costs. Memory limits and collectives stay.

    A bandwidth takes the place of an occupancy that is given outright. A fused backward slows down by what B and W together do.
    """
    if not conditions.links and not conditions.slowdown:
        return problem
    return replace(
        problem,
        links=tuple(conditions.link(link) for link in problem.links),
        stages=tuple(_stage(stage, conditions) for stage in problem.stages),
    )


def checked_under(problem: Problem, conditions: Conditions, where: str) -> Problem:
    """The problem with these costs, verified; `where` says of messages which conditions they are.

    Raises:
        InvalidInput: it contradicts itself.
    """
    under = problem_under(problem, conditions)
    if violations := verify_problem(under):
        raise InvalidInput(f"{problem.name}: {where}: {violations[0]}")
    return under


def _stage(stage: Stage, conditions: Conditions) -> Stage:
    factors = [conditions.slowdown.get((stage.rank, kind), 1.0) for kind in (Kind.F, Kind.B, Kind.W)]
    if factors == [1.0, 1.0, 1.0]:
        return stage
    forward, gradient, weight = factors
    backward_input_ns, backward_weight_ns = _times(stage.backward_input_ns, gradient), _times(stage.backward_weight_ns, weight)
    before_ns = sum(stage.backward_input_ns) / len(stage.backward_input_ns)
    before_ns += sum(stage.backward_weight_ns) / len(stage.backward_weight_ns)
    after_ns = sum(backward_input_ns) / len(backward_input_ns) + sum(backward_weight_ns) / len(backward_weight_ns)
    return replace(
        stage,
        forward_ns=_times(stage.forward_ns, forward),
        backward_input_ns=backward_input_ns,
        backward_weight_ns=backward_weight_ns,
        backward_ns=_times(stage.backward_ns, after_ns / before_ns if before_ns else gradient),
    )


def _times(durations_ns: Sequence[int], factor: float) -> tuple[int, ...]:
    return tuple(round(duration_ns * factor) for duration_ns in durations_ns)
