"""Jobs on this machine: a few child processes side by side, each with a thread that asks it."""

from __future__ import annotations

import os
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from schedc.study.sweep.asker import Asker, Stopped

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from schedc.study.sweep.jobs import Sweep
    from schedc.study.sweep.one_job import JobAnswer, JobRequest

Answered: TypeAlias = "tuple[tuple[str, JobAnswer], ...]"
"""Keys and answers that came together."""
NOTICE_S = 0.1
"""A wait looks this often whether a signal came: one that the system gave to another thread does not wake this one."""


def processes_for(sweep: Sweep) -> int:
    """How many jobs may run at the same time so that their search threads do not take more cores than this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max((job.request.options.workers or 1 for job in sweep.jobs), default=1))


def run_here(requests: Mapping[str, JobRequest], processes: int) -> Generator[Answered]:
    """The answers in the order in which they come, and now and then none; closing the iterator ends the processes.

    Args:
        requests: by key.
        processes: how many jobs run at the same time.
    """
    todo: SimpleQueue[tuple[str, JobRequest]] = SimpleQueue()
    done: SimpleQueue[tuple[str, JobAnswer] | BaseException] = SimpleQueue()
    for item in requests.items():
        todo.put(item)
    askers = [Asker() for _ in range(min(processes, len(requests)))]
    threads = [threading.Thread(target=_ask_all, args=(asker, todo, done), daemon=True) for asker in askers]
    for thread in threads:
        thread.start()
    left = len(requests)
    try:
        while left:
            answers = _taken(done)
            left -= len(answers)
            yield answers
    finally:
        for asker in askers:
            asker.stop()
        for thread in threads:
            thread.join()


def _ask_all(
    asker: Asker, todo: SimpleQueue[tuple[str, JobRequest]], done: SimpleQueue[tuple[str, JobAnswer] | BaseException]
) -> None:
    """Ask until nothing is left or the asker is stopped; a mistake of this program goes to the main thread."""
    try:
        while True:
            key, request = todo.get_nowait()
            done.put((key, asker.answer(request)))
    except (Empty, Stopped):
        pass
    except BaseException as error:
        done.put(error)
    finally:
        asker.close()


def _taken(done: SimpleQueue[tuple[str, JobAnswer] | BaseException]) -> Answered:
    """All that is there, once something is; nothing after a moment without any."""
    answers = []
    try:
        item = done.get(timeout=NOTICE_S)
        while True:
            if isinstance(item, BaseException):
                raise item
            answers.append(item)
            item = done.get_nowait()
    except Empty:
        return tuple(answers)
