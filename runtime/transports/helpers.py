"""Helper threads that wait for something in place of who asked: small jobs, one after the other, and what each has found."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from schedc.runtime.common.failure import NoAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def result_of(future: Future[T], timeout_s: float) -> T:
    """What a helper thread has waited for in place of who asked.

    Raises:
        NoAnswer: it has not ended in time.
        Exception: what was found instead.
    """
    try:
        return future.result(timeout_s)
    except TimeoutError as error:
        if future.done() and future.exception() is error:
            raise
        raise NoAnswer(f"nothing came in {timeout_s:g} s") from None


class SerialExecutor:
    """Small jobs that wait for something, done one after the other in a thread that ends when none is left."""

    def __init__(self) -> None:
        """No jobs and no thread."""
        self._jobs: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._running = False

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Do this after those that were submitted before; what it gives or raises."""
        future: Future[T] = Future()

        def settle() -> None:
            try:
                future.set_result(job())
            except Exception as error:  # for who waits for it
                future.set_exception(error)

        with self._lock:
            self._jobs.append(settle)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._running = False
                    return
                job = self._jobs.popleft()
            job()
            del job  # with what it holds, before the next one comes
