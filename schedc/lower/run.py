"""The plan of a run: a plan of one period and a number of steps in, the plan that a training job executes out.

A run begins and ends empty: so it is what is trained between two evaluations or checkpoints.
"""

from __future__ import annotations

from schedc.analysis.gap import relative_gap
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.analysis.simulation.unroll import unroll
from schedc.analysis.simulation.versions import versions_of
from schedc.errors import InvalidInput
from schedc.ir import MOST_OPS, BoundName, Certificate, Plan
from schedc.lower.plan import lower
from schedc.verify.problem import verify_problem


def run_of(plan: Plan, steps: int) -> Plan:
    """The plan of a run of this many steps of a verified period. Its bound is the work of its busiest rank, without updates.

    Raises:
        InvalidInput: the plan is no period, or there are too few steps or too many.
    """
    if not plan.is_period:
        raise InvalidInput(f"{plan.name}: the plan's steps do not overlap; it runs as it is, once for each step")
    most = MOST_OPS // plan.problem.num_ops
    if not isinstance(steps, int) or not 1 <= steps <= most:
        raise InvalidInput(f"{plan.name}: found {steps} steps, expected 1 to {most} of a run")
    problem, schedule = unroll(plan.problem, plan.schedule(), steps)
    if violations := verify_problem(problem):
        raise InvalidInput(f"{plan.name}: a run of {steps} steps: {violations[0]}")
    timeline, held = simulate(problem, schedule), versions_of(problem, schedule)
    work_ns = [0] * problem.ranks
    for stage, microbatch in plan.problem.blocks():
        costs = plan.problem.stages[stage]
        forward, backward, weight, fused = (
            values[0] if len(values) == 1 else values[microbatch]
            for values in (costs.forward_ns, costs.backward_input_ns, costs.backward_weight_ns, costs.backward_ns)
        )
        work_ns[costs.rank] += steps * (forward + (min(fused, backward + weight) if problem.split_backward else fused))
    certificate = Certificate(
        makespan_ns=timeline.makespan_ns,
        lower_bound_ns=max(work_ns),
        gap=relative_gap(timeline.makespan_ns, max(work_ns), BoundName.WORK),
        bound=BoundName.WORK,
        bubble_ratio=timeline.bubble_ratio,
        peak_activation_bytes=peak_bytes(problem, schedule),
        stage_span_ns=timeline.stage_span_ns,
        delays=held.delays,
        versions=held.versions,
    )
    return lower(problem, schedule, timeline, certificate=certificate, made_by=plan.made_by)
