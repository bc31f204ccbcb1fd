"""Latency and occupancy added to real channels (CrossPipe 6.4 and appendix F), on the CPU: nothing waits but who takes a message.

It wraps the ends of wires, whatever carries their messages. The sender reserves the link or trunk when it sends, in the order of
sending, and stamps the message with the time at which it arrives: `max(now, link free) + occupancy + latency`, the cost model's.
The message goes at once; who takes it sleeps until its time has come, too. That needs one clock, a host's. Between hosts the
receiver counts from when it sees the message come, as CrossPipe does, so that the real way adds to the injected one.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from schedc.errors import Unsupported
from schedc.runtime.emulation.delays import NO_TAG, OwnLink, delay_of, same_transfer
from schedc.runtime.emulation.observed import ObservedTransport
from schedc.runtime.emulation.timer import wait_until
from schedc.runtime.emulation.trunks import host_name, open_trunks
from schedc.runtime.execution.channels import TAGS
from schedc.runtime.execution.header import TensorKind
from schedc.runtime.transports.nccl import NcclTransport

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.runtime.emulation.delays import Reservable, WireDelay
    from schedc.runtime.emulation.trunks import Trunk
    from schedc.runtime.execution.program import Wire
    from schedc.runtime.session.groups import Groups
    from schedc.runtime.transports.base import Ends, Incoming, Outgoing, Transport

__all__ = ["InjectedTransport", "Injection", "OneQueue", "message_tag", "stamp_tag"]

STAMP = TensorKind(torch.int64, (1,))


class OneQueue:
    """A queue for all transfers of a rank, sends and receives, that holds one at a time, in the order in which they come.

    It stands for one communicator with one stream for all of a rank's point-to-point transfers, whose queue is full with one
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


