"""Losses on a device that is not the current one: they are waited for where they are computed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from runs.fake_device import FakeDevice

from schedc.runtime.transports.streams import copy_to_host

if TYPE_CHECKING:
    import pytest
    from runs.fake_device import FakeMark, FakeStream

WAIT_S = 100.0


class OnDevice:
    """A tensor of the second device."""

    device = torch.device("cuda", 1)

    def __init__(self, value: torch.Tensor, device: FakeDevice) -> None:
        self.value, self._device = value, device

    def to(self, where: str, *, non_blocking: bool) -> torch.Tensor:
        assert (where, non_blocking) == ("cpu", True)
        copy = torch.zeros_like(self.value)
        self._device.current.put(lambda: copy.copy_(self.value))
        return copy


def test_the_event_is_on_the_stream_of_the_losses_device(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = FakeDevice(), FakeDevice()  # the first is the current one, and idle
    held = threading.Event()

    class Event:
        def __init__(self, device: torch.device) -> None:
            self.device = device
            self.mark: FakeMark | None = None

        def record(self, stream: FakeStream | None = None) -> None:
            self.mark = (devices[0].current if stream is None else stream).mark()

        def synchronize(self) -> None:
            assert self.mark is not None
            self.mark.synchronize()

    def current_stream(device: torch.device | None = None) -> FakeStream:
        return devices[0 if device is None or device.index is None else device.index].current

    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", current_stream)
    try:
        loss: Any = OnDevice(torch.zeros(3), devices[1])
        devices[1].compute.put(lambda: held.wait(WAIT_S))
        devices[1].compute.put(lambda: loss.value.fill_(2.0))  # the loss is computed when the device comes to it
        copy, event = copy_to_host(loss)
        devices[0].compute.mark().synchronize()
        assert torch.equal(copy, torch.zeros(3))
        threading.Timer(0.05, held.set).start()
        event.synchronize()
        assert torch.equal(copy, torch.full((3,), 2.0))
    finally:
        held.set()
        for device in devices:
            device.end()
