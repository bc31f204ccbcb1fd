"""Engines whose transfers hold up compute, run nanosecond by nanosecond: an oracle that shares nothing with the simulators.

Each rank is a program (a generator) that says what it waits for: its compute, or messages. Messages wait at their link or trunk, by
when they came there and by their source. Durations and occupancies must be at least 1 ns, so that no order within a nanosecond
matters; where no two ranks share a link or trunk, occupancies may be 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir.ops import Kind, Op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

    Rank = Iterator[Callable[[], bool]]
    """What a rank waits for, one thing after the other: each can say whether it has come."""


class Message(NamedTuple):
    """What a block sends to the rank of a neighbouring stage; a fused and a split backward send the same one."""

    is_gradient: bool
    from_stage: int
    microbatch: int


@dataclass
class Clock:
    """What all ranks see: the time, and what has happened to messages."""

    problem: Problem
    schedule: Schedule
    now_ns: int = 0
    sent_ns: dict[Message, int] = field(default_factory=dict)
    """When the sender has come to it."""
    asked_ns: dict[Message, int] = field(default_factory=dict)
    """When the receiver has come to it."""
    arrival_ns: dict[Message, int] = field(default_factory=dict)
    queues: dict[object, list[tuple[int, int, int, object, int, int]]] = field(default_factory=dict)
    """By link or trunk: (since, rank, 0 for a message and 1 for a collective, what, occupancy, latency)."""
    free_ns: dict[object, int] = field(default_factory=dict)
    collective_end_ns: int = 0
    known_ns: int = 0
    """Until when something is known to be under way."""
    starts_ns: dict[Op, int] = field(default_factory=dict)

    def has_arrived(self, message: Message) -> bool:
        """Whether it has arrived by now."""
        return self.arrival_ns.get(message, self.now_ns + 1) <= self.now_ns

    def arrival_of(self, message: Message) -> Callable[[], bool]:
        """What says whether it has arrived."""
        return lambda: self.has_arrived(message)

    def submit(self, message: Message) -> None:
        """Queue it at its link."""
        source, destination = ends(self.problem, message)
        link = self.problem.link(source, destination)
        kind, stage = (Kind.B if message.is_gradient else Kind.F), message.from_stage
        size_bytes = self.problem.message_bytes(Op(kind, stage, message.microbatch))
        where = link.trunk or (source, destination)
        self.queues.setdefault(where, []).append((self.now_ns, source, 0, message, link.occupancy_ns(size_bytes), link.latency_ns))

    def serve(self) -> bool:
        """Begin what links and trunks can begin now; whether there was anything."""
        some = False
        for where, queue in self.queues.items():
            queue.sort(key=lambda entry: entry[:3])
            while queue and self.free_ns.get(where, 0) <= self.now_ns:
                _, _, _, what, occupancy_ns, latency_ns = queue.pop(0)
                self.free_ns[where] = self.now_ns + occupancy_ns
                some = True
                if isinstance(what, Message):
                    self.arrival_ns[what] = self.now_ns + occupancy_ns + latency_ns
                    self.known_ns = max(self.known_ns, self.arrival_ns[what])
                else:
                    self.collective_end_ns = max(self.collective_end_ns, self.now_ns + occupancy_ns)
        return some


def ends(problem: Problem, message: Message) -> tuple[int, int]:
    """The ranks that it goes from and to."""
    path = problem.path(message.microbatch)
    other = path[path.index(message.from_stage) + (-1 if message.is_gradient else 1)]
    return problem.stages[message.from_stage].rank, problem.stages[other].rank


def made(clock: Clock, op: Op) -> Message | None:
    """What the op sends to another rank."""
    parts = clock.schedule.parts_of(op.kind, op.stage)
    if op.kind is Kind.W or (op.part >= 0 and parts is not None and op.part < len(parts.shares) - 1):
        return None
    path = clock.problem.path(op.microbatch)
    if op.stage == path[-1 if op.kind is Kind.F else 0]:
        return None
    message = Message(op.kind is not Kind.F, op.stage, op.microbatch)
    source, destination = ends(clock.problem, message)
    return None if source == destination else message


def needed(clock: Clock, op: Op) -> Message | None:
    """What the op needs from another rank."""
    path = clock.problem.path(op.microbatch)
    if op.kind is Kind.W or op.part > 0 or op.stage == path[0 if op.kind is Kind.F else -1]:
        return None
    neighbour = path[path.index(op.stage) + (-1 if op.kind is Kind.F else 1)]
    message = Message(op.kind is not Kind.F, neighbour, op.microbatch)
    source, destination = ends(clock.problem, message)
    return None if source == destination else message


def compute(clock: Clock, op: Op, weights_ns: dict[int, int], last: dict[int, Op]) -> Rank:
    """Run an op; its stage's weights must be there, and its gradients may be complete after it."""
    if op.kind is Kind.F:
        yield lambda: clock.now_ns >= weights_ns.get(op.stage, 0)
    clock.starts_ns[op] = clock.now_ns
    end_ns = clock.now_ns + clock.schedule.duration_ns(clock.problem, op)
    clock.known_ns = max(clock.known_ns, end_ns)
    yield lambda: clock.now_ns >= end_ns
    parallel = clock.problem.data_parallel
    if parallel is not None and last[op.stage] == op:
        rank = clock.problem.stages[op.stage].rank
        where = parallel.trunk or ("collectives", rank)
        entry = (clock.now_ns, rank, 1, ("RS", op.stage), parallel.reduce_scatter_ns[op.stage], 0)
        clock.queues.setdefault(where, []).append(entry)


