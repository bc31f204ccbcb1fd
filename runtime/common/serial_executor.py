"""Small jobs that wait for something, done one after the other in a thread that ends when none is left."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class SerialExecutor:
    """A queue of jobs."""

    def __init__(self) -> None:
        """No jobs and no thread."""
        self._jobs: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._running = False

    def add(self, job: Callable[[], None]) -> None:
        """Do this, which must not raise, after those that were added before."""
        with self._lock:
            self._jobs.append(job)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, daemon=True).start()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """As `add`, for who waits for what it gives or raises."""
        future: Future[T] = Future()

        def settle() -> None:
            try:
                future.set_result(job())
            except Exception as error:  # for who waits for it
                future.set_exception(error)

        self.add(settle)
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._running = False
                    return
                job = self._jobs.popleft()
            job()