class _Outgoing:
    """A message and its stamp on their way."""

    __slots__ = ("_message", "_stamp")

    def __init__(self, message: Outgoing, stamp: Outgoing) -> None:
        self._message = message
        self._stamp = stamp

    def wait(self, timeout_s: float) -> None:
        self._stamp.wait(timeout_s)
        self._message.wait(timeout_s)


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

    def __init__(self, ends: Ends, delay: WireDelay, link: Reservable, queue: OneQueue | None = None) -> None:
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
        self._last_tag = NO_TAG
        self._arrival_ns = 0

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        """As `Transport.send`; with one queue, it waits for the transfer before."""
        stamp = self.send_stamp(tag)
        return _Outgoing(self._data.send(tensor, message_tag(tag)), stamp)

    def send_stamp(self, tag: int) -> Outgoing:
        """Reserve the link for a message that is ready now, and tell the receiver when it arrives."""
        if not same_transfer(self._last_tag, tag):
            if self._queue is not None:
                self._queue.enter()
            left_ns = self._link.reserve(perf_counter_ns(), self._delay.occupancy_ns[tag // TAGS])
            self._arrival_ns = left_ns + self._delay.latency_ns
            if self._queue is not None:
                self._queue.hold(self._arrival_ns)
        self._last_tag = tag
        return self._control.send(torch.tensor([self._arrival_ns]), stamp_tag(tag))

    def receive(self, kind: TensorKind, tag: int) -> _Incoming:
        """As `Transport.receive`. It may be called late: the message's time is what its sender has said."""
        stamp = self._control.receive(STAMP, stamp_tag(tag))
        return _Incoming(self._data.receive(kind, message_tag(tag)), stamp, self._queue)


class _Undelayed:
    """The end of a wire for what ranks tell each other, beside the stamps."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    def send(self, tensor: torch.Tensor, tag: int) -> Outgoing:
        return self._inner.send(tensor, message_tag(tag))

    def receive(self, kind: TensorKind, tag: int) -> Incoming:
        return self._inner.receive(kind, message_tag(tag))


def message_tag(tag: int) -> int:
    """What a message is sent under, beside its stamp."""
    return 2 * tag


def stamp_tag(tag: int) -> int:
    """What the stamp of a message is sent under."""
    return 2 * tag + 1


class Injection:
    """What is put around the ends of one rank's wires: delays by a problem's links. Headers and losses are not delayed."""

    def __init__(
        self,
        problem: Problem,
        groups: Groups,
        *,
        scale: float = 1.0,
        one_queue: bool = False,
        device: torch.device | None = None,
    ) -> None:
        """Find out which ranks share a clock, and open the trunks. All ranks do this together.

        Args:
            problem: whose links' costs are injected, also where the job moves to another plan.
            groups: of the plan's ranks.
            scale: what all times are multiplied by.
            one_queue: send all transfers of this rank through one queue; on CPUs.
            device: where this rank's stages are; None: on the CPU.

        Raises:
            Unsupported: ranks of several hosts share a trunk, or would have one queue.
            TransferFailed: another rank has ended.
        """
        self._problem = problem
        self._scale = scale
        self._gpu = _Gpu(device) if device is not None and device.type == "cuda" else None
        self._hosts = groups.exchange(host_name())
        if one_queue and len(set(self._hosts)) > 1:
            raise Unsupported("one queue for all transfers needs one clock; run all ranks on one host, or with four queues")
        self._trunks = open_trunks(_senders(problem), self._hosts, groups)
        self._links: dict[tuple[int, int], OwnLink] = {}
        self._queue = OneQueue() if one_queue else None

    def wrap(self, wire: Wire, ends: Ends) -> Ends:
        """The ends of a wire on this rank with its delays; asked again when another plan's wire is laid over the same ends.

        Raises:
            Unsupported: its ranks are on GPUs of several hosts, and it is not NCCL's.
        """
        delay = delay_of(self._problem, wire, self._scale)
        own = self._links.setdefault((wire.source, wire.destination), OwnLink())
        together = self._hosts[wire.source] == self._hosts[wire.destination]
        if self._gpu is not None and delay.trunk is None and isinstance(ends.data, NcclTransport):
            return ends._replace(data=self._gpu.spun(ends.data, delay))
        if not together and self._gpu is not None:
            raise Unsupported(
                f"ranks {wire.source} and {wire.destination} have GPUs on different hosts, between which delays can be injected"
                " into NCCL's transfers only; load with channels='nccl'"
            )
        if not together:
            return ends._replace(data=ObservedTransport(ends.data, delay, own))
        link = own if delay.trunk is None else self._trunks[delay.trunk]
        if self._gpu is not None:
            return ends._replace(data=self._gpu.stamped(ends, delay, link), control=_Undelayed(ends.control))
        return ends._replace(data=InjectedTransport(ends, delay, link, self._queue), control=_Undelayed(ends.control))

    def trunk(self, name: str) -> Trunk:
        """The trunk of this name, for what is not a transfer."""
        return self._trunks[name]


class _Gpu:
    """What wraps the ends of a rank on a GPU."""

    def __init__(self, device: torch.device) -> None:
        from schedc.runtime.emulation import injected_cuda  # which imports this module

        self._cuda = injected_cuda
        self._device = device
        self._rate = injected_cuda.cycles_per_ns(device)

    def spun(self, inner: NcclTransport, delay: WireDelay) -> Transport:
        return self._cuda.SpunTransport(inner, delay, self._device, self._rate)

    def stamped(self, ends: Ends, delay: WireDelay, link: Reservable) -> Transport:
        return self._cuda.DeviceStampedTransport(ends, delay, link, lambda: self._cuda.compute_mark(self._device))


def _senders(problem: Problem) -> dict[str, list[int]]:
    """By trunk, the ranks that send on it, collectives included."""
    senders: dict[str, set[int]] = {}
    for link in problem.links:
        if link.trunk is not None:
            senders.setdefault(link.trunk, set()).add(link.source)
    parallel = problem.data_parallel
    if parallel is not None and parallel.trunk is not None:
        senders.setdefault(parallel.trunk, set()).update(range(problem.ranks))
    return {trunk: sorted(ranks) for trunk, ranks in sorted(senders.items())}
