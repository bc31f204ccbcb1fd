"""Measuring the links of a job's ranks by ping-pong, one pair after another so that none disturbs another.

Takes the pairs and the sizes of the messages; gives, on rank 0, a line through the times of each directed link. All ranks call it.

A pair's *leader*, its lower rank, sends a message and gets one back; to measure one way, that way's message has the size and the
other is a single number. Receives are posted before their message is sent, as a plan posts them, and each way has a process group
of its own, as a plan's channels have.

A one-way time needs one clock. Where both processes read the same (one host), the follower's answer carries the time at which the
message had come. Elsewhere a way's time is its round trip less half of the shortest message's round trip: what grows with the size
is then right for each way, and the two ways' latencies are taken as equal, because nobody can tell.

The line is time = latency + bytes / bandwidth, by least squares. Sizes and times span several powers of ten, so it is the
*relative* errors whose squares are summed: each size counts the same, and neither the latency drowns in the noise of the largest
message nor the bandwidth in that of the smallest.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from schedc.runtime.common.failure import NoAnswer, TransferFailed, with_others
from schedc.runtime.common.groups import share
from schedc.runtime.measure.clocks import clock_name
from schedc.runtime.transports.gloo import finish
from schedc.runtime.transports.nccl import failures_are_told, raise_failure
from schedc.runtime.transports.streams import CudaSide

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

T = TypeVar("T")

NUMBER_BYTES = 8
"""What a message consists of, and the shortest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agenda:
    """What is measured."""

    pairs: tuple[tuple[int, int], ...]
    """Each pair of ranks once, the lower one first."""
    sizes: tuple[int, ...]
    """Bytes of the messages, two sizes or more."""
    repeats: int
    warmup: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """What a directed link costs, as the cost model has it."""

    latency_ns: int
    bytes_per_second: int | None
    """None: larger messages did not take longer."""
    residual: float
    """The root mean square of the relative errors."""
    worst: tuple[int, float]
    """The size with the largest relative error, and that error: (line − measured) / measured."""


@dataclass(frozen=True, slots=True)
class LinkMeasurement:
    """A directed link as measured."""

    source: int
    destination: int
    times_ns: dict[int, float]
    """The median of each size."""
    fit: LinkFit
    one_clock: bool
    """Whether the latency is this direction's own; else it is half of both."""


def measure_links(
    agenda: Agenda, *, control: dist.ProcessGroup, backend: str, device: torch.device, timeout_s: float
) -> tuple[LinkMeasurement, ...]:
    """Measure all pairs in turn, both ways.

    All ranks have the same agenda, and are in `control` over gloo, to take turns and to collect. Messages are on `device`, and go
    over the backend, `gloo` or `nccl`. A rank may be silent for `timeout_s`.

    Returns:
        On rank 0 the links, by pair; nothing on the others.

    Raises:
        TransferFailed: a rank has ended, or is silent for too long.
    """
    rank, found = control.rank(), list[LinkMeasurement]()
    clocks = _together(control, clock_name())
    sizes = tuple(sorted({max(NUMBER_BYTES, size - size % NUMBER_BYTES) for size in agenda.sizes}))
    side = CudaSide(device) if device.type == "cuda" else None
    for pair in agenda.pairs:
        groups = [_group(pair, backend, timeout_s) for _ in range(2)]  # forth and back; all ranks make them, in the same order
        if rank in pair:
            here = pair.index(rank)
            wires = Wires(groups[here], groups[1 - here], peer=pair[1 - here], device=device, timeout_s=timeout_s, side=side)
            exchanges = measured(wires, sizes, agenda, leads=here == 0)
            if exchanges:
                one_clock = device.type == "cpu" and clocks[pair[0]] == clocks[pair[1]] != ""
                ways = one_way_times(exchanges, one_clock=one_clock)
                for (source, destination), times in zip((pair, pair[::-1]), ways, strict=True):
                    found.append(LinkMeasurement(source, destination, times, fit_link(times), one_clock))
            for group in groups:
                dist.destroy_process_group(group)
        _together(control, None)
    everything = _together(control, found)
    return tuple(link for links in everything for link in links) if rank == 0 else ()


def _group(pair: tuple[int, int], backend: str, timeout_s: float) -> dist.ProcessGroup:
    nccl = backend == "nccl"
    timeout = timedelta(seconds=2 * timeout_s if nccl else timeout_s)  # NCCL's watchdog comes behind the limits of `Wires`
    try:
        with failures_are_told() if nccl else nullcontext():
            group: dist.ProcessGroup = dist.new_group(list(pair), backend=backend, timeout=timeout)
    except RuntimeError as error:
        raise TransferFailed(f"connecting the ranks {pair[0]} and {pair[1]}: {_absent(timeout.total_seconds())}") from error
    return group


