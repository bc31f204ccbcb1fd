"""What a rank measures while it trains: the links to it, and its own speed; what of it has certainly changed.

    monitor = Monitor()
    pipe = schedc.runtime.load(plan, stages=stages, observe=monitor, wrap=monitor.wrap)
    ...
    monitor.conditions()  # None while nothing has been measured; else what differs from the plan

Where a forest has been trained for the machine, `Monitor(predictor=SlowdownPredictor(path))` asks it four times a second how much
other tasks slow this rank down: that may be known before its steps have shown it.

Transit times come from stamps beside the messages (`stamps`), durations from the ops; `link_state` and `speeds` tell changes from
noise (`change`: with which rate of false alarms), in a thread of their own. Levels are compared with what this job's first steps
measured, and only the difference is added to the plan's costs: a profile that is off is not a change, and no reason to move.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections import defaultdict
from functools import partial
from itertools import pairwise
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from schedc.errors import InvalidInput
from schedc.ir import Conditions, LinkState, Op, Problem
from schedc.runtime.adapt.monitoring.change import Rate
from schedc.runtime.adapt.monitoring.peer import PeerLinks
from schedc.runtime.adapt.monitoring.sampling import GAP_PER_LINK_S, Sampling, most_links
from schedc.runtime.adapt.monitoring.speeds import SpeedWatch
from schedc.runtime.adapt.monitoring.stamps import StampedEnd
from schedc.runtime.common.hooks import Observer, OpTimes
from schedc.runtime.measure.clocks import clock_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from schedc.runtime.adapt.monitoring.link_state import LinkWatch
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Wire
    from schedc.runtime.execution.wiring import Wrap
    from schedc.runtime.transports.base import Ends

SKIPPED = 8
"""How many first steps are not measured: they allocate and compile."""


class PredictsSlowdown(Protocol):
    """How slow this rank is, without measuring its ops: `schedc.runtime.interference.predictor.SlowdownPredictor` does."""

    every_s: float
    """How often it is asked."""

    def slowdown(self) -> float:
        """How many times as long as alone the rank's ops take now; called in the monitor's thread."""
        ...


class Monitor(Observer):
    """One rank's measurements, as the pipe's observer and around its wires."""

    joint = True

    def __init__(
        self,
        *,
        false_alarms: float = 0.01,
        steps: int = 10_000,
        scale: float = 1.0,
        least_gap_s: float | None = None,
        predictor: PredictsSlowdown | None = None,
    ) -> None:
        """Measure nothing yet.

        Args:
            false_alarms: the probability that any test of any rank gives a false alarm, before a ping has to confirm it.
            steps: within this many steps that are measured.
            scale: by how much slower than the plan's costs all of it runs (an emulation); taken out of `conditions`. What is
                too small to count is so in the time that it really takes.
            least_gap_s: where steps are shorter, only every n-th is measured, so that this much time lies between two; 0: all
                are; None: 0.25 s for each link of the rank that has the most. What rank 0 says holds for all ranks.
            predictor: evidence of this rank's speed besides what is measured. What it predicts holds until a few steps have been
                measured, which then say whether it is so. Two predictions count as a step of `steps`.
        """
        self._predictor = predictor
        self._least_gap_s = least_gap_s
        self._false_alarms = false_alarms
        self._steps = steps
        self._scale = scale
        self._problem: Problem | None = None
        self._rank = 0
        self._clock = int.from_bytes(hashlib.sha256(clock_name().encode()).digest()[:7]) if clock_name() else 0
        self._begin(Rate(64, false_alarms, steps))

    def _begin(self, rate: Rate) -> None:
        """Know nothing, as of a pipe that has just been loaded."""
        self._rate = rate
        self.speeds = SpeedWatch(rate)
        """This rank's."""
        self._peers: dict[int, PeerLinks] = {}
        self._cadence: Sampling | None = None
        self._ops: list[tuple[Op, int]] = []
        self._ended: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """What the monitor's thread is to do: measure a step when it has ended, look at its first ops before that, and at peers
        from which something has come."""
        self._first_ops = 0
        """How many ops are a quarter of a step's."""
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        """What has ended the thread before its time, until that has been said."""
        self._closed = False
        self._next_prediction_s = 0.0
        """When to ask next, by the monotonic clock."""
        self._conditions: Conditions | None = None
        self.changed = threading.Event()
        """Set when there are other conditions; who waits for it clears it."""

    def wrap(
        self,
        problem: Problem,
        groups: Groups,
        device: torch.device,
        *,
        around: Callable[[Problem, Groups, torch.device], Wrap] | None = None,
    ) -> Wrap:
        """For `load(..., wrap=monitor.wrap)`: puts stamps beside the messages. What was known of another pipe is forgotten.

        Args:
            problem: the plan's.
            groups: of its ranks.
            device: of this rank's stages.
            around: what is put around the ends first, such as `inject_links`; None: nothing. Links that are injected between
                hosts, or around the delegate, are not seen.
        """
        self.close()
        tests = len(problem.links) + (4 if self._predictor is None else 5) * problem.ranks
        self._begin(Rate(tests, self._false_alarms, self._steps))
        self._problem, self._rank = problem, groups.rank
        gap_s = GAP_PER_LINK_S * most_links(problem) if self._least_gap_s is None else self._least_gap_s
        cadence = self._cadence = Sampling(groups.store_of(range(groups.size)), groups.rank, gap_s)
        inner = None if around is None else around(problem, groups, device)

        def stamped(wire: Wire, ends: Ends) -> Ends:
            # Pings are expected long before they come: where a receive holds back those behind it, they go with the control.
            free = ends.data is ends.control
            ends = ends if inner is None else inner(wire, ends)
            beside = ends.data if free and not ends.in_order else ends.control
            sends = wire.source == self._rank
            peer = self._peer(wire.destination if sends else wire.source)
            return ends._replace(data=StampedEnd(ends.data, beside, peer.out if sends else peer.into, len(wire.transfers), cadence))

        return stamped

    def _peer(self, peer: int) -> PeerLinks:
        if peer not in self._peers:
            look = partial(self._ended.put, partial(self._come, peer))
            self._peers[peer] = PeerLinks(self._rate, self._clock, self._unequal_ns(peer), look)
        return self._peers[peer]

    @property
    def links(self) -> dict[int, LinkWatch]:
        """By the rank that sends on it, what is known of the link to this one."""
        return {peer: links.watch for peer, links in list(self._peers.items()) if links.into.end is not None}

    @property
    def every(self) -> int:
        """Every how many steps one is measured."""
        return 1 if self._cadence is None else self._cadence.every

    def conditions(self) -> Conditions | None:
        """What of the links to this rank, and of its speed, has certainly changed from the plan; None: nothing is known yet."""
        return self._conditions

    def begin_step(self, step: int, now_ns: int) -> None:
        """As `Observer.begin_step`; what a step that did not count, or an evaluation, has left is forgotten."""
        self._ops = []

    def op(self, times: OpTimes) -> None:
        """As `Observer.op`."""
        if self._cadence is None or self._cadence.now:
            self._ops.append((times.op, times.ended_ns - times.begun_ns))
            if len(self._ops) == self._first_ops and self.speeds.doubtful and self._thread is not None:
                self._ended.put(partial(self._early, tuple(self._ops)))

    def end_step(self, step: int, now_ns: int) -> None:
        """As `Observer.end_step`; sends the pings that peers have asked for, and waits for no other rank.

        Raises:
            InvalidInput: it was given as `observe` alone.
            TransferFailed: the job's store is lost.
        """
        if self._problem is None:
            raise InvalidInput("monitor: found it as observe= of load alone, expected wrap=monitor.wrap beside it")
        ops, self._ops = self._ops, []
        measured = self._cadence is None or self._cadence.now
        if self._cadence is not None:
            self._cadence.ended(step, now_ns)
        if self._closed:
            return
        if step < SKIPPED:
            for links in self._peers.values():
                links.into.stamps.clear()
            return
        for links in self._peers.values():
            links.answer()
        if not measured:
            return
        self._first_ops = len(ops) // 4
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, args=(self._ended,), name="schedc monitor", daemon=True)
            self._thread.start()
        if self._failure is not None:
            why, self._failure = f"{type(self._failure).__name__}: {self._failure}", None
            what = f"the monitor of rank {self._rank} has ended, and what it has found stays as it is"
            warnings.warn(f"{what}: {why}", RuntimeWarning, stacklevel=2)
        if self._thread.is_alive():  # otherwise it has failed
            self._ended.put(partial(self.measure, ops))

    def close(self) -> None:
        """End the threads. Training goes on as before, and `conditions` stay what they are."""
        self._closed = True
        self._ended.put(None)
        if self._thread is not None:
            self._thread.join()
        for links in self._peers.values():
            links.close()

    def _work(self, ended: SimpleQueue[Callable[[], None] | None]) -> None:
        try:
            while (job := self._next(ended)) is not None:
                job()
        except Exception as error:
            self._failure = error
            raise

    def _next(self, ended: SimpleQueue[Callable[[], None] | None]) -> Callable[[], None] | None:
        """What is to be done next; None: this is the end."""
        if self._predictor is None:
            return ended.get()
        left_s = self._next_prediction_s - monotonic()
        if left_s <= 0:
            return self._predict
        try:
            return ended.get(timeout=left_s)
        except Empty:
            return self._next(ended)

    def _predict(self) -> None:
        """Take what is predicted of this rank as evidence."""
        assert self._predictor is not None
        self.speeds.add_prediction(self._predictor.slowdown())
        # From now on: measured steps get their turn, however slow this is.
        self._next_prediction_s = monotonic() + self._predictor.every_s
        self._conclude()

    def _come(self, peer: int) -> None:
        """Take what has come from a peer in the middle of a step."""
        self._peers[peer].come()
        self._conclude()

    def _early(self, ops: Sequence[tuple[Op, int]]) -> None:
        """Take what a step's first ops took."""
        self.speeds.early(ops)
        self._conclude()

    def measure(self, ops: Sequence[tuple[Op, int]]) -> None:
        """Take what has come since the last call as one step: stamps and pings, and what the step's ops took."""
        self.speeds.step(ops)
        for links in list(self._peers.values()):  # a plan that takes over may add to it meanwhile
            links.measure()
        self._conclude()

    def _conclude(self) -> None:
        """Say what has changed."""
        if self.speeds.known or any(watch.known for watch in self.links.values()):
            slower = {(self._rank, kind): factor for kind, factor in self.speeds.slowdown().items()}
            found = Conditions(links=self._changed(), slowdown=slower)
            if found != self._conditions:
                self._conditions = found
                self.changed.set()

    def _unequal_ns(self, peer: int) -> int:
        """By how much the way from the peer takes longer than the one to it, as the plan says."""
        assert self._problem is not None
        here, there = self._problem.link(peer, self._rank), self._problem.link(self._rank, peer)
        unequal_ns = (
            here.latency_ns
            - there.latency_ns
            + here.occupancy_ns(_message_bytes(self._problem, peer, self._rank))
            - there.occupancy_ns(_message_bytes(self._problem, self._rank, peer))
        )
        return round(unequal_ns * self._scale)

    def _changed(self) -> dict[tuple[int, int], LinkState]:
        assert self._problem is not None
        found = {}
        for peer, links in list(self._peers.items()):
            if (pair := links.pair).excess_ns:
                planned = self._problem.link(peer, self._rank)
                size_bytes = _message_bytes(self._problem, peer, self._rank)
                more_ns = round(pair.occupancy_excess_ns / self._scale) if size_bytes else 0
                occupancy_ns = max(1, planned.occupancy_ns(size_bytes) + more_ns)
                found[peer, self._rank] = LinkState(
                    latency_ns=max(0, planned.latency_ns + round(pair.excess_ns / self._scale) - more_ns),
                    bytes_per_second=max(1, size_bytes * 10**9 // occupancy_ns) if more_ns else None,
                )
        return found


def _message_bytes(problem: Problem, source: int, destination: int) -> int:
    """The size of most messages from one rank to another, by the plan's costs."""
    sizes: defaultdict[int, int] = defaultdict(int)
    for path in problem.paths:
        for before, after in pairwise(path):
            ranks = problem.stages[before].rank, problem.stages[after].rank
            if ranks == (source, destination):
                sizes[problem.stages[before].message_bytes] += 1
            elif ranks == (destination, source):
                sizes[problem.stages[before].gradient_message_bytes] += 1
    return max(sizes, key=lambda size: sizes[size], default=0)
