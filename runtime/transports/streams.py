"""A CUDA stream beside the compute's, with what orders the two: events only, so that neither the host nor the device ever waits.

What transports need of CUDA is here and nowhere else. `Side` says what it is, so that their logic also runs where no GPU is.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from schedc.runtime.common.header import TensorMeta

_COMPUTE: dict[torch.device, torch.cuda.Stream] = {}
"""The stream of the compute on each GPU, as last seen in the thread of the steps; helper threads send again what it computed."""


class Mark(Protocol):
    """A point in a stream's work; `torch.cuda.Event` is one."""

    def query(self) -> bool:
        """Whether the device has come so far."""

    def synchronize(self) -> None:
        """Block this thread until it has."""


class Side(Protocol):
    """A stream beside the compute's. The compute's is the one that is current in the thread of the steps."""

    def use(self) -> AbstractContextManager[object]:
        """Device work in this context goes to this stream."""

    def follow_compute(self) -> None:
        """What goes to this stream from now on waits for the compute so far."""

    def mark(self) -> Mark:
        """A mark after all that this stream has got so far."""

    def precede_compute(self, mark: Mark) -> None:
        """What is computed from now on waits for a mark of this stream."""

    def mark_compute(self) -> Mark:
        """A mark after all that the compute has got so far."""

    def empty(self, kind: TensorMeta) -> torch.Tensor:
        """Memory on the device for this stream to write, though the compute may still be far behind."""

    def lend(self, tensor: torch.Tensor) -> None:
        """The compute uses memory of `empty` from now on, until it has let go of it."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Host memory that the device can read and write while the host goes on: bytes."""


class CudaSide:
    """A stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        """Make a stream of this GPU."""
        self._device = device
        make: Any = torch.cuda.Stream  # PyTorch has no types for it
        self._stream = make(device)
        self._thread = threading.get_ident()
        self._compute()

    def use(self) -> AbstractContextManager[object]:
        """As `Side.use`."""
        context: AbstractContextManager[object] = torch.cuda.stream(self._stream)
        return context

    def follow_compute(self) -> None:
        """As `Side.follow_compute`."""
        self._stream.wait_stream(self._compute())

    def mark(self) -> Mark:
        """As `Side.mark`."""
        mark: Mark = self._stream.record_event()
        return mark

    def precede_compute(self, mark: Mark) -> None:
        """As `Side.precede_compute`."""
        assert isinstance(mark, torch.cuda.Event)
        self._compute().wait_event(mark)

    def mark_compute(self) -> Mark:
        """As `Side.mark_compute`."""
        mark: Mark = self._compute().record_event()
        return mark

    def empty(self, kind: TensorMeta) -> torch.Tensor:
        """As `Side.empty`. The allocator keeps the memory of each stream apart: this one's is never of the compute's."""
        with self.use():
            return torch.empty(kind.shape, dtype=kind.dtype, device=self._device)

    def lend(self, tensor: torch.Tensor) -> None:
        """As `Side.lend`."""
        tensor.record_stream(self._compute())

    def _compute(self) -> torch.cuda.Stream:
        """The compute's stream: where this was made, the current one, which each thread has its own of."""
        if threading.get_ident() == self._thread:
            _COMPUTE[self._device] = torch.cuda.current_stream(self._device)
        return _COMPUTE[self._device]

    def pinned(self, nbytes: int) -> torch.Tensor:
        """As `Side.pinned`."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)


def copy_to_host(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Event]:
    """A copy of a device's tensor, and the event after which it is complete.

    Both go to what is now the current stream of the tensor's device, which need not be the current device.
    """
    copy = tensor.to("cpu", non_blocking=True)
    event = torch.Event(tensor.device)
    event.record(torch.accelerator.current_stream(tensor.device))
    return copy, event
