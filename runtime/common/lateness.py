"""Who is late: a wait for another rank that takes long is named in the log while it lasts, not only when its limit ends.

Takes what this process waits for now, in one assignment to `WAITS.current`, as waits come with every op; a thread looks now and
then whether it is still the same wait.
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
        self._pipes = 0
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def watch(self, limit_s: float) -> None:
        """A pipe is open, whose waits have this limit; the first one's says how often the thread looks."""
        with self._lock:
            self._pipes += 1
            if self._pipes == 1:
                self._ended = threading.Event()
                every_s = min(NAMED_S, limit_s / SHARE) / LOOKS
                threading.Thread(target=self._run, args=(every_s, self._ended), name="schedc lateness", daemon=True).start()

    def leave(self) -> None:
        """It is closed."""
        with self._lock:
            self._pipes -= 1
            if not self._pipes:
                self._ended.set()

    def _run(self, every_s: float, ended: threading.Event) -> None:
        seen: Wait | None = None
        since_s, named = 0.0, False
        while not ended.wait(every_s):
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
