"""How work ends before it is done: somebody interrupts it, or its time is up.

Signals come in. What comes out depends on where the work is. In a region that may end at any moment (`raising`), an exception ends
it at once. Elsewhere a mark is left, and the next such region does not begin. So nothing is lost: not the best schedule while it
is being replaced (`deferred`), nor the plan while it is checked and written.
"""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from types import FrameType
    from typing import Any

__all__ = ["Interruption", "OutOfTime", "wait_for"]

LEAST_S = 1e-6
"""A timer of no time would be none."""
NOTICE_S = 0.1
"""A wait looks this often whether a signal came, and tells work again to stop that may not have listened before."""


Ends: TypeAlias = Literal["both", "time"]
"""What ends a region: interruptions and the end of the time, or the latter alone."""


class OutOfTime(BaseException):
    """The time is up. Like `KeyboardInterrupt` no `Exception`: nothing that handles errors may take it for one."""


@dataclass(slots=True)
class Interruption:
    """Whether the work was interrupted or its time is up. Unless it is `listening`, signals do what they did before."""

    requested: bool = False
    """Whether a signal came."""
    _deadline_s: float | None = field(default=None, init=False)
    """By `time.perf_counter`."""
    _armed: Ends | None = field(default=None, init=False)
    """What may raise now."""
    _has_alarm: bool = field(default=False, init=False)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within, SIGINT and SIGTERM are taken here, and `alarm` is on time; in another thread than the main one nothing changes.

        The first signal leaves a mark, and raises `KeyboardInterrupt` where it may. The second raises it wherever it comes: whoever
        asks twice does not want to wait.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = {signal.SIGINT: self._interrupt, signal.SIGTERM: self._interrupt}
        if hasattr(signal, "SIGALRM"):
            signals[signal.SIGALRM] = self._time_out
        before = {number: signal.signal(number, handler) for number, handler in signals.items()}
        self._has_alarm = len(signals) == 3
        try:
            yield
        finally:
            self._has_alarm = False
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def alarm(self, seconds: float | None) -> Iterator[None]:
        """Within, the time is up after this long; None: never. Unless `listening`, it is noticed only where a `raising` begins."""
        begun_s = time.perf_counter()
        self._deadline_s = None if seconds is None else begun_s + seconds
        if seconds is None or not self._has_alarm:
            yield
            return
        others_s, _ = signal.setitimer(signal.ITIMER_REAL, max(seconds, LEAST_S))
        try:
            yield
        finally:
            left_s = max(others_s - (time.perf_counter() - begun_s), LEAST_S) if others_s else 0.0
            signal.setitimer(signal.ITIMER_REAL, left_s)  # somebody else's alarm goes on

    @contextmanager
    def raising(self, *, at: Ends = "both") -> Iterator[None]:
        """Within, an interruption raises `KeyboardInterrupt`, and the end of the time `OutOfTime`; at once if either has come.

        What has raised once does not raise again until the next such region: nothing disturbs those who clear up.

        Args:
            at: `time`: at the end of the time alone.
        """
        self._raise_what_came(at)
        self._armed = at
        try:
            yield
        finally:
            self._armed = None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within, nothing is raised; what came is raised at the end, if that is a region that may end. Other threads pass."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        armed, self._armed = self._armed, None
        try:
            yield
        finally:
            self._armed = armed
        self._raise_what_came(armed)

    def _raise_what_came(self, at: Ends | None) -> None:
        interrupted = self.requested and at == "both"
        late = at is not None and self._deadline_s is not None and time.perf_counter() >= self._deadline_s
        if interrupted or late:
            self._armed = None
            raise KeyboardInterrupt if interrupted else OutOfTime

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        again, self.requested = self.requested, True
        if self._armed == "both" or again:
            self._armed = None
            raise KeyboardInterrupt

    def _time_out(self, _signal: int, _frame: FrameType | None) -> None:
        if self._armed is not None:
            self._armed = None
            raise OutOfTime


def wait_for(jobs: Sequence[Future[Any]], stop: Callable[[], None]) -> BaseException | None:
    """Wait for work in other threads. An interruption stops it, and is returned once the work has ended, so that its result counts.

    Args:
        jobs: the work.
        stop: tells all of it to end soon; called until it has ended.
    """
    try:
        while wait(jobs, timeout=NOTICE_S).not_done:
            pass  # a signal that the system gave to another thread does not wake this one
    except (KeyboardInterrupt, OutOfTime) as interruption:
        stop()
        while wait(jobs, timeout=NOTICE_S).not_done:
            stop()
        return interruption
    return None
