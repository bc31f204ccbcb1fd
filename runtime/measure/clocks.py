"""How far the ranks' clocks are apart, from what messages both ways take by their two clocks (NTP, RFC 5905, section 8).

The clock is `time.perf_counter_ns`, whose zero differs from host to host; on one host all processes share it. A message that is
sent at s on one clock and arrives at a on the other says a - s = way + offset; one the other way says way back - offset. Half the
difference of the two is the offset, wrong by half of what the ways differ: nobody can tell how unequal two ways are.

`clock_offsets` asks once, by ping-pong with rank 0, of which the shortest round trip decides. What is sent at t0 here, received at
t1 and answered at t2 on the other rank, and back at t3 here, says that the other clock is ahead by ((t1 − t0) + (t2 − t3)) / 2,
wrong by at most half of the time under way, (t3 − t0) − (t2 − t1).

`PairClock` goes on while a job trains, and sends no messages of its own. It is assumed that two ways are as unequal as the plan
says. Each step's shortest ways make a point; a line through the points follows the drift of the clocks. A way that gets slower
looks like a jump, which no clock makes: points far from the line are left out, so that the line goes on as before. After many of
them the two ways together tell which it was: where they take as long as before, a clock has been set; else the line goes on without
what the way has become slower.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterable

ROUNDS = 50
TAG = 0
POINTS = 256
FIRST = 8
GATE_NS = 100_000
"""A point this near to the line is always taken."""
PATIENCE = 64
"""After this many points in a row that are left out, the line goes through them."""
REFIT, OFTEN = 8, 32
"""Every how many points the line is found anew; every time while there are fewer than this many."""


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


class _Point(NamedTuple):
    at_ns: int
    offset_ns: float
    both_ns: int
    """What the two ways take together, which no clock has a part in."""


class PairClock:
    """Of this rank's clock against a peer's."""

    def __init__(self, unequal_ns: int = 0) -> None:
        """Know nothing.

        Args:
            unequal_ns: by how much the way here takes longer than the way there, as the plan says.
        """
        self._unequal_ns: float = unequal_ns
        self._points: deque[_Point] = deque(maxlen=POINTS)
        self._taken = 0
        self._left_out: list[_Point] = []
        self._line = (0, 0.0, 0.0)  # a time, the offset then, and its growth per nanosecond
        self._gate_ns: float = GATE_NS

    @property
    def known(self) -> bool:
        """Whether `offset_ns` says anything."""
        return bool(self._points)

    def add(self, now_ns: int, here_ns: int, there_ns: int) -> None:
        """Take a step's shortest ways, each as arrival by the receiver's clock less sending by the sender's.

        `now_ns` is about when, on this rank's clock; `here_ns` is of the way from the peer to this rank.
        """
        point = _Point(now_ns, (here_ns - there_ns - self._unequal_ns) / 2, here_ns + there_ns)
        if len(self._points) >= FIRST and abs(self._off(point)) > self._gate_ns:
            self._left_out.append(point)
            if len(self._left_out) == PATIENCE:
                self._go_on()
            return
        self._left_out.clear()
        self._points.append(point)
        self._taken += 1
        if len(self._points) < OFTEN or self._taken % REFIT == 0:
            self._fit()

    def offset_ns(self, now_ns: int) -> float:
        """By how much this rank's clock is ahead of the peer's at a time."""
        since_ns, offset_ns, drift = self._line
        return offset_ns + drift * (now_ns - since_ns)

    def _off(self, point: _Point) -> float:
        """How far above the line it is."""
        return point.offset_ns - self.offset_ns(point.at_ns)

    def _go_on(self) -> None:
        """With the points that have been left out: a way that takes longer has moved them by half of that, a clock by all."""
        shift_ns = median(self._off(point) for point in self._left_out[:FIRST])
        longer_ns = median(point.both_ns for point in self._left_out) - median(point.both_ns for point in self._points)
        if abs(longer_ns) <= abs(shift_ns):
            shift_ns = 0.0  # the clock's
        self._unequal_ns += 2 * shift_ns
        self._points.clear()
        self._points.extend(point._replace(offset_ns=point.offset_ns - shift_ns) for point in self._left_out)
        self._left_out.clear()
        self._fit()

    def _fit(self) -> None:
        """Through the medians of the older and the newer half: a few wrong points move it little."""
        points = list(self._points)
        half = len(points) // 2
        if half < FIRST // 2:
            self._line = (points[-1].at_ns, median(point.offset_ns for point in points), 0.0)
            return
        (old_ns, old), (new_ns, new) = (
            (median(point.at_ns for point in part), median(point.offset_ns for point in part))
            for part in (points[:half], points[half:])
        )
        drift = (new - old) / (new_ns - old_ns) if new_ns > old_ns else 0.0
        self._line = (round(new_ns), new, drift)
        self._gate_ns = GATE_NS + 5 * median(abs(self._off(point)) for point in points)
