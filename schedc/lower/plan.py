"""The lowering: a Schedule becomes a Plan (formats, "The plan"; CrossPipe 6.3).

Takes the order of compute ops and the simulated times; gives every rank its compute queue, its collectives, and its channels: one
queue of transfers for each role and peer. It decides nothing about the order of compute ops, and only when receives are posted
about time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING

from schedc.ir import Certificate, Channel, Collective, Kind, MadeBy, Op, Plan, Problem, RankPlan, Schedule

if TYPE_CHECKING:
    from schedc.analysis.simulation.timeline import Timeline, Transfer


def lower(problem: Problem, schedule: Schedule, timeline: Timeline | None, *, certificate: Certificate, made_by: MadeBy) -> Plan:
    """The plan that executes the schedule; that of a period has compute queues alone (`schedc.lower.run` makes runs of it).

    `schedc.verify.schedule.checks` accepts the schedule, and the simulator gave the timeline; None: it is a period. The certificate
    and `made_by` go into the plan as they are.
    """
    channels = channels_of(timeline) if timeline is not None else [()] * problem.ranks
    collectives = schedule.collectives or [_collectives(problem, order) for order in schedule.orders]
    ranks = tuple(
        RankPlan(rank=rank, compute=order, channels=channels[rank], collectives=of_rank)
        for rank, (order, of_rank) in enumerate(zip(schedule.orders, collectives, strict=True))
    )
    return Plan(problem=problem, ranks=ranks, parts=schedule.parts, certificate=certificate, made_by=made_by)


def _collectives(problem: Problem, order: tuple[Op, ...]) -> tuple[Collective, ...]:
    """The all-gathers in the order of their first F, then the reduce-scatters in the order of their last W or BW."""
    parallel = problem.data_parallel
    if parallel is None:
        return ()
    gathers = dict.fromkeys(op.stage for op in order if op.kind is Kind.F) if parallel.all_gather_ns else {}
    last_first = dict.fromkeys(op.stage for op in reversed(order) if op.kind in (Kind.W, Kind.BW))
    return (
        *(Collective("AG", stage) for stage in gathers),
        *(Collective("RS", stage) for stage in reversed(last_first)),
    )


def channel_role(rank: int, peer: int, ranks: int) -> str:
    """What `peer` is to `rank` on the ring of ranks: `next`, `prev`, or `r5`.

    Of two ranks each is both neighbours of the other; the reading that does not go round the ring wins (0 → 1 is next).
    """
    if peer == rank + 1:
        return "next"
    if peer == rank - 1:
        return "prev"
    if peer == (rank + 1) % ranks:
        return "next"
    return "prev" if peer == (rank - 1) % ranks else f"r{peer}"


def channels_of(timeline: Timeline) -> list[tuple[Channel, ...]]:
    """Per rank, its channels: with next, then prev, then other peers by number; of each first the sending one."""
    ranks = timeline.ranks
    of_pair: defaultdict[tuple[int, int], list[Transfer]] = defaultdict(list)
    for transfer in timeline.transfers:  # by source, in the source's order: the order in which the messages become ready
        of_pair[transfer.source, transfer.destination].append(transfer)
    channels: list[list[tuple[tuple[bool, bool, int, bool], Channel]]] = [[] for _ in range(ranks)]
    for (source, destination), transfers in of_pair.items():
        ops = tuple(transfer.op for transfer in transfers)
        posts = post_before(transfers, timeline.start_ns(destination), timeline.end_ns(destination))
        for rank, peer, way, post in ((source, destination, "send", ()), (destination, source, "recv", posts)):
            role = channel_role(rank, peer, ranks)
            place = (role != "next", role != "prev", peer, way == "recv")
            channels[rank].append((place, Channel(name=f"{way}_{role}", peer=peer, transfers=ops, post_before=post)))
    return [tuple(channel for _, channel in sorted(own, key=lambda entry: entry[0])) for own in channels]


def post_before(transfers: list[Transfer], starts_ns: list[int], ends_ns: list[int]) -> tuple[int, ...]:
    """Per transfer of one channel, the index in the receiver's compute queue before which its receive is posted.

    That is the number of ops that have ended when the transfer starts on its link, by the simulated times: early enough that the
    sender never waits (CrossPipe 6.3, AdaPtis 4.4), and no earlier than a buffer is needed. The start of such an op must also lie
    before the transfer's: ops without duration that wait for this transfer end at the moment in which it starts, and a receive
    posted after them would never be posted. The indices ascend along the channel, because transfers of one link start in order.
    Starts and ends are of each op of the receiver, in its order.
    """
    return tuple(min(bisect_right(ends_ns, transfer.start_ns), bisect_left(starts_ns, transfer.start_ns)) for transfer in transfers)
