"""The monitor where two ranks have to agree: both directions of a link, and which steps are measured."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from inputs.problems import MS, make_problem
from oracles.link_pairs import BothEnds
from torch._C._distributed_c10d import HashStore

from schedc.ir.ops import Kind, Op
from schedc.runtime.adapt.monitor import Monitor
from schedc.runtime.adapt.monitoring.change import Rate
from schedc.runtime.adapt.monitoring.sampling import FIRST, LAST, Sampling
from schedc.runtime.adapt.monitoring.stamps import STAMP, InLink, OutLink, StampedEnd
from schedc.runtime.common.boundary import MAX_TENSORS, BoundaryMeta
from schedc.runtime.common.failure import ConnectionLost
from schedc.runtime.common.program import Message, Wire
from schedc.runtime.execution.channels import Sender
from schedc.runtime.transports.base import Ends

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.runtime.common.boundary import TensorMeta
    from schedc.runtime.transports.base import Incoming, Outgoing

RATE = Rate(50)


class Simulated:
    """A link whose two directions take what `latency_ns` says, and some noise."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.pair = BothEnds(RATE)
        self.latency_ns = [5.0 * MS, 5.0 * MS]

    def _transit_ns(self, way: int) -> Callable[[], float]:
        return lambda: self.latency_ns[way] + self.draw.expovariate(1 / 50_000)

    def steps(self, count: int, *, answers: bool = True) -> list[tuple[bool, bool]]:
        """After each step, which directions are reported to have changed."""
        found = []
        for _ in range(count):
            self.pair.step(self._transit_ns, answers=answers)
            found.append((bool(self.pair.reported_ns[0]), bool(self.pair.reported_ns[1])))
        return found


@given(
    calm=st.integers(60, 130),
    slow_ns=st.tuples(st.sampled_from([6, 8, 30]), st.sampled_from([6, 8, 30])),
    late=st.integers(0, 3),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=25)
def test_both_directions_are_reported_together(calm: int, slow_ns: tuple[int, int], late: int, seed: int) -> None:
    """Also when they recover, or a few steps apart where they change so, or where only one is plain."""
    apart = 3 if slow_ns == (30, 30) else 15
    link = Simulated(seed)
    assert set(link.steps(calm)) == {(False, False)}
    link.latency_ns[0] = slow_ns[0] * MS
    before = link.steps(late)
    link.latency_ns[1] = slow_ns[1] * MS
    seen = before + link.steps(60)
    assert sum(one != other for one, other in seen) <= late + apart
    assert seen[-1] == (True, True)
    assert link.pair.reported_ns == pytest.approx([(ns - 5) * MS for ns in slow_ns], rel=0.1)
    link.latency_ns = [5.0 * MS, 5.0 * MS]
    seen = link.steps(60)
    assert sum(one != other for one, other in seen) <= apart
    assert seen[-1] == (False, False)


@given(calm=st.integers(60, 130), slow=st.sampled_from([6, 8, 30]), way=st.integers(0, 1), seed=st.integers(0, 10**6))
@settings(max_examples=15)
def test_one_direction_alone_is_reported_alone(calm: int, slow: int, way: int, seed: int) -> None:
    link = Simulated(seed)
    link.steps(calm)
    link.latency_ns[way] = slow * MS
    seen = link.steps(60)
    assert seen[-1] == ((True, False), (False, True))[way]
    assert not any(found[1 - way] for found in seen)
    link.latency_ns[way] = 5.0 * MS
    assert link.steps(60)[-1] == (False, False)
    assert [watch.followed for watch in link.pair.watches] == [0, 0]


def test_a_change_is_reported_alone_where_nobody_answers() -> None:
    """The peer's monitor may have ended."""
    link = Simulated(1)
    link.steps(100)
    link.latency_ns[0] = 30.0 * MS
    watch, pair = link.pair.watches[0], link.pair.pairs[0]
    for _ in range(30):
        watch.step([30.0 * MS] * 4)
        if watch.wants_ping:
            watch.pinged([30.0 * MS] * 3)
        pair.step(link.pair.pairs[1].news)
    assert pair.excess_ns == pytest.approx(25 * MS, rel=0.05)


class _Coming:
    """A message that has come, or whose connection is lost."""

    def __init__(self, sent_ns: int | None) -> None:
        self._sent_ns = sent_ns

    def wait(self, timeout_s: float) -> torch.Tensor:
        if self._sent_ns is None:
            raise ConnectionLost("gone")
        return torch.full(STAMP.shape, self._sent_ns)


class _LostEnd:
    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        raise ConnectionLost("gone")

    def receive(self, kind: TensorMeta, tag: int) -> Incoming:
        raise ConnectionLost("gone")


