"""Tensors through the host's memory, by helper threads over gloo (PipeMorph 5.2): what computes never waits for what is sent.

The sending end copies a tensor to pinned host memory on a stream of its own; one of several queues, in turn, sends it. The
receiving end reads each queue eagerly, before an op asks, and copies what has come to the device as soon as its receive is posted.
The ends agree on nothing but names: before a tensor goes its tag, and how often the tag has come. So queues may overtake each
other, and receives may be posted in any order. gloo does not end the wait for a send that has begun when the peer is lost (see
`schedc.runtime.transports.gloo`). So a queue waits for a byte that the peer sends back once it has read a tensor. That delays
nothing: the peer is not ready for the queue's next tensor before.

Helpers are threads, not processes as PipeMorph's. They spend their time in gloo and CUDA, which leave Python's lock alone, and need
no memory shared between processes, nor signals through it; `benchmarks/runtime/transports.py` measures what they add.

How many queues: `queues_needed`. Memory: sends that are under way, receives that are posted, and at most one message for each queue
that has come before its receive was posted.
"""

from __future__ import annotations

import math
import queue
import threading
from collections import Counter, deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

import torch

from schedc.errors import CheckFailed
from schedc.runtime.common.failure import ConnectionLost, NoAnswer
from schedc.runtime.transports.base import QUEUES, Ends, Incoming, Outgoing, Transport, UnderWay
from schedc.runtime.transports.gloo import FOREVER_S, GlooTransport, hang_up
from schedc.runtime.transports.helpers import result_of
from schedc.runtime.transports.streams import CudaSide, DeviceStaging, HostStaging, Parcel, nbytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch.distributed as dist

    from schedc.runtime.common.boundary import TensorMeta
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Wire

TAG, TENSOR, READ = 0, 1, 2
"""gloo's tags of what goes through a queue; the last one of what comes back."""
PATIENCE_S = 5.0
"""How long closing waits for a thread; none takes long once its group is closed."""

Name: TypeAlias = "tuple[int, int]"
"""A transfer: its tag, and how many with this tag went before."""


def queues_needed(produced_per_s: float, carried_per_s: float) -> int:
    """How many queues keep up with the compute (PipeMorph 5.2): 8 tensors a second, of which one queue carries 2, need 4.

    Args:
        produced_per_s: tensors of a wire that the sending stage produces in a second of its steady phase, 1 / (F + B + W).
        carried_per_s: tensors that one queue carries in a second; `benchmarks/runtime/transports.py` prints it for several sizes.
    """
    return max(1, math.ceil(produced_per_s / carried_per_s))


def connect_delegate(wire: Wire, groups: Groups, *, device: torch.device | None = None, queues: int = QUEUES) -> Ends:
    """Connect a wire through the host. Both of its ranks do this together, with as many queues.

    No device: the CPU. `queues` says how many tensors travel at once.
    """
    control = groups.make((wire.source, wire.destination))
    lanes = [groups.make((wire.source, wire.destination)) for _ in range(queues)]
    on_gpu = device is not None and device.type == "cuda"
    staging = DeviceStaging(CudaSide(device)) if on_gpu and device is not None else HostStaging()
    sends = groups.rank == wire.source
    end = DelegateSender(lanes, staging, wire.name) if sends else DelegateReceiver(lanes, staging, wire.receiver_name)

    def close() -> None:
        hang_up(control)
        end.close()

    return Ends(cast("Transport", end), GlooTransport(control), give_up=end.close, close=close)


def found_elsewhere(error: Exception) -> Exception:
    """What to raise for an error that another thread has found: a connection that it has lost is lost, all else is what it is."""
    if not isinstance(error, (ConnectionLost, NoAnswer)):
        return error
    lost = ConnectionLost(str(error))
    lost.__cause__ = error
    return lost


