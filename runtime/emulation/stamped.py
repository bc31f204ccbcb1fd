"""Transfers that arrive when the plan's links say, between ranks that share a host's clock: the sender stamps each message.

The sender reserves the link when it sends, in the order of sending, and sends the time at which the message arrives along with it:
`max(now, link free) + occupancy + latency`, the cost model's, with the costs that the link has when it sends. The message goes at
once; the receiver sleeps until its time has come, too.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from schedc.runtime.common.header import TensorMeta
from schedc.runtime.emulation.timer import wait_until
from schedc.runtime.execution.channels import TAGS, TransferBegins
from schedc.runtime.transports.base import Both, Ends, Incoming, Outgoing, Transport

if TYPE_CHECKING:
    from schedc.runtime.emulation.delays import DelayOfTransfers, Reservable

STAMP = TensorMeta(torch.int64, (1,))


class OneQueue:
    """A queue for all transfers of a rank, sends and receives, that holds one at a time, in the order in which they come.

    It models one communicator with one stream for all of a rank's point-to-point transfers, whose queue is full with one
    transfer under way: to hand it the next blocks the rank until the one before is through (PipeMorph 3.2, figure 6: the launch
    of SF_3 waits for SF_2, and F_4 behind it). A send is through when its message has arrived, whether or not its receiver has
    asked for it; a receive is handed over by the op that needs it. So a rank waits for its own earlier ops and for times only, and
    whatever plan runs with four queues ends with one.
    """

    def __init__(self) -> None:
        """Empty."""
        self._until_ns = 0

    def enter(self) -> None:
        """Wait until the transfer before is through."""
        wait_until(self._until_ns)

    def hold(self, until_ns: int) -> None:
        """Hold the queue with a transfer until this time."""
        self._until_ns = until_ns


class _Incoming:
    """A message and its stamp, expected."""

    __slots__ = ("_message", "_queue", "_stamp")

    def __init__(self, message: Incoming, stamp: Incoming, queue: OneQueue | None) -> None:
        self._message = message
        self._stamp = stamp
        self._queue = queue

    def wait(self, timeout_s: float) -> torch.Tensor:
        if self._queue is not None:
            self._queue.enter()
        arrival_ns = int(self._stamp.wait(timeout_s))
        value = self._message.wait(timeout_s)
        wait_until(arrival_ns)
        return value


class InjectedTransport:
    """The end of a wire for its tensors, with tags as channels give them."""

    def __init__(self, ends: Ends, delay: DelayOfTransfers, link: Reservable, queue: OneQueue | None = None) -> None:
        """Wrap an end.

        Args:
            ends: what carries messages, and their stamps.
            delay: what they meet.
            link: what they occupy; used by the sender alone.
            queue: what all transfers of the rank go through, if it is one.
        """
        self._data, self._control = ends.data, ends.control
        self._delay = delay
        self._link = link
        self._queue = queue
        self._begins = TransferBegins()
        self._arrival_ns = 0

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        """As `Transport.send`; with one queue, it waits for the transfer before."""
        stamp = self.send_stamp(tag)
        return Both(stamp, self._data.send(tensor, message_tag(tag)))

    def send_stamp(self, tag: int) -> Outgoing:
        """Reserve the link for a message that is ready now, and send the receiver the time at which it arrives."""
        if self._begins.at(tag):
            if self._queue is not None:
                self._queue.enter()
            now_ns = perf_counter_ns()
            delay = self._delay.at(now_ns)
            self._arrival_ns = self._link.reserve(now_ns, delay.occupancy_ns[tag // TAGS]) + delay.latency_ns
            if self._queue is not None:
                self._queue.hold(self._arrival_ns)
        return self._control.send(torch.tensor([self._arrival_ns], device="cpu"), stamp_tag(tag))

    def receive(self, kind: TensorMeta, tag: int) -> _Incoming:
        """As `Transport.receive`. It may be called late: the message's time is what its sender has said."""
        stamp = self._control.receive(STAMP, stamp_tag(tag))
        return _Incoming(self._data.receive(kind, message_tag(tag)), stamp, self._queue)


class Undelayed:
    """The end of a wire for what ranks send each other in the host's memory, beside the stamps."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        """As `Transport.send`."""
        return self._inner.send(tensor, message_tag(tag))

    def receive(self, kind: TensorMeta, tag: int) -> Incoming:
        """As `Transport.receive`."""
        return self._inner.receive(kind, message_tag(tag))


def message_tag(tag: int) -> int:
    """What a message is sent under, beside its stamp."""
    return 2 * tag


def stamp_tag(tag: int) -> int:
    """What the stamp of a message is sent under."""
    return 2 * tag + 1
