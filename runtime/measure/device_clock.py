"""When things happen on a GPU, for an observer: events on the compute's stream, read after the step.

The executor asks `now` before and after each op, as it does the host's clock; here that puts an event into the stream and gives
its number. An op's begin is thus when the device comes to it: what it takes has come, and the ops before it are done. The observer
is called with everything in the same order as on a CPU, at the end of the step, in the host's nanoseconds.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

import torch

from schedc.ir import Op
from schedc.runtime.common.hooks import Observer, OpTimes

if TYPE_CHECKING:
    from collections.abc import Callable


class Events(Protocol):
    """Numbered events of one stream."""

    def record(self, number: int) -> None:
        """Put an event into the stream; a number is used again once it has been read."""

    def synchronize(self, number: int) -> None:
        """Wait on the host until the device has come to it."""

    def between_ns(self, first: int, second: int) -> int:
        """From one event to another; the device has come to both."""


class CudaEvents:
    """Events on what is the current stream of a GPU when they are recorded."""

    def __init__(self, device: torch.device) -> None:
        """Take the GPU of the stages."""
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def record(self, number: int) -> None:
        """As `Events.record`."""
        while number >= len(self._events):
            self._events.append(timed_event())
        self._events[number].record(torch.cuda.current_stream(self._device))

    def synchronize(self, number: int) -> None:
        """As `Events.synchronize`."""
        self._events[number].synchronize()

    def between_ns(self, first: int, second: int) -> int:
        """As `Events.between_ns`."""
        elapsed_ms: float = self._events[first].elapsed_time(self._events[second])
        return round(elapsed_ms * 1e6)


def timed_event(stream: torch.cuda.Stream | None = None) -> torch.cuda.Event:
    """An event that has a time; recorded now, if a stream is given: when that has done what it has got so far."""
    make: Any = torch.cuda.Event  # PyTorch has no types for it
    event: torch.cuda.Event = make(enable_timing=True)
    if stream is not None:
        event.record(stream)
    return event


class DeviceClock(Observer):
    """Between the executor of a rank on a GPU and an observer."""

    def __init__(self, observer: Observer, events: Events) -> None:
        """Take whom to report to, and the events."""
        self._observer = observer
        self._events = events
        self._count = 0
        self._reports: list[Callable[[Callable[[int], int]], None]] = []

    def now(self) -> int:
        """Put an event into the compute's stream; its number."""
        self._events.record(self._count)
        self._count += 1
        return self._count - 1

    def begin_step(self, step: int, now_ns: int) -> None:
        """Forget what a failed step has left."""
        self._count = 0
        self._reports.clear()
        self._observer.begin_step(step, now_ns)

    def op(self, times: OpTimes) -> None:
        """Keep it."""
        op, *numbers = times
        self._reports.append(lambda time_of: self._observer.op(OpTimes(op, *map(time_of, numbers))))

    def sent(self, transfer: Op, peer: int, now_ns: int) -> None:
        """Keep it."""
        self._reports.append(lambda time_of: self._observer.sent(transfer, peer, time_of(now_ns)))

    def taken(self, transfer: Op, peer: int, now_ns: int) -> None:
        """Keep it."""
        self._reports.append(lambda time_of: self._observer.taken(transfer, peer, time_of(now_ns)))

    def end_step(self, step: int, now_ns: int) -> None:
        """Report all that was kept.

        The device's clock is compared with the host's when it has done everything, so that the event passes as soon as it is
        recorded. Waiting for that costs the host its lead over the device, with an observer only.
        """
        if self._count:
            last = self._count - 1
            self._events.synchronize(last)
            before_ns = perf_counter_ns()
            anchor = self.now()
            self._events.synchronize(anchor)
            anchor_ns = (before_ns + perf_counter_ns()) // 2
            for report in self._reports:
                report(lambda number: anchor_ns - self._events.between_ns(number, anchor))
        self._reports.clear()
        self._observer.end_step(step, max(now_ns, perf_counter_ns()) if self._count else now_ns)


def clock_on(device: torch.device, observer: Observer) -> tuple[DeviceClock, Callable[[], int]]:
    """What is between the executor and an observer for stages on a GPU, and the executor's clock."""
    clock = DeviceClock(observer, CudaEvents(device))
    return clock, clock.now
