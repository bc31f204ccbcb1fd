"""Tensors from GPU to GPU over NCCL: a communicator and streams of its own for each wire (CrossPipe 6.3).

A process group of the two ranks is the wire, and no other uses it: NCCL runs what one communicator gets in order, and
PyTorch's groups have one communicator, and one stream, for both directions between two ranks. So {send, recv} x {next, prev} are
four communicators, and on two ranks that exchange in both directions each direction has its own.

Order: what is sent waits on the device for the compute that was issued before it, and for nothing else. What is received waits for
nothing here: a stream beside the compute's is current when the receive is issued, since a group makes its own stream wait for the
current one. The compute waits on the device for what it takes. The host waits in none of this, so it may run far ahead of the
device: by `AHEAD` receives of a wire, since each has a buffer. It learns of a failure there, or between two steps, when it waits
until all transfers are through (`settle`). If it is blocked in CUDA meanwhile, `HostWatch` ends the communicators.

NCCL may leave a rank waiting whose peer has ended, or has given up after a failure of its own. So beside each wire there is a
connection over gloo on which nothing is sent: a thread waits for its end, and ends the communicator with it.

What PyTorch does with failures and what ends a process is documented, with what to set, in docs/gpu.md.

Tensors go as bytes: NCCL has no int16 and no complex numbers. NCCL has no tags either: receives must be posted in the order of the
sends.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, cast

import torch

from schedc.errors import Unsupported
from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.common.failure import ConnectionLost, NoAnswer, is_own
from schedc.runtime.transports.base import Ends, UnderWay
from schedc.runtime.transports.gloo import FOREVER_S, GlooTransport, hang_up
from schedc.runtime.transports.streams import CudaSide, Mark, as_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch.distributed as dist

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Wire
    from schedc.runtime.transports.host_watch import HostWatch

HANDSHAKE = TensorMeta(torch.uint8, (1,))
POLL_S = 50e-6
NOW = timedelta(milliseconds=1)
"""A limit for the wait for what is completed: with a limit, it raises what has failed."""
WATCHDOG = timedelta(days=1)
"""When PyTorch's watchdog complains of a transfer: a receive may be posted long before, and waits have limits of their own."""
AHEAD = 2
"""By how many receives of a wire the host may be ahead of the device: as many buffers it has beyond those of the plan."""
MAX_BLOCKS = 4
"""How many thread blocks a transfer's kernel may have. One that is posted early holds them, and so do those of other wires, while
the compute goes on beside them. The job's NCCL_MAX_CTAS overrides it."""
ENDING_S = 30.0
"""How long closing waits for a communicator's end."""


def connect_nccl(wire: Wire, groups: Groups, *, device: torch.device, watch: HostWatch | None = None) -> Ends:
    """Connect a wire over NCCL. Both of its ranks do this together, and make their communicator at once with a first transfer.

    Args:
        wire: which.
        groups: makes the group of what the ranks tell each other.
        device: the GPU of this rank's stages.
        watch: ends the wire when the host is blocked for twice the groups' limit; the same for all wires of the rank.

    Raises:
        Unsupported: this PyTorch has no NCCL.
        ConnectionLost: NCCL cannot connect the two.
        NoAnswer: the peer does not come.
    """
    control, line = (groups.make((wire.source, wire.destination)) for _ in range(2))
    group = _nccl_group(wire, groups)
    end = NcclTransport(group, CudaSide(device))
    if watch is not None:
        end.watch(watch, 2 * groups.timeout_s)
    sends = groups.rank == wire.source
    try:
        if sends:
            end.send(torch.zeros(HANDSHAKE.shape, dtype=HANDSHAKE.dtype, device=device), 0)
        else:
            end.receive(HANDSHAKE, 0)
        end.settle(groups.timeout_s)
    except BaseException:
        end.close()
        end.ended(ENDING_S)
        raise

    end_with_peer(end, line, wire.name)

    def give_up() -> None:
        hang_up(line)
        end.close()

    def close() -> None:
        hang_up(control)
        give_up()

    return Ends(end, GlooTransport(control), settle=end.settle, give_up=give_up, close=close, ended=end.ended)


