"""How long memory that is sent over NCCL is taken, on the fake device: until the device has read it, and no longer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from runs.fake_device import FakeDevice, FakeMemory, FakeNccl, FakeSide

from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.transports.nccl import NcclTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.runtime.transports.base import UnderWay

WAIT_S = 100.0
KIND = TensorMeta(torch.float32, (3,))
GONE = bytes([FakeMemory.POISON] * 12)
"""What is in memory that others may use."""


class Sending:
    """A rank that sends, and the device of its peer."""

    def __init__(self) -> None:
        self.devices = FakeDevice(), FakeDevice()
        groups: Any = FakeNccl.pair(*self.devices)
        self.side = FakeSide(self.devices[0])
        self.end = NcclTransport(groups[0], self.side)
        self.peer = NcclTransport(groups[1], FakeSide(self.devices[1]))
        self.reads = threading.Event()
        """The device reads nothing of what is sent before it is set."""
        self.side.stream.put(lambda: self.reads.wait(WAIT_S))

    def send(self, number: int) -> tuple[UnderWay, torch.Tensor]:
        """Send what is computed: what is under way, and the tensor's memory, whoever has it."""
        tensor = self.devices[0].computed(number + 1.0, KIND)
        return self.end.send(tensor, number), self.devices[0].memory.address(tensor)

    def held(self) -> int:
        """How many tensors the host holds."""
        return len(self.devices[0].memory._blocks)


@pytest.fixture
def sending() -> Iterator[Sending]:
    job = Sending()
    yield job
    job.reads.set()
    for end in (job.end, job.peer):
        end.close()
        end.ended(WAIT_S)
    for device in job.devices:
        device.end()


def test_it_is_free_behind_the_event_of_the_send(sending: Sending) -> None:
    """Let go of by the host at once, and by the device with the event: nobody else has it before, everybody has it then."""
    outgoing, memory = sending.send(0)
    sending.devices[0].compute.mark().synchronize()
    outgoing.wait(WAIT_S)
    del outgoing
    assert sending.held() == 0  # the host holds nothing: no work object, no transport
    assert memory.view(torch.float32).tolist() == [1.0] * 3
    behind = sending.devices[0].compute.mark()
    assert not behind.query()  # what is computed next waits for the event, and with it whoever gets the memory
    sending.reads.set()
    behind.synchronize()
    assert memory.numpy().tobytes() == GONE
    value = sending.peer.receive(KIND, 0).wait(WAIT_S)
    sending.devices[1].compute.mark().synchronize()
    assert value.tolist() == [1.0] * 3


def test_it_is_held_until_the_send_is_waited_for(sending: Sending) -> None:
    """Before that nothing orders the compute behind the read: though the device has computed all, the memory stays."""
    outgoing, memory = sending.send(0)
    sending.devices[0].compute.mark().synchronize()
    assert sending.held() == 1
    assert memory.view(torch.float32).tolist() == [1.0] * 3
    del outgoing
    sending.devices[0].compute.mark().synchronize()
    assert memory.numpy().tobytes() == GONE


def test_many_that_are_sent_do_not_add_up(sending: Sending) -> None:
    """Of a wire that never ends none is kept, neither by work objects nor as used by another stream."""
    sending.reads.set()
    for number in range(20):
        outgoing, _ = sending.send(number)
        outgoing.wait(WAIT_S)
        del outgoing
        assert sending.held() == 0
    assert sending.devices[0].lent == []
