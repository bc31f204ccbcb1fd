"""A child process that compiles, started when it is needed, and again after it died: a job that kills it is a row of the table."""

from __future__ import annotations

import dataclasses
import json
import pickle
import threading
from typing import TYPE_CHECKING

from schedc.io.child import Child, ChildDied, TookTooLong
from schedc.study.sweep.one_job import JobAnswer, Status

if TYPE_CHECKING:
    from schedc.study.sweep.one_job import JobRequest

WORKER = ("-m", "schedc.study.sweep.worker")
"""What Python runs as the child."""
ATTEMPTS = 3
"""How often a job is begun whose process dies."""


class Stopped(Exception):
    """The asker was stopped, so there is no answer."""


class Asker:
    """One child at most. `answer` is for one thread; `stop` for any."""

    def __init__(self, idle_s: float = 0.0) -> None:
        """`idle_s`: the child ends if it has nothing to do for this long; 0: it does not."""
        self._idle_s = idle_s
        self._child: Child | None = None
        self._is_stopped = False
        self._lock = threading.Lock()

    def answer(self, request: JobRequest) -> JobAnswer:
        """What came of the job, whatever happens to the process.

        Raises:
            Stopped: `stop` was called.
        """
        how = ""
        for attempt in range(1, ATTEMPTS + 1):
            child = self._running(request.options.workers or 1)
            try:
                fields = json.loads(child.ask(pickle.dumps(request), request.kill_after_s))
            except TookTooLong:
                self.close()
                error = f"killed after {request.kill_after_s:g} s, far beyond its time limit"
                return JobAnswer(status=Status.TIMED_OUT, attempts=attempt, error=error)
            except ChildDied as end:
                self.close()
                if self._is_stopped:
                    raise Stopped from None
                how = str(end)
            else:
                return dataclasses.replace(JobAnswer(**fields), status=Status(fields["status"]), attempts=attempt)
        error = f"its process died {ATTEMPTS} times, and last {how}"
        return JobAnswer(status=Status.CRASHED, attempts=ATTEMPTS, error=error)

    def stop(self) -> None:
        """End the child, and let `answer` raise; more than once does no harm."""
        with self._lock:
            self._is_stopped = True
            if self._child is not None:
                self._child.hang_up()

    def _running(self, threads: int) -> Child:
        """The child, started if there is none."""
        with self._lock:
            if self._is_stopped:
                raise Stopped
            if self._child is None:
                self._child = Child([*WORKER, f"{self._idle_s:g}"], {"OMP_NUM_THREADS": str(threads)})
            return self._child

    def close(self) -> None:
        """End the child; by the thread that asks, or when there is none."""
        with self._lock:
            if self._child is not None:
                self._child.close()
            self._child = None
