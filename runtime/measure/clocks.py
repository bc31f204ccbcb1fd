"""How far the ranks' clocks are apart: ping-pong with rank 0, the shortest round trip decides (NTP, RFC 5905, section 8).

The clock is `time.perf_counter_ns`, whose zero differs from host to host; on one host all processes share it. What is sent at t0
here, received at t1 and answered at t2 on the other rank, and back at t3 here, says that the other clock is ahead by
((t1 − t0) + (t2 − t3)) / 2, wrong by at most half of the time under way, (t3 − t0) − (t2 − t1).
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterable

ROUNDS = 50
TAG = 0


class ClockOffset(NamedTuple):
    """From a rank's clock to rank 0's."""

    offset_ns: int
    """What to add to the rank's times."""
    error_ns: int
    """By how much that may be wrong, either way."""


def clock_name() -> str:
    """What is equal for processes whose `time.perf_counter_ns` is the same clock: the boot of the machine and its time namespace.

    A system without time namespaces (Linux before 5.6) has one clock. Empty where it cannot be known.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespaces = Path("/proc/self/ns")
        return f"{boot} {os.readlink(namespaces / 'time') if 'time' in os.listdir(namespaces) else ''}"
    except OSError:
        return ""


def best_offset(rounds: Iterable[tuple[int, int, int, int]]) -> ClockOffset:
    """The offset that the shortest round trip gives, from (t0, t1, t2, t3) of each.

    An offset that may be none is none: processes of one host share a clock, and an estimate would only blur it.
    """
    trip_ns, lead_ns = min(((t3 - t0) - (t2 - t1), ((t1 - t0) + (t2 - t3)) // 2) for t0, t1, t2, t3 in rounds)
    error_ns = -(-trip_ns // 2)
    return ClockOffset(0 if abs(lead_ns) <= error_ns else -lead_ns, error_ns)


def clock_offsets(group: dist.ProcessGroup) -> list[ClockOffset]:
    """The offset of every rank, by rank; on rank 0 only, elsewhere an empty list. All ranks of the group call it together.

    Raises:
        RuntimeError: another rank has ended or does not answer.
    """
    rank, size = group.rank(), group.size()
    group.barrier().wait()  # no rank's first answer is late because it has not come yet
    ping, pong = torch.zeros(1, device="cpu"), torch.zeros(2, dtype=torch.int64, device="cpu")
    if rank:
        for _ in range(ROUNDS):
            group.recv([ping], 0, TAG).wait()
            pong[0] = perf_counter_ns()
            pong[1] = perf_counter_ns()
            group.send([pong], 0, TAG).wait()
        return []
    offsets = [ClockOffset(0, 0)]
    for peer in range(1, size):
        rounds = []
        for _ in range(ROUNDS):
            begin_ns = perf_counter_ns()
            group.send([ping], peer, TAG).wait()
            group.recv([pong], peer, TAG).wait()
            end_ns = perf_counter_ns()
            received_ns, answered_ns = pong.tolist()
            rounds.append((begin_ns, received_ns, answered_ns, end_ns))
        offsets.append(best_offset(rounds))
    return offsets
