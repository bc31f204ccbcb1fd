"""What every way of carrying tensors has in common: one end of one wire, whose sends and receives block nothing.

A wire carries tensors one way, from one rank to one other. Its two ends start the same transfers, those of one tag in the same
order; a tag comes again in every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from schedc.runtime.common.boundary import TensorMeta
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Wire
    from schedc.runtime.transports.streams import Mark

QUEUES = 2
"""How many tensors of a wire the delegate has under way at once, unless `load` is given another number. Two: a queue's tag and its
tensor take two trips, and the next queue's tensor travels meanwhile."""


class Outgoing(Protocol):
    """A tensor on its way out. Its memory must stay as it is until `wait` has returned."""

    def wait(self, timeout_s: float) -> object:
        """Return when the tensor's memory may be used again, by what the caller computes next. What it gives says nothing.

        Raises:
            ConnectionLost: the peer is gone.
            NoAnswer: it has not taken it in time.
        """


class Incoming(Protocol):
    """A tensor expected."""

    def wait(self, timeout_s: float) -> torch.Tensor:
        """The tensor, once it may be read by what the caller computes next.

        Raises:
            ConnectionLost: the peer is gone.
            NoAnswer: it has not come in time.
        """


class UnderWay(NamedTuple):
    """An outgoing or incoming tensor of most ways: the function that waits for it, which keeps alive what it needs."""

    wait: Callable[[float], Any]
    mark: Mark | None = None
    """The point of a stream of the device at which it is through, where it is device work."""


def both(first: Outgoing, second: Outgoing) -> UnderWay:
    """Two of them as one, such as a tensor and what is sent beside it."""
    return UnderWay(lambda timeout_s: (first.wait(timeout_s), second.wait(timeout_s)))


class Transport(Protocol):
    """One end of one wire. An end that only sends or only receives is enough where nothing goes the other way."""

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        """Start to send a contiguous tensor, and return at once.

        Raises:
            ConnectionLost: the peer is gone.
        """

    def receive(self, kind: TensorMeta, tag: int) -> Incoming:
        """Start to receive a tensor of this kind, and return at once.

        Raises:
            ConnectionLost: the peer is gone.
        """


def _nothing(*_: object) -> None:
    """Nothing ends here that does not end with the pipe's groups."""


class Ends(NamedTuple):
    """What a wire has on one rank. Who wraps a transport replaces it (`ends._replace(data=...)`) and leaves the rest."""

    data: Transport
    """Carries the tensors, on the device of the stages."""
    control: Transport
    """Carries what the ranks tell each other, in the host's memory; may be the same."""
    settle: Callable[[float], None] | None = None
    """Called after a step's last op with a limit in seconds: returns when all transfers are through on the device, too. Raises as
    `wait` does. None: all are through that have been waited for."""
    give_up: Callable[[], None] = _nothing
    """Ends what carries the tensors, as it has failed: what is under way on either end fails. Doing it again does nothing."""
    close: Callable[[], None] = _nothing
    """Ends what runs for the wire, or begins to; what is under way on either end fails. Closing again does nothing."""
    ended: Callable[[float], None] = _nothing
    """Called after `close` with a limit in seconds: returns when all that `close` has begun is over. Wires of one rank may end only
    together: all are closed first."""
    in_order: bool = False
    """Whether what wraps `data` waits for one receive after the other, so that one holds back those behind it."""


Connect: TypeAlias = "Callable[[Wire, Groups], Ends]"
"""Makes the ends of one wire on one of its ranks; both of its ranks do this together."""


class P2PChannel(NamedTuple):
    """One way to connect a wire."""

    name: str
    """What a warning calls it."""
    connect: Connect


ChannelsOf: TypeAlias = "Callable[[int, int], Sequence[P2PChannel]]"
"""The ways to connect two ranks, (source, destination): the first to begin with, each other one when the one before has failed.
All ranks get the same answers."""


def only(connect: Connect) -> ChannelsOf:
    """One way for all wires."""
    channels = (P2PChannel("", connect),)
    return lambda source, destination: channels


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What one rank runs on."""

    device: str
    """`cpu`, or the GPU's name in its process: `cuda:0`."""
    gpu: str | None = None
    """The GPU's identity, the same in all processes; None for a CPU."""
    nccl: bool = False
    """Whether its PyTorch has NCCL."""
    serial: str | None = None
    """A setting with which the GPU begins one thing after another, so that a wire over NCCL may wait for itself."""
