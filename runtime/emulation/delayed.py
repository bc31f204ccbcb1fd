"""Latency and occupancy added to real channels (CrossPipe 6.4 and appendix F): the ends of wires whose transfers take their time.

`StampedTransport`: ranks share a host's clock. The sender reserves the link when it sends, in the order of sending, and sends the
time at which the message arrives along with it: `max(now, link free) + occupancy + latency`, the cost model's, with the costs that
the link has when it sends. The message goes at once; the receiver sleeps until its time has come, too. From a GPU through the host,
and on trunks, the stamp is made when the device has computed the message; who takes it launches nothing more before its time.

`ObservedTransport`: between hosts, whose clocks differ. The receiver counts occupancy and latency from when it sees a message come.
Someone has to watch for that: a thread, which waits for one expected message after the other and ends when none is left. The link
is free again an occupancy after the message before it, as on the sender's side. A message whose receive is posted late is seen
late.

`SpunTransport`: the paper's method, for channels between GPUs whose receives are device work. The receiver holds a stream that
models the link with a spin kernel for each message's occupancy, from when it is through, in order; who takes a message measures
with events how much of the latency has passed by the compute's stream, and lets that stream spin for the rest. It needs no clock
but the device's, so ranks may be on any hosts; a trunk it cannot know.

All have the tags that channels give them.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.common.failure import ConnectionLost
from schedc.runtime.emulation.waiting import wait_until
from schedc.runtime.execution.channels import TAGS, TransferBegins
from schedc.runtime.measure.device_clock import timed_event
from schedc.runtime.transports.base import Ends, Incoming, Outgoing, Transport, UnderWay, both
from schedc.runtime.transports.delegate import found_elsewhere
from schedc.runtime.transports.helpers import SerialExecutor, result_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from schedc.runtime.emulation.delays import DelayOfTransfers, Reservable
    from schedc.runtime.transports.nccl import NcclTransport
    from schedc.runtime.transports.streams import Mark

STAMP = TensorMeta(torch.int64, (1,))
WATCH_S = 86_400.0
"""How long a thread watches for a message; who takes it gives up earlier, and closes the connection."""
LEAST_WAIT_S = 0.001
"""What is left of a wait, at least: none at all would mean no limit to gloo."""
CALIBRATION_CYCLES = (1_000_000, 11_000_000)
"""Two lengths, so that what a launch takes drops out; some milliseconds on any GPU."""
CALIBRATIONS = 5


class OneQueue:
    """A queue for all transfers of a rank, sends and receives, that holds one at a time, in the order in which they come.

    It models one communicator with one stream for all of a rank's point-to-point transfers, whose queue is full with one
    transfer under way: to hand it the next blocks the rank until the one before is through (PipeMorph 3.2, figure 6: the launch
    of SF_3 waits for SF_2, and F_4 behind it). A send is through when its message has arrived, whether or not its receiver has
    asked for it; a receive is handed over by the op that needs it. So a rank waits for its own earlier ops and for times only, and
    whatever plan runs with four queues ends with one.
    """

    def __init__(self) -> None:
        """Empty."""
        self._until_ns = 0

    def enter(self) -> None:
        """Wait until the transfer before is through."""
        wait_until(self._until_ns)

    def hold(self, until_ns: int) -> None:
        """Hold the queue with a transfer until this time."""
        self._until_ns = until_ns


class StampedTransport:
    """The end of a wire for its tensors, between ranks that share a host's clock."""

    def __init__(
        self,
        ends: Ends,
        delay: DelayOfTransfers,
        link: Reservable,
        queue: OneQueue | None = None,
        record: Callable[[], Mark] | None = None,
    ) -> None:
        """Wrap an end.

        `ends` carry messages, and their stamps; the sender alone occupies the link. All transfers of the rank go through `queue`,
        if it is one, on CPUs. On a GPU `record` gives a mark in the compute's stream, after all that has been launched.
        """
        self._data, self._control = ends.data, ends.control
        self._delay = delay
        self._link = link
        self._queue = queue
        self._record = record
        self._begins = TransferBegins()
        self._arrival_ns = 0
        self._stamps = SerialExecutor()

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        """As `Transport.send`; with one queue, it waits for the transfer before."""
        if self._record is None:
            stamp = self._send_stamp(tag)
            return both(stamp, self._data.send(tensor, message_tag(tag)))
        mark = self._record()
        message = self._data.send(tensor, message_tag(tag))
        return both(UnderWay(partial(_wait_for_stamp, self._stamps.submit(partial(self._stamp_after, mark, tag)))), message)

    def receive(self, kind: TensorMeta, tag: int) -> Incoming:
        """As `Transport.receive`. It may be called late: the message's time is what its sender has said."""
        stamp = self._control.receive(STAMP, stamp_tag(tag))
        return UnderWay(partial(self._take, self._data.receive(kind, message_tag(tag)), stamp))

    def _send_stamp(self, tag: int) -> Outgoing:
        """Reserve the link for a message that is ready now, and send the receiver the time at which it arrives."""
        if self._begins.at(tag):
            if self._queue is not None:
                self._queue.enter()
            now_ns = perf_counter_ns()
            delay = self._delay.at(now_ns)
            self._arrival_ns = self._link.reserve(now_ns, delay.occupancy_ns[tag // TAGS]) + delay.latency_ns
            if self._queue is not None:
                self._queue.hold(self._arrival_ns)
        return self._control.send(torch.tensor([self._arrival_ns], device="cpu"), stamp_tag(tag))

    def _stamp_after(self, mark: Mark, tag: int) -> Outgoing:
        """Send a message's stamp once the device has computed it."""
        mark.synchronize()
        return self._send_stamp(tag)

    def _take(self, message: Incoming, stamp: Incoming, timeout_s: float) -> torch.Tensor:
        """The message, when its time has come."""
        if self._queue is not None:
            self._queue.enter()
        arrival_ns = int(stamp.wait(timeout_s))
        value = message.wait(timeout_s)
        wait_until(arrival_ns)
        return value


def _wait_for_stamp(made: Future[Outgoing], timeout_s: float) -> None:
    """Wait for a stamp that is made when the device has come so far, and until the peer has it: for both together that long.

    Raises:
        NoAnswer: it has not been made in time, or the peer has not taken it.
        ConnectionLost: the peer is gone.
    """
    end_ns = perf_counter_ns() + round(timeout_s * 1e9)
    try:
        stamp = result_of(made, timeout_s)
    except ConnectionLost as error:
        raise found_elsewhere(error) from error
    stamp.wait(max((end_ns - perf_counter_ns()) / 1e9, LEAST_WAIT_S))


class Undelayed:
    """The end of a wire for what ranks send each other in the host's memory, beside the stamps."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        """As `Transport.send`."""
        return self._inner.send(tensor, message_tag(tag))

    def receive(self, kind: TensorMeta, tag: int) -> Incoming:
        """As `Transport.receive`."""
        return self._inner.receive(kind, message_tag(tag))


def message_tag(tag: int) -> int:
    """What a message is sent under, beside its stamp."""
    return 2 * tag


def stamp_tag(tag: int) -> int:
    """What the stamp of a message is sent under."""
    return 2 * tag + 1


class ObservedTransport:
    """The end of a wire for its tensors, between hosts."""

    def __init__(self, inner: Transport, delay: DelayOfTransfers, link: Reservable) -> None:
        """Wrap what carries the messages; the link is used by the receiver alone."""
        self.send = inner.send
        self._inner = inner
        self._delay = delay
        self._link = link
        self._begins = TransferBegins()
        self._receives = SerialExecutor()

    def receive(self, kind: TensorMeta, tag: int) -> Incoming:
        """As `Transport.receive`."""
        place = tag // TAGS if self._begins.at(tag) else None
        return UnderWay(partial(_take_seen, self._receives.submit(partial(self._watch, self._inner.receive(kind, tag), place))))

    def _watch(self, incoming: Incoming, place: int | None) -> tuple[torch.Tensor, int]:
        """An expected message, and when it arrives: of the transfer at this place of the wire; None: of the one before."""
        value = incoming.wait(WATCH_S)
        now_ns = perf_counter_ns()
        delay = self._delay.at(now_ns)
        occupancy_ns = 0 if place is None else delay.occupancy_ns[place]
        return value, self._link.reserve(now_ns, occupancy_ns) + delay.latency_ns


def _take_seen(seen: Future[tuple[torch.Tensor, int]], timeout_s: float) -> torch.Tensor:
    """A message that is watched for, when its time has come."""
    value, arrival_ns = result_of(seen, timeout_s)
    wait_until(arrival_ns)
    return value


class SpunTransport:
    """The end of a wire for its tensors, between GPUs over NCCL."""

    def __init__(self, inner: NcclTransport, delay: DelayOfTransfers, device: torch.device, rate: float) -> None:
        """Wrap an end of a GPU, the rate of which is its `cycles_per_ns`; a delay of a trunk is not for this."""
        self.send = inner.send
        self._inner = inner
        self._delay = delay
        self._device = device
        self._rate = rate
        self._link = _stream(device)
        self._begins = TransferBegins()

    def receive(self, kind: TensorMeta, tag: int) -> Incoming:
        """As `Transport.receive`."""
        incoming = self._inner.receive(kind, tag)
        assert isinstance(incoming.mark, torch.cuda.Event)
        delay = self._delay.at(perf_counter_ns())  # under a link trace, that of when the receive is posted
        self._link.wait_event(incoming.mark)
        if self._begins.at(tag):
            spin(self._link, delay.occupancy_ns[tag // TAGS], self._rate)
        return UnderWay(partial(self._take, incoming, timed_event(self._link), delay.latency_ns))

    def _take(self, incoming: Incoming, left: torch.cuda.Event, latency_ns: int, timeout_s: float) -> torch.Tensor:
        """A message that has left the link, or will."""
        value = incoming.wait(timeout_s)
        compute = torch.cuda.current_stream(self._device)
        compute.wait_event(left)
        now = timed_event(compute)
        now.synchronize()
        spin(compute, latency_ns - left.elapsed_time(now) * 1e6, self._rate)
        return value


def spin(stream: torch.cuda.Stream, duration_ns: float, rate: float) -> None:
    """Hold a stream with one thread of a kernel; `rate` is `cycles_per_ns` of its GPU."""
    if duration_ns > 0:
        with torch.cuda.stream(stream):
            sleep: Any = torch.cuda._sleep  # PyTorch has no types for it
            sleep(round(duration_ns * rate))


def cycles_per_ns(device: torch.device) -> float:
    """The rate at which spin kernels count, measured: nominal clock rates are a little off (CrossPipe, F.2)."""
    stream = _stream(device)
    rates: list[float] = []
    spin(stream, CALIBRATION_CYCLES[0], 1)  # the first launch loads the kernel
    for _ in range(CALIBRATIONS):
        times_ns: list[float] = []
        for cycles in CALIBRATION_CYCLES:
            begin = timed_event(stream)
            spin(stream, cycles, 1)
            end = timed_event(stream)
            end.synchronize()
            times_ns.append(begin.elapsed_time(end) * 1e6)
        rates.append((CALIBRATION_CYCLES[1] - CALIBRATION_CYCLES[0]) / (times_ns[1] - times_ns[0]))
    return sorted(rates)[CALIBRATIONS // 2]


def _stream(device: torch.device) -> torch.cuda.Stream:
    make: Any = torch.cuda.Stream
    stream: torch.cuda.Stream = make(device)
    return stream
