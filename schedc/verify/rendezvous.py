"""Freedom from deadlock: all queues of a Plan can run to their end, whatever the times (CrossPipe 6.3, AdaPtis 4.4).

A transfer between two ranks is a rendezvous: it happens when the sender has sent and the receiver has posted its receive. The
executor's queues run beside each other, and what waits for what is a graph over the compute ops and the transfers:

- an op waits for the op before it in its rank's compute queue;
- a transfer waits for the op that produces it, and the op that needs it waits for the transfer;
- a transfer waits for the transfer before it in the sender's list, and for the one before it in the receiver's list;
- a transfer waits for its receive, which is posted when the op at `post_before - 1` has ended.

Nothing else waits. If the graph has no cycle, its nodes can be numbered so that each waits for lower ones only; of those not done,
the lowest can always proceed, so every queue ends. If it has a cycle, none of the nodes on it can ever be the first to proceed, so
the plan deadlocks in every execution. Collectives are on no cycle: `check_collectives` puts the all-gathers, which wait for
nothing, before the reduce-scatters, for which nothing waits.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from schedc.ir.ops import token
from schedc.verify.cycles import shortest_cycle
from schedc.verify.plan_channels import channel_ends
from schedc.verify.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from schedc.ir.ops import Op
    from schedc.ir.plan import Plan
    from schedc.verify.plan_needs import Need

__all__ = ["check_rendezvous"]


def check_rendezvous(plan: Plan, needs: Mapping[Op, Need]) -> Iterator[Violation]:
    """No op and no transfer waits for itself, over any number of others; reports the shortest circle.

    Args:
        plan: its compute queues are a sound schedule, and its channels carry what is needed and nothing else.
        needs: the plan's messages.
    """
    first_op = list(accumulate((len(rank.compute) for rank in plan.ranks), initial=0))
    node_of = {op: first_op[-1] + index for index, op in enumerate(needs)}
    cycle = shortest_cycle(first_op[-1] + len(needs), _graph(plan, needs, first_op, node_of))
    if cycle is None:
        return
    names = [token(op) for rank in plan.ranks for op in rank.compute]
    places = [f"ranks[{rank.rank}].compute[{index}]" for rank in plan.ranks for index in range(len(rank.compute))]
    for op, need in needs.items():
        names.append(f"[{token(op)} from rank {need.source} to {need.destination}]")
        places.append(f"ranks[{need.destination}].channels")
    circle = " -> ".join(names[node] for node in [*cycle, cycle[0]])
    message = f"these wait for each other for ever, each for the one before it (transfers in brackets): {circle}"
    yield Violation("rendezvous", places[min(cycle)], message)


def _graph(plan: Plan, needs: Mapping[Op, Need], first_op: list[int], node_of: Mapping[Op, int]) -> list[list[int]]:
    """Per node, compute ops by rank and then transfers, the nodes that wait for it."""
    waiting: list[list[int]] = [[] for _ in range(first_op[-1] + len(needs))]
    for begin, end in pairwise(first_op):
        for node in range(begin, end - 1):
            waiting[node].append(node + 1)
    for op, need in needs.items():
        waiting[first_op[need.source] + need.producer].append(node_of[op])
        waiting[node_of[op]].append(first_op[need.destination] + need.consumer)
    for rank, channel in channel_ends(plan):
        for before, after in pairwise(channel.transfers):
            waiting[node_of[before]].append(node_of[after])
        for op, post in zip(channel.transfers, channel.post_before, strict=False):
            if post:
                waiting[first_op[rank] + post - 1].append(node_of[op])
    return waiting
