"""A wire with two channels: the second takes over for the rest of the run when the first fails (PipeMorph 5.3).

The first channel may fail on one end only, for some transfers only, and an end may not know whether what it sent was taken. So
every transfer is sent at least once and handed over exactly once:

- The sender says SENT before each transfer that it begins on the first channel; the receiver looks to the channel only then. A peer
  that is late, with its own work or because others are, has not said it, and says nothing of the channel.
- The receiver says TAKEN for each transfer that it has handed over. The sender keeps a transfer until then.
- Whoever finds the first channel failing (an error, or no answer in half of the time that the wait may take, from SENT on) closes
  it on its own end and says CHANGED. The other end does the same when it hears that; each end says it once.
- From its own CHANGED on, the receiver takes nothing more from the first channel. It posts again, on the second, what it has posted
  and not handed over. The sender, when it hears CHANGED, sends again all that has not been TAKEN: words come in order, so at that
  moment the two sets are the same. A thread hears the words, since an end may be computing, or waiting for another wire.

Once a wire changes, those between the same two ranks do, in both directions. Each rank warns once. A peer that has really ended
cannot say CHANGED: the second channel to it fails too, and that is the error.
"""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias, cast

from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed, connection_lost, found_elsewhere
from schedc.runtime.transports.base import Ends
from schedc.runtime.transports.words import Says, Word, Words

if TYPE_CHECKING:
    import torch

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.header import TensorKind
    from schedc.runtime.common.program import Wire
    from schedc.runtime.transports.base import Connect, Incoming, Outgoing, Transport

__all__ = ["Fallback"]

Name: TypeAlias = "tuple[int, int]"
"""A transfer: its tag, and how many with this tag went before."""
FOUND_THERE = "as the other end says"


class Fallback:
    """Connects wires with two channels each; the `Connect` of one rank."""

    def __init__(self, first: Connect, second: Connect, *, names: tuple[str, str]) -> None:
        """Take two ways to connect a wire.

        Args:
            first: the way to use. A receive of it must not return before what was received is there for good.
            second: the way to use when it fails.
            names: of the two ways.
        """
        self._first = first
        self._second = second
        self._names = names
        self._wires: dict[int, list[_End]] = {}
        self._warned = False

    def __call__(self, wire: Wire, groups: Groups) -> Ends:
        """The ends of a wire on one of its ranks. If the first way does not connect on both, the second is used from the start.

        Raises:
            TransferFailed: the peer does not come, or not through.
        """
        peer = wire.destination if groups.rank == wire.source else wire.source
        second = self._second(wire, groups)
        words = Words(groups.make((wire.source, wire.destination)), wire.name)
        sends = groups.rank == wire.source
        end: _SendingEnd | _ReceivingEnd = (_SendingEnd if sends else _ReceivingEnd)(self, peer, second, words)
        doing = f"sending to rank {peer} on {wire.name}" if sends else f"receiving from rank {peer} on {wire.receiver_name}"
        end.doing = f"rank {groups.rank}, {doing}"
        self._wires.setdefault(peer, []).append(end)
        try:
            end.first = self._first(wire, groups)
        except (ConnectionLost, NoAnswer) as error:
            end.begin()
            end.change(str(error))
        else:
            end.begin()
            end.say_ready()
        if not end.both_ready(2 * groups.timeout_s):  # the peer may try as long as that before it gives up
            raise TransferFailed(
                f"rank {groups.rank} connects the ranks {wire.source}, {wire.destination}: {connection_lost(peer)}"
            )
        return Ends(cast("Transport", end), second.control, settle=end.settle, close=end.close, ended=end.ended)

    def change(self, peer: int, reason: str) -> None:
        """Let all wires to and from this rank change."""
        for end in self._wires[peer]:
            end.change(reason)

    def warn(self, doing: str, reason: str) -> None:
        """Say once what has happened."""
        if not self._warned:
            self._warned = True
            first, second = self._names
            why = reason.partition("\n")[0]
            warnings.warn(
                f"{doing}: {first} failed ({why}); {second} carries what these two ranks exchange from now on",
                RuntimeWarning,
                stacklevel=2,
            )


