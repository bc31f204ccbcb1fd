"""The ends of the plan's channels on one rank: sends that nobody waits for, receives posted early.

Each wire has a transport of its own, so no channel ever waits behind another (CrossPipe 6.3: four streams, {send, recv} x {next,
prev}). The tensors of a transfer have consecutive tags, from its place in the channel. What a boundary's tensors are, and which
have gradients, is said once for each shape of microbatches, by the header; so both ends know what crosses, and nothing is sent for
the others. A wait that fails says which op waited for what from whom.

Where another channel can take over from one that fails, a failure does not end the step: it is noted, no more is sent on the wire,
and what should come is zeros. So every rank runs all its ops, with all collectives that they may have, before the step runs again.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

import torch

from schedc.ir import Op, token
from schedc.runtime.common.boundary import HEADER, MAX_TENSORS, TensorMeta, decode, encode, left_of
from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed, waiting_failed
from schedc.runtime.common.lateness import WAITS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.runtime.common.boundary import BoundaryMeta, Key, Value
    from schedc.runtime.common.program import Wire
    from schedc.runtime.transports.base import Ends, Incoming, Outgoing

Failing: TypeAlias = "Callable[[str, Exception], None]"
"""Takes note that the wire has failed: what was being done, and what has been found. Raises if no other channel can take over."""

TAGS = MAX_TENSORS + 3
"""How many tags a transfer has: one for each tensor; then what lies beside them, a header with what comes behind it, a monitor's
stamp and its pings."""
HEADER_TAG, STAMP_TAG, PING_TAG = range(MAX_TENSORS, TAGS)


class TransferBegins:
    """Which messages of a wire, one behind the other, begin a transfer."""

    def __init__(self) -> None:
        """None has been sent."""
        self._last_tag = -1

    def at(self, tag: int) -> bool:
        """Whether the next message, by its tag, belongs to another transfer than the one before it.

        The tensors of a transfer follow each other and have rising tags. What lies beside them says nothing: more may follow.
        """
        before = self._last_tag
        if tag % TAGS < HEADER_TAG:
            self._last_tag = tag
        return before // TAGS != tag // TAGS or before >= tag


def _header_tag(at: int) -> int:
    """The tag of the header that goes before transfer `at`."""
    return at * TAGS + HEADER_TAG


@dataclass(eq=False)
class _End:
    """What both ends of a wire have in common."""

    wire: Wire
    ends: Ends
    boundaries: BoundaryMeta
    timeout_s: float
    failing: Failing | None = None
    """Called once, when the wire fails; None: no other channel can take over."""

    def __post_init__(self) -> None:
        """Nothing is known to have failed."""
        self._failed = False
        self._shapes: Sequence[int] = self.boundaries.shapes
        self._keys: list[Key] = self.boundaries.keys_of(self.wire.messages)
        """Of each transfer, what its tensors depend on."""

    def begin(self) -> None:
        """Before a step's first op: look at the shapes of its microbatches."""
        if self._shapes is not self.boundaries.shapes:
            self._shapes = self.boundaries.shapes
            self._keys = self.boundaries.keys_of(self.wire.messages)

    def _note(self, doing: str, error: Exception) -> None:
        """The wire has failed; return if another channel can take over."""
        if self.failing is None:
            raise self._lost(doing, error) from error
        self.failing(doing, error)
        self._failed = True

    def _lost(self, doing: str, error: Exception) -> TransferFailed:
        """What to raise where no other channel can take over."""
        peer = self.wire.destination if isinstance(self, Sender) else self.wire.source
        return waiting_failed(doing, error, self.timeout_s, peer)


class Sender(_End):
    """The sending end of a wire."""

    def __post_init__(self) -> None:
        """Nothing is under way."""
        super().__post_init__()
        self._introduced = set(self.boundaries)  # those of another plan that this one takes over
        self._under_way: dict[int, list[Outgoing]] = {}
        self.sent_s: dict[int, float] = {}
        """When each transfer of this step was sent."""

    def begin(self) -> None:
        """As `_End.begin`; what the boundaries have forgotten is said anew."""
        self.sent_s.clear()
        if self._shapes is not self.boundaries.shapes:
            self._introduced &= self.boundaries.keys()
        super().begin()

    def send(self, at: int, value: Value) -> None:
        """Send transfer `at` of the wire without waiting; before the first output of a boundary and shape goes a header.

        Raises:
            InvalidInput: the tensors are not like the first of the boundary and shape.
            Unsupported: one is no plain tensor.
            TransferFailed: the connection is lost.
        """
        message = self.wire.messages[at]
        key = self._keys[at]
        value, kinds = self.boundaries.learn(value, message, key)
        sends = self._under_way.setdefault(at, [])
        if not message.gradient and key not in self._introduced:
            self._introduced.add(key)
            try:
                sends += [self.ends.control.send(part, _header_tag(at)) for part in encode(kinds) if part.numel()]
            except ConnectionLost as error:
                raise self._lost(self._doing(at), error) from error
        if self.failing is not None:
            self.sent_s[at] = monotonic()
        for tag, (kind, tensor) in enumerate(zip(kinds, value, strict=True), at * TAGS):
            if tensor is not None and (kind.gradient or not message.gradient) and not self._failed:
                try:
                    plain = tensor.detach().resolve_conj().resolve_neg()  # what is sent is memory, without these marks
                    sends.append(self.ends.data.send(plain.contiguous(), tag))
                except ConnectionLost as error:
                    self._note(self._doing(at), error)

    def arrived(self, at: int) -> None:
        """Let go of transfer `at`, which the peer has already used."""
        for sent in self._under_way.pop(at, ()):
            if not self._failed:
                try:
                    sent.wait(self.timeout_s)
                except (ConnectionLost, NoAnswer) as error:
                    self._note(self._doing(at), error)

    def flush(self) -> None:
        """Let go of all transfers of the step, which the peer has received.

        Raises:
            TransferFailed: it is gone.
        """
        for at in list(self._under_way):
            self.arrived(at)

    def _doing(self, at: int) -> str:
        wire = self.wire
        return f"rank {wire.source} sends {token(wire.transfers[at])} to rank {wire.destination} on {wire.name}"


