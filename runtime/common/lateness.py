"""Who is late: a wait for another rank that takes long is named in the log while it lasts, not only when its limit ends.

Takes what this process waits for now, in one assignment to `WAITS.current`, as waits come with every op; a thread looks now and
then whether it is still the same wait. Where pipes run in several threads at once, the wait of one may hide another's.
"""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

NAMED_S, SHARE = 30.0, 4
"""A wait is named after this many seconds, or this part of its limit if that is less."""
LOOKS = 4
"""How often the thread looks in that time."""

Wait: TypeAlias = "tuple[Callable[..., str], float, tuple[Any, ...]]"
"""What says in words what is waited for, the limit in seconds, and what it is called with."""


class LateWaits:
    """What this process waits for, in the thread of its steps; looked at while a pipe is open."""

    def __init__(self) -> None:
        """Nothing."""
        self.current: Wait | None = None
        self._pipes, self._every_s = 0, NAMED_S
        self._thread, self._ended = threading.Thread(), threading.Event()
        self._lock = threading.Lock()

    def watch(self, limit_s: float) -> None:
        """A pipe is open, whose waits have this limit; the least of all says how often the thread looks."""
        with self._lock:
            self._pipes, every_s = self._pipes + 1, min(NAMED_S, limit_s / SHARE) / LOOKS
            if self._ended.is_set() or not self._thread.is_alive():  # a process that was forked has no thread
                self._ended, self._every_s = threading.Event(), every_s
                self._thread = threading.Thread(target=self._run, args=(self._ended,), name="schedc lateness", daemon=True)
                self._thread.start()
            self._every_s = min(self._every_s, every_s)

    def leave(self) -> None:
        """It is closed."""
        with self._lock:
            self._pipes -= 1
            if not self._pipes:
                self._ended.set()

    def _run(self, ended: threading.Event) -> None:
        seen: Wait | None = None
        since_s, named = 0.0, False
        while not ended.wait(self._every_s):
            if self.current is not seen:
                seen, since_s, named = self.current, monotonic(), False
            elif seen is not None and not named:
                says, limit_s, given = seen
                waited_s = monotonic() - since_s
                named = waited_s >= min(NAMED_S, limit_s / SHARE)
                if named:
                    logging.getLogger("schedc").warning("%s: for %.3g s so far, %g s at most", says(*given), waited_s, limit_s)


WAITS = LateWaits()
"""Of this process."""
