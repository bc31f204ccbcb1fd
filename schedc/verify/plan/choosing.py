"""For which plans ranks may choose their next op by what has come, and why that neither deadlocks nor needs more memory.

**The rule.** A rank has three queues, each in its plan's order: its F (of all its stages), its B and BW, and its W. An op is
*ready* if it is the head of its queue, its input has come, what it needs of its own rank has run, and, for the first part of an
F, what the rank holds plus the activation is within the rank's room: its limit, or, where it has none, what the plan holds at
most. A rank that is free runs any op that is ready (the executor: the first by the plan, a W only while no other is). It waits
only while there is none, or, before an op, until times that pass by themselves (the executor: until the plan starts it). It posts
receives by itself, in each channel's order: at any time at least those of the heads and all before these.

**No rank holds more than its room.** Memory grows where an F begins, which is checked there, and nowhere else: B, W and BW only
release (`Stage` refuses an `activation_after_input` above the activation). What a recomputation needs besides is taken off the
limit for one block at a time, and `check_recomputed_parts` refuses plans that would have two begun at once. Where the job alone
recomputes (`load(recompute=)`), the plan counts whole activations, so each block that has begun has room for its recomputation;
and the runtime's first part of a B or BW does all of it.

**All ops run.** A plan without deadlock (`check_rendezvous`) numbers its ops so that each comes after all that it needs and after
all that its rank's compute queue has before it. Suppose that some ops never run, and let X be the one with the lowest number. All
before it have run, at some time. Those of X's rank that the plan has before X contain all that are before X in X's own queue: X
is the head.

- *Its own rank's ops.* What X needs of its rank has a lower number and has run.
- *Its input.* Its producer, and all that the sender's compute queue has before it, have lower numbers and have run. A channel's
  list is in the order of that queue (`check_transfer_order`), so all transfers before X's in the list have been sent, too, in
  whatever order. Their receives are posted, as X is a head. Both ends name a transfer by its place in the list, so each send
  finds its receive, and waits for no other. So X's input comes.
- *Its room.* If X is not an F, it needs none. If it is, the F of its rank that have run are exactly those that the plan has
  before X, as all F of a rank are in one queue. The B, W and BW that have run are at least those that the plan has before X;
  further ones can only have released more. So the rank holds at most what the plan holds before X, and with X no more than the
  plan's peak, which is within the room.

So X is ready, and stays so: memory can only be taken by an F, and the next F is X. Its rank, which has finitely many other ops,
runs it at some time, against what was supposed. It does not matter what each rank prefers, whether some ranks keep to their
plan's order (as in a step in which shapes are not known yet), nor what anything costs. Collectives wait for no op but their own,
and ranks begin them in the plan's order.

**Channels** that match sends and receives by their order alone (NCCL's) need more: all transfers of a channel from one queue of
the sender. No such channel runs so (`schedc.runtime.execution.arrivals` refuses it), so no check is needed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import Kind
from schedc.verify.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir.plan import Plan

__all__ = ["verify_choosing"]


def verify_choosing(plan: Plan) -> tuple[Violation, ...]:
    """Why the ranks of a plan may not choose their next op by what has come; empty if they may.

    Args:
        plan: a plan that `verify_plan` accepts.
    """
    return tuple(check_recomputed_parts(plan))


def check_recomputed_parts(plan: Plan) -> Iterator[Violation]:
    """No B or BW of a stage that recomputes is cut: between its parts another one might begin."""
    for parts in plan.parts:
        if plan.problem.stages[parts.stage].recompute and parts.kind in (Kind.B, Kind.BW):
            message = f"stage {parts.stage} recomputes, and its {parts.kind.name} is cut into parts; expected it whole"
            yield Violation("recomputed-parts", f"parts[{parts.kind.name}{parts.stage}]", message)
