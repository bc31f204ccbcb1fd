"""Tasks on a cluster of Dask workers: Dask decides where each runs, and gives the tasks of a worker that is lost to another one.

The workers read a job's files themselves, by their absolute paths: they must share a file system.
"""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from schedc.errors import InvalidInput, Unsupported
from schedc.io.location import show
from schedc.study.executors import row_in_child
from schedc.study.task import CompileRow, CompileTask, JobFiles, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


ADDRESS = re.compile(r"((tcp|tls|ucx|ws|wss)://)?[^/]+:[0-9]{1,5}")
"""Of a scheduler, as Dask reads it."""
CONNECT_S = 20.0
"""How long the scheduler may take to answer first."""
NO_WORKER_S = 60.0
"""How long a cluster may be without any worker."""
FETCH_S = 5.0
"""How long it is waited for a row that a worker has."""


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
        """As of `TaskExecutor`."""
        source = task.source
        if isinstance(source, JobFiles):
            names = tuple(map(os.path.abspath, source.names))
            task = replace(task, source=replace(source, path=os.path.abspath(source.path), names=names))
        return self.client.submit(row_in_child, task, key=f"schedc-{key}", pure=False)

    def row_of(self, future: Any) -> CompileRow | None:
        """As of `TaskExecutor`.

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
        """As of `TaskExecutor`.

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
        """As of `TaskExecutor`."""
        self.client.cancel(list(futures))
