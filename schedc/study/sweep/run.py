"""A sweep, run: jobs of which nothing final is known go to whoever compiles them, and what comes back goes into the journal."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

from schedc.study.cluster import dask_executor
from schedc.study.executors import LocalExecutor, Rows, run_tasks
from schedc.study.task import Status

if TYPE_CHECKING:
    from collections.abc import Generator

    from schedc.study.sweep.jobs import Sweep
    from schedc.study.sweep.journal import Journal

AGAIN = (Status.UNLIKE, Status.CRASHED, Status.TIMED_OUT)
"""What is tried again when the sweep is run again: the machine may have been the reason."""


def kept_keys(sweep: Sweep, journal: Journal) -> frozenset[str]:
    """The keys of the sweep's jobs that the journal answers for good."""
    rows = journal.answers
    return frozenset(job.key for job in sweep.jobs if job.key in rows and rows[job.key].status not in AGAIN)


def run(sweep: Sweep, journal: Journal, *, processes: int, cluster: str | None = None) -> Generator[Rows]:
    """Run the jobs that are not kept; gives keys and rows once the journal has them, and now and then nothing.

    Args:
        sweep: the jobs.
        journal: what is known of them.
        processes: how many jobs run at the same time on this machine.
        cluster: the address of Dask's scheduler; None: here.

    Raises:
        SchedcError: the cluster cannot be used, or the journal cannot be written.
    """
    kept = kept_keys(sweep, journal)
    tasks = {job.key: job.task for job in sweep.jobs if job.key not in kept}
    if not tasks:
        return
    here = min(processes, len(tasks))
    executing = nullcontext(LocalExecutor(here)) if cluster is None else dask_executor(cluster)
    with executing as executor, closing(run_tasks(tasks, executor)) as results:
        for rows in results:
            if rows:
                journal.append(rows)
            yield rows