class _End:
    """One end of a wire: a thread for each queue."""

    def __init__(self, lanes: Sequence[dist.ProcessGroup], staging: HostStaging, name: str) -> None:
        """Start the threads: `lanes` are groups of this rank and its peer, by queue; `staging` is where tensors are, or go."""
        self.staging = staging
        self._lanes = lanes
        self._names: Counter[int] = Counter()
        self._error: Exception | None = None
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"schedc {name}", daemon=True) for number in range(len(lanes))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads; what has not been sent or taken is lost."""
        self._end_threads(self._error or ConnectionLost("this end of the wire is closed"))
        for lane in self._lanes:
            hang_up(lane)
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _name(self, tag: int) -> Name:
        """The next transfer of this tag."""
        self._names[tag] += 1
        return tag, self._names[tag] - 1

    def _serve(self, number: int) -> None:
        """Do what a queue's thread does."""
        raise NotImplementedError

    def _end_threads(self, error: Exception) -> None:
        """Let all threads end."""
        raise NotImplementedError


class DelegateSender(_End):
    """The sending end: each thread sends what its queue gets."""

    def __init__(self, lanes: Sequence[dist.ProcessGroup], staging: HostStaging, name: str) -> None:
        """As `_End`."""
        self._sent = 0
        self._queues: list[queue.SimpleQueue[tuple[Future[None], Name, Parcel] | None]] = [queue.SimpleQueue() for _ in lanes]
        super().__init__(lanes, staging, name)

    def send(self, tensor: torch.Tensor, tag: int) -> UnderWay:
        """As `Transport.send`."""
        if self._error is not None:
            raise found_elsewhere(self._error)
        read: Future[None] = Future()
        self._queues[self._sent % len(self._queues)].put((read, self._name(tag), self.staging.leave(tensor)))
        self._sent += 1
        return UnderWay(partial(result_of, read))

    def _end_threads(self, error: Exception) -> None:
        self._error = error
        for waiting in self._queues:
            waiting.put(None)

    def _serve(self, number: int) -> None:
        """Send what one queue gets, until it is closed. gloo has the next tensor before the peer has read the one before it."""
        line, waiting = GlooTransport(self._lanes[number]), self._queues[number]
        under_way: deque[tuple[Future[None], Incoming, Sequence[Outgoing]]] = deque()
        while (outgoing := waiting.get()) is not None:
            under_way += self._start(line, *outgoing)
            del outgoing  # the tensor is not kept alive until the next one comes
            while len(under_way) > (0 if waiting.empty() else 1):
                self._finish(*under_way.popleft())
        for one in under_way:
            self._finish(*one)

    def _start(
        self, line: GlooTransport, read: Future[None], name: Name, parcel: Parcel
    ) -> list[tuple[Future[None], Incoming, Sequence[Outgoing]]]:
        """Send a tensor's label and its bytes; what is under way: the peer's byte, and what gloo sends; nothing if it is lost."""
        if self._error is None:
            try:
                back = line.receive_into(torch.empty(1, dtype=torch.uint8, device="cpu"), READ)
                sent = [line.send(torch.tensor([*name, parcel.bytes.numel()], device="cpu"), TAG)]
                if parcel.ready is not None:
                    parcel.ready.synchronize()
                if parcel.bytes.numel():
                    sent.append(line.send(parcel.bytes, TENSOR))
                return [(read, back, sent)]
            except RuntimeError as error:
                self._error = error
        read.set_exception(found_elsewhere(self._error))
        return []

    def _finish(self, read: Future[None], back: Incoming, sent: Sequence[Outgoing]) -> None:
        """Wait until the peer has read this; what gloo sends is kept until then."""
        try:
            back.wait(FOREVER_S)
        except RuntimeError as error:
            self._error = self._error or error
            read.set_exception(found_elsewhere(self._error))
        else:
            read.set_result(None)


