"""Freedom from deadlock: all queues of a Plan can run to their end, whatever the times (CrossPipe 6.3, AdaPtis 4.4).

A transfer between two ranks is a rendezvous: it happens when the sender has sent and the receiver has posted its receive. The
executor's queues run beside each other, and what waits for what is a graph over the compute ops and the transfers:

- an op waits for the op before it in its rank's compute queue;
- a transfer waits for the op that produces it, and the ops that need it, all of one rank, wait for the transfer: the first of them,
  and the others behind it;
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

from schedc.ir import Op, Plan
from schedc.verify.cycles import edges_between, shortest_cycle, stuck_nodes
from schedc.verify.plan.channels import channel_ends
from schedc.verify.violation import Checks, Found

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.verify.plan.channels import Need

_MOST_NODES = 4_000
"""The search for a shortest cycle takes time by the square of the nodes, and a plan may have half a million."""
RENDEZVOUS: Checks[[Plan, Mapping[Op, Need]]] = Checks()


@RENDEZVOUS
def check_rendezvous(plan: Plan, needs: Mapping[Op, Need]) -> Found:
    """No op and no transfer waits for itself, over any number of others; reports the shortest cycle.

    Where more than `_MOST_NODES` of them wait, it is the shortest one of those at which the queues are blocked.

    Args:
        plan: its compute queues are a sound schedule, and its channels carry what is needed and nothing else.
        needs: the plan's messages.
    """
    first_op = list(accumulate((len(rank.compute) for rank in plan.ranks), initial=0))
    node_of = {op: first_op[-1] + index for index, op in enumerate(needs)}
    nodes, successors = _blocked(_graph(plan, needs, first_op, node_of), _queues(plan, first_op, node_of))
    cycle = shortest_cycle(len(nodes), successors)
    if cycle is None:
        return
    cycle = [nodes[index] for index in cycle]
    names = [plan.problem.token(op) for rank in plan.ranks for op in rank.compute]
    places = [f"ranks[{rank.rank}].compute[{index}]" for rank in plan.ranks for index in range(len(rank.compute))]
    for op, need in needs.items():
        names.append(f"[{plan.problem.token(op)} from rank {need.source} to {need.destination}]")
        places.append(f"ranks[{need.destination}].channels")
    shown = " -> ".join(names[node] for node in [*cycle, cycle[0]])
    yield places[min(cycle)], f"these wait for each other indefinitely, each for the one before it (transfers in brackets): {shown}"


def _graph(plan: Plan, needs: Mapping[Op, Need], first_op: list[int], node_of: Mapping[Op, int]) -> list[list[int]]:
    """Per node, compute ops by rank and then transfers, the nodes that wait for it."""
    waiting: list[list[int]] = []
    for begin, end in pairwise(first_op):
        waiting += [[node + 1] for node in range(begin, end - 1)]
        waiting += [[]] * (begin < end)
    for node, need in enumerate(needs.values(), first_op[-1]):
        waiting[first_op[need.source] + need.producer].append(node)
        waiting.append([first_op[need.destination] + need.consumer])
    for rank, channel in channel_ends(plan):
        nodes = [node_of[op] for op in channel.transfers]
        for before, after in pairwise(nodes):
            waiting[before].append(after)
        for node, post in zip(nodes, channel.post_before, strict=False):
            if 0 < post <= len(plan.ranks[rank].compute):  # others wait for nothing here; `check_post_before` names them
                waiting[first_op[rank] + post - 1].append(node)
    return waiting


def _queues(plan: Plan, first_op: list[int], node_of: Mapping[Op, int]) -> list[Sequence[int]]:
    """The nodes of each compute queue and of each end of a channel, in order; every node is in one or more."""
    compute: list[Sequence[int]] = [range(begin, end) for begin, end in pairwise(first_op)]
    return compute + [[node_of[op] for op in end.channel.transfers] for end in channel_ends(plan)]


def _blocked(waiting: Sequence[Sequence[int]], queues: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """The nodes that never proceed, and per node the indices of those that wait for it.

    Of too many, only the heads of the blocked queues and what these wait for. That contains a cycle: a head waits for
    another of these, and whatever is no head is behind one.
    """
    nodes = stuck_nodes(waiting)
    if len(nodes) <= _MOST_NODES:
        return nodes, edges_between(nodes, waiting)
    never = set(nodes)
    stuck = [[node for node in queue if node in never] for queue in queues]
    heads = {queue[0] for queue in stuck if queue}
    nodes = sorted(heads.union(node for node in nodes if not heads.isdisjoint(waiting[node])))
    number = {node: index for index, node in enumerate(nodes)}
    successors = edges_between(nodes, waiting)
    for queue in stuck:
        places = [number[node] for node in queue if node in number]
        for at, place in enumerate(places):
            successors[place] += places[at + 1 :]
    return nodes, successors
