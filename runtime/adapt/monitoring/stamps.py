"""Stamps beside a wire's messages, and pings: when messages were sent and truly arrived, which their receiver's ops cannot know.

Behind the first tensor of some transfers of a step the sender sends a few numbers: its time, and what else it has to say. On
the receiving side a thread waits for them, so that slack in the plan hides no slow link, and the step's thread waits for nothing
more than before. The same numbers ask the peer for pings of its link to here: messages of the usual size that are sent
between two steps, and behind them when each was sent.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

import torch

from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.common.failure import ConnectionLost, NoAnswer
from schedc.runtime.execution.channels import PING_TAG, STAMP_TAG, TAGS, TransferBegins
from schedc.runtime.transports.base import Incoming, Outgoing, Transport, both
from schedc.runtime.transports.gloo import FOREVER_S
from schedc.runtime.transports.helpers import SerialExecutor

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.runtime.adapt.monitoring.sampling import Sampling

MOST_STAMPS = 4
"""About how many transfers of a wire are stamped in a step."""
MOST_KEPT = 1024
"""More stamps than come between two measurements, but after many evaluations."""
PINGS = 3
"""How many are sent one right behind the other: the gaps between their arrivals are what one occupies the link for."""
MOST_PING_BYTES = 16 << 20
UNKNOWN = -(2**62)
"""Of a time: there is none yet."""


class News(NamedTuple):
    """What one rank says to the other of the direction to it. Numbers count from the start."""

    alarms: int = 0
    confirmed: int = 0
    """The alarms that pings have confirmed."""
    looked: int = 0
    """The peer's confirmed alarms for which it has looked at its own direction."""


class Words(NamedTuple):
    """What the sender of a stamp has to say."""

    clock: int
    """Equal on ranks whose `time.perf_counter_ns` is the same clock."""
    way_ns: int
    """The shortest way of the receiver's messages to the sender in the last step, by their two clocks; `UNKNOWN`: none."""
    wanted: int
    """How often the sender has asked the receiver for pings."""
    news: News
    """Of the link from the receiver to the sender."""


class Stamp(NamedTuple):
    """A stamp that has come."""

    came_ns: int
    sent_ns: int
    words: Words


SILENT = Words(0, UNKNOWN, 0, News())
STAMP = TensorMeta(torch.int64, (4 + len(News()),))
SENT = TensorMeta(torch.int64, (PINGS,))
"""What goes behind pings: when each of them was sent."""


class _Link:
    """One end of a link, whichever plan's wire lies over it."""

    def __init__(self) -> None:
        self.words = SILENT
        """What the sender says, or the last that has come."""
        self.lock = threading.Lock()
        """Held while something is sent or expected, or the words change."""
        self.end: Transport | None = None
        self.kind: TensorMeta | None = None
        """What a ping is, from the wire's first transfer on."""


class OutLink(_Link):
    """The sending end."""

    def __init__(self) -> None:
        """Nothing to say."""
        super().__init__()
        self.answered = 0
        """The last question for pings that has been answered."""
        self._pings: list[Outgoing] = []

    def ping(self) -> None:
        """Send the pings; between two steps."""
        assert self.end is not None
        assert self.kind is not None
        message = torch.zeros(self.kind.shape, dtype=self.kind.dtype, device="cpu")
        sent_ns = []
        with self.lock, suppress(ConnectionLost):  # the next step's messages say so
            self._pings.clear()  # they have come long ago, as later ones were asked for
            for _ in range(PINGS):
                sent_ns.append(perf_counter_ns())
                self._pings.append(self.end.send(message, PING_TAG))
            self._pings.append(self.end.send(torch.tensor(sent_ns, device="cpu"), PING_TAG))


