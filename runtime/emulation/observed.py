"""Delays between hosts, whose clocks differ: the receiver counts occupancy and latency from when it sees a message come.

Someone has to watch for that: a thread of the receiving rank, which waits for one expected message after the other and ends when
none is left. The link is free again an occupancy after the message before it, as on the sender's side. A message whose receive is
posted late is seen late.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns
from typing import TYPE_CHECKING

from schedc.runtime.common.failure import NoAnswer
from schedc.runtime.common.serial_executor import SerialExecutor
from schedc.runtime.emulation.timer import wait_until
from schedc.runtime.execution.channels import NO_TAG, TAGS, last_of, same_transfer

if TYPE_CHECKING:
    import torch

    from schedc.runtime.common.header import TensorMeta
    from schedc.runtime.emulation.delays import DelayOfTransfers, Reservable
    from schedc.runtime.transports.base import Incoming, Outgoing, Transport

WATCH_S = 86_400.0
"""How long the thread waits for a message; who takes it gives up earlier, and closes the connection."""


class _Incoming:
    """A message that is watched for."""

    def __init__(self, inner: Incoming) -> None:
        self.inner = inner
        self.seen = threading.Event()
        self.arrival_ns = 0
        self.value: torch.Tensor | None = None
        self.error: Exception | None = None

    def wait(self, timeout_s: float) -> torch.Tensor:
        if not self.seen.wait(timeout_s):
            raise NoAnswer(f"nothing came in {timeout_s:g} s")
        if self.error is not None:
            raise self.error
        assert self.value is not None
        wait_until(self.arrival_ns)
        return self.value


class ObservedTransport:
    """The end of a wire for its tensors, with tags as channels give them."""

    def __init__(self, inner: Transport, delay: DelayOfTransfers, link: Reservable) -> None:
        """Wrap an end.

        Args:
            inner: what carries the messages.
            delay: what they meet.
            link: what they occupy; used by the receiver alone.
        """
        self._inner = inner
        self._delay = delay
        self._link = link
        self._last_tag = NO_TAG
        self._receives = SerialExecutor()

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        """As `Transport.send`."""
        return self._inner.send(tensor, tag)

    def receive(self, kind: TensorMeta, tag: int) -> _Incoming:
        """As `Transport.receive`."""
        place = None if same_transfer(self._last_tag, tag) else tag // TAGS
        self._last_tag = last_of(self._last_tag, tag)
        incoming = _Incoming(self._inner.receive(kind, tag))
        self._receives.add(lambda: self._watch(incoming, place))
        return incoming

    def _watch(self, incoming: _Incoming, place: int | None) -> None:
        """Take note of an expected message when it comes: of the transfer at this place of the wire; None: of the one before."""
        try:
            incoming.value = incoming.inner.wait(WATCH_S)
            now_ns = perf_counter_ns()
            delay = self._delay.at(now_ns)
            occupancy_ns = 0 if place is None else delay.occupancy_ns[place]
            incoming.arrival_ns = self._link.reserve(now_ns, occupancy_ns) + delay.latency_ns
        except Exception as error:  # for who takes it
            incoming.error = error
        incoming.seen.set()
