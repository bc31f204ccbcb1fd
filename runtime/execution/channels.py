"""The ends of the plan's channels on one rank: sends that nobody waits for, receives posted early.

Each wire has a transport of its own, so no channel ever waits behind another (CrossPipe 6.3: four streams, {send, recv} x {next,
prev}). The tensors of a transfer have consecutive tags, from its place in the channel. Which of a boundary's tensors have gradients
is said once, by the header; so both ends know what crosses, and nothing is sent for the others. A wait that fails says which op
waited for what from whom.

At the end of a step nobody waits for a send as such, which a lost peer may never end (see `schedc.runtime.transports.gloo`): the
receiving end says that it has taken all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from schedc.errors import InvalidInput
from schedc.ir.ops import token
from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed, connection_lost, waiting_failed
from schedc.runtime.common.header import HEADER, MAX_TENSORS, RECEIPT, TensorKind, decode, encode, kinds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.ops import Op
    from schedc.runtime.common.program import Message, Wire
    from schedc.runtime.common.values import Value
    from schedc.runtime.transports.base import Ends, Incoming, Outgoing, Transport

__all__ = ["Boundaries", "Receiver", "Sender"]

TAGS = MAX_TENSORS + 1
"""How many tags a transfer has: one for each tensor, the last for the header."""


def _header_tag(at: int) -> int:
    """The tag of the header that goes before transfer `at`."""
    return at * TAGS + MAX_TENSORS


def _taken_tag(wire: Wire) -> int:
    """The tag of what comes back when all is taken."""
    return len(wire.messages) * TAGS


class Boundaries(dict[int, tuple[TensorKind, ...]]):
    """By stage, what its outputs are; known from the first microbatch on, and the same for all microbatches and steps."""

    def learn(self, value: Value, message: Message) -> tuple[TensorKind, ...]:
        """Take note of a boundary's tensors, the outputs or their gradients.

        Returns:
            What the outputs are.

        Raises:
            InvalidInput: they are not like the first.
        """
        known = self.get(message.boundary)
        if known is None:
            known = self[message.boundary] = kinds_of([tensor for tensor in value if tensor is not None])
        elif not _alike(value, known, message.gradient):
            raise InvalidInput(_difference(value, known, message))
        return known


def _alike(value: Value, kinds: tuple[TensorKind, ...], gradient: bool) -> bool:
    """Whether these are tensors of these kinds, or their gradients."""
    if len(value) != len(kinds):
        return False
    for tensor, kind in zip(value, kinds, strict=True):
        if gradient and not kind.gradient:
            continue
        if tensor is None or tensor.dtype != kind.dtype or tensor.shape != kind.shape:
            return False
        if not gradient and tensor.requires_grad != kind.gradient:
            return False
    return True


def _difference(value: Value, kinds: tuple[TensorKind, ...], message: Message) -> str:
    """What is wrong with tensors that are not alike."""
    found = ["nothing" if tensor is None else str(TensorKind.of(tensor)) for tensor in value]
    expected = list(map(str, kinds))
    way = "shape"
    if len(found) != len(expected):
        way = "number of tensors"
    elif found == expected:
        way = "graph"
        found = [
            f"{kind} that {'requires' if tensor.requires_grad else 'does not require'} grad"
            for kind, tensor in zip(found, value, strict=True)
            if tensor is not None
        ]
        expected = [f"{kind} that {'requires' if kind.gradient else 'does not require'} grad" for kind in kinds]
    what = f"{'the gradient of ' if message.gradient else ''}stage {message.boundary}'s output"
    return (
        f"microbatch {message.microbatch}: {what} is {_listed(found)}, expected {_listed(expected)} as before;"
        f" give all microbatches the same {way}"
    )


def _listed(kinds: Sequence[str]) -> str:
    return kinds[0] if len(kinds) == 1 else f"({', '.join(kinds)})"


class Sender:
    """The sending end of a wire."""

    def __init__(self, wire: Wire, ends: Ends, boundaries: Boundaries, timeout_s: float) -> None:
        self._wire = wire
        self._data, self._control = ends.data, ends.control
        self._boundaries = boundaries
        self._timeout_s = timeout_s
        self._introduced = set(boundaries)  # those of another plan that this one takes over
        self._under_way: dict[int, list[Outgoing]] = {}
        self._taken: Incoming | None = None

    def begin(self) -> None:
        """Before a step's first op: be ready to hear that all is taken.

        Raises:
            TransferFailed: the connection is lost.
        """
        try:
            self._taken = self._control.receive(RECEIPT, _taken_tag(self._wire))
        except ConnectionLost as error:
            raise TransferFailed(f"{self._finishing()}: {connection_lost(self._wire.destination)}") from error

    def send(self, at: int, value: Value) -> None:
        """Send transfer `at` of the wire without waiting; before a boundary's first output goes a header.

        Raises:
            InvalidInput: the tensors are not like the boundary's first.
            TransferFailed: the connection is lost.
        """
        message = self._wire.messages[at]
        kinds = self._boundaries.learn(value, message)
        sends = self._under_way.setdefault(at, [])
        try:
            if not message.gradient and message.boundary not in self._introduced:
                self._introduced.add(message.boundary)
                sends.append(self._control.send(encode(kinds), _header_tag(at)))
            tag = at * TAGS
            for kind, tensor in zip(kinds, value, strict=True):
                if tensor is not None and (kind.gradient or not message.gradient):
                    sends.append(self._data.send(tensor.detach().contiguous(), tag))
                tag += 1
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
        """Wait until the peer has taken all transfers of the step, and let go of them.

        Raises:
            TransferFailed: it is gone or does not do it in time.
        """
        assert self._taken is not None
        try:
            self._taken.wait(self._timeout_s)
        except (ConnectionLost, NoAnswer) as error:
            raise waiting_failed(self._finishing(), error, self._timeout_s, self._wire.destination) from error
        for at in list(self._under_way):
            self.arrived(at)

    def _doing(self, at: int) -> str:
        wire = self._wire
        return f"rank {wire.source} sends {token(wire.transfers[at])} to rank {wire.destination} on {wire.name}"

    def _finishing(self) -> str:
        wire = self._wire
        return f"rank {wire.source} waits until rank {wire.destination} has taken all transfers on {wire.name}"


class Receiver:
    """The receiving end of a wire."""

    def __init__(self, wire: Wire, ends: Ends, boundaries: Boundaries, timeout_s: float) -> None:
        self._wire = wire
        self._data, self._control = ends.data, ends.control
        self._boundaries = boundaries
        self._timeout_s = timeout_s
        self._posted: dict[int, list[Incoming]] = {}
        self._headers: dict[int, tuple[int, Incoming]] = {}
        self._next = 0
        self._due = 0
        self._left = 0
        self._taken: Outgoing | None = None

    def begin(self) -> None:
        """Before a step's first op: post the receives of the headers of all boundaries that are not known yet."""
        self._next = self._due = 0
        self._left = len(self._wire.messages)
        for at, message in enumerate(self._wire.messages):
            if not message.gradient and message.boundary not in self._boundaries and message.boundary not in self._headers:
                self._headers[message.boundary] = (at, self._start(self._control, at, HEADER, _header_tag(at)))

    def post(self, at: int) -> None:
        """Post the receives of transfer `at`; in the first step, where its shapes are not known yet, `take` does it.

        Always in the order of the wire, which is that of the sends (NCCL matches them so): behind a transfer whose shapes are not
        known yet, the others wait for it.
        """
        self._due = max(self._due, at + 1)
        while self._next < self._due:
            message = self._wire.messages[self._next]
            kinds = self._boundaries.get(message.boundary)
            if kinds is None:
                return
            posted = self._posted[self._next] = []
            for place, kind in enumerate(kinds):
                if kind.gradient or not message.gradient:
                    posted.append(self._start(self._data, self._next, kind, self._next * TAGS + place))
            self._next += 1

    def take(self, at: int, op: Op) -> Value:
        """Wait for transfer `at` and give its tensors; `()` where nothing comes, for outputs that have no gradients.

        Args:
            at: its place in the channel.
            op: what needs it.

        Raises:
            TransferFailed: it does not come.
        """
        message = self._wire.messages[at]
        for boundary in [earlier.boundary for earlier in self._wire.messages[self._next : at + 1]]:
            if boundary in self._headers:
                first, header = self._headers.pop(boundary)
                kinds = decode(self._await(header, op, first, "waits for the shape of"))
                self._boundaries.setdefault(boundary, kinds)
        self.post(at)
        posted = self._posted.pop(at)
        come = [self._await(incoming, op, at, "waits for") for incoming in posted]
        self._left -= 1
        if not self._left:
            self._confirm()
        if not come:
            return ()
        kinds = self._boundaries[message.boundary]
        if message.gradient:
            gradients = iter(come)
            return tuple(next(gradients) if kind.gradient else None for kind in kinds)
        return tuple(
            tensor.detach().requires_grad_() if kind.gradient else tensor for kind, tensor in zip(kinds, come, strict=True)
        )

    def finish(self) -> None:
        """After a step's last op: wait until the peer has heard that all is taken.

        Raises:
            TransferFailed: it is gone or does not answer.
        """
        assert self._taken is not None
        try:
            self._taken.wait(self._timeout_s)
        except (ConnectionLost, NoAnswer) as error:
            raise waiting_failed(self._confirming(), error, self._timeout_s, self._wire.source) from error

    def _confirm(self) -> None:
        """Tell the peer that all is taken. Its receive is posted since its step began."""
        try:
            self._taken = self._control.send(torch.zeros(RECEIPT.shape, dtype=RECEIPT.dtype), _taken_tag(self._wire))
        except ConnectionLost as error:
            raise TransferFailed(f"{self._confirming()}: {connection_lost(self._wire.source)}") from error

    def _confirming(self) -> str:
        wire = self._wire
        return f"rank {wire.destination} tells rank {wire.source} that all has come on {wire.receiver_name}"

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
