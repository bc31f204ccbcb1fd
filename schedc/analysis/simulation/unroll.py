"""A schedule whose steps overlap, as the run of a number of steps: it begins and ends empty.

A Problem that is one step of a run without end (`Updates.is_period`), with its Schedule of one period, goes in; the Problem and the
Schedule of a run come out, which the simulator, the plan and the runtime take as any other. In a period, ops are numbered so that
its steps count from 0: `F0.3` beside `B0.0` is the forward of the third next microbatch. A run has as its prologue the periods
before, without the ops of steps below 0, and as its epilogue, its drain, those after, without the ops of steps that it has not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.ir import Kind, Op

if TYPE_CHECKING:
    from schedc.ir import Problem, Schedule


def step_of(op: Op, microbatches: int) -> int:
    """The step that the op belongs to, where each has this many microbatches."""
    return op.microbatch if op.kind is Kind.U else op.microbatch // microbatches


def depth_of(problem: Problem, schedule: Schedule) -> int:
    """Over how many later steps than its own first a period reaches: a run has that many periods more than steps."""
    return max((step_of(op, problem.microbatches) for order in schedule.orders for op in order), default=0)


def shown(problem: Problem, schedule: Schedule) -> tuple[Problem, Schedule]:
    """A run that is long enough to show what any moment of any run holds.

    What is held in a period follows from ops up to `depth_of` periods back, and the weights that these read from updates as far
    back again and one step more. So a run has periods that are as all later ones.
    """
    return unroll(problem, schedule, 3 * depth_of(problem, schedule) + 3)


def unroll(problem: Problem, schedule: Schedule, steps: int) -> tuple[Problem, Schedule]:
    """The run of `steps` steps, at least 1, of a period.

    Raises:
        ValueError: the problem's steps do not overlap, or there are no steps.
    """
    updates, count = problem.updates, problem.microbatches
    if updates is None or not updates.is_period or steps < 1:
        raise ValueError(f"expected a period and at least one step, got {updates} and {steps} steps")
    depth = depth_of(problem, schedule)
    orders = tuple(
        tuple(
            op._replace(microbatch=op.microbatch + (shift if op.kind is Kind.U else shift * count))
            for shift in range(-depth, steps)
            for op in order
            if 0 <= step_of(op, count) + shift < steps
        )
        for order in schedule.orders
    )
    return run_problem(problem, steps), replace(schedule, orders=orders)


def run_problem(problem: Problem, steps: int) -> Problem:
    """The problem of a run of this many steps; `problem` is one step of a run without end."""
    assert problem.updates is not None
    return replace(
        problem,
        microbatches=steps * problem.microbatches,
        stages=tuple(
            replace(
                stage,
                **{
                    name: values * steps
                    for name in ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns")
                    if len(values := getattr(stage, name)) > 1
                },
            )
            for stage in problem.stages
        ),
        path_of=problem.path_of * steps,
        updates=replace(problem.updates, is_period=False),
    )
