"""A child process that compiles, started when it is needed, and again after it died: a task that kills it is a row of the table."""

from __future__ import annotations

import dataclasses
import json
import pickle
import threading

from schedc.io.child import Child, ChildDied, TookTooLong
from schedc.study.task import CompileRow, CompileTask, Status

WORKER = ("-m", "schedc.study.worker")
"""What Python runs as the child."""
ATTEMPTS = 3
"""How often a task is begun whose process dies."""
IDLE_S = 30.0
"""In a thread that was not begun here, a child ends after this long without a task."""

_of_thread = threading.local()
"""The asker of each thread that runs tasks, one after another."""


class Stopped(Exception):
    """The asker was stopped, so there is no row."""


class Asker:
    """One child at most. `row_of` is for one thread; `stop` for any."""

    def __init__(self, idle_s: float = 0.0) -> None:
        """`idle_s`: the child ends if it has nothing to do for this long; 0: it does not."""
        self._idle_s = idle_s
        self._child: Child | None = None
        self._is_stopped = False
        self._lock = threading.Lock()

    def row_of(self, task: CompileTask) -> CompileRow:
        """What came of the task, whatever happens to the process.

        Raises:
            Stopped: `stop` was called.
        """
        how = ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return dataclasses.replace(self.ask(task), attempts=attempt)
            except TookTooLong:
                error = f"killed after {task.kill_after_s:g} s, far beyond its time limit"
                return CompileRow(status=Status.TIMED_OUT, attempts=attempt, error=error)
            except ChildDied as end:
                if self._is_stopped:
                    raise Stopped from None
                how = str(end)
        error = f"its process died {ATTEMPTS} times, and last {how}"
        return CompileRow(status=Status.CRASHED, attempts=ATTEMPTS, error=error)

    def ask(self, task: CompileTask) -> CompileRow:
        """The child's row, at the first attempt.

        Raises:
            ChildDied, TookTooLong: as `Child.ask`; the child has ended then.
            Stopped: `stop` was called.
        """
        try:
            fields = json.loads(self._running(task.workers).ask(pickle.dumps(task), task.kill_after_s))
        except (ChildDied, TookTooLong):
            self.close()
            raise
        return CompileRow(**fields | {"status": Status(fields["status"])})

    def stop(self) -> None:
        """End the child, and let `row_of` raise; more than once does no harm."""
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


def begin_thread(asker: Asker) -> None:
    """Let the tasks of this thread be asked by this one."""
    _of_thread.asker = asker


def row_in_child(task: CompileTask) -> CompileRow:
    """What came of a task: runs in a thread of an executor, which keeps its child process for the next one."""
    asker: Asker | None = getattr(_of_thread, "asker", None)
    if asker is None:
        asker = _of_thread.asker = Asker(IDLE_S)
    return asker.row_of(task)