def end_with_peer(end: NcclTransport, line: dist.ProcessGroup, name: str) -> None:
    """Let a thread close this end as soon as the peer hangs up, or ends.

    Nothing is sent on `line`, a group over gloo of this rank and its peer.
    """

    def listen() -> None:
        try:
            GlooTransport(line).receive(HANDSHAKE, 0).wait(FOREVER_S)
        except ConnectionLost:
            end.close("the other rank has given up this channel, or has ended")

    threading.Thread(target=listen, name=f"schedc {name} peer", daemon=True).start()


def _nccl_group(wire: Wire, groups: Groups) -> dist.ProcessGroup:
    """A group of the wire's two ranks, as `Groups.make` has it: made by its members, outside torch's registry.

    It makes its communicator with its first transfer. That is not `eager_connect_single_device`, after which PyTorch takes a
    group's transfers for collectives and warns that each waits for the one before.
    """
    try:
        from torch._C._distributed_c10d import ProcessGroupNCCL
    except ImportError as error:
        raise Unsupported("this PyTorch is built without NCCL; install one with CUDA, or load with channels='delegate'") from error
    options = ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True  # what a rank waits for is small, and the compute's kernels fill the device
    options._timeout = WATCHDOG
    options.config.max_ctas = MAX_BLOCKS
    store = groups.store_of((wire.source, wire.destination))
    try:
        with failures_are_told():
            made = ProcessGroupNCCL(store, int(groups.rank == max(wire.source, wire.destination)), 2, options)
    except RuntimeError as error:
        raise ConnectionLost(str(error)) from error
    return cast("dist.ProcessGroup", made)  # a backend has a group's methods, which torch's stubs do not know


@contextmanager
def failures_are_told() -> Iterator[None]:
    """Groups made in this context never block, and leave a failure to who waits. By default PyTorch ends the process.

    What each would do (`ProcessGroupNCCL.cpp`, whose constructor reads them): the watchdog raises what NCCL reports, and what CUDA
    does, in a thread of its own; the monitor ends the process if the watchdog does not move, or another group says that it failed.
    A watchdog that has found a failure sleeps four times the time for a dump, and whoever lets go of the group waits for it.
    """
    wanted = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_BLOCKING_WAIT": "0",
        "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    }
    before = {name: os.environ[name] for name in wanted if name in os.environ}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def raise_failure(work: dist.Work) -> None:
    """Raise what NCCL has found of a transfer, without a wait.

    Raises:
        ConnectionLost: it has failed.
    """
    if work.is_completed():  # done or failed
        try:
            work.wait(NOW)
        except RuntimeError as error:
            if is_own(error):
                raise
            raise ConnectionLost(str(error)) from error


