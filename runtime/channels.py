"""The ends of the plan's channels on one rank: sends that nobody waits for, receives posted early.

Each wire has a transport of its own, so no channel ever waits behind another (CrossPipe 6.3: four streams, {send, recv} x {next,
prev}). A transfer's tag is its place in the channel. A wait that fails says which op waited for what from whom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.ir.ops import token
from schedc.runtime.block import differentiable
from schedc.runtime.failure import TransferFailed, connection_lost, waiting_failed
from schedc.runtime.header import HEADER, TensorKind, decode, encode
from schedc.runtime.transports.base import ConnectionLost, NoAnswer

if TYPE_CHECKING:
    import torch

    from schedc.ir.ops import Op
    from schedc.runtime.program import Message, Wire
    from schedc.runtime.transports.base import Ends, Incoming, Outgoing, Transport

__all__ = ["Boundaries", "Receiver", "Sender"]


class Boundaries(dict[int, TensorKind]):
    """By stage, what its output is; known from the first tensor on, and the same for all microbatches and steps."""

    def learn(self, tensor: torch.Tensor, message: Message) -> None:
        """Take note of a tensor of a boundary, an output or a gradient.

        Raises:
            InvalidInput: it is not like the first.
        """
        kind = TensorKind.of(tensor)
        known = self.setdefault(message.boundary, kind)
        if known != kind:
            what = f"{'the gradient of ' if message.gradient else ''}stage {message.boundary}'s output"
            raise InvalidInput(
                f"microbatch {message.microbatch}: {what} is {kind}, expected {known} as before;"
                " give all microbatches the same shape"
            )


class Sender:
    """The sending end of a wire."""

    def __init__(self, wire: Wire, ends: Ends, boundaries: Boundaries, timeout_s: float) -> None:
        self._wire = wire
        self._data, self._control = ends
        self._boundaries = boundaries
        self._timeout_s = timeout_s
        self._introduced: set[int] = set()
        self._under_way: dict[int, list[Outgoing]] = {}

    def send(self, at: int, tensor: torch.Tensor) -> None:
        """Send transfer `at` of the wire without waiting; before a boundary's first output goes a header.

        Raises:
            InvalidInput: the tensor is not like the boundary's first.
            TransferFailed: the connection is lost.
        """
        message = self._wire.messages[at]
        self._boundaries.learn(tensor, message)
        if message.gradient and not differentiable(tensor.dtype):
            return
        sends = self._under_way.setdefault(at, [])
        try:
            if not message.gradient and message.boundary not in self._introduced:
                self._introduced.add(message.boundary)
                sends.append(self._control.send(encode(TensorKind.of(tensor)), 2 * at + 1))
            sends.append(self._data.send(tensor.contiguous(), 2 * at))
        except ConnectionLost as error:
            raise TransferFailed(f"{self._doing(at)}: {connection_lost(self._wire.destination)}") from error

    def arrived(self, at: int) -> None:
        """Let go of transfer `at`, which the peer has already used."""
        for sent in self._under_way.pop(at, ()):
            try:
                sent.wait(self._timeout_s)
            except (ConnectionLost, NoAnswer) as error:
                raise waiting_failed(self._doing(at), error, self._timeout_s, self._wire.destination) from error

    def flush(self) -> None:
        """Wait until all is sent."""
        for at in list(self._under_way):
            self.arrived(at)

    def _doing(self, at: int) -> str:
        wire = self._wire
        return f"rank {wire.source} sends {token(wire.transfers[at])} to rank {wire.destination} on {wire.name}"


class Receiver:
    """The receiving end of a wire."""

    def __init__(self, wire: Wire, ends: Ends, boundaries: Boundaries, timeout_s: float) -> None:
        self._wire = wire
        self._data, self._control = ends
        self._boundaries = boundaries
        self._timeout_s = timeout_s
        self._posted: dict[int, Incoming] = {}
        self._headers: dict[int, tuple[int, Incoming]] = {}

    def introduce(self) -> None:
        """Post the receives of the headers of all boundaries that are not known yet; before a step's first op."""
        for at, message in enumerate(self._wire.messages):
            if not message.gradient and message.boundary not in self._boundaries and message.boundary not in self._headers:
                self._headers[message.boundary] = (at, self._start(self._control, at, HEADER, 2 * at + 1))

    def post(self, at: int) -> None:
        """Post the receive of transfer `at`; in the first step, where its shape is not known yet, `take` does it."""
        message = self._wire.messages[at]
        kind = self._boundaries.get(message.boundary)
        if kind is not None and not (message.gradient and not differentiable(kind.dtype)):
            self._posted[at] = self._start(self._data, at, kind, 2 * at)

    def take(self, at: int, op: Op) -> torch.Tensor | None:
        """Wait for transfer `at` and give its tensor; None for the gradient of a boundary whose type has none.

        Args:
            at: its place in the channel.
            op: what needs it.

        Raises:
            TransferFailed: it does not come.
        """
        message = self._wire.messages[at]
        if message.boundary in self._headers:
            first, header = self._headers.pop(message.boundary)
            kind = decode(self._await(header, op, first, "waits for the shape of"))
            self._boundaries.setdefault(message.boundary, kind)
        if at not in self._posted:
            self.post(at)
        if at not in self._posted:
            return None
        return self._await(self._posted.pop(at), op, at, "waits for")

    def _await(self, incoming: Incoming, op: Op, at: int, waits_for: str) -> torch.Tensor:
        try:
            return incoming.wait(self._timeout_s)
        except (ConnectionLost, NoAnswer) as error:
            wire = self._wire
            what = f"{token(op)} {waits_for} {token(wire.transfers[at])}"
            doing = f"rank {wire.destination}: {what} from rank {wire.source} on {wire.receiver_name}"
            raise waiting_failed(doing, error, self._timeout_s, wire.source) from error

    def _start(self, transport: Transport, at: int, kind: TensorKind, tag: int) -> Incoming:
        try:
            return transport.receive(kind, tag)
        except ConnectionLost as error:
            wire, transfer = self._wire, token(self._wire.transfers[at])
            raise TransferFailed(
                f"rank {wire.destination} posts the receive of {transfer} from rank {wire.source} on {wire.receiver_name}:"
                f" {connection_lost(wire.source)}"
            ) from error
