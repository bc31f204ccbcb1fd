"""One order of all that a plan does, from which torch's action lists are cut; see `torch_csv` for what becomes of it.

PyTorch's runtime walks one list of actions on each rank, and c10d puts what it sends and receives into queues: one for each pair
of ranks, or a single one where the group was made with a `device_id`. If every rank's list is what one common order holds of that
rank, with each transfer a single event of that order on both of its ranks, then no list and no queue can wait in a cycle, however
c10d queues: whatever comes first in the common order can always proceed.

The common order is that of the plan's own simulated times. A transfer is at the moment at which its message is ready, not at
the later one at which a busy link takes it (`post_before` knows of that): behind a busy link the messages queue in this order in
torch, too, and a sender that held its message back to let the link become free would hold back everything after it in its list.
"""

from __future__ import annotations

from graphlib import TopologicalSorter
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.analysis.simulation.simulate import simulate
from schedc.ir.ops import Kind, Op

if TYPE_CHECKING:
    from collections.abc import Container

    from schedc.analysis.simulation.timeline import Transfer
    from schedc.ir.plan import Plan


def common_order(plan: Plan) -> list[Op | Transfer]:
    """All compute ops and all transfers of the plan, each after everything that it waits for, else by time.

    Args:
        plan: one of whole blocks, that the plan verifier accepts.
    """
    timeline = simulate(plan.problem, plan.schedule())
    key_of: dict[Op | Transfer, tuple[int, ...]] = {}
    sorter: TopologicalSorter[Op | Transfer] = TopologicalSorter()
    for rank in plan.ranks:
        times = zip(rank.compute, timeline.start_ns(rank.rank), timeline.end_ns(rank.rank), strict=True)
        # At one moment first the ops that end, then the transfers that these make ready, then the ops that take no time.
        key_of |= {op: (end_ns, 0 if start_ns < end_ns else 2, rank.rank, at) for at, (op, start_ns, end_ns) in enumerate(times)}
        sorter.add(rank.compute[0])
        for before, after in pairwise(rank.compute):
            sorter.add(after, before)
    for transfer in timeline.transfers:
        key_of[transfer] = (transfer.ready_ns, 1, transfer.source, transfer.op.stage, transfer.op.microbatch)
        sorter.add(transfer, transfer.op)
        sorter.add(_consumer(plan, transfer.op, key_of), transfer)

    order: list[Op | Transfer] = []
    ready: list[tuple[tuple[int, ...], Op | Transfer]] = []
    sorter.prepare()
    while sorter.is_active():
        for node in sorter.get_ready():
            heappush(ready, (key_of[node], node))
        _, node = heappop(ready)
        order.append(node)
        sorter.done(node)
    return order


def _consumer(plan: Plan, producer: Op, known: Container[Op | Transfer]) -> Op:
    """The op that needs what `producer` sends."""
    path = plan.problem.path(producer.microbatch)
    at = path.index(producer.stage)
    if producer.kind is Kind.F:
        return Op(Kind.F, path[at + 1], producer.microbatch)
    split = Op(Kind.B, path[at - 1], producer.microbatch)
    return split if split in known else split._replace(kind=Kind.BW)
