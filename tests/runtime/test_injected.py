"""Injected delays: what is stamped is the cost model's arrival, and nothing is there before it."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, strategies as st
from inputs.plans import plan_of
from inputs.problems import MS, make_problem
from runs import watched_runs
from runs.processes import rank_processes

from schedc.ir.conditions import LinkState, LinkTrace
from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.emulation.delayed import OneQueue, StampedTransport
from schedc.runtime.emulation.delays import OwnLink, TraceClock, WireDelay, delay_of, traced_delay
from schedc.runtime.emulation.waiting import wait_until
from schedc.runtime.execution.channels import TAGS
from schedc.runtime.transports.base import Ends
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND = TensorMeta(torch.float32, (1,))


class Clock:
    """A time that only passes by being waited for, or set."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def wait_until(self, time_ns: int) -> None:
        self.now_ns = max(self.now_ns, time_ns)


class Looped:
    """Both ends of a wire in one process: what is sent under a tag is received under it."""

    def __init__(self) -> None:
        self.sent: dict[int, list[torch.Tensor]] = {}

    def send(self, tensor: torch.Tensor, tag: int) -> Any:
        self.sent.setdefault(tag, []).append(tensor.clone())
        return Handle(None)

    def receive(self, kind: TensorMeta, tag: int) -> Any:
        return Handle((self, tag))


class Handle:
    def __init__(self, where: tuple[Looped, int] | None) -> None:
        self.where = where

    def wait(self, timeout_s: float) -> Any:
        return None if self.where is None else self.where[0].sent[self.where[1]].pop(0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return _clock(monkeypatch)


def _clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("schedc.runtime.emulation.delayed.perf_counter_ns", lambda: clock.now_ns)
    monkeypatch.setattr("schedc.runtime.emulation.delayed.wait_until", clock.wait_until)
    return clock


def transport(delay: WireDelay, queue: OneQueue | None = None) -> StampedTransport:
    end = Looped()
    return StampedTransport(Ends(end, end), delay, OwnLink(), queue)


def arrivals_by_the_cost_model(ready_ns: list[int], occupancy_ns: list[int], latency_ns: int) -> Iterator[int]:
    """`arrival = max(ready, link free) + occupancy + latency`."""
    free_ns = 0
    for ready, occupancy in zip(ready_ns, occupancy_ns, strict=True):
        free_ns = max(ready, free_ns) + occupancy
        yield free_ns + latency_ns


@given(
    transfers=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30), st.integers(1, 3)), min_size=1, max_size=8),
    latency_ns=st.integers(0, 40),
    posted_ns=st.integers(0, 500),
    steps=st.integers(1, 2),
)
def test_arrivals_are_the_cost_models(transfers: list[tuple[int, int, int]], latency_ns: int, posted_ns: int, steps: int) -> None:
    """Whatever lies between the sends, however late the receives are posted, and however many tensors a transfer has."""
    with pytest.MonkeyPatch.context() as patch:
        clock = _clock(patch)
        delay = WireDelay(latency_ns=latency_ns, occupancy_ns=tuple(occupancy for _, occupancy, _ in transfers))
        end = transport(delay)
        ready_ns, found = [], []
        for step in range(steps):
            for at, (gap_ns, _, tensors) in enumerate(transfers):
                clock.now_ns += gap_ns
                ready_ns.append(clock.now_ns)
                for number in range(tensors):
                    end.send(torch.tensor([float(100 * step + 10 * at + number)]), at * TAGS + number)
            begun_ns, clock.now_ns = clock.now_ns, clock.now_ns + posted_ns
            for at, (_, _, tensors) in enumerate(transfers):
                for number in range(tensors):
                    clock.now_ns = 0
                    value = end.receive(KIND, at * TAGS + number).wait(1)
                    assert value.tolist() == [100 * step + 10 * at + number]
                    found.append(clock.now_ns)
            clock.now_ns = begun_ns
        expected = arrivals_by_the_cost_model(ready_ns, [occupancy for _, occupancy, _ in transfers] * steps, latency_ns)
        counts = [tensors for _, _, tensors in transfers] * steps
        assert found == [arrival for arrival, tensors in zip(expected, counts, strict=True) for _ in range(tensors)]


def test_a_trace_changes_what_is_sent_after_it(clock: Clock) -> None:
    """By the trace's clock, which is scaled, starts late and stops; the sender's time counts, not the receiver's."""
    problem = make_problem(2, 4, links={(0, 1): (7, 3), (1, 0): (9, 4)})
    slow = LinkState(latency_ns=50)
    trace = LinkTrace.of([(0, (0, 1), slow), (10, (0, 1), LinkState()), (100, (1, 0), slow), (200, (0, 1), slow)])
    trace_clock = TraceClock(2.0)
    wire = watched_runs.wire_of(0, 1, 4)
    delay = traced_delay(problem, wire, 2.0, trace, trace_clock)
    assert traced_delay(problem, watched_runs.wire_of(1, 0, 4), 2.0, LinkTrace(()), trace_clock).at(0).latency_ns == 18
    end = Looped()
    wrapped = StampedTransport(Ends(end, end), delay, OwnLink())

    def arrival_ns(now_ns: int) -> int:
        clock.now_ns = now_ns
        wrapped.send(torch.zeros(1), 0)
        clock.now_ns = 10**6
        taken = wrapped.receive(KIND, 0)
        clock.now_ns = 0
        taken.wait(1)
        return clock.now_ns

    assert arrival_ns(3_000) == 3_000 + 106
    trace_clock.start(5_000)
    assert (arrival_ns(5_018), arrival_ns(5_028)) == (5_018 + 106, 5_028 + 20)
    trace_clock.stop(5_300)
    assert arrival_ns(6_000) == 6_000 + 20
    trace_clock.start(10_000)
    assert trace_clock.time_ns(10_000) == 150
    assert (arrival_ns(10_098), arrival_ns(10_100)) == (10_098 + 20, 10_104 + 106)


