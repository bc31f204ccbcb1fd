"""Small jobs that wait for something, done one after the other in a thread that ends when none is left."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class SerialExecutor:
    """A queue of jobs, which must not raise."""

    def __init__(self) -> None:
        """No jobs and no thread."""
        self._jobs: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._running = False

    def add(self, job: Callable[[], None]) -> None:
        """Do this after those that were added before."""
        with self._lock:
            self._jobs.append(job)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._running = False
                    return
                job = self._jobs.popleft()
            job()
