"""What work on a device takes and holds.

`Watch`: how long phases take, on the CPU by its clock, on a GPU by events in its stream. Between `start` and `stop` work is given
to the device. A GPU is not waited for until `times` is asked for, so that the host runs ahead of it as it does in a training step,
and its launches show only where the GPU is faster than they are.

`meter_for`: how much memory stays held: on a GPU as its allocator says, on the CPU, whose allocator keeps no books, by counting
(`measure.memory`) while the meter is entered. What was there before (parameters, gradients, tables that a layer computed once) is
not in it.
"""

from __future__ import annotations

import time
from collections import defaultdict

import torch

from schedc.runtime.measure.device_clock import CudaEvents, Events
from schedc.runtime.measure.memory import CountingMeter


class Watch:
    """Measures phases, one after another."""

    def __init__(self, device: torch.device) -> None:
        """Take where the work is done."""
        self._events: Events = CudaEvents(device) if device.type == "cuda" else _HostEvents()
        self._count = 0
        self._phases: list[tuple[str, int]] = []
        """With the number of the event at which each begins; it ends at the next."""

    def start(self) -> None:
        """A phase begins."""
        self._events.record(self._count)

    def stop(self, phase: str) -> None:
        """The phase that has begun ends; it was this one."""
        self._events.record(self._count + 1)
        self._phases.append((phase, self._count))
        self._count += 2

    def times(self) -> dict[str, list[int]]:
        """The nanoseconds of each phase so far, in order; forgets them."""
        times: defaultdict[str, list[int]] = defaultdict(list)
        for phase, begin in self._phases:
            self._events.synchronize(begin + 1)
            times[phase].append(self._events.between_ns(begin, begin + 1))
        self._phases.clear()
        self._count = 0
        return times


class _HostEvents:
    """As `Events`, of work that is done when its call returns."""

    def __init__(self) -> None:
        self._times_ns: dict[int, int] = {}

    def record(self, number: int) -> None:
        self._times_ns[number] = time.perf_counter_ns()

    def synchronize(self, number: int) -> None:
        pass

    def between_ns(self, first: int, second: int) -> int:
        return self._times_ns[second] - self._times_ns[first]


def meter_for(device: torch.device) -> _AllocatorMeter | CountingMeter:
    """A meter of this device's memory, which counts from where it is entered."""
    return _AllocatorMeter(device) if device.type == "cuda" else CountingMeter()


class _AllocatorMeter:
    """What a GPU's caching allocator has given out; it rounds sizes up to 512 bytes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0

    def __enter__(self) -> None:
        self._before = self._allocated()

    def __exit__(self, *_: object) -> None:
        pass

    def held_bytes(self) -> int:
        return self._allocated() - self._before

    def _allocated(self) -> int:
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.memory_stats(self._device)["allocated_bytes.all.current"])