def _together(control: dist.ProcessGroup, value: T) -> list[T]:
    """What every rank gives, by rank."""
    try:
        return share(control, value)
    except RuntimeError as error:
        raise TransferFailed(f"waiting for the other ranks: {_absent(None)}") from error


def _absent(timeout_s: float | None) -> str:
    late = "" if timeout_s is None else f", or did not come in {timeout_s:g} s"
    return f"another rank has ended or failed, and its own message says why{late}"


@dataclass(frozen=True, slots=True)
class Wires:
    """A rank's two connections to the other of its pair. What fails raises `ConnectionLost` or another RuntimeError."""

    to_peer: dist.ProcessGroup
    from_peer: dist.ProcessGroup
    peer: int
    device: torch.device
    timeout_s: float
    side: CudaSide | None = None
    """The messages are in a GPU's memory and go over NCCL."""

    def connect(self, *, leads: bool) -> None:
        """Make NCCL's communicators, one after the other: a first transfer blocks the host until the peer begins it, too.

        Raises:
            NoAnswer: the peer has not come in time.
        """
        began_s, number = time.monotonic(), _numbers(NUMBER_BYTES, self.device)
        timer = threading.Timer(self.timeout_s, self.end)
        timer.start()
        try:
            for move in (self.send, self.receive) if leads else (self.receive, self.send):
                self.finish(move(number))
        except RuntimeError as error:
            if time.monotonic() - began_s >= self.timeout_s:
                raise NoAnswer(str(error)) from error
            raise
        finally:
            timer.cancel()
        if time.monotonic() - began_s >= self.timeout_s:  # what has been ended may look as if it were through
            raise NoAnswer("NCCL has not connected in time")

    def send(self, message: torch.Tensor) -> dist.Work:
        """Start to send."""
        return self.to_peer.send([message], 1 - self.to_peer.rank(), 0)

    def receive(self, buffer: torch.Tensor) -> dist.Work:
        """Start to receive."""
        return self.from_peer.recv([buffer], 1 - self.from_peer.rank(), 0)

    def finish(self, work: dist.Work) -> None:
        """Wait until the message has come or gone.

        Raises:
            ConnectionLost: the peer has ended.
            NoAnswer: it does not answer in time.
        """
        if self.side is None:
            return finish(work, self.timeout_s)
        work.wait()  # the stream waits, and the host for the stream; without a pause, which would be in the times
        mark, until_s = self.side.mark_compute(), time.monotonic() + self.timeout_s
        while not mark.query():
            raise_failure(work)
            if time.monotonic() > until_s:
                raise NoAnswer("NCCL has not done the transfer in time")
        return raise_failure(work)

    def end(self) -> None:
        """End NCCL's communicators, each in a thread, as one may wait for the other: what is under way fails."""
        if self.side is not None:
            for group in (self.to_peer, self.from_peer):
                threading.Thread(target=group.abort, name="schedc ends NCCL", daemon=True).start()


class Exchange(NamedTuple):
    """A message and its answer, and when they were sent and had come, in nanoseconds."""

    forth_bytes: int
    back_bytes: int
    sent_ns: int
    turned_ns: int
    """On the follower's clock; 0 where messages are in a GPU's memory, which has no clock to put into them."""
    came_ns: int


def _rounds(sizes: Sequence[int], repeats: int, warmup: int) -> Iterator[tuple[int, int, bool]]:
    """Sizes forth and back of all exchanges, and whether they count. Both ends go through the same."""
    for size in (NUMBER_BYTES, *sizes):
        for forth, back in ((size, NUMBER_BYTES), (NUMBER_BYTES, size)):
            for number in range(warmup + repeats):
                yield forth, back, number >= warmup


def measured(wires: Wires, sizes: Sequence[int], agenda: Agenda, *, leads: bool) -> list[Exchange]:
    """Connect and exchange messages with the peer; what the leader has noted, nothing on the follower.

    Raises:
        TransferFailed: the peer has ended or does not answer in time. NCCL's communicators are ended then.
    """
    lost = f"rank {wires.peer} has ended or failed, and its own message says why"
    try:
        with with_others(f"the link with rank {wires.peer}", lost, f"no answer in {wires.timeout_s:g} s (--timeout)"):
            if wires.side is not None:
                wires.connect(leads=leads)
            if leads:
                return lead(wires, sizes, agenda.repeats, agenda.warmup)
            follow(wires, sizes, agenda.repeats, agenda.warmup)
    except BaseException:
        wires.end()
        raise
    return []