class InLink(_Link):
    """The receiving end."""

    def __init__(self, on_stamp: Callable[[], object] = lambda: None, on_pings: Callable[[], object] = lambda: None) -> None:
        """Nothing has come.

        Args:
            on_stamp: called in the link's thread when a stamp has come.
            on_pings: called in another thread when no more is to be waited for of the pings that were last expected.
        """
        super().__init__()
        self.stamps: deque[Stamp] = deque(maxlen=MOST_KEPT)
        """Those that have come last, which their reader removes."""
        self._on_stamp, self._on_pings = on_stamp, on_pings
        self._expected: SimpleQueue[Incoming | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._pings_in_turn, self._unread = SerialExecutor(), SerialExecutor()
        """Wait for pings; and for stamps that come after the end, which do not wait for a ping that may never come."""
        self._pings: list[Future[tuple[int, torch.Tensor]]] = []
        """When each has come that was last expected, and what; the last says when they were sent."""

    def expect(self, stamp: Incoming) -> None:
        """Take note of when a stamp comes, behind those that were expected before; while `lock` is held."""
        if self._closed:
            self._unread.submit(partial(_discard, stamp))
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        self._expected.put(stamp)

    def expect_pings(self) -> bool:
        """Be ready for pings; False: no message has shown yet what they are."""
        if self.end is None or self.kind is None:
            return False
        try:
            with self.lock:
                coming = [self.end.receive(kind, PING_TAG) for kind in (*(self.kind,) * PINGS, SENT)]
        except ConnectionLost as error:  # who waits for a message says so
            self._pings = [Future()]
            self._pings[0].set_exception(error)
            return True
        self._pings = [self._pings_in_turn.submit(partial(_arrival, ping)) for ping in coming]
        self._pings[-1].add_done_callback(lambda _: self.pings_lost or self._on_pings())
        return True

    @property
    def pings_ns(self) -> list[int] | None:
        """How long the pings that were last expected were under way, by the two clocks; None: not all have come yet.

        Raises:
            Exception: what was found instead of one of them, but for a lost connection.
        """
        if not self._pings or self.pings_lost or not all(ping.done() for ping in self._pings):
            return None
        *came, (_, sent_ns) = (ping.result() for ping in self._pings)
        return [came_ns - sent for (came_ns, _), sent in zip(came, sent_ns.tolist(), strict=True)]

    @property
    def pings_lost(self) -> bool:
        """Whether the pings that were last expected never come."""
        return any(ping.done() and isinstance(ping.exception(), (ConnectionLost, NoAnswer)) for ping in self._pings)

    def close(self) -> None:
        """End the thread when what it waits for has come, or the connection ends. What comes later is taken, but says nothing."""
        with self.lock:
            self._closed = True
            self._expected.put(None)

    def _watch(self) -> None:
        while (stamp := self._expected.get()) is not None:
            try:
                said = stamp.wait(FOREVER_S)
            except (ConnectionLost, NoAnswer):
                continue  # who waits for the message itself says so; another end may take over
            came_ns = perf_counter_ns()
            sent_ns, clock, way_ns, wanted, *news = said.tolist()
            self.words = Words(clock, way_ns, wanted, News(*news))
            self.stamps.append(Stamp(came_ns, sent_ns, self.words))
            self._on_stamp()


def _arrival(ping: Incoming) -> tuple[int, torch.Tensor]:
    value = ping.wait(FOREVER_S)
    return perf_counter_ns(), value


def _discard(stamp: Incoming) -> None:
    """Nobody reads it; but its receive must end before its memory does."""
    with suppress(ConnectionLost, NoAnswer):
        stamp.wait(FOREVER_S)


class StampedEnd:
    """The end of a wire for its tensors, with tags as channels give them, and its stamps beside them."""

    def __init__(self, inner: Transport, beside: Transport, link: OutLink | InLink, transfers: int, cadence: Sampling) -> None:
        """Wrap an end.

        Args:
            inner: what carries the messages.
            beside: what carries stamps and pings: the same, unless a receive there holds back those behind it.
            link: this end of the link.
            transfers: how many the wire has in a step.
            cadence: says in which steps there are stamps.
        """
        self._cadence = cadence
        self._inner = inner
        self._beside = beside
        self._link = link
        self._every = -(-transfers // MOST_STAMPS)
        self._begins = TransferBegins()
        link.end = beside

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        """As `Transport.send`."""
        if not self._cadence.now:
            return self._inner.send(tensor, tag)
        link = self._link
        assert isinstance(link, OutLink)
        with link.lock:
            sent_ns = perf_counter_ns()
            message = self._inner.send(tensor, tag)
            if not self._stamps(tag):
                return message
            if link.kind is None:
                link.kind = _ping_kind(TensorMeta.of(tensor))
            words = link.words
            numbers = torch.tensor([sent_ns, *words[:3], *words.news], device="cpu")
            return both(message, self._beside.send(numbers, tag // TAGS * TAGS + STAMP_TAG))

    def receive(self, kind: TensorMeta, tag: int) -> Incoming:
        """As `Transport.receive`."""
        link = self._link
        assert isinstance(link, InLink)
        with link.lock:
            message = self._inner.receive(kind, tag)
            if self._stamps(tag):
                if link.kind is None:
                    link.kind = _ping_kind(kind)
                link.expect(self._beside.receive(STAMP, tag // TAGS * TAGS + STAMP_TAG))
            return message

    def _stamps(self, tag: int) -> bool:
        """Whether this tensor has a stamp; both ends say the same."""
        return self._cadence.now and self._begins.at(tag) and tag // TAGS % self._every == 0


def _ping_kind(kind: TensorMeta) -> TensorMeta:
    """What a ping is: as large as a message, up to a limit."""
    most = MOST_PING_BYTES // kind.dtype.itemsize
    return TensorMeta(kind.dtype, (min(most, max(1, torch.Size(kind.shape).numel())),))
