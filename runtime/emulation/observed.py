"""Delays between hosts, whose clocks differ: the receiver counts occupancy and latency from when it sees a message come.

Someone has to watch for that: a thread of the receiving rank, which waits for one expected message after the other and ends when
none is left. The link is free again an occupancy after the message before it, as on the sender's side. A message whose receive is
posted late is seen late.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING

from schedc.runtime.common.failure import NoAnswer
from schedc.runtime.common.serial_executor import SerialExecutor
from schedc.runtime.emulation.timer import wait_until
from schedc.runtime.execution.channels import TAGS, TransferBegins

if TYPE_CHECKING:
    from concurrent.futures import Future

    import torch

    from schedc.runtime.common.header import TensorMeta
    from schedc.runtime.emulation.delays import DelayOfTransfers, Reservable
    from schedc.runtime.transports.base import Incoming, Outgoing, Transport

WATCH_S = 86_400.0
"""How long the thread waits for a message; who takes it gives up earlier, and closes the connection."""


class _Incoming:
    """A message that is watched for."""

    def __init__(self, seen: Future[tuple[torch.Tensor, int]]) -> None:
        """Take the message, and the time at which it arrives."""
        self._seen = seen

    def wait(self, timeout_s: float) -> torch.Tensor:
        try:
            value, arrival_ns = self._seen.result(timeout_s)
        except TimeoutError:
            raise NoAnswer(f"nothing came in {timeout_s:g} s") from None
        wait_until(arrival_ns)
        return value


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
        self._begins = TransferBegins()
        self._receives = SerialExecutor()

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        """As `Transport.send`."""
        return self._inner.send(tensor, tag)

    def receive(self, kind: TensorMeta, tag: int) -> _Incoming:
        """As `Transport.receive`."""
        place = tag // TAGS if self._begins.at(tag) else None
        return _Incoming(self._receives.submit(partial(self._watch, self._inner.receive(kind, tag), place)))

    def _watch(self, incoming: Incoming, place: int | None) -> tuple[torch.Tensor, int]:
        """An expected message, and when it arrives: of the transfer at this place of the wire; None: of the one before."""
        value = incoming.wait(WATCH_S)
        now_ns = perf_counter_ns()
        delay = self._delay.at(now_ns)
        occupancy_ns = 0 if place is None else delay.occupancy_ns[place]
        return value, self._link.reserve(now_ns, occupancy_ns) + delay.latency_ns
