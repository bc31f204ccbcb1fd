"""Ping-pong between two ranks: how long messages of several sizes take, each way on its own.

The pair's *leader*, its lower rank, sends a message and gets one back; to measure one way, that way's message has the size and the
other is a single number. Receives are posted before their message is sent, as a plan posts them, and each way has a process group
of its own, as a plan's channels have.

A one-way time needs one clock. Where both processes read the same (one host), the follower's answer carries the time at which the
message had come. Elsewhere a way's time is its round trip less half of the shortest message's round trip: what grows with the size
is then right for each way, and the two ways' latencies are taken as equal, because nobody can tell.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed, connection_lost
from schedc.runtime.transports.gloo import finish

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch.distributed as dist

NUMBER_BYTES = 8
"""What a message consists of, and the shortest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """A rank's two connections to the other of its pair."""

    to_peer: dist.ProcessGroup
    from_peer: dist.ProcessGroup
    peer: int
    device: torch.device
    timeout_s: float

    def send(self, message: torch.Tensor) -> dist.Work:
        """Start to send."""
        try:
            return self.to_peer.send([message], 1 - self.to_peer.rank(), 0)
        except RuntimeError as error:
            raise TransferFailed(f"the link to rank {self.peer}: {connection_lost(self.peer)}") from error

    def receive(self, buffer: torch.Tensor) -> dist.Work:
        """Start to receive."""
        try:
            return self.from_peer.recv([buffer], 1 - self.from_peer.rank(), 0)
        except RuntimeError as error:
            raise TransferFailed(f"the link from rank {self.peer}: {connection_lost(self.peer)}") from error

    def finish(self, work: dist.Work) -> None:
        """Wait until the message has come or gone.

        Raises:
            TransferFailed: the peer has ended or does not answer in time. (Over NCCL its watchdog ends the process then.)
        """
        if self.device.type == "cuda":
            work.wait()
            torch.cuda.synchronize(self.device)
            return
        try:
            finish(work, self.timeout_s)
        except ConnectionLost as error:
            raise TransferFailed(f"the link with rank {self.peer}: {connection_lost(self.peer)}") from error
        except NoAnswer as error:
            raise TransferFailed(f"the link with rank {self.peer}: no answer in {self.timeout_s:g} s (--timeout)") from error


class Exchange(NamedTuple):
    """A message and its answer, and when they were sent and had come, in nanoseconds."""

    forth_bytes: int
    back_bytes: int
    sent_ns: int
    turned_ns: int
    """On the follower's clock; 0 where messages are in a GPU's memory, which has no clock to put into them."""
    came_ns: int


class PairTimes(NamedTuple):
    """The median nanoseconds of messages by their size, each way."""

    forth: dict[int, float]
    """From the leader to the follower."""
    back: dict[int, float]


def _rounds(sizes: Sequence[int], repeats: int, warmup: int) -> Iterator[tuple[int, int, bool]]:
    """Sizes forth and back of all exchanges, and whether they count. Both ends go through the same."""
    for size in (NUMBER_BYTES, *sizes):
        for forth, back in ((size, NUMBER_BYTES), (NUMBER_BYTES, size)):
            for number in range(warmup + repeats):
                yield forth, back, number >= warmup


def lead(wires: Wires, sizes: Sequence[int], repeats: int, warmup: int) -> list[Exchange]:
    """Send, get back, and note the times.

    Args:
        wires: to the follower.
        sizes: multiples of 8 bytes.
        repeats: exchanges of each size and way that are noted.
        warmup: exchanges before them.

    Raises:
        TransferFailed: the follower does not answer.
    """
    message, buffer = (_numbers(max(NUMBER_BYTES, *sizes), wires.device) for _ in range(2))
    exchanges = []
    for forth, back, counts in _rounds(sizes, repeats, warmup):
        answer = _part(buffer, back)
        coming = wires.receive(answer)
        sent_ns = time.perf_counter_ns()
        going = wires.send(_part(message, forth))
        wires.finish(coming)
        came_ns = time.perf_counter_ns()
        wires.finish(going)
        if counts:
            turned_ns = 0 if wires.device.type == "cuda" else int(answer[0])
            exchanges.append(Exchange(forth, back, sent_ns, turned_ns, came_ns))
    return exchanges


def follow(wires: Wires, sizes: Sequence[int], repeats: int, warmup: int) -> None:
    """Answer. The arguments are those of `lead`.

    Raises:
        TransferFailed: the leader does not send.
    """
    message, buffer = (_numbers(max(NUMBER_BYTES, *sizes), wires.device) for _ in range(2))
    rounds = list(_rounds(sizes, repeats, warmup))
    coming = wires.receive(_part(buffer, rounds[0][0]))
    for number, (_, back, _) in enumerate(rounds):
        if wires.device.type == "cuda":
            coming.wait()  # the answer follows in the stream, without the host
        else:
            wires.finish(coming)
            message[0] = time.perf_counter_ns()
        going = wires.send(_part(message, back))
        if number + 1 < len(rounds):
            coming = wires.receive(_part(buffer, rounds[number + 1][0]))
        wires.finish(going)


def one_way_times(exchanges: Sequence[Exchange], *, one_clock: bool) -> PairTimes:
    """The medians of each way.

    Args:
        exchanges: what `lead` has noted.
        one_clock: whether both ends read the same clock and the answers carry its times.
    """
    forth: defaultdict[int, list[float]] = defaultdict(list)
    back: defaultdict[int, list[float]] = defaultdict(list)
    shortest = [entry.came_ns - entry.sent_ns for entry in exchanges if entry.forth_bytes == entry.back_bytes == NUMBER_BYTES]
    other_way_ns = statistics.median(shortest) / 2
    for entry in exchanges:
        round_trip_ns = entry.came_ns - entry.sent_ns
        if entry.back_bytes == NUMBER_BYTES:
            forth[entry.forth_bytes].append(entry.turned_ns - entry.sent_ns if one_clock else round_trip_ns - other_way_ns)
        if entry.forth_bytes == NUMBER_BYTES:
            back[entry.back_bytes].append(entry.came_ns - entry.turned_ns if one_clock else round_trip_ns - other_way_ns)
    return PairTimes(
        {size: statistics.median(times) for size, times in forth.items()},
        {size: statistics.median(times) for size, times in back.items()},
    )


def _numbers(size_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(size_bytes // NUMBER_BYTES, dtype=torch.int64, device=device)


def _part(numbers: torch.Tensor, size_bytes: int) -> torch.Tensor:
    return numbers[: size_bytes // NUMBER_BYTES]
