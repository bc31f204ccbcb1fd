"""Stopwatches: how long phases of work take on a device, on the CPU by its clock, on a GPU by events in its stream.

Between `start` and `stop` work is given to the device. A GPU is not waited for until `times` is asked for, so that the host runs
ahead of it as it does in a training step, and its launches show only where the GPU is faster than they are.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Protocol, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_new_event = cast("Callable[..., torch.cuda.Event]", torch.cuda.Event)  # torch gives it no types


class Watch(Protocol):
    """Measures phases, one after another."""

    def start(self) -> None:
        """A phase begins."""

    def stop(self, phase: str) -> None:
        """The phase that has begun ends; it was this one."""

    def times(self) -> Mapping[str, Sequence[int]]:
        """The nanoseconds of each phase so far, in order; forgets them."""


def watch_for(device: torch.device) -> Watch:
    """A stopwatch for work on this device."""
    return _EventWatch(device) if device.type == "cuda" else _ClockWatch()


class _ClockWatch:
    """By the host's clock."""

    def __init__(self) -> None:
        self._begun = 0
        self._times: defaultdict[str, list[int]] = defaultdict(list)

    def start(self) -> None:
        self._begun = time.perf_counter_ns()

    def stop(self, phase: str) -> None:
        self._times[phase].append(time.perf_counter_ns() - self._begun)

    def times(self) -> Mapping[str, Sequence[int]]:
        times, self._times = self._times, defaultdict(list)
        return times


class _EventWatch:
    """By events in the current stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begun: torch.cuda.Event | None = None
        self._phases: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        self._begun = self._now()

    def stop(self, phase: str) -> None:
        assert self._begun is not None
        self._phases.append((phase, self._begun, self._now()))

    def times(self) -> Mapping[str, Sequence[int]]:
        torch.cuda.synchronize(self._device)
        times: defaultdict[str, list[int]] = defaultdict(list)
        for phase, begun, ended in self._phases:
            times[phase].append(round(begun.elapsed_time(ended) * 1e6))
        self._phases.clear()
        return times

    def _now(self) -> torch.cuda.Event:
        event = _new_event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
