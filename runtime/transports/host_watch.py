"""Who ends a rank's NCCL communicators when the thread of its steps is blocked in CUDA, where no limit of ours reaches it.

A call such as `cudaFree` or `.item()` waits for the device, and the device may wait in a receive for a peer that is gone. The watch
calls nothing of CUDA, which might block it, too: it looks only when the step's thread was last heard of. Once the communicators are
ended, the device goes on, the call returns, and the next transfer says what has happened.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import Protocol


class Watched(Protocol):
    """What is ended when the host is blocked."""

    def under_way(self) -> bool:
        """Whether it has transfers that nobody has waited for yet, or is about to begin one."""

    def close(self, reason: str) -> None:
        """End it; who uses it afterwards gets the reason."""


class HostWatch:
    """A thread that looks after all of a rank's ends together, from the first on until the last is let go."""

    def __init__(self) -> None:
        """Nothing to watch yet."""
        self._ends: list[Watched] = []
        self._lock = threading.Lock()
        self._left = threading.Event()
        self._heard_s = monotonic()

    def add(self, end: Watched, limit_s: float) -> None:
        """Watch an end.

        Args:
            end: which.
            limit_s: for how long nothing may be heard while something is under way; the first end's holds for all.
        """
        self.heard()
        with self._lock:
            self._ends.append(end)
            if len(self._ends) == 1:
                self._left = threading.Event()
                threading.Thread(target=self._run, args=(limit_s, self._left), name="schedc host watch", daemon=True).start()

    def remove(self, end: Watched) -> None:
        """Watch it no more."""
        with self._lock:
            if end in self._ends:
                self._ends.remove(end)
                if not self._ends:
                    self._left.set()

    def heard(self) -> None:
        """The step's thread is not blocked now."""
        self._heard_s = monotonic()

    def _run(self, limit_s: float, left: threading.Event) -> None:
        while not left.wait(limit_s / 10):
            with self._lock:
                ends = list(self._ends)
            if not any(end.under_way() for end in ends):
                self.heard()  # between two steps nothing is expected of it
            elif monotonic() - self._heard_s > limit_s:
                reason = f"this rank's thread was blocked for {limit_s:g} s, in CUDA or in a stage, with transfers under way"
                for end in ends:
                    end.close(reason)
                return
