"""The replay: runs the queues of a Plan by the cost model and says how long they take, to check what a certificate claims.

It shares nothing with the simulator, which knows orders of compute ops only and moves along an event queue. Here compute queues,
channels, receives and collectives run as the plan has them. All that waits in a fixed order is a longest path, relaxed node by
node as soon as everything before it is known; only where channels share a trunk does time decide who is first. There the
sweep takes, when nothing else can be relaxed, the transfer that can start earliest: all that is not known yet starts later. It
does even where durations are 0, as times are moments (cost model, "Moments"): pairs of a nanosecond and a delta within it, and what
takes no time ends one delta after it starts.

A receive that is posted late keeps its transfer back, so a plan takes as long as its schedule only if receives are posted in time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

from schedc.ir import WHOLE, Kind, Op, Plan, RankPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.verify.plan.channels import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """How long the plan takes."""

    makespan_ns: int
    """From 0 to the end of the last op or collective."""
    stage_span_ns: int
    """The longest time from the first start to the last end of one rank's compute ops."""
    busy_ns: tuple[int, ...]
    """Per rank, the sum of its compute ops' durations."""
    ends_ns: tuple[tuple[int, ...], ...]
    """Per rank, the end of each op of its compute queue."""
    starts_ns: tuple[tuple[int, ...], ...] = ()
    """Per rank, the start of each, where stages are a graph; else none. So is the next."""
    arrival_ns: Mapping[Op, int] = field(default_factory=dict)
    """When each transfer has arrived."""


