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
from typing import TYPE_CHECKING

from schedc.ir.ops import WHOLE, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schedc.ir.ops import Op
    from schedc.ir.plan import Plan, RankPlan
    from schedc.verify.plan.needs import Need

__all__ = ["Replay", "replay"]


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


_Moment = tuple[int, int]
"""A nanosecond and a delta within it."""

_BEGIN: _Moment = (0, 0)


def _later(moment: _Moment, duration_ns: int) -> _Moment:
    """The end of what starts at the moment and takes this long."""
    time_ns, delta = moment
    return (time_ns + duration_ns, 0) if duration_ns else (time_ns, delta + 1)


@dataclass(slots=True, eq=False)
class _Node:
    """A compute op, a transfer or a collective, and what waits for it."""

    occupies_ns: int
    """How long it holds its rank, link, trunk or collective resource."""
    latency_ns: int = 0
    trunk: str | None = None
    """None: only its own queue uses what it holds, and the queue's order decides."""
    producer: _Node | None = None
    tie: tuple[int, bool] = (0, False)
    """Source rank and whether it is a collective: the order of those that become ready at one moment."""
    waits: int = 0
    """For how many others it still waits."""
    start: _Moment = _BEGIN
    """Its start, or before that is known the earliest one that what it waited for allows."""
    followers: list[_Node] = field(default_factory=list)
    """What waits until it holds its resource no more."""
    receivers: list[_Node] = field(default_factory=list)
    """What waits until it has arrived."""

    @property
    def left(self) -> _Moment:
        return _later(self.start, self.occupies_ns)

    @property
    def arrival(self) -> _Moment:
        return _later(self.left, self.latency_ns) if self.latency_ns else self.left

    @property
    def turn(self) -> tuple[_Moment, tuple[int, bool]]:
        """Its place on its trunk: by the moment at which it becomes ready, at the begin of the step for all-gathers."""
        return (self.producer.left if self.producer else _BEGIN, self.tie)


def replay(plan: Plan, needs: Mapping[Op, Need]) -> Replay:
    """How long the plan takes.

    Args:
        plan: one that the other rules of `schedc.verify.plan.checks` accept.
        needs: its messages.

    Raises:
        ValueError: the queues wait for each other in a cycle.
    """
    compute = [_compute_queue(plan, rank) for rank in plan.ranks]
    others = [*_transfers(plan, needs, compute), *_collectives(plan, compute)]
    _run([node for queue in compute for node in queue] + others)
    return Replay(
        makespan_ns=max((node.left[0] for nodes in (*compute, others) for node in nodes), default=0),
        stage_span_ns=max((queue[-1].left[0] - queue[0].start[0] for queue in compute if queue), default=0),
        busy_ns=tuple(sum(node.occupies_ns for node in queue) for queue in compute),
        ends_ns=tuple(tuple(node.left[0] for node in queue) for queue in compute),
    )


def _run(nodes: list[_Node]) -> None:
    """Find the start of every node."""
    free: defaultdict[str, _Moment] = defaultdict(lambda: _BEGIN)
    at_trunk: list[tuple[str, _Node]] = []
    known = [node for node in nodes if not node.waits]
    done = 0
    while True:
        while known:
            node = known.pop()
            if node.trunk is None:
                known += _freed_by(node)
                done += 1
            else:
                at_trunk.append((node.trunk, node))
        if not at_trunk:
            break
        trunk, node = first = min(at_trunk, key=lambda entry: (max(entry[1].start, free[entry[0]]), entry[1].turn))
        at_trunk.remove(first)
        node.start = max(node.start, free[trunk])
        free[trunk] = node.left
        known += _freed_by(node)
        done += 1
    if done < len(nodes):
        raise ValueError(f"{len(nodes) - done} of {len(nodes)} ops and transfers wait for each other in a cycle")


def _freed_by(node: _Node) -> list[_Node]:
    """Tell those that wait for the node when they can start; returns those that wait for nothing else."""
    freed = []
    for moment, waiting in ((node.left, node.followers), (node.arrival, node.receivers)):
        for other in waiting:
            other.start = max(other.start, moment)
            other.waits -= 1
            if not other.waits:
                freed.append(other)
    return freed


def _wait(node: _Node, among: list[_Node]) -> None:
    """Let the node wait among those that another one frees."""
    among.append(node)
    node.waits += 1


def _compute_queue(plan: Plan, rank: RankPlan) -> list[_Node]:
    parts_of = {(parts.kind, parts.stage): parts for parts in plan.parts}
    queue = []
    for op in rank.compute:
        duration_ns = plan.problem.duration_ns(op.kind, op.stage, op.microbatch)
        if op.part != WHOLE:
            duration_ns = parts_of[op.kind, op.stage].durations_ns(duration_ns)[op.part]
        queue.append(_Node(duration_ns))
    for before, after in pairwise(queue):
        _wait(after, before.followers)
    return queue


def _transfers(plan: Plan, needs: Mapping[Op, Need], compute: list[list[_Node]]) -> list[_Node]:
    links = {(link.source, link.destination): link for link in plan.problem.links}
    node_of: dict[Op, _Node] = {}
    for op, need in needs.items():
        link = links[need.source, need.destination]
        node_of[op] = _Node(
            link.occupancy_ns(plan.problem.message_bytes(op)),
            latency_ns=link.latency_ns,
            trunk=link.trunk,
            producer=compute[need.source][need.producer],
            tie=(need.source, False),
        )
        _wait(node_of[op], compute[need.source][need.producer].followers)
        _wait(compute[need.destination][need.consumer], node_of[op].receivers)
    for rank in plan.ranks:
        for channel in rank.channels:
            for op, post in zip(channel.transfers, channel.post_before, strict=False):
                if post:
                    _wait(node_of[op], compute[rank.rank][post - 1].followers)
            if not channel.receives:
                for before, after in pairwise(channel.transfers):
                    _wait(node_of[after], node_of[before].followers)
    return list(node_of.values())


def _collectives(plan: Plan, compute: list[list[_Node]]) -> list[_Node]:
    parallel = plan.problem.data_parallel
    nodes: list[_Node] = []
    if parallel is None:
        return nodes
    for rank in plan.ranks:
        ops = list(zip(rank.compute, compute[rank.rank], strict=True))
        first = {op.stage: node for op, node in reversed(ops) if op.kind is Kind.F}
        last = {op.stage: node for op, node in ops if op.kind in (Kind.W, Kind.BW)}
        queue = []
        for entry in rank.collectives:
            tie = (rank.rank, True)
            if entry.kind == "AG":
                node = _Node(parallel.all_gather_ns[entry.stage], trunk=parallel.trunk, tie=tie)
                _wait(first[entry.stage], node.receivers)
            else:
                producer = last[entry.stage]
                node = _Node(parallel.reduce_scatter_ns[entry.stage], trunk=parallel.trunk, producer=producer, tie=tie)
                _wait(node, producer.followers)
            queue.append(node)
        for before, after in pairwise(queue):
            _wait(after, before.followers)
        nodes += queue
    return nodes