def test_a_lost_connection_does_not_end_the_watch() -> None:
    """Another way may take over: later stamps are still taken, pings that never come are known to be lost."""
    link, out = InLink(), OutLink()
    for sent_ns in (1, None, None, 2):
        link.expect(_Coming(sent_ns))
    link.close()
    assert link._thread is not None
    link._thread.join()
    assert [stamp.sent_ns for stamp in link.stamps] == [1, 2]
    link.expect(_Coming(3))
    link.expect(_Coming(None))
    assert len(link.stamps) == 2
    assert not link.pings_lost
    link.end, link.kind = _LostEnd(), STAMP
    assert link.expect_pings()
    assert link.pings_lost
    assert link.stamps.maxlen is not None, "nobody may read them any more"
    out.end, out.kind = _LostEnd(), STAMP
    out.ping()
    assert out._pings == []


class _Tagged:
    """An end that takes note of the tags."""

    def __init__(self) -> None:
        self.tags: list[int] = []

    def send(self, tensor: torch.Tensor, tag: int) -> Any:
        self.tags.append(tag)

    def receive(self, kind: TensorMeta, tag: int) -> Any:
        raise NotImplementedError


class _BrokenEnd(_LostEnd):
    """Whose messages end with something else than a lost connection."""

    def receive(self, kind: TensorMeta, tag: int) -> Incoming:
        return _Broken()


class _Broken:
    def wait(self, timeout_s: float) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_what_breaks_pings_is_told_to_who_looks_at_them() -> None:
    """At once, so that the monitor ends with a line, and not with nothing."""
    told = threading.Event()
    link = InLink(on_pings=told.set)
    link.end, link.kind = _BrokenEnd(), STAMP
    assert link.expect_pings()
    assert told.wait(60)
    assert not link.pings_lost
    with pytest.raises(torch.OutOfMemoryError):
        _ = link.pings_ns


def test_pings_and_stamps_have_tags_of_their_own() -> None:
    """Also beside a first transfer with as many tensors as there can be, and its header."""
    wire = Wire(
        source=0,
        destination=1,
        name="send_next",
        receiver_name="recv_prev",
        transfers=(Op(Kind.F, 0, 0), Op(Kind.F, 0, 1)),
        messages=tuple(Message(False, 0, 1, microbatch, 0) for microbatch in range(2)),
    )
    end, link = _Tagged(), OutLink()
    stamped = StampedEnd(end, end, link, 2, Sampling(HashStore(), 0, 0.0))
    sender = Sender(wire, Ends(stamped, end), BoundaryMeta(), 1.0)
    for at in range(2):
        sender.send(at, (torch.zeros(1),) * MAX_TENSORS)
    once = set(end.tags)
    assert len(once) == 2 * (MAX_TENSORS + 1) + 1
    assert len(end.tags) == len(once) + 1  # what has no place in a header comes behind it
    link.ping()
    assert len(set(end.tags)) == len(once) + 1


def test_what_fails_ends_the_monitor_and_not_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said once, and nothing is kept for a thread that has ended; nor after `close`."""
    said: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    problem = make_problem(2, 2)
    monitor = Monitor()
    monitor._problem = problem

    def fail(ops: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(monitor, "measure", fail)
    monitor.end_step(100, 0)
    assert monitor._thread is not None
    monitor._thread.join()
    with pytest.warns(RuntimeWarning, match=r"the monitor of rank 0 has ended.*: ZeroDivisionError"):
        monitor.end_step(101, 0)
    for step in range(102, 110):
        monitor.end_step(step, 0)
    assert monitor._ended.empty()
    assert [args.exc_type for args in said] == [ZeroDivisionError]
    other = Monitor()
    other._problem = problem
    other.close()
    other.end_step(100, 0)
    assert other._thread is None


def test_all_ranks_measure_the_same_steps() -> None:
    """As often as the gap allows; step times that change are seen later, and a rank that is a step behind measures the same."""
    store, least_gap_s = HashStore(), 0.4
    ranks = [Sampling(store, rank, least_gap_s) for rank in range(3)]
    now_ns, measured = 0, []
    for step in range(4 * LAST):
        step_ns = 50 * MS if step < LAST else 150 * MS if step < 2 * LAST - 8 else 700 * MS
        measured.append(ranks[0].now)
        assert {rank.now for rank in ranks} == {measured[-1]}
        now_ns += step_ns
        for rank in ranks:
            rank.ended(step, now_ns)
    assert all(measured[: FIRST + 1])
    assert [step for step in range(FIRST + 1, LAST) if measured[step]] == list(range(24, LAST, 8))
    assert [step for step in range(LAST + 1, 2 * LAST) if measured[step]] == list(range(LAST + 8, 2 * LAST, 8))
    assert all(measured[2 * LAST + 1 :])
