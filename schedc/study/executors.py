"""Where tasks run: in a few child processes of this machine, or on a cluster of Dask workers. One loop for both.

Either is an executor: `submit` gives a future at once. Each thread that runs tasks keeps a child process for them, so one that
crashes or hangs costs no more than itself, and the memory is the task's.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from schedc.study.asker import Asker, begin_thread, row_in_child

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from schedc.study.task import CompileRow, CompileTask

Rows: TypeAlias = "tuple[tuple[str, CompileRow], ...]"
"""Keys and rows that came together."""
MOST_SUBMITTED = 10_000
"""At most this many tasks are submitted and not done: a future takes more memory than a task."""
LOOK_S = 0.2
"""A wait looks this often whether a signal came, which does not wake this thread if the system gave it to another one, and whether
the executor still works."""


class TaskExecutor(Protocol):
    """What runs tasks."""

    def submit(self, key: str, task: CompileTask) -> Any:
        """The future of the task's row, of `concurrent.futures` or of Dask; a key names its task."""

    def row_of(self, future: Any) -> CompileRow:
        """The row of a future that is done.

        Raises:
            TimeoutError: it is not, after all.
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
    done: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    futures: dict[str, Any] = {}
    waiting = iter(tasks.items())
    try:
        while True:
            for key, task in islice(waiting, MOST_SUBMITTED - len(futures)):
                future = futures[key] = executor.submit(key, task)
                future.add_done_callback(lambda future, key=key: done.put((key, future)))
            if not futures:
                break
            rows = _taken(done, executor)
            for key, _ in rows:
                del futures[key]  # which lets a worker of a cluster forget the row
            executor.check(is_quiet=not rows)
            yield rows
    finally:
        executor.cancel(futures.values())


def _taken(done: SimpleQueue[tuple[str, Any]], executor: TaskExecutor) -> Rows:
    """All rows that are there, once one is; nothing after a moment without any."""
    rows: list[tuple[str, CompileRow]] = []
    lost = []
    try:
        item = done.get(timeout=LOOK_S)
        while True:
            key, future = item
            try:
                rows.append((key, executor.row_of(future)))
            except TimeoutError:  # its worker was lost before the row was fetched, and another one does the task again
                lost.append(item)
            item = done.get_nowait()
    except Empty:
        for item in lost:
            done.put(item)
        return tuple(rows)


class LocalExecutor:
    """Child processes of this machine, each asked by a thread."""

    def __init__(self, processes: int) -> None:
        """`processes`: how many tasks run at the same time."""
        self._askers = [Asker() for _ in range(processes)]
        free = iter(self._askers)
        self._pool = ThreadPoolExecutor(processes, initializer=lambda: begin_thread(next(free)))

    def submit(self, _key: str, task: CompileTask) -> Any:
        """As of `TaskExecutor`."""
        return self._pool.submit(row_in_child, task)

    def row_of(self, future: Any) -> CompileRow:
        """As of `TaskExecutor`; a mistake of this program in the thread is raised here."""
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


def processes_for(workers: Iterable[int]) -> int:
    """How many tasks with this many search threads may run at the same time on the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(workers, default=1))
