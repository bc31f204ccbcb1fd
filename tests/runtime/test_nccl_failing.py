"""A communicator of NCCL's that fails, on the fake device: both ranks run their ops to the end, and know that it has failed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from runs.fake_device import FakeDevice, FakeLane, FakeNccl, FakeSide
from suite.example_counts import examples

from schedc.ir.ops import Kind, Op
from schedc.runtime.common.boundary import BoundaryMeta, TensorMeta
from schedc.runtime.common.failure import ConnectionLost
from schedc.runtime.common.program import Message, Wire
from schedc.runtime.execution.channels import Receiver, Sender
from schedc.runtime.transports.base import Ends
from schedc.runtime.transports.gloo import hang_up
from schedc.runtime.transports.nccl import NcclTransport, end_with_peer

WAIT_S = 100.0
KIND = TensorMeta(torch.float32, (3,))
COUNT = 6
WIRE = Wire(
    source=0,
    destination=1,
    name="send_next",
    receiver_name="recv_prev",
    transfers=tuple(Op(Kind.F, 0, number) for number in range(COUNT)),
    messages=tuple(Message(False, 0, 1, number, 0) for number in range(COUNT)),
)


class Job:
    """Two ranks, each with a device and a thread, and a wire between them."""

    def __init__(self, kind: TensorMeta = KIND) -> None:
        self.kind = kind
        self.devices = FakeDevice(), FakeDevice()
        self.groups: list[Any] = list(FakeNccl.pair(*self.devices))
        self.lines: list[Any] = list(FakeLane.pair())
        self.transports = [NcclTransport(group, FakeSide(group.device)) for group in self.groups]
        for transport, line in zip(self.transports, self.lines, strict=True):
            end_with_peer(transport, line, "wire")
        self.found: list[list[str]] = [[], []]
        self.seen: list[Any] = []
        self.errors: list[BaseException] = []

    def failing(self, rank: int, error: Exception) -> None:
        """What the wiring does: note it, and give the wire up."""
        if not self.found[rank]:
            self.found[rank].append(str(error))
            hang_up(self.lines[rank])
            self.transports[rank].close()

    def ends(self, rank: int) -> Ends:
        end: Any = self.transports[rank]
        return Ends(end, end)

    def settle(self, rank: int) -> None:
        if not self.found[rank]:
            try:
                self.transports[rank].settle(WAIT_S)
            except ConnectionLost as error:
                self.failing(rank, error)

    def send(self, fails_before: int | None) -> None:
        sender = Sender(WIRE, self.ends(0), BoundaryMeta({(0, 0): (self.kind,)}), WAIT_S, lambda _, error: self.failing(0, error))
        for number in range(COUNT):
            if number == fails_before:
                self.fail(0)
            sender.send(number, (self.devices[0].computed(number + 1.0, self.kind),))
        self.settle(0)
        sender.flush()

    def receive(self, fails_before: int | None, ahead: int) -> None:
        receiver = Receiver(
            WIRE, self.ends(1), BoundaryMeta({(0, 0): (self.kind,)}), WAIT_S, lambda _, error: self.failing(1, error)
        )
        receiver.begin()
        for number in range(COUNT):
            receiver.post(min(number + ahead, COUNT) - 1)
            if number == fails_before:
                self.fail(1)
            (value,) = receiver.take(number, Op(Kind.F, 1, number))
            assert value is not None
            address = self.devices[1].memory.address(value).view(self.kind.dtype)
            self.devices[1].compute.put(lambda address=address: self.seen.append(address.tolist()))  # type: ignore[misc]
            del value
        self.settle(1)
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
        for rank in range(2):
            hang_up(self.lines[rank])
            self.transports[rank].close()
            self.transports[rank].ended(WAIT_S)
        for device in self.devices:
            device.end()

    def _try(self, rank: int, work: Any) -> None:
        try:
            work()
        except BaseException as error:  # for the test's thread; the pipe would close its ends, too
            self.errors.append(error)
            hang_up(self.lines[rank])
            self.transports[rank].close()


@examples(15, deadline=None)
@given(culprit=st.sampled_from([0, 1, None]), at=st.integers(0, COUNT - 1), ahead=st.integers(1, COUNT))
def test_a_communicator_that_fails(culprit: int | None, at: int, ahead: int) -> None:
    """On either end, before any transfer: both ranks end their step without an error, and each knows that it does not count."""
    job = Job()
    job.run(
        lambda: job.send(at if culprit == 0 else None),
        lambda: job.receive(at if culprit == 1 else None, ahead),
    )
    assert job.errors == []
    if culprit is None:
        assert job.found == [[], []]
        assert job.seen == [[number + 1.0] * 3 for number in range(COUNT)]
    else:
        assert job.found[culprit] and len(job.seen) == COUNT


@pytest.mark.parametrize("at", [0, COUNT // 2])
def test_indices_that_do_not_come_are_zeros(at: int) -> None:
    """What lies in memory by chance would be out of bounds: a device-side assert ends the process's CUDA context."""
    job = Job(TensorMeta(torch.int64, (3,)))
    job.run(lambda: job.send(None), lambda: job.receive(at, COUNT))
    assert job.errors == [] and job.found[1] and len(job.seen) == COUNT
    for number, seen in enumerate(job.seen):
        assert seen in ([0] * 3, [number + 1] * 3)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_device_that_is_broken_is_no_channel_that_fails(rank: int) -> None:
    """Any channel would meet the same error: it is raised as what it is."""
    job = Job()

    def broken(*_: Any) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    job.groups[rank].send = job.groups[rank].recv = broken
    job.run(lambda: job.send(None), lambda: job.receive(None, 1))
    assert [type(error).__name__ for error in job.errors if "device-side" in str(error)] == ["AcceleratorError"]
    assert not job.found[rank]
