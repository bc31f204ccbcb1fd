"""Where tasks run: in a few child processes of this machine, or on a cluster of Dask workers. One loop for both.

Either is an executor: `submit` gives a future at once. Each thread that runs tasks keeps a child process for them, started when it
is needed, and again after it died: so one that crashes or hangs costs no more than itself, and the memory is the task's.

`python -m schedc.study.executors IDLE_S SOCKET` is such a child. It compiles one task after another, and ends after IDLE_S without
one; 0: it does not. A question is a pickled `CompileTask`, an answer the fields of a `CompileRow` as a JSON object.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from schedc.io.child import Child, ChildDied, TookTooLong, serve
from schedc.study.task import CompileRow, CompileTask, Status, row_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

Rows: TypeAlias = tuple[tuple[str, CompileRow], ...]
"""Keys and rows that came together."""
MOST_SUBMITTED = 10_000
"""At most this many tasks are submitted and not done: a future takes more memory than a task."""
LOOK_S = 0.2
"""A wait looks this often whether a signal came, which does not wake this thread if the system gave it to another one, and whether
the executor still works."""
WORKER = ("-m", "schedc.study.executors")
"""What Python runs as the child."""
ATTEMPTS = 3
"""How often a task is begun whose process dies."""
IDLE_S = 30.0
"""In a thread that was not begun here, a child ends after this long without a task."""

_of_thread = threading.local()
"""The asker of each thread that runs tasks, one after another."""


class TaskExecutor(Protocol):
    """What runs tasks."""

    def submit(self, key: str, task: CompileTask) -> Any:
        """The future of the task's row, of `concurrent.futures` or of Dask; a key names its task."""

    def row_of(self, future: Any) -> CompileRow | None:
        """The row of a future that is done; None: it is not, after all.

        Raises:
            SchedcError: the executor cannot be used.
        """

    def check(self, *, is_quiet: bool) -> None:
        """Called after each wait; `is_quiet`: nothing came.

        Raises:
            SchedcError: nothing will come any more.
        """

    def cancel(self, futures: Iterable[Any]) -> None:
        """Take back what is not done."""


def run_tasks(tasks: Mapping[str, CompileTask], executor: TaskExecutor) -> Generator[Rows]:
    """The rows by their tasks' keys, in the order in which they come, and now and then none; closing it takes back the others.

    Raises:
        SchedcError: the executor cannot be used.
    """
    done: SimpleQueue[str] = SimpleQueue()
    futures: dict[str, Any] = {}
    waiting = iter(tasks.items())
    try:
        while True:
            for key, task in islice(waiting, MOST_SUBMITTED - len(futures)):
                futures[key] = executor.submit(key, task)
                futures[key].add_done_callback(lambda _, key=key: done.put(key))
            if not futures:
                break
            rows: list[tuple[str, CompileRow]] = []
            lost: list[str] = []
            try:
                key = done.get(timeout=LOOK_S)
                while True:  # all that are there, once one is
                    row = executor.row_of(futures[key])
                    if row is None:  # its worker was lost before the row was fetched, and another one does the task again
                        lost.append(key)
                    else:
                        rows.append((key, row))
                        del futures[key]  # which lets a worker of a cluster forget the row
                    key = done.get_nowait()
            except Empty:
                for key in lost:
                    done.put(key)
            executor.check(is_quiet=not rows)
            yield tuple(rows)
    finally:
        executor.cancel(futures.values())


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
        with self._lock:
            if self._is_stopped:
                raise Stopped
            if self._child is None:
                threads = min(task.workers, cores())
                self._child = Child([*WORKER, f"{self._idle_s:g}"], {"OMP_NUM_THREADS": str(threads)})
        try:
            fields = json.loads(self._child.ask(pickle.dumps(task), task.kill_after_s))
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

    def close(self) -> None:
        """End the child; by the thread that asks, or when there is none."""
        with self._lock:
            if self._child is not None:
                self._child.close()
            self._child = None


class LocalExecutor:
    """Child processes of this machine, each asked by a thread; all is as of `TaskExecutor`."""

    def __init__(self, processes: int) -> None:
        """`processes`: how many tasks run at the same time."""
        self._askers = [Asker() for _ in range(processes)]
        free = iter(self._askers)
        self._pool = ThreadPoolExecutor(processes, initializer=lambda: setattr(_of_thread, "asker", next(free)))

    def submit(self, _key: str, task: CompileTask) -> Any:
        """One of the threads asks its child."""
        return self._pool.submit(row_in_child, task)

    def row_of(self, future: Any) -> CompileRow | None:
        """A mistake of this program in the thread is raised here."""
        row: CompileRow = future.result()
        return row

    def check(self, *, is_quiet: bool) -> None:
        """Threads of this process are not lost."""

    def cancel(self, _futures: Iterable[Any]) -> None:
        """End all processes."""
        for asker in self._askers:
            asker.stop()
        self._pool.shutdown(cancel_futures=True)
        for asker in self._askers:
            asker.close()


def row_in_child(task: CompileTask) -> CompileRow:
    """What came of a task: runs in a thread of an executor, which keeps its child process for the next one."""
    asker: Asker | None = getattr(_of_thread, "asker", None)
    if asker is None:
        asker = _of_thread.asker = Asker(IDLE_S)
    return asker.row_of(task)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processes_for(workers: Iterable[int]) -> int:
    """How many tasks with this many search threads may run at the same time on the cores that this process may use."""
    return max(1, cores() // max(workers, default=1))


def serve_tasks() -> None:
    """Be the child: answer until nobody asks."""
    idle_s = float(sys.argv[1])
    serve(
        int(sys.argv[2]),
        lambda question: json.dumps(dataclasses.asdict(row_of(pickle.loads(question)))).encode(),
        idle_s or None,
    )


if __name__ == "__main__":
    serve_tasks()