@dataclass(slots=True, kw_only=True)
class _Nodes:
    """Compute ops, transfers and collectives by number, as columns: what each takes, and what waits for it.

    A moment is one number, a nanosecond times `deltas` and a delta within it; no chain of nodes that take no time is as long.
    """

    deltas: int
    occupies_ns: list[int] = field(default_factory=list)
    """How long it holds its rank, link, trunk or collective resource."""
    latency_ns: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    """Its start, or before that is known the earliest one that what it waited for allows."""
    left: list[int] = field(default_factory=list)
    """When it holds its resource no more, once its start is known."""
    waits: list[int] = field(default_factory=list)
    """For how many others it still waits."""
    behind: list[int] = field(default_factory=list)
    """The next of its queue, which waits until it holds its resource no more; −1: none."""
    receiver: list[int] = field(default_factory=list)
    """What waits until it has arrived; −1: nothing."""
    followers: dict[int, list[int]] = field(default_factory=dict)
    """What else waits until it holds its resource no more."""
    trunk: dict[int, str] = field(default_factory=dict)
    """Of those that share one; for the others only their own queue uses what they hold, and its order decides."""
    turn: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    """Of those on a trunk the producer (−1: none, ready at the begin of the step), the source rank, and the place among what one op
    sends (inf: a collective): the order of those that become ready at one moment."""

    def add(self, occupies_ns: int, latency_ns: int = 0) -> int:
        """One more; returns its number."""
        self.occupies_ns.append(occupies_ns)
        self.latency_ns.append(latency_ns)
        self.start.append(0)
        self.left.append(0)
        self.waits.append(0)
        self.behind.append(-1)
        self.receiver.append(-1)
        return len(self.start) - 1

    def queue(self, nodes: Sequence[int]) -> None:
        """Each waits for the one before it."""
        for before, after in pairwise(nodes):
            self.behind[before] = after
            self.waits[after] += 1

    def follow(self, node: int, after: int) -> None:
        """The node waits until the other holds its resource no more."""
        self.followers.setdefault(after, []).append(node)
        self.waits[node] += 1

    def receive(self, node: int, sent: int) -> None:
        """The node waits until the other has arrived."""
        self.receiver[sent] = node
        self.waits[node] += 1

    def later(self, moment: int, duration_ns: int) -> int:
        """The end of what starts at the moment and takes this long."""
        return (moment // self.deltas + duration_ns) * self.deltas if duration_ns else moment + 1

    def ready(self, node: int) -> tuple[int, int, float]:
        """The place on its trunk of one that waits for nothing else."""
        producer, source, place = self.turn[node]
        return (self.left[producer] if producer >= 0 else 0, source, place)


def replay(plan: Plan, needs: Mapping[Op, Need]) -> Replay:
    """How long a plan takes that the other rules of `schedc.verify.plan.checks` accept.

    Raises:
        ValueError: the queues wait for each other in a cycle.
    """
    count = sum(len(rank.compute) + len(rank.collectives) for rank in plan.ranks) + len(needs)
    nodes = _Nodes(deltas=2 * count + 1)  # each node and each latency adds one at most
    compute = [_compute_queue(nodes, plan, rank) for rank in plan.ranks]
    transfers = _add_transfers(nodes, plan, needs, compute)
    _add_collectives(nodes, plan, compute)
    _run(nodes)
    ends_ns = tuple(tuple(nodes.left[node] // nodes.deltas for node in queue) for queue in compute)
    return Replay(
        makespan_ns=max(nodes.left, default=0) // nodes.deltas,
        stage_span_ns=max(
            (ends[-1] - nodes.start[queue[0]] // nodes.deltas for queue, ends in zip(compute, ends_ns, strict=True) if ends),
            default=0,
        ),
        busy_ns=tuple(sum(nodes.occupies_ns[node] for node in queue) for queue in compute),
        ends_ns=ends_ns,
        starts_ns=tuple(tuple(nodes.start[node] // nodes.deltas for node in queue) for queue in compute if plan.problem.edges),
        arrival_ns={op: nodes.left[node] // nodes.deltas + nodes.latency_ns[node] for op, node in transfers.items()}
        if plan.problem.edges
        else {},
    )


def _run(nodes: _Nodes) -> None:
    """Find the start of every node."""
    free: defaultdict[str, int] = defaultdict(int)
    at_trunk: list[int] = []
    known = [node for node, waits in enumerate(nodes.waits) if not waits]
    done = 0
    while True:
        while known:
            node = known.pop()
            if node in nodes.trunk:
                at_trunk.append(node)
            else:
                _tell(nodes, node, known)
                done += 1
        if not at_trunk:
            break
        node = min(at_trunk, key=lambda each: (max(nodes.start[each], free[nodes.trunk[each]]), nodes.ready(each)))
        at_trunk.remove(node)
        trunk = nodes.trunk[node]
        nodes.start[node] = max(nodes.start[node], free[trunk])
        _tell(nodes, node, known)
        free[trunk] = nodes.left[node]
        done += 1
    if done < len(nodes.waits):
        raise ValueError(f"{len(nodes.waits) - done} of {len(nodes.waits)} ops and transfers wait for each other in a cycle")


def _tell(nodes: _Nodes, node: int, known: list[int]) -> None:
    """Tell those that wait for the node when they can start; those that then wait for nothing else are known."""
    start, waits, latency_ns = nodes.start, nodes.waits, nodes.latency_ns[node]
    left = nodes.left[node] = nodes.later(start[node], nodes.occupies_ns[node])
    others = [(each, left) for each in nodes.followers.get(node, ())]
    if nodes.behind[node] >= 0:
        others.append((nodes.behind[node], left))
    if nodes.receiver[node] >= 0:
        others.append((nodes.receiver[node], nodes.later(left, latency_ns) if latency_ns else left))
    for other, moment in others:
        if moment > start[other]:
            start[other] = moment
        waits[other] -= 1
        if not waits[other]:
            known.append(other)


def _compute_queue(nodes: _Nodes, plan: Plan, rank: RankPlan) -> range:
    parts_of = {(parts.kind, parts.stage): parts for parts in plan.parts}
    durations_ns = {
        (kind, stage): plan.problem.stages[stage].durations_ns(kind) for kind in Kind for stage in plan.problem.stages_on(rank.rank)
    }
    first = len(nodes.start)
    for kind, stage, microbatch, part in rank.compute:
        values_ns = durations_ns[kind, stage]
        duration_ns = values_ns[0] if len(values_ns) == 1 else values_ns[microbatch]
        if part != WHOLE:
            duration_ns = parts_of[kind, stage].durations_ns(duration_ns)[part]
        nodes.add(duration_ns)
    queue = range(first, len(nodes.start))
    nodes.queue(queue)
    return queue


def _add_transfers(nodes: _Nodes, plan: Plan, needs: Mapping[Op, Need], compute: list[range]) -> dict[Op, int]:
    """The node of each transfer."""
    links = {(link.source, link.destination): link for link in plan.problem.links}
    node_of: dict[Op, int] = {}
    for op, need in needs.items():
        link = links[need.source, need.destination]
        producer = compute[need.source][need.producer]
        node = node_of[op] = nodes.add(link.occupancy_ns(need.size_bytes), link.latency_ns)
        if link.trunk is not None:
            nodes.trunk[node], nodes.turn[node] = link.trunk, (producer, need.source, need.place)
        nodes.follow(node, producer)
        nodes.receive(compute[need.destination][need.consumer], node)
    for rank in plan.ranks:
        for channel in rank.channels:
            for op, post in zip(channel.transfers, channel.post_before, strict=False):
                if post:
                    nodes.follow(node_of[op], compute[rank.rank][post - 1])
            if not channel.receives:
                nodes.queue([node_of[op] for op in channel.transfers])
    return node_of


def _add_collectives(nodes: _Nodes, plan: Plan, compute: list[range]) -> None:
    parallel = plan.problem.data_parallel
    if parallel is None:
        return
    for rank in plan.ranks:
        ops = list(zip(rank.compute, compute[rank.rank], strict=True))
        first = {op.stage: node for op, node in reversed(ops) if op.kind is Kind.F}
        last = {op.stage: node for op, node in ops if op.kind in (Kind.W, Kind.BW)}
        queue = []
        for entry in rank.collectives:
            producer = -1
            if plan.problem.is_sharded:
                durations_ns = parallel.all_gather_ns if entry.kind == "AG" else parallel.reduce_scatter_ns
                node = nodes.add(durations_ns[entry.stage])
                if entry.before:
                    nodes.follow(node, compute[rank.rank][entry.before - 1])
                at = entry.until
                if entry.kind == "AG":
                    at = next(index for index in range(entry.before, entry.until) if rank.compute[index].stage == entry.stage)
                if at < len(rank.compute):
                    nodes.receive(compute[rank.rank][at], node)
            elif entry.kind == "AG":
                node = nodes.add(parallel.all_gather_ns[entry.stage])
                nodes.receive(first[entry.stage], node)
            else:
                node, producer = nodes.add(parallel.reduce_scatter_ns[entry.stage]), last[entry.stage]
                nodes.follow(node, producer)
            if parallel.trunk is not None:
                nodes.trunk[node], nodes.turn[node] = parallel.trunk, (producer, rank.rank, inf)
            queue.append(node)
        nodes.queue(queue)