@dataclass(eq=False)
class Receiver(_End):
    """The receiving end of a wire."""

    device: torch.device | None = None
    """Where the zeros are that come when the wire has failed; None: the CPU."""
    shape_timeout_s: float | None = None
    """For a header, which nothing can take the place of: its sender may have to find out first that a channel has failed."""

    def __post_init__(self) -> None:
        """Nothing is expected."""
        super().__post_init__()
        self._posted: dict[int, list[Incoming | None]] = {}
        self._headers: dict[Key, tuple[int, Incoming]] = {}
        self._next = 0
        self._due = 0
        self.waited_for = len(self.wire.transfers) - 1
        """Which transfer did not come; the last one, unless it is known."""

    def begin(self) -> None:
        """Before a step's first op: post the receives of the headers of what is not known yet."""
        super().begin()
        self._next = self._due = 0
        for at, (message, key) in enumerate(zip(self.wire.messages, self._keys, strict=True)):
            if not message.gradient and key not in self.boundaries and key not in self._headers:
                try:
                    self._headers[key] = at, self.ends.control.receive(HEADER, _header_tag(at))
                except ConnectionLost as error:
                    raise self._lost(self._posting(at), error) from error

    def post(self, at: int) -> None:
        """Post the receives of transfer `at`; where what it brings is not known yet, `take` does it.

        Always in the order of the wire, which is that of the sends (NCCL matches them so): behind a transfer whose shapes are not
        known yet, the others wait for it.
        """
        self._due = max(self._due, at + 1)
        while self._next < self._due:
            message = self.wire.messages[self._next]
            kinds = self.boundaries.get(self._keys[self._next])
            if kinds is None:
                return
            self._posted[self._next] = [
                self._start(self._next, kind, self._next * TAGS + place)
                for place, kind in enumerate(kinds)
                if kind.gradient or not message.gradient
            ]
            self._next += 1

    def take(self, at: int, op: Op) -> Value:
        """Wait for transfer `at` and give its tensors; `()` where nothing comes, for outputs that have no gradients.

        Raises:
            TransferFailed: it does not come.
        """
        message = self.wire.messages[at]
        for key in self._keys[self._next : at + 1] if self._headers else ():
            if key in self._headers:
                self.boundaries.note(key, self._header(*self._headers.pop(key), op))
        self.post(at)
        kinds = self.boundaries[self._keys[at]]
        crossing = [kind for kind in kinds if kind.gradient or not message.gradient]
        come = [self._await(incoming, op, at, kind) for kind, incoming in zip(crossing, self._posted.pop(at), strict=True)]
        if not come:
            return ()
        if self.boundaries.spread:
            come = self.boundaries.taken(come, crossing, message)
        if message.gradient:
            gradients = iter(come)
            return tuple(next(gradients) if kind.gradient else None for kind in kinds)
        return tuple(
            tensor.detach().requires_grad_() if kind.gradient else tensor for kind, tensor in zip(kinds, come, strict=True)
        )

    def _header(self, at: int, header: Incoming, op: Op) -> tuple[TensorMeta, ...]:
        """What a header says, once it has come with all that is behind it."""
        limit_s = self.shape_timeout_s or self.timeout_s
        WAITS.current = self._waiting, limit_s, (op, at, "waits for the shape of")
        try:
            found = header.wait(limit_s)
            left = left_of(found)
            return decode(found, None if left is None else self.ends.control.receive(left, _header_tag(at)).wait(limit_s))
        except (ConnectionLost, NoAnswer) as error:
            doing = self._waiting(op, at, "waits for the shape of")
            raise waiting_failed(doing, error, limit_s, self.wire.source) from error
        finally:
            WAITS.current = None

    def _await(self, incoming: Incoming | None, op: Op, at: int, kind: TensorMeta) -> torch.Tensor:
        if incoming is not None and not self._failed:
            WAITS.current = self._waiting, self.timeout_s, (op, at, "waits for")
            try:
                return incoming.wait(self.timeout_s)
            except (ConnectionLost, NoAnswer) as error:
                self.waited_for = at
                self._note(self._waiting(op, at, "waits for"), error)
            finally:
                WAITS.current = None
        return torch.zeros(kind.shape, dtype=kind.dtype, device=self.device or "cpu")

    def _start(self, at: int, kind: TensorMeta, tag: int) -> Incoming | None:
        if not self._failed:
            try:
                return self.ends.data.receive(kind, tag)
            except ConnectionLost as error:
                self._note(self._posting(at), error)
        return None

    def _waiting(self, op: Op, at: int, waits_for: str) -> str:
        wire = self.wire
        what = f"{token(op)} {waits_for} {token(wire.transfers[at])}"
        return f"rank {wire.destination}: {what} from rank {wire.source} on {wire.receiver_name}"

    def _posting(self, at: int) -> str:
        wire = self.wire
        what = f"the receive of {token(wire.transfers[at])}"
        return f"rank {wire.destination} posts {what} from rank {wire.source} on {wire.receiver_name}"