class _End(ABC):
    """What both ends have in common."""

    def __init__(self, wires: Fallback, peer: int, second: Ends, words: Words) -> None:
        self.first: Ends | None = None
        self.doing = ""
        self._wires = wires
        self._peer = peer
        self._second = second
        self._words = words
        self._names: Counter[int] = Counter()
        self._changed = threading.Condition()
        self._reason: str | None = None
        """Why this end has changed, once it has."""
        self._ready = False
        """Whether the other end has connected the first channel."""
        self._agreed = False
        """Whether both ends have changed."""
        self._lost: Exception | None = None
        """Why nothing more is heard from the other end."""

    def begin(self) -> None:
        """Listen to the other end."""
        self._words.listen(self._hear, self._lose)

    def say_ready(self) -> None:
        """Tell the other end that the first channel is connected here."""
        with self._changed, suppress(ConnectionLost):  # `both_ready` tells
            self._words.say(Word(Says.READY))

    def both_ready(self, timeout_s: float) -> bool:
        """Wait until the other end has connected the first channel, too, or has changed.

        So a channel is never closed while its other end still connects it: gloo would go on trying there.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._agreed or self._lost is not None, timeout_s)
            return self._ready or self._agreed

    def change(self, reason: str) -> None:
        """Use the second channel from now on, and tell the other end; the first is closed. Doing it again does nothing."""
        with self._changed:
            if self._reason is not None:
                return
            self._reason = reason
            try:
                self._words.say(Word(Says.CHANGED))
                self._start_again()
            except ConnectionLost as error:
                self._lost = error
            self._changed.notify_all()
        self._wires.change(self._peer, reason)
        if self.first is not None:
            self.first.close()

    def settle(self, timeout_s: float) -> None:
        """As `Ends.settle`."""
        if self._reason is None and self.first is not None:
            try:
                self.first.settle(timeout_s)
            except (ConnectionLost, NoAnswer) as error:  # all has been taken, so there is nothing to repeat
                self.change(str(error))
        else:
            self._second.settle(timeout_s)
        self._warn()

    def close(self) -> None:
        """As `Ends.close`."""
        self._words.close()
        for ends in (self.first, self._second):
            if ends is not None:
                ends.close()

    def ended(self, timeout_s: float) -> None:
        """As `Ends.ended`."""
        until_s = monotonic() + timeout_s
        for ends in (self.first, self._second):
            if ends is not None:
                ends.ended(max(0.0, until_s - monotonic()))

    def _warn(self) -> None:
        """In the thread of the step, where a warning finds who can act on it."""
        if self._agreed and self._reason is not None:
            self._wires.warn(self.doing, self._reason)

    def _name(self, tag: int) -> Name:
        self._names[tag] += 1
        return tag, self._names[tag] - 1

    def _hear(self, word: Word) -> None:
        if word.says is Says.READY:
            with self._changed:
                self._ready = True
                self._changed.notify_all()
        elif word.says is Says.TAKEN:
            self._hear_taken((word.tag, word.before))
        elif word.says is Says.SENT:
            self._hear_sent((word.tag, word.before))
        else:
            self._hear_changed()
            self.change(FOUND_THERE)

    def _hear_taken(self, name: Name) -> None:
        """The other end has handed over a transfer; only who sends hears that."""
        raise AssertionError(f"{self.doing}: {name} was not sent from here")

    def _hear_sent(self, name: Name) -> None:
        """The other end has begun a transfer; only who receives hears that."""
        raise AssertionError(f"{self.doing}: {name} does not come here")

    def _hear_changed(self) -> None:
        """The other end has changed."""
        with self._changed:
            self._agreed = True
            self._changed.notify_all()

    @abstractmethod
    def _start_again(self) -> None:
        """Do what this end does when it has changed."""

    def _raise_lost(self) -> None:
        """If nothing more is heard from the other end, say so."""
        if self._lost is not None:
            raise found_elsewhere(self._lost)

    def _lose(self, error: Exception) -> None:
        with self._changed:
            self._lost = error
            self._changed.notify_all()


class _Sent:
    """A transfer of the sending end."""

    def __init__(self, owner: _SendingEnd, name: Name, tensor: torch.Tensor) -> None:
        self.owner = owner
        self.name = name
        self.tensor = tensor
        self.first: Outgoing | None = None
        self.second: Outgoing | None = None

    def wait(self, timeout_s: float) -> None:
        self.owner.wait(self, timeout_s)


class _SendingEnd(_End):
    """The end that sends."""

    def __init__(self, wires: Fallback, peer: int, second: Ends, words: Words) -> None:
        super().__init__(wires, peer, second, words)
        self._kept: dict[Name, _Sent] = {}

    def send(self, tensor: torch.Tensor, tag: int) -> _Sent:
        """As `Transport.send`."""
        failed = None
        with self._changed:
            self._raise_lost()
            sent = _Sent(self, self._name(tag), tensor)
            self._kept[sent.name] = sent
            if self._agreed:
                sent.second = self._second.data.send(tensor, tag)
            elif self._reason is None and self.first is not None:
                try:
                    self._words.say(Word(Says.SENT, *sent.name))
                    sent.first = self.first.data.send(tensor, tag)
                except ConnectionLost as error:
                    failed = str(error)
        if failed is not None:
            self.change(failed)
        return sent

    def wait(self, sent: _Sent, timeout_s: float) -> None:
        """As `Outgoing.wait`: until the transfer is taken, or sent through the second channel."""
        until_s = monotonic() + timeout_s
        if sent.first is not None and self._reason is None and sent.name in self._kept:
            try:
                sent.first.wait(timeout_s / 2)
            except (ConnectionLost, NoAnswer) as error:
                self.change(str(error))
        with self._changed:
            self._changed.wait_for(
                lambda: sent.name not in self._kept or sent.second is not None or self._lost is not None, until_s - monotonic()
            )
            if sent.name in self._kept and sent.second is None:
                self._raise_lost()
                raise NoAnswer(f"not taken in {timeout_s:g} s")
        if sent.second is not None:
            sent.second.wait(max(0.0, until_s - monotonic()))
            self._kept.pop(sent.name, None)
        self._warn()

    def _hear_taken(self, name: Name) -> None:
        with self._changed:
            self._kept.pop(name, None)
            self._changed.notify_all()

    def _hear_changed(self) -> None:
        """What has not been taken goes again."""
        with self._changed:
            self._agreed = True
            try:
                for sent in self._kept.values():
                    sent.second = self._second.data.send(sent.tensor, sent.name[0])
            except ConnectionLost as error:
                self._lost = error
            self._changed.notify_all()

    def _start_again(self) -> None:
        """Nothing: the other end has to say first what it has."""


class _Expected:
    """A transfer of the receiving end."""

    def __init__(self, owner: _ReceivingEnd, name: Name, kind: TensorKind) -> None:
        self.owner = owner
        self.name = name
        self.kind = kind
        self.first: Incoming | None = None
        self.second: Incoming | None = None

    def wait(self, timeout_s: float) -> torch.Tensor:
        return self.owner.wait(self, timeout_s)


class _ReceivingEnd(_End):
    """The end that receives."""

    def __init__(self, wires: Fallback, peer: int, second: Ends, words: Words) -> None:
        super().__init__(wires, peer, second, words)
        self._expected: dict[Name, _Expected] = {}
        self._sent: set[Name] = set()
        """What the other end has begun to send and this one has not waited for yet."""

    def receive(self, kind: TensorKind, tag: int) -> _Expected:
        """As `Transport.receive`."""
        failed = None
        with self._changed:
            expected = _Expected(self, self._name(tag), kind)
            self._expected[expected.name] = expected
            if self._reason is not None:
                expected.second = self._second.data.receive(kind, tag)
            elif self.first is not None:
                try:
                    expected.first = self.first.data.receive(kind, tag)
                except ConnectionLost as error:
                    failed = str(error)
        if failed is not None:
            self.change(failed)
        return expected

    def wait(self, expected: _Expected, timeout_s: float) -> torch.Tensor:
        """As `Incoming.wait`."""
        if expected.first is not None and self._await_sent(expected, timeout_s):
            until_s = monotonic() + timeout_s
            try:
                value = expected.first.wait(timeout_s / 2)
            except (ConnectionLost, NoAnswer) as error:
                self.change(str(error))
            else:
                with self._changed:
                    if self._reason is None:
                        self._taken(expected)
                        return value
        else:
            until_s = monotonic() + timeout_s
        if expected.second is None:
            self._raise_lost()
            raise AssertionError(f"{self.doing}: {expected.name} is expected on no channel")
        value = expected.second.wait(max(0.0, until_s - monotonic()))
        with self._changed:
            del self._expected[expected.name]
            self._agreed = True
        self._warn()
        return value

    def _await_sent(self, expected: _Expected, timeout_s: float) -> bool:
        """Wait until the other end has begun the transfer on the first channel; False: it goes through the second.

        Raises:
            ConnectionLost: nothing more is heard from it.
            NoAnswer: it has not begun in time.
        """
        with self._changed:
            sent, name = self._sent, expected.name
            self._changed.wait_for(lambda: name in sent or expected.second is not None or self._lost is not None, timeout_s)
            if expected.second is not None or name in sent:
                sent.discard(name)
                return expected.second is None
            self._raise_lost()
            raise NoAnswer(f"nothing was sent in {timeout_s:g} s")

    def _hear_sent(self, name: Name) -> None:
        with self._changed:
            self._sent.add(name)
            self._changed.notify_all()

    def _taken(self, expected: _Expected) -> None:
        """The first channel has done it: the other end may let go of it."""
        del self._expected[expected.name]
        try:
            self._words.say(Word(Says.TAKEN, *expected.name))
        except ConnectionLost as error:  # what has come is good all the same
            self._lost = error

    def _start_again(self) -> None:
        for expected in self._expected.values():
            expected.second = self._second.data.receive(expected.kind, expected.name[0])
