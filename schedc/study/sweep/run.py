"""A sweep, run: jobs of which nothing final is known go to whoever compiles them, and what comes back goes into the journal."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from schedc.study.sweep.cluster import run_on_cluster
from schedc.study.sweep.local import run_here
from schedc.study.sweep.one_job import Status

if TYPE_CHECKING:
    from collections.abc import Generator

    from schedc.study.sweep.jobs import Sweep
    from schedc.study.sweep.journal import Journal
    from schedc.study.sweep.local import Answered

AGAIN = (Status.UNLIKE, Status.CRASHED, Status.TIMED_OUT)
"""What is tried again when the sweep is run again: the machine may have been the reason."""


def kept_keys(sweep: Sweep, journal: Journal) -> frozenset[str]:
    """The keys of the sweep's jobs that the journal answers for good."""
    answers = journal.answers
    return frozenset(job.key for job in sweep.jobs if job.key in answers and answers[job.key].status not in AGAIN)


def run(sweep: Sweep, journal: Journal, *, processes: int, cluster: str | None = None) -> Generator[Answered]:
    """Run the jobs that are not kept; gives keys and answers once the journal has them, and now and then nothing.

    Args:
        sweep: the jobs.
        journal: what is known of them.
        processes: how many jobs run at the same time on this machine.
        cluster: the address of Dask's scheduler; None: here.

    Raises:
        SchedcError: the cluster cannot be used, or the journal cannot be written.
    """
    kept = kept_keys(sweep, journal)
    requests = {job.key: job.request for job in sweep.jobs if job.key not in kept}
    if not requests:
        return
    with closing(run_here(requests, processes) if cluster is None else run_on_cluster(requests, cluster)) as results:
        for answers in results:
            if answers:
                journal.append(answers)
            yield answers
