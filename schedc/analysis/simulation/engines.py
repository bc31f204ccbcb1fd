"""A plan's times on engines whose transfers hold up compute (cost model, "Engines that wait").

Both run their ops in order, and take what happens in the order of its moments; they differ in when a transfer begins and what it
holds up. `simulate` is the engine of the cost model, which runs far larger plans.
"""

from __future__ import annotations

import heapq
from enum import StrEnum
from typing import TYPE_CHECKING

from schedc.analysis.simulation.flow import (
    BEGIN,
    NOT_RUN,
    Moment,
    Resources,
    Times,
    after,
    arrived,
    flow_of,
    gates_of,
    timeline_of,
    waiting_text,
)
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import CheckFailed, InvalidInput
from schedc.ir import Problem, Schedule, token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.analysis.simulation.timeline import Timeline

TRANSFER, END = 0, 1
"""What happens to an op: its transfer begins; it ends, and makes a reduce-scatter ready. In this order at one moment."""


class Transfers(StrEnum):
    """How an engine's transfers go beside its compute."""

    DECOUPLED = "decoupled"
    """They hold up nothing: the cost model that plans are made for."""
    ONE_QUEUE = "one-queue"
    """All transfers of a rank share a queue that holds one, and a full queue holds up the rank."""
    BLOCKING = "blocking"
    """A rank waits in each send and receive."""


def simulate_engine(problem: Problem, schedule: Schedule, transfers: Transfers) -> Timeline:
    """When every op, transfer and collective of the schedule happens on such an engine.

    Args:
        problem: what the ops cost.
        schedule: a schedule that `verify_schedule` accepts.
        transfers: the engine's.

    Raises:
        InvalidInput: the engine's transfers hold up compute, and the stages are a graph, or weights sharded.
        CheckFailed: the ranks wait for each other in a cycle. With `one-queue` no schedule does that ends with decoupled transfers;
            with `blocking` it depends on the orders alone, and the cycle is named.
    """
    if transfers is Transfers.DECOUPLED:
        return simulate(problem, schedule)
    if not problem.is_chain or problem.is_sharded:
        found = "weights of the plan are sharded" if problem.is_sharded else "the stages of the plan are a graph"
        raise InvalidInput(f"{problem.name}: {transfers} transfers are modelled for chains of whole weights, and {found}")
    return (_OneQueue if transfers is Transfers.ONE_QUEUE else _Blocking)(problem, schedule).run()


class _Engine:
    """What both engines have: ops that start, transfers that pass, and the loop over what happens."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem, self.schedule = problem, schedule
        self.flow = flow = flow_of(problem, schedule)
        self.rank_of, self.begin = flow.rank_of.tolist(), flow.begin.tolist()
        self.consumer = [-1] * len(flow.ops)
        """Per op, the op that needs its transfer, or -1: stages are a chain."""
        self.clock = [BEGIN] * problem.ranks
        """Per rank, from when on it may go on."""
        self._duration_ns, self._collective_after = flow.duration_ns.tolist(), flow.collective_after.tolist()
        self._transfers: dict[int, tuple[int, int, int, int]] = {}
        """Per op that sends, its transfer, with resource, occupancy and latency."""
        costs = zip(flow.resource.tolist(), flow.occupancy_ns.tolist(), flow.latency_ns.tolist(), strict=True)
        for transfer, (op, taker, cost) in enumerate(zip(flow.sender.tolist(), flow.taker.tolist(), costs, strict=True)):
            self.consumer[op], self._transfers[op] = taker, (transfer, *cost)
        self._gate, self._resources, self._times = gates_of(flow), Resources(flow), Times.none_of(flow)
        self._events: list[tuple[Moment, int, int, int]] = []
        """(when, rank, what happens, op)."""

    def go_on(self, rank: int) -> None:
        """Start the rank's next ops, as far as transfers let it."""
        raise NotImplementedError

    def passed(self, op: int, begun: Moment, arrival: Moment) -> None:
        """The op's transfer, which began then, will have arrived then."""
        raise NotImplementedError

    def waiting(self) -> str:
        """What to say where the ranks wait for each other."""
        return waiting_text(self.schedule, self.flow, self._times)

    def start(self, op: int, earliest: Moment = BEGIN) -> None:
        """Start an op when its rank may go on, its weights are gathered, and not before `earliest`."""
        rank = self.rank_of[op]
        start = max(self.clock[rank], self._gate[op], earliest)
        self._times.starts_ns[op] = start[0]
        self.clock[rank] = after(start, self._duration_ns[op])
        if self._collective_after[op] >= 0:
            heapq.heappush(self._events, (self.clock[rank], rank, END, op))

    def send(self, op: int, ready: Moment) -> None:
        """The op's transfer is ready then."""
        heapq.heappush(self._events, (ready, self.rank_of[op], TRANSFER, op))

    def run(self) -> Timeline:
        """Run everything."""
        times = self._times
        for rank in range(self.problem.ranks):
            self.go_on(rank)
        while self._events:
            now, _, what, op = heapq.heappop(self._events)
            if what == END:
                collective = self._collective_after[op]
                times.collective_start_ns[collective] = self._resources.reduce_scatter(collective, now)
                continue
            transfer, resource, occupancy_ns, latency_ns = self._transfers[op]
            start, left = self._resources.serve(resource, now, occupancy_ns)
            arrival = arrived(left, latency_ns)
            times.transfer_start_ns[transfer], times.arrival_ns[transfer] = start[0], arrival[0]
            self.passed(op, now, arrival)
        if (times.starts_ns == NOT_RUN).any():
            raise CheckFailed(self.waiting())
        return timeline_of(self.problem, self.flow, times)


