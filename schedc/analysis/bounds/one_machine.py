"""The bound of one resource: work that must wait before it starts and be followed by something after it ends.

Takes jobs of one resource (a rank, a link, a trunk), each with a head, a duration and a tail; gives the least time in which any
schedule can end, however it orders or interrupts them.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Task(NamedTuple):
    """Work of one resource. Identical jobs may be one job of their total duration: no better set holds only some of them."""

    head_ns: int
    """It cannot start earlier."""
    duration_ns: int
    tail_ns: int
    """After its end, at least this must pass until everything has ended."""


def one_machine_bound(jobs: Iterable[Task]) -> int:
    """The largest, over all sets of jobs, of least head + total duration + least tail; 0 without jobs.

    Proof that it is a bound: the jobs of any set run one at a time, none before the set's least head, and the last to end is
    followed by at least the set's least tail. Proof that this computes it: Jackson's preemptive rule (always run the released job
    with the longest tail) reaches that value and no schedule with interruptions can beat it (Carlier, 1982, proposition 1).
    """
    waiting = sorted(jobs, reverse=True)
    running: list[tuple[int, int]] = []  # (−tail, remaining)
    now_ns = best_ns = 0
    while waiting or running:
        if not running:
            now_ns = max(now_ns, waiting[-1].head_ns)
        while waiting and waiting[-1].head_ns <= now_ns:
            job = waiting.pop()
            heapq.heappush(running, (-job.tail_ns, job.duration_ns))
        minus_tail_ns, remaining_ns = heapq.heappop(running)
        if waiting and waiting[-1].head_ns < now_ns + remaining_ns:
            heapq.heappush(running, (minus_tail_ns, now_ns + remaining_ns - waiting[-1].head_ns))
            now_ns = waiting[-1].head_ns
        else:
            now_ns += remaining_ns
            best_ns = max(best_ns, now_ns - minus_tail_ns)
    return best_ns
