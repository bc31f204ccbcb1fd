"""Between the stages' memory and the host's, for what is sent from the host: bytes on their way out, bytes that have landed.

Stages on the CPU need no copies. Those on a GPU have one each way, on streams of their own, through pinned buffers. PyTorch's
allocator of pinned memory is the pool: it gives a buffer out again once nobody holds it and the copies that use it have passed, and
so never holds more than were in use at once (each rounded up to a power of two).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from schedc.runtime.common.header import TensorMeta
    from schedc.runtime.transports.streams import Mark, Side


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


class Landed(NamedTuple):
    """A tensor that has come."""

    value: torch.Tensor
    ready: Mark | None
    """When it is all there; None: now."""


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

    def land(self, arrived: torch.Tensor, kind: TensorMeta) -> Landed:
        """Begin to bring bytes that have come to the device."""
        return Landed(arrived.view(kind.dtype).reshape(kind.shape), None)

    def hand_over(self, landed: Landed) -> torch.Tensor:
        """The tensor, for what is computed from now on."""
        return landed.value


class DeviceStaging(HostStaging):
    """For stages on a GPU: copies on a stream of the wire's own, so that neither waits for the compute but for what it sends."""

    def __init__(self, side: Side) -> None:
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

    def land(self, arrived: torch.Tensor, kind: TensorMeta) -> Landed:
        """As `HostStaging.land`."""
        value = self._side.empty(kind)
        with self._side.use():
            as_bytes(value).copy_(arrived, non_blocking=True)
        return Landed(value, self._side.mark())

    def hand_over(self, landed: Landed) -> torch.Tensor:
        """As `HostStaging.hand_over`."""
        assert landed.ready is not None
        self._side.precede_compute(landed.ready)
        self._side.lend(landed.value)
        return landed.value
