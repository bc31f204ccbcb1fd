"""Which of the plan's microbatches is which of torch's: torch numbers them in the order of the forwards of the last stage.

Torch keeps the losses in a list to which each forward of the last stage appends, and looks them up by microbatch. So where a plan
runs these forwards in another order, torch's microbatch k is the k-th of them, and the training job must split its batch so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from schedc.ir.plan import Plan


def plan_microbatches(plan: Plan) -> tuple[int, ...]:
    """Per microbatch of torch's, the plan's microbatch. The plan has one path, and no forward is in parts."""
    last = plan.problem.paths[0][-1]
    on_rank = plan.ranks[plan.problem.stages[last].rank].compute
    return tuple(op.microbatch for op in on_rank if op.kind is Kind.F and op.stage == last)
