"""How work ends before it is done: somebody interrupts it, or its time is up.

Signals come in. What comes out depends on where the work is. In a region that may end at any moment (`raising`), an exception ends
it at once. Elsewhere a mark is left, and the next such region does not begin. So nothing is lost: not the best schedule while it
is being replaced (`deferred`), nor the plan while it is checked and written. Nor is a module that is being imported: a half of one
stays behind, and the next who imports it fails.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

LEAST_S = 1e-6
"""A timer of no time would be none."""
AGAIN_S = 1.0
"""How often what came is raised again."""
LATER_S = 0.05
"""How often to look whether a module has been imported, or a callback has returned."""
UNBROKEN = ("<frozen importlib._bootstrap>", weakref.__file__)
"""Where the interpreter's code is that imports, and where callbacks are whose exceptions it prints and drops."""
NOTICE_S = 0.1
"""A wait looks this often whether a signal came, and asks work again to stop that may not have listened before."""


Ends: TypeAlias = Literal["both", "time"]
"""What ends a region: interruptions and the end of the time, or the latter alone."""


class OutOfTime(BaseException):
    """The time is up. Like `KeyboardInterrupt` no `Exception`: nothing that handles errors may take it for one."""

    def __init__(self, by: Interruption) -> None:
        """`by`: who raises it."""
        super().__init__()
        self.by = by


class Interrupted(KeyboardInterrupt):
    """A signal came."""

    def __init__(self, by: Interruption) -> None:
        """`by`: who raises it."""
        super().__init__()
        self.by = by


@dataclass(slots=True)
class Interruption:
    """Whether the work was interrupted or its time is up. Unless it is `listening`, signals do what they did before."""

    requested: bool = False
    """Whether a signal came."""
    _deadline_s: float | None = field(default=None, init=False)
    """By `time.perf_counter`."""
    _last_s: float | None = field(default=None, init=False)
    """The same of what is `within`; no alarm rings later."""
    _armed: Ends | None = field(default=None, init=False)
    """What may raise now."""
    _has_alarm: bool = field(default=False, init=False)
    _unbroken: int = field(default=0, init=False)
    """Of how many imports or callbacks the region that may raise is a part: a program may run while it is imported."""

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
            signals[signal.SIGALRM] = self._ring
        before = {number: signal.signal(number, handler) for number, handler in signals.items()}
        self._has_alarm = len(signals) == 3
        begun_s, others_s = time.perf_counter(), signal.getitimer(signal.ITIMER_REAL)[0] if self._has_alarm else 0.0
        try:
            yield
        finally:
            self._set_alarm(0.0)
            for number, handler in before.items():
                signal.signal(number, handler)
            if others_s:
                left_s = max(others_s - (time.perf_counter() - begun_s), LEAST_S)
                signal.setitimer(signal.ITIMER_REAL, left_s)  # somebody else's alarm goes on, and rings once
            self._has_alarm = False

    @contextmanager
    def alarm(self, seconds: float | None) -> Iterator[None]:
        """Within, the time is up after this long; None: never. Unless `listening`, only a `raising` that begins notices it."""
        before_s, now_s = self._deadline_s, time.perf_counter()
        ends_s = (None if seconds is None else now_s + seconds, self._last_s)
        self._deadline_s = min((each for each in ends_s if each is not None), default=None)
        if self._deadline_s is not None:
            self._set_alarm(max(self._deadline_s - now_s, LEAST_S))
        try:
            yield
        finally:
            self._deadline_s = before_s  # after it the time is up when it was before
            self._set_alarm(0.0 if before_s is None else max(before_s - time.perf_counter(), LEAST_S))

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Within, no `alarm` rings later than after this long, not even one that never would: the end of a larger work."""
        before_s, self._last_s = self._last_s, time.perf_counter() + seconds
        try:
            yield
        finally:
            self._last_s = before_s

    @property
    def is_up(self) -> bool:
        """Whether the time of the `alarm` is up."""
        return self._deadline_s is not None and time.perf_counter() >= self._deadline_s

    @property
    def is_late(self) -> bool:
        """Whether the time that all is `within` is up."""
        return self._last_s is not None and time.perf_counter() >= self._last_s

    @contextmanager
    def raising(self, *, at: Ends = "both") -> Iterator[None]:
        """Within, an interruption raises `KeyboardInterrupt`, and the end of the time `OutOfTime`; at once if either has come.

        It raises again every `AGAIN_S` until the region has ended or somebody is `quiet`: now and then a library swallows what is
        raised in its callbacks.

        Args:
            at: `time`: at the end of the time alone.
        """
        self._raise_what_came(at)
        self._unbroken, self._armed = _unbroken(sys._getframe()), at
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

    def quiet(self) -> None:
        """Raise no more in this region: what was raised is known, and whoever clears up is not disturbed."""
        self._armed = None

    def _set_alarm(self, seconds: float) -> None:
        """Ring after this long, and then every `AGAIN_S`; 0: not any more."""
        if self._has_alarm:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, LEAST_S) if seconds else 0.0, AGAIN_S)

    def _raise_what_came(self, at: Ends | None) -> None:
        if self.requested and at == "both":
            raise Interrupted(self)
        if at is not None and self.is_up:
            raise OutOfTime(self)

    def _interrupt(self, _signal: int, frame: FrameType | None) -> None:
        again, self.requested = self.requested, True
        self._set_alarm(AGAIN_S)
        if again:
            raise KeyboardInterrupt
        self._raise_where_it_is_safe(frame)

    def _ring(self, _signal: int, frame: FrameType | None) -> None:
        self._raise_where_it_is_safe(frame)

    def _raise_where_it_is_safe(self, frame: FrameType | None) -> None:
        if self._armed is not None and _unbroken(frame) > self._unbroken:
            self._set_alarm(LATER_S)
        else:
            self._raise_what_came(self._armed)


def _unbroken(frame: FrameType | None) -> int:
    """Of how many imports and callbacks what runs here is a part."""
    found, collecting = 0, [getattr(each, "__code__", None) for each in gc.callbacks]  # printed and dropped, too
    while frame is not None:
        found += frame.f_code.co_filename in UNBROKEN or frame.f_code in collecting
        frame = frame.f_back
    return found


def wait_for(jobs: Sequence[Future[Any]], stop: Callable[[], None], *, together: bool = False) -> BaseException | None:
    """Wait for work in other threads. An interruption stops it, and is returned once the work has ended, so that its result counts.

    Args:
        jobs: the work.
        stop: asks all of it to end soon; called until it has ended.
        together: the end of one, also by an error, stops the others.
    """
    try:
        while (state := wait(jobs, timeout=NOTICE_S)).not_done:  # a signal given to another thread does not wake this one
            if together and state.done:
                stop()
    except (KeyboardInterrupt, OutOfTime) as interruption:
        if isinstance(interruption, (Interrupted, OutOfTime)):
            interruption.by.quiet()
        stop()
        while wait(jobs, timeout=NOTICE_S).not_done:
            stop()
        return interruption
    return None
