"""Delays between GPUs: when stamps are made, and on a GPU, that nothing is computed from a message before its time."""

from __future__ import annotations

import threading
from time import perf_counter_ns
from typing import Any

import pytest
import torch

from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.common.failure import ConnectionLost, NoAnswer
from schedc.runtime.emulation.delayed import SpunTransport, StampedTransport, cycles_per_ns, spin
from schedc.runtime.emulation.delays import OwnLink, WireDelay
from schedc.runtime.execution.channels import TAGS
from schedc.runtime.transports.base import Ends

MS = 1_000_000
KIND = TensorMeta(torch.float32, (1,))
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Sent:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.tags: list[int] = []
        self.values: list[torch.Tensor] = []

    def send(self, tensor: torch.Tensor, tag: int) -> Any:
        self.tags.append(tag)
        self.values.append(tensor.clone())
        return self

    def wait(self, timeout_s: float) -> None:
        pass

    def receive(self, kind: TensorMeta, tag: int) -> Any:
        raise NotImplementedError


class Computed:
    """A mark that the device passes on request."""

    def __init__(self, error: Exception | None = None) -> None:
        self.passed = threading.Event()
        self.error = error

    def query(self) -> bool:
        return self.passed.is_set()

    def synchronize(self) -> None:
        assert self.passed.wait(60)
        if self.error is not None:
            raise self.error


def test_a_stamp_is_made_when_the_device_has_computed_the_message() -> None:
    """The message goes at once; its time counts from the mark, and transfers keep their order."""
    data, control = Sent(), Sent()
    marks = [Computed(), Computed()]
    left = iter(marks)
    delay = WireDelay(latency_ns=7 * MS, occupancy_ns=(10**9 * MS, 3 * MS))  # the link is never free in between
    end = StampedTransport(Ends(data, control), delay, OwnLink(), record=lambda: next(left))
    outgoing = [end.send(torch.zeros(1), at * TAGS) for at in range(2)]
    assert len(data.tags) == 2
    marks[1].passed.set()
    with pytest.raises(NoAnswer):
        outgoing[1].wait(0.01)
    assert control.tags == []
    passed_ns = perf_counter_ns()
    marks[0].passed.set()
    for sent in outgoing:
        sent.wait(60)
    first_ns, second_ns = (int(stamp) for stamp in control.values)
    assert first_ns >= passed_ns + (10**9 + 7) * MS
    assert second_ns == first_ns + 3 * MS
    assert set(control.tags).isdisjoint(data.tags)


@pytest.mark.parametrize("error", [torch.AcceleratorError("CUDA error"), ConnectionLost("the cable is cut")])
def test_what_the_stamps_thread_finds_is_told(error: RuntimeError) -> None:
    """As what it is: a failure of this rank's device is no lost connection."""
    mark = Computed(error)
    mark.passed.set()
    delay = WireDelay(latency_ns=0, occupancy_ns=(0,))
    end = StampedTransport(Ends(Sent(), Sent()), delay, OwnLink(), record=lambda: mark)
    with pytest.raises(type(error), match=str(error)):
        end.send(torch.zeros(1), 0).wait(60)


def test_a_stamps_wait_ends_with_its_time_limit() -> None:
    """What its making has taken is not waited for again, and a stamp that never is made is no answer."""
    limits: list[float] = []

    class Taken(Sent):
        def wait(self, timeout_s: float) -> None:
            limits.append(timeout_s)

    marks = [Computed(), Computed()]
    marks[0].passed.set()
    left = iter(marks)
    delay = WireDelay(latency_ns=0, occupancy_ns=(0, 0))
    end = StampedTransport(Ends(Sent(), Taken()), delay, OwnLink(), record=lambda: next(left))
    made, never = (end.send(torch.zeros(1), at * TAGS) for at in range(2))
    made.wait(60)
    with pytest.raises(NoAnswer):
        never.wait(0.01)
    assert len(limits) == 1
    assert 0 < limits[0] < 60
    marks[1].passed.set()  # its thread ends


class Received:
    """A receive that the device has done when its mark says so."""

    def __init__(self, mark: Any) -> None:
        self.mark = mark

    def wait(self, timeout_s: float) -> torch.Tensor:
        torch.cuda.current_stream().wait_event(self.mark)
        return torch.zeros(1, device="cuda")


class Receiving:
    """Messages that all come when a stream has spun for a while."""

    def __init__(self, stream: Any, spun_ns: int, rate: float) -> None:
        self.stream = stream
        self.spun_ns = spun_ns
        self.rate = rate

    def send(self, tensor: torch.Tensor, tag: int) -> Any:
        raise NotImplementedError

    def receive(self, kind: TensorMeta, tag: int) -> Received:
        spin(self.stream, self.spun_ns, self.rate)
        return Received(self.stream.record_event())


@needs_gpu
def test_spinning_takes_as_long_as_asked() -> None:
    device = torch.device("cuda")
    rate = cycles_per_ns(device)
    make: Any = torch.cuda.Event
    for asked_ns in (2 * MS, 20 * MS):
        begin, end = make(enable_timing=True), make(enable_timing=True)
        begin.record()
        spin(torch.cuda.current_stream(), asked_ns, rate)
        end.record()
        end.synchronize()
        assert begin.elapsed_time(end) * 1e6 >= 0.9 * asked_ns


@needs_gpu
def test_nothing_is_computed_from_a_message_before_its_time() -> None:
    """`max(come, link free) + occupancy + latency`, on the device's clock; the latency that has passed is not added again."""
    device = torch.device("cuda")
    rate = cycles_per_ns(device)
    make: Any = torch.cuda.Event
    streams: Any = torch.cuda.Stream
    come_ns, occupancy_ns, latency_ns = 5 * MS, 10 * MS, 20 * MS
    delay = WireDelay(latency_ns=latency_ns, occupancy_ns=(occupancy_ns,) * 3)
    receiving: Any = Receiving(streams(device), come_ns, rate)
    end = SpunTransport(receiving, delay, device, rate)
    torch.cuda.synchronize()
    begin = make(enable_timing=True)
    begin.record()
    expected = [end.receive(KIND, at * TAGS) for at in range(3)]
    for at, incoming in enumerate(expected):
        incoming.wait(60)
        now = make(enable_timing=True)
        now.record()
        now.synchronize()
        assert begin.elapsed_time(now) * 1e6 >= 0.95 * (come_ns + (at + 1) * occupancy_ns + latency_ns)
