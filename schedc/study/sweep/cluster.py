"""Jobs on a cluster of Dask workers: Dask decides where each runs, and gives the jobs of a worker that is lost to another one.

On each worker a job runs in a child process of its own, as it does here. So one that crashes or hangs costs the worker nothing, and
the memory is the job's. The workers read the job's files themselves, by their absolute paths: they must share a file system.
"""

from __future__ import annotations

import dataclasses
import os
import re
import threading
import time
from concurrent.futures import CancelledError
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from schedc.errors import InvalidInput, Unsupported
from schedc.io.location import show
from schedc.study.sweep.asker import Asker
from schedc.study.sweep.one_job import JobAnswer, Status

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from schedc.study.sweep.local import Answered
    from schedc.study.sweep.one_job import JobRequest

ADDRESS = re.compile(r"((tcp|tls|ucx|ws|wss)://)?[^/]+:[0-9]{1,5}")
"""Of a scheduler, as Dask reads it."""
CONNECT_S = 20.0
"""How long the scheduler may take to answer first."""
NO_WORKER_S = 60.0
"""How long a cluster may be without any worker."""
LOOK_S = 0.5
"""How often it is looked at while no answer comes."""
FETCH_S = 5.0
"""How long it is waited for an answer that a worker has."""
IDLE_S = 30.0
"""A worker's child process ends after this long without a job."""

_of_thread = threading.local()
"""On a worker: the asker of each of its threads, which run one job after another."""


def run_on_cluster(requests: Mapping[str, JobRequest], address: str) -> Generator[Answered]:
    """The answers in the order in which they come, and now and then none; closing the iterator takes back what has not begun.

    Args:
        requests: by key.
        address: of Dask's scheduler, `tcp://HOST:PORT`.

    Raises:
        Unsupported: Dask is not installed here.
        InvalidInput: the scheduler cannot be reached, is lost or has no workers, or one of these cannot run schedc.
    """
    with _client(address) as client:
        done: SimpleQueue[Any] = SimpleQueue()
        futures: dict[str, Any] = {}
        for key, request in requests.items():
            files = tuple(map(os.path.abspath, request.files))
            absolute = dataclasses.replace(request, path=os.path.abspath(request.path), files=files)
            future = client.submit(answer_on_worker, absolute, key=f"schedc-{key}", pure=False)
            future.add_done_callback(lambda future, key=key: done.put((key, future)))
            futures[key] = future
        left = len(requests)
        alone_since_s: float | None = None
        try:
            while left:
                answers = _taken(done, address)
                left -= len(answers)
                for key, _ in answers:
                    del futures[key]  # which lets its worker forget the answer
                alone_since_s = None if answers else _alone_since(client, address, alone_since_s)
                yield answers
        finally:
            client.cancel(list(futures.values()))


def answer_on_worker(request: JobRequest) -> JobAnswer:
    """What came of a job: runs in a thread of a worker, which keeps its child process for the next one."""
    asker: Asker | None = getattr(_of_thread, "asker", None)
    if asker is None:
        asker = _of_thread.asker = Asker(IDLE_S)
    return asker.answer(request)


@contextmanager
def _client(address: str) -> Iterator[Any]:
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
        yield client


def _taken(done: SimpleQueue[Any], address: str) -> Answered:
    """All answers that are there, once one is; nothing after a moment without any."""
    answers: list[tuple[str, JobAnswer]] = []
    lost = []
    try:
        item = done.get(timeout=LOOK_S)
        while True:
            key, future = item
            try:
                answers.append((key, answer_of(future, address)))
            except TimeoutError:  # its worker was lost before the answer was fetched, and another one does the job again
                lost.append(item)
            item = done.get_nowait()
    except Empty:
        for item in lost:
            done.put(item)
        return tuple(answers)


def _alone_since(client: Any, address: str, before_s: float | None) -> float | None:
    """Since when the cluster has had no worker; None: it has some."""
    if client.status != "running":
        raise InvalidInput(f"--cluster: the scheduler at {address} was lost; run the command again once it is back")
    if client.nthreads():
        return None
    since_s = time.monotonic() if before_s is None else before_s
    if time.monotonic() - since_s > NO_WORKER_S:
        raise InvalidInput(f"--cluster: {address} has had no worker for {NO_WORKER_S:g} s; start some, then run the command again")
    return since_s


def answer_of(future: Any, address: str) -> JobAnswer:
    """The answer of a job that has ended.

    Raises:
        TimeoutError: it has not, after all.
        InvalidInput: the scheduler has forgotten it, or its worker cannot run schedc.
    """
    from distributed.scheduler import KilledWorker

    try:
        error = future.exception(timeout=FETCH_S)
        if error is None:
            made: JobAnswer = future.result(timeout=FETCH_S)
            return made
    except CancelledError as cancelled:
        raise InvalidInput(f"--cluster: the scheduler at {address} lost jobs; run the command again") from cancelled
    if isinstance(error, KilledWorker):
        return JobAnswer(status=Status.CRASHED, error=f"its worker died at each attempt, and last {error.last_worker.address}")
    if isinstance(error, ImportError):
        raise InvalidInput(f"--cluster: a worker of {address} cannot run schedc ({error}); install the same version on all")
    raise error
