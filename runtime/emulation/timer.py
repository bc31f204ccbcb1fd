"""Waiting until a time on `time.perf_counter_ns`: asleep for most of it, so that nobody else is kept from computing.

A sleep ends some time after it was asked to; the last stretch is therefore waited awake. `keep_sharp` makes that stretch short and
wakes this process before others, where the system allows it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from contextlib import suppress
from time import perf_counter_ns

AWAKE_NS = 150_000
"""The last stretch: twice what a sleep is usually late on Linux, whose timers have 50 µs of slack."""
SET_TIMER_SLACK = 29
"""Linux, prctl(2): PR_SET_TIMERSLACK."""


def wait_until(time_ns: int) -> None:
    """Return at this time or just after it, never before; at once where it has passed."""
    while (left_ns := time_ns - perf_counter_ns()) > 0:
        if left_ns > AWAKE_NS:
            time.sleep((left_ns - AWAKE_NS) / 1e9)


def keep_sharp() -> bool:
    """Ask for exact timers, and to run before other processes, for this thread and those it starts from now on.

    For processes that do nothing but wait. Returns whether they run before others; most systems allow that to root only.
    """
    if sys.platform != "linux":
        return False
    ctypes.CDLL(None).prctl(SET_TIMER_SLACK, 1, 0, 0, 0)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return True
    return False