def test_one_queue_blocks_who_sends_the_next(clock: Clock) -> None:
    """A send holds it for occupancy and latency; the next send, and a take, wait for that; what is taken holds nothing."""
    queue = OneQueue()
    there = transport(WireDelay(latency_ns=30, occupancy_ns=(5, 5)), queue)
    back = transport(WireDelay(latency_ns=0, occupancy_ns=(0, 0)), queue)
    back.send(torch.zeros(1), 0)
    assert clock.now_ns == 1_000
    there.send(torch.zeros(1), 0)
    assert clock.now_ns == 1_000
    incoming = back.receive(KIND, 0)
    assert clock.now_ns == 1_000
    incoming.wait(1)
    assert clock.now_ns == 1_035
    there.send(torch.zeros(1), TAGS)
    assert clock.now_ns == 1_035
    there.send(torch.zeros(1), 0)
    assert clock.now_ns == 1_070


def test_sizes_and_scale() -> None:
    """Occupancies are those of the messages' sizes, gradients' apart; all times are scaled."""
    problem = make_problem(2, 2, links={(0, 1): (7, 3), (1, 0): (9, 4)})
    wire = watched_runs.wire_of(0, 1, 2)
    assert delay_of(problem, wire) == WireDelay(latency_ns=7, occupancy_ns=(3, 3))
    assert delay_of(problem, wire, 10.0) == WireDelay(latency_ns=70, occupancy_ns=(30, 30))


def test_waiting_never_ends_early() -> None:
    for _ in range(20):
        time_ns = perf_counter_ns() + 300_000
        wait_until(time_ns)
        assert perf_counter_ns() >= time_ns


def test_nothing_is_there_before_its_time(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Real processes: two links of one rank, one of them both ways; a receive that is posted late; ranks that share no clock."""
    count, latency, occupancy = 4, 20 * MS, 5 * MS
    pairs = [(0, 1), (1, 0)]
    problem = make_problem(2, 1, links=dict.fromkeys(pairs, (latency, occupancy)))
    with rank_processes(2, tmp_path_factory.mktemp("delays")) as ranks:
        for late_s, hosts in ((0.0, False), (0.05, False), (0.0, True)):
            found = ranks.run(watched_runs.exchange, problem, pairs, count, late_s, hosts)
            for source, destination in pairs:
                sent, taken = found[source][source, destination], found[destination][source, destination]
                assert [value for value, _ in taken] == [[float(at)] * 3 for at in range(count)]
                expected = arrivals_by_the_cost_model(sent, [occupancy] * count, latency)
                assert all(when >= arrival for (_, when), arrival in zip(taken, expected, strict=True))


def test_a_trunk_is_occupied_once_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two senders share one: no more messages are there, on either side, than it has let through. Between hosts it is refused."""
    count, occupancy = 5, 6 * MS
    pairs = [(0, 2), (1, 3)]
    problem = make_problem(
        4, 1, placement=[0, 2, 1, 3], links=dict.fromkeys(pairs, (0, occupancy)), trunks=dict.fromkeys(pairs, "sea")
    )
    with rank_processes(4, tmp_path_factory.mktemp("trunk")) as ranks:
        found = ranks.run(watched_runs.exchange, problem, pairs, count)
        refused = ranks.run(watched_runs.exchange, problem, pairs, count, 0.0, True)
    begun_ns = min(found[source][source, destination][0] for source, destination in pairs)
    taken = sorted(when for source, destination in pairs for _, when in found[destination][source, destination])
    assert len(taken) == 2 * count
    assert all(when >= begun_ns + (place + 1) * occupancy for place, when in enumerate(taken))
    for said in refused:
        assert said.startswith("Unsupported: ranks 0 and 1 share the trunk 'sea', but not a host")


@pytest.mark.slow
def test_training_meets_the_plans_links(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A step takes at least the way there and back; gradients are what they are without delays. All ranks want it, or none."""
    latency, occupancy = 15 * MS, 2 * MS
    pairs = [pair for a, b in pairwise(range(3)) for pair in ((a, b), (b, a))]
    problem = make_problem(3, 4, links=dict.fromkeys(pairs, (latency, occupancy)), trunks={(0, 1): "up", (1, 2): "up"})
    plan = plan_of(problem, constructive("zb-h1")(problem))
    with rank_processes(3, tmp_path_factory.mktemp("training")) as ranks:
        delayed = ranks.run(watched_runs.train_delayed, plan, [True] * 3)
        free = ranks.run(watched_runs.train_delayed, plan, [False] * 3)
        refused = ranks.run(watched_runs.train_delayed, plan, [True, True, False])
    assert delayed[0][0] >= 4 * (latency + occupancy)
    assert [gradients for _, gradients in delayed] == [gradients for _, gradients in free]
    for said in refused:
        assert said == "InvalidInput: ranks 0 and 2 load with and without wrap; give all ranks the same"
    later = LinkTrace.of([(0, (0, 1), LinkState(latency_ns=4 * latency))])
    with rank_processes(3, tmp_path_factory.mktemp("traced")) as ranks:
        traced = ranks.run(watched_runs.train_delayed, plan, [True] * 3, later)
    assert traced[0][0] >= 5 * latency + 2 * latency
    assert [gradients for _, gradients in traced] == [gradients for _, gradients in free]
