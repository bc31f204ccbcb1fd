"""A CUDA stream beside the compute's, with what orders the two, and the way of tensors between the stages' memory and the host's.

Events alone order the streams, so that neither the host nor the device ever waits. What transports need of CUDA is here and nowhere
else, so that their logic also runs where no GPU is: with another class that has these methods.

Stages on the CPU need no copies to be sent from the host. Those on a GPU have one each way, on streams of their own, through pinned
buffers. PyTorch's allocator of pinned memory is the pool: it gives a buffer out again once nobody holds it and the copies that use
it have passed, and so never holds more than were in use at once (each rounded up to a power of two).
"""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import torch

from schedc.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from schedc.runtime.common.boundary import TensorMeta

_COMPUTE: dict[torch.device, torch.cuda.Stream] = {}
"""The stream of the compute on each GPU, as last seen in the thread of the steps; helper threads send again what it computed."""


STREAMS = 32
"""PyTorch has this many for a GPU, and then gives the first ones again."""
_IN_USE: WeakValueDictionary[tuple[torch.device, int], CudaSide] = WeakValueDictionary()
"""The owner of each stream: two wires on one would wait for each other."""


class Mark(Protocol):
    """A point in a stream's work; `torch.cuda.Event` is one."""

    def query(self) -> bool:
        """Whether the device has come so far."""

    def synchronize(self) -> None:
        """Block this thread until it has."""


class CudaSide:
    """A stream of a GPU beside the compute's, which is the one that is current in the thread of the steps."""

    def __init__(self, device: torch.device) -> None:
        """Take a stream of this GPU.

        Raises:
            Unsupported: all are in use.
        """
        self._device = device
        self._thread = threading.get_ident()
        compute = self._compute()
        make: Any = torch.cuda.Stream  # PyTorch has no types for it
        for _ in range(STREAMS):
            self._stream = make(device)
            key = device, self._stream.cuda_stream
            if key not in _IN_USE and self._stream != compute:
                _IN_USE[key] = self
                return
        raise Unsupported(f"{device}: more than {STREAMS} wires, or other users of streams; expected a stream for each wire")

    def use(self) -> AbstractContextManager[object]:
        """Device work in this context goes to this stream."""
        context: AbstractContextManager[object] = torch.cuda.stream(self._stream)
        return context

    def follow_compute(self) -> None:
        """What goes to this stream from now on waits for the compute so far."""
        self._stream.wait_stream(self._compute())

    def mark(self) -> Mark:
        """A mark after all that this stream has got so far."""
        mark: Mark = self._stream.record_event()
        return mark

    def precede_compute(self, mark: Mark) -> None:
        """What is computed from now on waits for a mark of this stream."""
        assert isinstance(mark, torch.cuda.Event)
        self._compute().wait_event(mark)

    def mark_compute(self) -> Mark:
        """A mark after all that the compute has got so far."""
        mark: Mark = self._compute().record_event()
        return mark

    def empty(self, kind: TensorMeta) -> torch.Tensor:
        """Memory on the device for this stream to write, though the compute may still be far behind.

        The allocator keeps the memory of each stream apart: this one's is never of the compute's.
        """
        with self.use():
            return torch.empty(kind.shape, dtype=kind.dtype, device=self._device)

    def lend(self, tensor: torch.Tensor) -> None:
        """The compute uses memory of `empty` from now on, until it has let go of it."""
        tensor.record_stream(self._compute())

    def _compute(self) -> torch.cuda.Stream:
        """The compute's stream: where this was made, the current one, which each thread has its own of."""
        if threading.get_ident() == self._thread:
            _COMPUTE[self._device] = torch.cuda.current_stream(self._device)
        return _COMPUTE[self._device]

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Host memory that the device can read and write while the host goes on: bytes."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)


def copy_to_host(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Event]:
    """A copy of a device's tensor, and the event after which it is complete.

    Both go to what is now the current stream of the tensor's device, which need not be the current device.
    """
    copy = tensor.to("cpu", non_blocking=True)
    event = torch.Event(tensor.device)
    event.record(torch.accelerator.current_stream(tensor.device))
    return copy, event


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor, as bytes."""
    return tensor.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


def nbytes_of(kind: TensorMeta) -> int:
    """How many bytes a tensor of a kind has."""
    return math.prod(kind.shape) * kind.dtype.itemsize


class Parcel(NamedTuple):
    """Bytes on their way out."""

    bytes: torch.Tensor
    ready: Mark | None
    """When they are all there; None: now."""
    source: torch.Tensor
    """What they are of, kept alive until it has been read."""


class HostStaging:
    """For stages on the CPU: bytes are sent from the tensors' memory, and received into that of new ones.

    One end of one wire; its threads may call it as well.
    """

    def leave(self, tensor: torch.Tensor) -> Parcel:
        """Begin to bring a tensor's bytes to the host, behind the compute so far."""
        return Parcel(as_bytes(tensor), None, tensor)

    def landing(self, nbytes: int) -> torch.Tensor:
        """Host memory for bytes to come."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def land(self, arrived: torch.Tensor, kind: TensorMeta) -> Callable[[], torch.Tensor]:
        """Begin to bring bytes that have come to the device; what hands the tensor over to what is computed from then on."""
        return partial(arrived.view(kind.dtype).reshape, kind.shape)


class DeviceStaging(HostStaging):
    """For stages on a GPU: copies on a stream of the wire's own, so that neither waits for the compute but for what it sends."""

    def __init__(self, side: CudaSide) -> None:
        """Take the stream of the wire's copies."""
        self._side = side

    def leave(self, tensor: torch.Tensor) -> Parcel:
        """As `HostStaging.leave`."""
        source = as_bytes(tensor)
        buffer = self._side.pinned(source.numel())
        self._side.follow_compute()
        with self._side.use():
            buffer.copy_(source, non_blocking=True)
        return Parcel(buffer, self._side.mark(), source)

    def landing(self, nbytes: int) -> torch.Tensor:
        """As `HostStaging.landing`."""
        return self._side.pinned(nbytes)

    def land(self, arrived: torch.Tensor, kind: TensorMeta) -> Callable[[], torch.Tensor]:
        """As `HostStaging.land`."""
        value = self._side.empty(kind)
        with self._side.use():
            as_bytes(value).copy_(arrived, non_blocking=True)
        ready = self._side.mark()

        def hand_over() -> torch.Tensor:
            self._side.precede_compute(ready)
            self._side.lend(value)
            return value

        return hand_over