class _OneQueue(_Engine):
    """All transfers of a rank share one queue that holds one transfer.

    A send enters the queue when its op has ended and the transfer before it is through, which is when it has arrived; until then
    the rank waits. A receive waits for the transfer before it, too. So a slow transfer holds up everything behind it.
    """

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        super().__init__(problem, schedule)
        self._receives, self._following = self.flow.receives.tolist(), self.begin[:-1]
        self._enters = [False] * problem.ranks
        """Per rank, whether a send of it has yet to enter."""
        self._through = [BEGIN] * problem.ranks
        """Per rank, when the last transfer that entered its queue is through."""
        self._arrival: list[Moment | None] = [None] * len(self.rank_of)
        """Per op, when what it receives arrives."""

    def go_on(self, rank: int) -> None:
        """Up to an op that sends or whose message is not under way."""
        while not self._enters[rank] and (op := self._following[rank]) < self.begin[rank + 1]:
            earliest = BEGIN
            if self._receives[op]:
                came = self._arrival[op]
                if came is None:
                    return
                earliest = max(self._through[rank], came)
            self.start(op, earliest)
            self._following[rank] += 1
            if self.consumer[op] >= 0:
                self.send(op, max(self.clock[rank], self._through[rank]))
                self._enters[rank] = True

    def passed(self, op: int, begun: Moment, arrival: Moment) -> None:
        """It has entered the queue."""
        rank, consumer = self.rank_of[op], self.consumer[op]
        self.clock[rank], self._enters[rank], self._through[rank] = begun, False, arrival
        self._arrival[consumer] = arrival
        self.go_on(rank)
        self.go_on(self.rank_of[consumer])


class _Blocking(_Engine):
    """A rank waits in each send and receive, as in Megatron's 1F1B.

    A transfer begins when both of its ranks have come to it, and holds both until it has arrived. Between two ops a rank sends what
    the first has made and receives what the second needs: in one exchange if both are with the same peer, else the send first.
    """

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        super().__init__(problem, schedule)
        self._producer = {needs: op for op, needs in enumerate(self.consumer) if needs >= 0}
        self._work = [self._work_of(rank) for rank in range(problem.ranks)]
        self._exchange: list[tuple[int, ...]] = [()] * problem.ranks
        """Per rank, the transfers of its exchange that have not begun."""
        self._came: dict[int, Moment] = {}
        """Of transfers to which one rank has come: when."""

    def go_on(self, rank: int) -> None:
        """Up to an exchange."""
        for step in self._work[rank]:
            if isinstance(step, int):
                self.start(step)
                continue
            self._exchange[rank] = step
            for transfer in step:
                if transfer in self._came:
                    self.send(transfer, max(self._came.pop(transfer), self.clock[rank]))
                else:
                    self._came[transfer] = self.clock[rank]
            return

    def passed(self, op: int, begun: Moment, arrival: Moment) -> None:
        """Both ranks are held until it has arrived."""
        for rank in (self.rank_of[op], self.rank_of[self.consumer[op]]):
            self.clock[rank] = max(self.clock[rank], arrival)
            self._exchange[rank] = tuple(transfer for transfer in self._exchange[rank] if transfer != op)
            if not self._exchange[rank]:
                self.go_on(rank)

    def _work_of(self, rank: int) -> Iterator[int | tuple[int, ...]]:
        """What the rank does in turn: its ops, and before each and after the last the exchanges there, named by who sends."""
        first, end = self.begin[rank : rank + 2]
        for op in range(first, end + 1):
            sent = op - 1 if op > first and self.consumer[op - 1] >= 0 else None
            received = self._producer.get(op) if op < end else None
            if sent is not None and received is not None and self.rank_of[self.consumer[sent]] == self.rank_of[received]:
                yield sent, received
            else:
                yield from ((transfer,) for transfer in (sent, received) if transfer is not None)
            if op < end:
                yield op

    def waiting(self) -> str:
        """The cycle of ranks that wait for each other: all transfers of an exchange are with one peer, which has not come."""
        ops = [op for order in self.schedule.orders for op in order]
        waiting = next(rank for rank, transfers in enumerate(self._exchange) if transfers)
        seen: list[int] = []
        while waiting not in seen:
            seen.append(waiting)
            transfer = self._exchange[waiting][0]
            waiting = self.rank_of[transfer] + self.rank_of[self.consumer[transfer]] - waiting
        waits = []
        for rank in seen[seen.index(waiting) :]:
            transfers = [
                f"send {token(ops[transfer])} to rank {self.rank_of[self.consumer[transfer]]}"
                if self.rank_of[transfer] == rank
                else f"receive {token(ops[transfer])} from rank {self.rank_of[transfer]}"
                for transfer in self._exchange[rank]
            ]
            waits.append(f"rank {rank} to {' and '.join(transfers)}")
        return f"where transfers block, the ranks wait for each other indefinitely: {', '.join(waits)}"