def lead(wires: Wires, sizes: Sequence[int], repeats: int, warmup: int) -> list[Exchange]:
    """Send, get back, and note the times.

    Sizes are multiples of 8 bytes; of each size and way `repeats` exchanges are noted, after `warmup` others.
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
            turned_ns = int(answer[0]) if wires.side is None else 0
            exchanges.append(Exchange(forth, back, sent_ns, turned_ns, came_ns))
    return exchanges


def follow(wires: Wires, sizes: Sequence[int], repeats: int, warmup: int) -> None:
    """Answer. The arguments are those of `lead`."""
    message, buffer = (_numbers(max(NUMBER_BYTES, *sizes), wires.device) for _ in range(2))
    rounds = list(_rounds(sizes, repeats, warmup))
    coming = wires.receive(_part(buffer, rounds[0][0]))
    for number, (_, back, _) in enumerate(rounds):
        if wires.side is None:
            wires.finish(coming)
            message[0] = time.perf_counter_ns()
        else:
            coming.wait()  # the answer follows in the stream, without the host
        going = wires.send(_part(message, back))
        if number + 1 < len(rounds):
            coming = wires.receive(_part(buffer, rounds[number + 1][0]))
        wires.finish(going)


def one_way_times(exchanges: Sequence[Exchange], *, one_clock: bool) -> tuple[dict[int, float], dict[int, float]]:
    """The median nanoseconds of messages by their size, from the leader to the follower and back.

    Args:
        exchanges: what `lead` has noted.
        one_clock: whether both ends read the same clock and the answers carry its times.
    """
    forth, back = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    shortest = [entry.came_ns - entry.sent_ns for entry in exchanges if entry.forth_bytes == entry.back_bytes == NUMBER_BYTES]
    other_way_ns = statistics.median(shortest) / 2
    for entry in exchanges:
        round_trip_ns = entry.came_ns - entry.sent_ns
        if entry.back_bytes == NUMBER_BYTES:
            forth[entry.forth_bytes].append(entry.turned_ns - entry.sent_ns if one_clock else round_trip_ns - other_way_ns)
        if entry.forth_bytes == NUMBER_BYTES:
            back[entry.back_bytes].append(entry.came_ns - entry.turned_ns if one_clock else round_trip_ns - other_way_ns)
    median_forth, median_back = ({size: statistics.median(times) for size, times in way.items()} for way in (forth, back))
    return median_forth, median_back


def _numbers(size_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(size_bytes // NUMBER_BYTES, dtype=torch.int64, device=device)


def _part(numbers: torch.Tensor, size_bytes: int) -> torch.Tensor:
    return numbers[: size_bytes // NUMBER_BYTES]


def fit_link(times_ns: Mapping[int, float]) -> LinkFit:
    """The line through the times of messages by their size in bytes; neither latency nor bandwidth is negative.

    Minimizes Σ ((latency + bytes · slope − time) / time)²: linear regression with the weights 1 / time². As the times are positive,
    at most one of the two comes out negative, and the best with it at 0 is the best of all.

    Raises:
        ValueError: fewer than two sizes, or a time that is not above 0.
    """
    if len(times_ns) < 2:
        raise ValueError(f"a line needs two sizes or more, got {len(times_ns)}")
    if min(times_ns.values()) <= 0:
        raise ValueError(f"times must be above 0, got {min(times_ns.values())}")
    sizes, times = np.array([*times_ns], float), np.array([*times_ns.values()], float)
    slope, latency = map(float, np.polyfit(sizes, times, 1, w=1 / times))
    if latency < 0:  # the best line through the origin
        ratios = sizes / times
        latency, slope = 0.0, float(ratios.sum() / (ratios**2).sum())
    elif slope < 0:  # the best level one
        latency, slope = float(np.average(times, weights=times**-2)), 0.0
    latency_ns = round(latency)
    bytes_per_second = max(1, round(1e9 / slope)) if slope > 1e-9 else None  # an exabyte per second is none
    errors = {size: line_ns(size, latency_ns, bytes_per_second) / time - 1 for size, time in times_ns.items()}
    worst = max(errors, key=lambda size: abs(errors[size]))
    residual = math.sqrt(math.fsum(error * error for error in errors.values()) / len(errors))
    return LinkFit(latency_ns=latency_ns, bytes_per_second=bytes_per_second, residual=residual, worst=(worst, errors[worst]))


def line_ns(size_bytes: float, latency_ns: int, bytes_per_second: int | None) -> float:
    """What a line says of a message."""
    return latency_ns + (0.0 if bytes_per_second is None else size_bytes * 1e9 / bytes_per_second)
