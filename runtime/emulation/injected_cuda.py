"""Latency and occupancy added to channels between GPUs (CrossPipe 6.4 and appendix F.1).

`SpunTransport` is the paper's method, for channels whose receives are device work: the receiver holds a stream that models the
link with a spin kernel for each message's occupancy, from when it is through, in order; who takes a message measures with events
how much of the latency has passed by the compute's stream, and lets that stream spin for the rest. It needs no clock but the
device's, so ranks may be on any hosts; a trunk it cannot know.

`DeviceStampedTransport` is for channels through the host, and for trunks: as on the CPU the sender stamps each message, from when
the device has computed it, on the clock of the host that both ranks share; who takes it launches nothing more before its time.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from schedc.runtime.common.failure import ConnectionLost, NoAnswer
from schedc.runtime.common.serial_executor import SerialExecutor
from schedc.runtime.emulation.stamped import InjectedTransport, message_tag
from schedc.runtime.execution.channels import TAGS, TransferBegins
from schedc.runtime.measure.device_clock import timed_event
from schedc.runtime.transports.delegate import found_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from schedc.runtime.common.header import TensorMeta
    from schedc.runtime.emulation.delays import DelayOfTransfers, Reservable
    from schedc.runtime.transports.base import Ends, Incoming, Outgoing
    from schedc.runtime.transports.nccl import NcclTransport
    from schedc.runtime.transports.streams import Mark

CALIBRATION_CYCLES = (1_000_000, 11_000_000)
"""Two lengths, so that what a launch takes drops out; some milliseconds on any GPU."""
CALIBRATIONS = 5


def spin(stream: torch.cuda.Stream, duration_ns: float, rate: float) -> None:
    """Hold a stream with one thread of a kernel.

    Args:
        stream: which.
        duration_ns: for how long.
        rate: `cycles_per_ns` of its GPU.
    """
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


class _Spun:
    """A message that has left the link, or will."""

    def __init__(self, inner: Incoming, left: torch.cuda.Event, latency_ns: int, device: torch.device, rate: float) -> None:
        self._inner = inner
        self._left = left
        self._latency_ns = latency_ns
        self._device = device
        self._rate = rate

    def wait(self, timeout_s: float) -> torch.Tensor:
        value = self._inner.wait(timeout_s)
        compute = torch.cuda.current_stream(self._device)
        compute.wait_event(self._left)
        now = timed_event(compute)
        now.synchronize()
        spin(compute, self._latency_ns - self._left.elapsed_time(now) * 1e6, self._rate)
        return value


class SpunTransport:
    """The end of a wire for its tensors, with tags as channels give them."""

    def __init__(self, inner: NcclTransport, delay: DelayOfTransfers, device: torch.device, rate: float) -> None:
        """Wrap an end.

        Args:
            inner: what carries the messages.
            delay: what they meet; a trunk is not for this.
            device: the GPU of this rank's stages.
            rate: `cycles_per_ns` of it.
        """
        self._inner = inner
        self._delay = delay
        self._device = device
        self._rate = rate
        self._link = _stream(device)
        self._begins = TransferBegins()

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        """As `Transport.send`."""
        return self._inner.send(tensor, tag)

    def receive(self, kind: TensorMeta, tag: int) -> _Spun:
        """As `Transport.receive`."""
        incoming = self._inner.receive(kind, tag)
        assert isinstance(incoming.mark, torch.cuda.Event)
        delay = self._delay.at(perf_counter_ns())  # under a link trace, that of when the receive is posted
        self._link.wait_event(incoming.mark)
        if self._begins.at(tag):
            spin(self._link, delay.occupancy_ns[tag // TAGS], self._rate)
        return _Spun(incoming, timed_event(self._link), delay.latency_ns, self._device, self._rate)


class _Outgoing:
    """A message on its way, and its stamp, which is made when the device has come so far."""

    def __init__(self, message: Outgoing, stamp: Future[Outgoing]) -> None:
        self._message = message
        self._stamp = stamp

    def wait(self, timeout_s: float) -> None:
        try:
            stamp = self._stamp.result(timeout_s)
        except TimeoutError:
            raise NoAnswer(f"the device has not computed it in {timeout_s:g} s") from None
        except (ConnectionLost, NoAnswer) as error:
            raise found_elsewhere(error) from error
        stamp.wait(timeout_s)
        self._message.wait(timeout_s)


class DeviceStampedTransport(InjectedTransport):
    """The end of a wire for its tensors, with tags as channels give them. What is taken holds back the host."""

    def __init__(self, ends: Ends, delay: DelayOfTransfers, link: Reservable, record: Callable[[], Mark]) -> None:
        """Wrap an end.

        Args:
            ends: what carries messages, and their stamps.
            delay: what they meet.
            link: what they occupy; used by the sender alone.
            record: gives a mark in the compute's stream, after all that has been launched.
        """
        super().__init__(ends, delay, link)
        self._record = record
        self._stamps = SerialExecutor()

    def send(self, tensor: torch.Tensor, tag: int) -> _Outgoing:
        """As `Transport.send`."""
        mark = self._record()
        message = self._data.send(tensor, message_tag(tag))
        return _Outgoing(message, self._stamps.submit(partial(self._stamp, mark, tag)))

    def _stamp(self, mark: Mark, tag: int) -> Outgoing:
        """Send a message's stamp once the device has computed it."""
        mark.synchronize()
        return self.send_stamp(tag)


def compute_mark(device: torch.device) -> Mark:
    """A mark in the current stream of a GPU, after all that has been launched."""
    mark: Mark = torch.cuda.current_stream(device).record_event()
    return mark


def _stream(device: torch.device) -> torch.cuda.Stream:
    make: Any = torch.cuda.Stream
    stream: torch.cuda.Stream = make(device)
    return stream
