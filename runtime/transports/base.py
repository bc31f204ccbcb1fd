"""What every way of carrying tensors has in common: one end of one wire, whose sends and receives block nothing.

A wire carries tensors one way, from one rank to one other. Its two ends start the same transfers, those of one tag in the same
order; a tag comes again in every step.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from schedc.runtime.common.failure import NoAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.header import TensorMeta
    from schedc.runtime.common.program import Wire

T = TypeVar("T")


class Outgoing(Protocol):
    """A tensor on its way out. Its memory must stay as it is until `wait` has returned."""

    def wait(self, timeout_s: float) -> object:
        """Return when the tensor's memory may be used again, by what the caller computes next. What it gives says nothing.

        Raises:
            ConnectionLost: the peer is gone.
            NoAnswer: it has not taken it in time.
        """


class Both:
    """Two of them, such as a tensor and what is sent beside it."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Outgoing, second: Outgoing) -> None:
        """Take both."""
        self._first = first
        self._second = second

    def wait(self, timeout_s: float) -> None:
        """As `Outgoing.wait`."""
        self._first.wait(timeout_s)
        self._second.wait(timeout_s)


class Incoming(Protocol):
    """A tensor expected."""

    def wait(self, timeout_s: float) -> torch.Tensor:
        """The tensor, once it may be read by what the caller computes next; called once.

        Raises:
            ConnectionLost: the peer is gone.
            NoAnswer: it has not come in time.
        """


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


class Pending(Generic[T]):
    """What a helper thread waits for in place of who asked."""

    def __init__(self) -> None:
        """It has not ended yet."""
        self._done = threading.Event()
        self._found: list[T] = []
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    def finish(self, *found: T, error: Exception | None = None) -> None:
        """It has ended: what came, if anything, or why nothing does."""
        self._found = [*found]
        self.error = error
        self._done.set()

    def result(self, timeout_s: float) -> T:
        """What came, which is not held any longer.

        Raises:
            NoAnswer: it has not ended in time.
            Exception: what was found instead.
        """
        if not self._done.wait(timeout_s):
            raise NoAnswer(f"nothing came in {timeout_s:g} s")
        if self.error is not None:
            raise self.error
        return self._found.pop()


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
