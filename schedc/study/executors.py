"""Where tasks run: in a few child processes of this machine, or on a cluster of Dask workers. One loop for both.

Either is an executor: `submit` gives a future at once. Each thread that runs tasks keeps a child process for them, started when it
is needed, and again after it died: so one that crashes or hangs costs no more than itself, and the memory is the task's.

Dask decides where a task runs, and gives those of a worker that is lost to another one. Its workers read a job's files themselves,
by their absolute paths: they must share a file system.

`python -m schedc.study.executors IDLE_S SOCKET` is such a child. It compiles one task after another, and ends after IDLE_S without
one; 0: it does not. A question is a pickled `CompileTask`, an answer the fields of a `CompileRow` as a JSON object.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from schedc.errors import InvalidInput, Unsupported
from schedc.io.child import Child, ChildDied, TookTooLong, serve
from schedc.io.location import show
from schedc.study.task import CompileRow, CompileTask, JobFiles, Status, row_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

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
ADDRESS = re.compile(r"((tcp|tls|ucx|ws|wss)://)?[^/]+:[0-9]{1,5}")
"""Of a scheduler, as Dask reads it."""
CONNECT_S = 20.0
"""How long the scheduler may take to answer first."""
NO_WORKER_S = 60.0
"""How long a cluster may be without any worker."""
FETCH_S = 5.0
"""How long it is waited for a row that a worker has."""

_of_thread = threading.local()
"""The asker of each thread that runs tasks, one after another."""


def run_tasks(tasks: Mapping[str, CompileTask], executor: LocalExecutor | DaskExecutor, *, keep: bool = False) -> Generator[Rows]:
    """The rows by their tasks' keys, in the order in which they come, and now and then none; closing it takes back the others.

    Args:
        tasks: by key.
        executor: `submit` gives the future of a task's row; `row_of` the row of one that is done, None where it is not, after all;
            `check` is called after each wait, and raises where nothing will come any more; `cancel` takes back what is not done.
        keep: the executor is for further tasks once all these are done.

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
        if futures or not keep:
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
                return replace(self.ask(task), attempts=attempt)
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
    """Child processes of this machine, each asked by a thread."""

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


@contextmanager
def dask_executor(address: str) -> Iterator[DaskExecutor]:
    """The executor that the scheduler at `tcp://HOST:PORT` has.

    Raises:
        Unsupported: Dask is not installed here.
        InvalidInput: the scheduler cannot be reached.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise Unsupported(f"--cluster: found no module {error.name}, expected Dask: pip install 'schedc[cluster]'") from error
    if not ADDRESS.fullmatch(address):  # a client of what is no address ends with a traceback when it is collected
        raise InvalidInput(f"--cluster: found {show(address)}, expected the address of a scheduler of Dask, as tcp://HOST:PORT")
    try:
        connect: Any = Client  # has no types
        client = connect(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"--cluster: found no scheduler of Dask at {address} ({error}), expected tcp://HOST:PORT") from error
    with client:
        yield DaskExecutor(client, address)


@dataclass(slots=True)
class DaskExecutor:
    """A client of Dask, as an executor of tasks; `concurrent.futures` has no word for a lost worker or scheduler."""

    client: Any
    address: str
    alone_since_s: float | None = None
    """Since when the cluster has had no worker; None: it has some."""

    def submit(self, key: str, task: CompileTask) -> Any:
        """Any worker does it; one key is one task."""
        source = task.source
        if isinstance(source, JobFiles):
            names = tuple(map(os.path.abspath, source.names))
            task = replace(task, source=replace(source, path=os.path.abspath(source.path), names=names))
        return self.client.submit(row_in_child, task, key=f"schedc-{key}", pure=False)

    def row_of(self, future: Any) -> CompileRow | None:
        """A worker that died at each attempt is a row.

        Raises:
            InvalidInput: the scheduler has forgotten it, or its worker cannot run schedc.
        """
        from distributed.scheduler import KilledWorker

        try:
            error = future.exception(timeout=FETCH_S)
            if error is None:
                row: CompileRow = future.result(timeout=FETCH_S)
                return row
        except TimeoutError:  # of the wait: what the task itself raises is the future's exception
            return None
        except CancelledError as cancelled:
            raise InvalidInput(f"--cluster: the scheduler at {self.address} lost jobs; run the command again") from cancelled
        if isinstance(error, KilledWorker):
            message = f"its worker died at each attempt, and last {error.last_worker.address}"
            return CompileRow(status=Status.CRASHED, error=message)
        if isinstance(error, ImportError):
            raise InvalidInput(
                f"--cluster: a worker of {self.address} cannot run schedc ({error}); install the same version on all"
            )
        raise error

    def check(self, *, is_quiet: bool) -> None:
        """`is_quiet`: nothing came.

        Raises:
            InvalidInput: the scheduler is lost, or has had no worker for long.
        """
        if not is_quiet:
            self.alone_since_s = None
            return
        if self.client.status != "running":
            raise InvalidInput(f"--cluster: the scheduler at {self.address} was lost; run the command again once it is back")
        if self.client.nthreads():
            self.alone_since_s = None
            return
        self.alone_since_s = self.alone_since_s or time.monotonic()
        if time.monotonic() - self.alone_since_s > NO_WORKER_S:
            raise InvalidInput(
                f"--cluster: {self.address} has had no worker for {NO_WORKER_S:g} s; start some, then run the command again"
            )

    def cancel(self, futures: Iterable[Any]) -> None:
        """The scheduler forgets them."""
        self.client.cancel(list(futures))


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
        lambda question: json.dumps(asdict(row_of(pickle.loads(question)))).encode(),
        idle_s or None,
    )


if __name__ == "__main__":
    serve_tasks()