class NcclTransport:
    """One end of a wire on its own group."""

    def __init__(self, group: dist.ProcessGroup, side: CudaSide) -> None:
        """Take a group of this rank and its peer, and a stream that nothing else uses."""
        self._group = group
        self._peer = 1 - group.rank()
        self._side = side
        self._pending: deque[Mark] = deque()
        """The step's thread alone takes marks away."""
        self._used: deque[Mark] = deque()
        """The compute's marks at which it came to what was handed over last."""
        self._latest: dist.Work | None = None
        self._closed: str | None = None
        self._closing = threading.Lock()
        self._ending: threading.Thread | None = None
        self._watch: HostWatch | None = None
        self._beginning = False
        """Whether PyTorch is being called; in the first call it makes the communicator, and waits for the peer without a limit."""

    def watch(self, watch: HostWatch, limit_s: float) -> None:
        """Let this end be closed if the host is blocked for so long."""
        self._watch = watch
        watch.add(self, limit_s)

    def under_way(self) -> bool:
        """As `Watched.under_way`."""
        return self._beginning or bool(self._pending)

    def send(self, tensor: torch.Tensor, tag: int) -> UnderWay:
        """As `Transport.send`. What is computed after the wait comes behind it on the device; until then the tensor is kept."""
        source = as_bytes(tensor)
        self._side.follow_compute()
        mark = self._start(self._group.send, source)
        return UnderWay(partial(self._sent, mark, source), mark)

    def _sent(self, mark: Mark, source: torch.Tensor, timeout_s: float) -> None:
        self._side.precede_compute(mark)

    def receive(self, kind: TensorMeta, tag: int) -> UnderWay:
        """As `Transport.receive`."""
        buffer = self._side.empty(kind)
        if not kind.dtype.is_floating_point:  # a failed receive leaves what is there; as indices that would end the CUDA context
            with self._side.use():
                buffer.zero_()
        mark = self._start(self._group.recv, as_bytes(buffer))
        return UnderWay(partial(self._take, mark, buffer), mark)

    def _take(self, mark: Mark, buffer: torch.Tensor, timeout_s: float) -> torch.Tensor:
        """Let the compute use what is received."""
        if len(self._used) == AHEAD:
            self._await(self._used.popleft(), monotonic() + timeout_s)
        self._side.precede_compute(mark)
        self._side.lend(buffer)
        self._used.append(self._side.mark_compute())
        return buffer

    def settle(self, timeout_s: float) -> None:
        """Wait on the host until the device has done all that was started.

        Raises:
            ConnectionLost: NCCL has failed.
            NoAnswer: it is not done in time.
        """
        until_s = monotonic() + timeout_s
        while self._pending:
            self._await(self._pending[0], until_s)
            self._pending.popleft()
        self._used.clear()

    def close(self, reason: str = "this end of the wire is closed") -> None:
        """Begin to end the communicator, in any thread; what is under way fails. Nothing is flushed: kernels may wait indefinitely.

        It may end only when others of this device do, whose kernels are in front of its own. So `ended` waits, and not this.
        """
        with self._closing:
            if self._ending is None:
                self._closed = reason
                self._ending = threading.Thread(target=self._group.abort, name="schedc ends NCCL", daemon=True)
                self._ending.start()
        if self._watch is not None:
            self._watch.remove(self)

    def ended(self, timeout_s: float) -> None:
        """As `Ends.ended`. Warns if the communicator does not end in time."""
        if self._ending is not None:
            self._ending.join(timeout_s)
            if self._ending.is_alive():
                said = "NCCL does not end a communicator; end this process rather than load again (docs/gpu.md)"
                warnings.warn(said, RuntimeWarning, stacklevel=2)

    def _start(self, transfer: Callable[[list[torch.Tensor], int, int], dist.Work], data: torch.Tensor) -> Mark:
        """Issue a transfer; the point of the side stream at which it is through.

        The group's work object would keep the tensor until the device has come so far, however long ago the caller has let go of it
        in the compute's order. So only the latest is kept; a communicator that has failed says so to any.
        """
        self._raise_closed()
        if self._watch is not None:
            self._watch.heard()
        if data.numel():
            self._beginning = True
            try:
                with self._side.use():
                    self._latest = transfer([data], self._peer, 0)
                    self._latest.wait()  # this stream waits for the group's, the host for nothing
            except RuntimeError as error:
                if is_own(error):
                    raise
                raise ConnectionLost(str(error)) from error
            finally:
                self._beginning = False
        mark = self._side.mark()
        self._pending.append(mark)
        return mark

    def _await(self, mark: Mark, until_s: float) -> None:
        """Wait on the host for a mark."""
        while not mark.query():
            self._check()
            if monotonic() > until_s:
                raise NoAnswer("NCCL has not done the transfer in time")
            if self._watch is not None:
                self._watch.heard()
            sleep(POLL_S)
        self._check()  # a communicator that has been ended lets the device go on

    def _check(self) -> None:
        """Raise what NCCL has found, or why this end is closed."""
        self._raise_closed()
        if self._latest is not None:
            raise_failure(self._latest)

    def _raise_closed(self) -> None:
        """After its end a communicator finds nothing wrong any more."""
        if self._closed is not None:
            raise ConnectionLost(self._closed)