def one_queue_rank(clock: Clock, rank: int, weights_ns: dict[int, int], last: dict[int, Op]) -> Rank:
    """A rank whose transfers share one queue that holds one."""
    under_way: Message | None = None
    for op in clock.schedule.orders[rank]:
        message = needed(clock, op)
        if message is not None:
            if under_way is not None:
                yield clock.arrival_of(under_way)
            yield clock.arrival_of(message)
        yield from compute(clock, op, weights_ns, last)
        message = made(clock, op)
        if message is not None:
            if under_way is not None:
                yield clock.arrival_of(under_way)
            clock.submit(message)
            under_way = message


def exchange(clock: Clock, *, send: Message | None, receive: Message | None) -> Rank:
    """Megatron's `_communicate`: hand over what there is, and wait for all of it."""
    for message, mine, others in ((send, clock.sent_ns, clock.asked_ns), (receive, clock.asked_ns, clock.sent_ns)):
        if message is not None:
            mine[message] = clock.now_ns
            if message in others:
                clock.submit(message)
    yield lambda: all(clock.has_arrived(message) for message in (send, receive) if message is not None)


def blocking_rank(clock: Clock, rank: int, weights_ns: dict[int, int], last: dict[int, Op]) -> Rank:
    """A rank that waits in each send and receive, and does those with one peer together."""
    order = clock.schedule.orders[rank]
    send: Message | None = None
    for op in order:
        receive = needed(clock, op)
        peers = {ends(clock.problem, send)[1]} if send else set()
        if receive is not None and ends(clock.problem, receive)[0] not in peers:
            if send is not None:
                yield from exchange(clock, send=send, receive=None)
            send = None
        if send is not None or receive is not None:
            yield from exchange(clock, send=send, receive=receive)
        yield from compute(clock, op, weights_ns, last)
        send = made(clock, op)
    if send is not None:
        yield from exchange(clock, send=send, receive=None)