class DelegateReceiver(_End):
    """The receiving end: each thread reads one message of its queue more than was asked for."""

    def __init__(self, lanes: Sequence[dist.ProcessGroup], staging: HostStaging, name: str) -> None:
        """As `_End`."""
        self._expected: dict[Name, tuple[Future[Callable[[], torch.Tensor]], TensorMeta]] = {}
        self._arrived: dict[Name, torch.Tensor] = {}
        self._changed = threading.Condition()
        self._asked = 0
        self._waiting = 0
        """How many wait for what has not come: meanwhile what is in front of it is read, asked for or not."""
        self._reading = list(range(len(lanes)))
        """By queue, the number of the message that it reads or will read next, in the order of sending."""
        self._said: list[object] = [None] * len(lanes)
        """By queue, what gloo sends back: kept until the next tensor has come, which the peer sends after it has this."""
        self._ended = 0
        super().__init__(lanes, staging, name)

    def receive(self, kind: TensorMeta, tag: int) -> UnderWay:
        """As `Transport.receive`."""
        landed: Future[Callable[[], torch.Tensor]] = Future()
        with self._changed:
            name = self._name(tag)
            arrived = self._arrived.pop(name, None)
            if arrived is None:
                if self._ended >= len(self._lanes):
                    assert self._error is not None
                    raise found_elsewhere(self._error)
                self._expected[name] = landed, kind
            self._asked += 1
            self._changed.notify_all()
        if arrived is not None:
            self._land(arrived, landed, kind)
        return UnderWay(partial(self._take, landed))

    def _take(self, landed: Future[Callable[[], torch.Tensor]], timeout_s: float) -> torch.Tensor:
        if not landed.done():
            with self._changed:
                self._waiting += 1
                self._changed.notify_all()
            try:
                result_of(landed, timeout_s)
            finally:
                with self._changed:
                    self._waiting -= 1
        return landed.result()()

    def _end_threads(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _serve(self, number: int) -> None:
        """Read one queue, until it or another is closed."""
        line = GlooTransport(self._lanes[number])
        label, word = torch.empty(3, dtype=torch.int64, device="cpu"), torch.zeros(1, dtype=torch.uint8, device="cpu")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._may_read(number))
            try:
                line.receive_into(label, TAG).wait(FOREVER_S)
                tag, before, nbytes = label.tolist()
                arrived = self.staging.landing(nbytes)
                if nbytes:
                    line.receive_into(arrived, TENSOR).wait(FOREVER_S)
            except RuntimeError as found:
                self._end(found)
                return
            with suppress(ConnectionLost):  # the next read finds it
                self._said[number] = line.send(word, READ)
            with self._changed:
                self._reading[number] += len(self._lanes)
                expected = self._expected.pop((tag, before), None)
                if expected is None:
                    self._arrived[tag, before] = arrived
                self._changed.notify_all()
            if expected is not None:
                self._land(arrived, *expected)
            del arrived, expected  # the tensor is not kept alive until the next one comes

    def _may_read(self, number: int) -> bool:
        """Whether a queue may read on: its message is asked for, or the first that is not; or one in front of what is waited for.

        Where a queue has ended, the others read what is left until they find their own end.
        """
        at = self._reading[number]
        asked = at < self._asked + len(self._lanes)
        return asked or (self._waiting > 0 and at == min(self._reading)) or self._error is not None

    def _land(self, arrived: torch.Tensor, landed: Future[Callable[[], torch.Tensor]], kind: TensorMeta) -> None:
        """Hand what has come to who has asked for it."""
        try:
            if arrived.numel() != nbytes_of(kind):
                raise CheckFailed(f"the peer sent {arrived.numel()} bytes, expected {nbytes_of(kind)}, those of {kind}")
            landed.set_result(self.staging.land(arrived, kind))
        except Exception as error:  # for who waits, in whatever thread
            landed.set_exception(error)

    def _end(self, error: Exception) -> None:
        """A queue is closed. Nothing more can come once all are: the peer closes them together, but not all data is read then."""
        with self._changed:
            found = self._error = self._error or error
            closed = isinstance(error, (ConnectionLost, NoAnswer))
            self._ended = self._ended + 1 if closed else len(self._lanes)  # this rank's own trouble ends all
            self._changed.notify_all()
            lost = list(self._expected.values()) if self._ended >= len(self._lanes) else []
            if lost:
                self._expected.clear()
        for landed, _ in lost:
            landed.set_exception(found_elsewhere(found))
