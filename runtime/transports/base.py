"""What every way of carrying tensors has in common: one end of one wire, whose sends and receives block nothing.

A wire carries tensors one way, from one rank to one other. Its two ends start the same transfers in the same order, each with the
same tag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from schedc.runtime.header import TensorKind

__all__ = ["ConnectionLost", "Ends", "Incoming", "NoAnswer", "Outgoing", "Transport"]


class ConnectionLost(RuntimeError):
    """The peer has ended, or its end of the wire is closed."""


class NoAnswer(RuntimeError):
    """The peer has not done its part in time."""


class Outgoing(Protocol):
    """A tensor on its way out. Its memory must stay as it is until `wait` has returned."""

    def wait(self, timeout_s: float) -> None:
        """Return when the tensor's memory may be used again.

        Raises:
            ConnectionLost: the peer is gone.
            NoAnswer: it has not taken it in time.
        """


class Incoming(Protocol):
    """A tensor expected."""

    def wait(self, timeout_s: float) -> torch.Tensor:
        """The tensor, once it may be read by what the caller computes next; called once.

        Raises:
            ConnectionLost: the peer is gone.
            NoAnswer: it has not come in time.
        """


class Transport(Protocol):
    """One end of one wire."""

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        """Start to send a contiguous tensor, and return at once.

        Raises:
            ConnectionLost: the peer is gone.
        """

    def receive(self, kind: TensorKind, tag: int) -> Incoming:
        """Start to receive a tensor of this kind, and return at once.

        Raises:
            ConnectionLost: the peer is gone.
        """


class Ends(NamedTuple):
    """What a wire has on one rank."""

    data: Transport
    """Carries the tensors, on the device of the stages."""
    control: Transport
    """Carries what the ranks tell each other, in the host's memory; may be the same."""
