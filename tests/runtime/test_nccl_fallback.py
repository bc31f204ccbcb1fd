"""NCCL with the delegate behind it, as `channels="auto"` has it between GPUs, on the fake device: one communicator fails."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import transport_runs
from fake_device import FakeDevice, FakeLane, FakeNccl, FakeSide
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import AcceleratorError, float32

from schedc.runtime.common.header import TensorKind
from schedc.runtime.transports.base import Ends
from schedc.runtime.transports.delegate import DelegateReceiver, DelegateSender
from schedc.runtime.transports.fallback import Fallback
from schedc.runtime.transports.nccl import NcclTransport
from schedc.runtime.transports.staging import DeviceStaging

WAIT_S = 20.0
KIND = TensorKind(float32, (3,))
COUNT = 6


class Lines:
    """What the groups of one rank give: the ends of lines that both ranks ask for in one order."""

    timeout_s = WAIT_S

    def __init__(self, rank: int, pairs: list[tuple[FakeLane, FakeLane]]) -> None:
        self.rank = rank
        self._lanes = iter([pair[rank] for pair in pairs])

    def make(self, ranks: Any) -> FakeLane:
        return next(self._lanes)


class Job:
    """Two ranks, each with a device and a thread."""

    def __init__(self) -> None:
        self.devices = FakeDevice(), FakeDevice()
        self.groups: list[Any] = list(FakeNccl.pair(*self.devices))
        self.firsts = [NcclTransport(group, FakeSide(group.device), confirm=True) for group in self.groups]
        self.seen: list[Any] = []
        self.errors: list[BaseException] = []
        self._ends: list[Any] = [None, None]
        self._pairs = [FakeLane.pair() for _ in range(2)]

    def connect(self, rank: int) -> Ends:
        def first(wire: Any, groups: Any) -> Ends:
            end: Any = self.firsts[rank]
            return Ends(end, end, settle=end.settle, close=end.close, ended=end.ended)

        def second(wire: Any, groups: Any) -> Ends:
            lanes: Any = [groups.make((0, 1))]
            staging = DeviceStaging(FakeSide(self.devices[rank]))
            end: Any = (DelegateReceiver if rank else DelegateSender)(lanes, staging, "wire")
            return Ends(end, end, close=end.close)

        groups: Any = Lines(rank, self._pairs)
        self._ends[rank] = ends = Fallback(first, second, names=("NCCL", "the delegate"))(transport_runs.WIRE, groups)
        return ends

    def send(self, fails_before: int | None) -> None:
        data = self.connect(0).data
        under_way = []
        for number in range(COUNT):
            if number == fails_before:
                self.fail(0)
            under_way.append(data.send(self.devices[0].computed(number + 1.0, KIND), number % 2))
        for outgoing in under_way:
            outgoing.wait(WAIT_S)
        under_way.clear()
        self._ends[0].settle(WAIT_S)

    def receive(self, fails_before: int | None, ahead: int) -> None:
        data = self.connect(1).data
        posted = [data.receive(KIND, number % 2) for number in range(ahead)]
        for number in range(COUNT):
            if number + ahead < COUNT:
                posted.append(data.receive(KIND, (number + ahead) % 2))
            if number == fails_before:
                self.fail(1)
            value = posted[number].wait(WAIT_S)
            address = self.devices[1].memory.address(value).view(float32)
            self.devices[1].compute.put(lambda address=address: self.seen.append(address.tolist()))  # type: ignore[misc]
            del value
        self._ends[1].settle(WAIT_S)
        self.devices[1].compute.mark().synchronize()

    def fail(self, rank: int) -> None:
        """NCCL finds an error: what is under way on this end ends without its data."""
        self.groups[rank].error = "remote process exited or there was a network error"
        self.groups[rank].aborted = True

    def run(self, *works: Any) -> None:
        threads = [threading.Thread(target=self._try, args=(rank, work)) for rank, work in enumerate(works)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * WAIT_S)
        for ends in self._ends:
            ends.close()
            ends.ended(WAIT_S)
        for device in self.devices:
            device.end()

    def _try(self, rank: int, work: Any) -> None:
        try:
            work()
        except BaseException as error:  # for the test's thread; the pipe would close its ends, too
            self.errors.append(error)
            self._ends[rank].close()


@settings(max_examples=15, deadline=None)
@given(culprit=st.sampled_from([0, 1, None]), at=st.integers(0, COUNT - 1), ahead=st.integers(1, COUNT))
def test_a_communicator_that_fails(culprit: int | None, at: int, ahead: int) -> None:
    """On either end, before any transfer: all are handed over once, in order, whole, and each rank that is concerned warns once."""
    job = Job()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        job.run(
            lambda: job.send(at if culprit == 0 else None),
            lambda: job.receive(at if culprit == 1 else None, ahead),
        )
    assert job.errors == []
    assert job.seen == [[number + 1.0] * 3 for number in range(COUNT)]
    said = [str(warning.message) for warning in told]
    assert all("NCCL failed (" in one and "; the delegate carries" in one for one in said)
    assert len(said) == (0 if culprit is None else 2)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_device_that_is_broken_is_no_channel_that_fails(rank: int) -> None:
    """The delegate would meet the same error: it is raised as what it is, and nobody falls back."""
    job = Job()

    def broken(*_: Any) -> None:
        raise AcceleratorError("CUDA error: device-side assert triggered")

    job.groups[rank].send = job.groups[rank].recv = broken
    job.run(lambda: job.send(None), lambda: job.receive(None, 1))
    assert [type(error).__name__ for error in job.errors if "device-side" in str(error)] == ["AcceleratorError"]