def megatron_rank(clock: Clock, rank: int, weights_ns: dict[int, int], last: dict[int, Op]) -> Rank:
    """`forward_backward_pipelining_without_interleaving`, function by function, of one stage on each rank; BW is its backward."""
    problem = clock.problem
    is_first, is_last = rank == 0, rank == problem.ranks - 1
    warm_up = min(problem.ranks - rank - 1, problem.microbatches)
    remaining = problem.microbatches - warm_up

    def activation(stage: int, microbatch: int) -> Message:
        return Message(False, stage, microbatch)

    def gradient(stage: int, microbatch: int) -> Message:
        return Message(True, stage, microbatch)

    def forward_step(microbatch: int) -> Rank:
        return compute(clock, Op(Kind.F, rank, microbatch), weights_ns, last)

    def backward_step(microbatch: int) -> Rank:
        return compute(clock, Op(Kind.BW, rank, microbatch), weights_ns, last)

    def recv_forward(microbatch: int) -> Rank:
        return iter(()) if is_first else exchange(clock, send=None, receive=activation(rank - 1, microbatch))

    def send_forward(microbatch: int) -> Rank:
        return iter(()) if is_last else exchange(clock, send=activation(rank, microbatch), receive=None)

    def recv_backward(microbatch: int) -> Rank:
        return iter(()) if is_last else exchange(clock, send=None, receive=gradient(rank + 1, microbatch))

    def send_backward(microbatch: int) -> Rank:
        return iter(()) if is_first else exchange(clock, send=gradient(rank, microbatch), receive=None)

    def send_forward_recv_backward(sent: int, received: int) -> Rank:
        if is_last:
            return iter(())
        return exchange(clock, send=activation(rank, sent), receive=gradient(rank + 1, received))

    def send_backward_recv_forward(sent: int, received: int) -> Rank:
        if is_first:
            return iter(())
        return exchange(clock, send=gradient(rank, sent), receive=activation(rank - 1, received))

    for microbatch in range(warm_up):
        yield from recv_forward(microbatch)
        yield from forward_step(microbatch)
        yield from send_forward(microbatch)
    if remaining > 0:
        yield from recv_forward(warm_up)
    for at in range(remaining):
        yield from forward_step(warm_up + at)
        yield from send_forward_recv_backward(warm_up + at, at)
        yield from backward_step(at)
        if at == remaining - 1:
            yield from send_backward(at)
        else:
            yield from send_backward_recv_forward(at, warm_up + at + 1)
    for at in range(remaining, problem.microbatches):
        yield from recv_backward(at)
        yield from backward_step(at)
        yield from send_backward(at)


def run(
    problem: Problem,
    schedule: Schedule,
    program: Callable[[Clock, int, dict[int, int], dict[int, Op]], Rank],
) -> tuple[dict[Op, int], int] | None:
    """Run all ranks; the start of each op with the makespan, or None if they wait for each other indefinitely."""
    clock = Clock(problem, schedule)
    weights_ns = _gather(clock)
    last = {op.stage: op for order in schedule.orders for op in order if op.kind in (Kind.W, Kind.BW)}
    ranks = [program(clock, rank, weights_ns, last) for rank in range(problem.ranks)]
    waits: list[Callable[[], bool] | None] = [next(rank, None) for rank in ranks]
    while any(wait is not None for wait in waits) or any(clock.queues.values()):
        served = True
        while served:
            moved = True
            while moved:  # all that wants a link now must be there before the link is given to one
                moved = False
                for rank, wait in enumerate(waits):
                    if wait is not None and wait():
                        waits[rank] = next(ranks[rank], None)
                        moved = True
            served = clock.serve()
        if clock.now_ns >= max(clock.known_ns, *weights_ns.values(), *clock.free_ns.values(), 0):
            break
        clock.now_ns += 1
    if any(wait is not None for wait in waits):
        return None
    ends_ns = [start_ns + schedule.duration_ns(problem, op) for op, start_ns in clock.starts_ns.items()]
    return clock.starts_ns, max([*ends_ns, clock.collective_end_ns, *weights_ns.values()])


def _gather(clock: Clock) -> dict[int, int]:
    """When each stage's weights are there."""
    parallel = clock.problem.data_parallel
    found: dict[int, int] = {}
    if parallel is None or not parallel.all_gather_ns:
        return found
    for rank, order in enumerate(clock.schedule.orders):
        where = parallel.trunk or ("collectives", rank)
        for stage in dict.fromkeys(op.stage for op in order if op.kind is Kind.F):
            clock.free_ns[where] = found[stage] = clock.free_ns.get(where, 0) + parallel.all_gather_ns[stage]
    return found
