"""An observer of a rank on a GPU is called with the same as on a CPU, at the times at which the device did it."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import pytest
import torch

from schedc.ir.ops import Kind, Op
from schedc.runtime.common.hooks import Observer, OpTimes
from schedc.runtime.measure.device_clock import CudaEvents, DeviceClock

if TYPE_CHECKING:
    from schedc.runtime.measure.device_clock import Events

FIRST, SECOND = Op(Kind.F, 0, 0), Op(Kind.F, 0, 1)


class Heard(Observer):
    """Writes down its calls."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def begin_step(self, step: int, now_ns: int) -> None:
        self.said.append(("begin", step))

    def op(self, times: OpTimes) -> None:
        self.said.append(("op", *times))

    def sent(self, transfer: Op, peer: int, now_ns: int) -> None:
        self.said.append(("sent", transfer, peer, now_ns))

    def taken(self, transfer: Op, peer: int, now_ns: int) -> None:
        self.said.append(("taken", transfer, peer, now_ns))

    def end_step(self, step: int, now_ns: int) -> None:
        self.said.append(("end", step, now_ns))


class Script(Observer):
    """Events whose times are given beforehand, in nanoseconds from any zero; what comes after them is when the device is done."""

    def __init__(self, times_ns: list[int]) -> None:
        self.times_ns = times_ns
        self.recorded: list[int] = []
        self.waited: list[int] = []

    def record(self, number: int) -> None:
        self.recorded.append(number)

    def synchronize(self, number: int) -> None:
        self.waited.append(number)

    def between_ns(self, first: int, second: int) -> int:
        return self.times_ns[second] - self.times_ns[first]


def step(clock: DeviceClock, number: int) -> None:
    """Two ops, as the executor does them: the first sends, the second has taken."""
    clock.begin_step(number, perf_counter_ns())
    asked = clock.now()
    begun, ended = clock.now(), clock.now()
    clock.sent(FIRST, 1, clock.now())
    clock.op(OpTimes(FIRST, asked, begun, ended))
    clock.taken(SECOND, 2, clock.now())
    begun, asked, ended = clock.now(), ended, clock.now()
    clock.op(OpTimes(SECOND, asked, begun, ended))
    clock.end_step(number, perf_counter_ns())


def test_what_is_heard() -> None:
    heard = Heard()
    events: Events = Script([1000, 1500, 3500, 3600, 9000, 9100, 9900, 10_000])
    clock = DeviceClock(heard, events)
    for number in range(2):
        before_ns = perf_counter_ns()
        step(clock, number)
        after_ns = perf_counter_ns()
        begin, sent, first, taken, second, end = heard.said
        assert begin == ("begin", number)
        zero_ns = first[2] - 1000
        assert before_ns <= zero_ns + 10_000 <= after_ns, "the last event passes when it is recorded"
        assert first == ("op", FIRST, zero_ns + 1000, zero_ns + 1500, zero_ns + 3500)
        assert sent == ("sent", FIRST, 1, zero_ns + 3600)
        assert taken == ("taken", SECOND, 2, zero_ns + 9000)
        assert second == ("op", SECOND, zero_ns + 3500, zero_ns + 9100, zero_ns + 9900)
        assert end[:2] == ("end", number) and zero_ns + 9900 <= end[2] <= after_ns
        heard.said.clear()


def test_events_are_used_again_and_a_failed_step_is_forgotten() -> None:
    heard = Heard()
    script = Script(list(range(0, 900, 100)))
    clock = DeviceClock(heard, script)
    clock.begin_step(0, 0)
    clock.op(OpTimes(FIRST, clock.now(), clock.now(), clock.now()))
    step(clock, 1)
    assert [said[0] for said in heard.said] == ["begin", "begin", "sent", "op", "taken", "op", "end"]
    assert script.recorded == [0, 1, 2, *range(8)]
    assert script.waited == [6, 7], "the device has come to all before it is read"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_times_on_a_gpu() -> None:
    """An op of the device takes longer than its launch, and ops follow each other in the order of the stream."""
    device = torch.device("cuda", 0)
    heard = Heard()
    clock = DeviceClock(heard, CudaEvents(device))
    left = torch.randn(8192, 8192, device=device)
    for number in range(2):
        heard.said.clear()
        before_ns = perf_counter_ns()
        clock.begin_step(number, before_ns)
        asked = clock.now()
        for op in (FIRST, SECOND):
            begun = clock.now()
            left @ left
            ended = clock.now()
            clock.op(OpTimes(op, asked, begun, ended))
            asked = ended
        launched_ns = perf_counter_ns()
        clock.end_step(number, launched_ns)
    _, first, second, end = heard.said
    assert before_ns - 1_000_000 <= first[2] <= first[3] < first[4] <= second[3] < second[4] <= end[2]
    assert second[4] - first[3] > 1_000_000
