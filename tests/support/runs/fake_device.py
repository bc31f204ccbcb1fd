"""A device that is none: streams that are threads, copies that happen when a stream comes to them, and an NCCL that does the same.

`FakeSide` replaces `transports.streams.CudaSide`, `FakeLane` a gloo group, `FakeNccl` a group over NCCL; the latter two come in
pairs, the ends of one connection in one process. `FakeMemory` frees and uses memory again as CUDA's caching allocator does.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from schedc.runtime.transports.streams import CudaSide, nbytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from schedc.runtime.common.boundary import TensorMeta

WAIT_S = 100.0


class FakeMark:
    """A point in a stream's work."""

    def __init__(self) -> None:
        self.passed = threading.Event()

    def query(self) -> bool:
        return self.passed.is_set()

    def synchronize(self) -> None:
        assert self.passed.wait(WAIT_S)


class FakeStream:
    """Does what it gets, in order, in a thread."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], object]) -> None:
        self._work.put(work)

    def mark(self) -> FakeMark:
        mark = FakeMark()
        self.put(mark.passed.set)
        return mark

    def follow(self, mark: FakeMark) -> None:
        self.put(mark.synchronize)

    def end(self) -> None:
        self._work.put(None)
        self._thread.join(WAIT_S)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class _Block:
    """A piece of a device's memory."""

    def __init__(self, nbytes: int, owner: FakeStream) -> None:
        self.bytes = np.full(nbytes, FakeMemory.POISON, dtype=np.uint8)
        self.user = owner
        """The stream whose work so far has to pass before others may get the memory."""


class FakeMemory:
    """Memory that is somebody else's as soon as nobody holds its tensor.

    In the order of the stream for which it was made, or, where it was lent to another (`record_stream`), behind what that one has
    got so far. What the next owner writes is `POISON`.

    Work that is under way does not hold its tensors, as on a device: it has their addresses (`address`).
    """

    POISON = 0xFF
    """In all bytes: NaN in a floating type."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}

    def empty(self, kind: TensorMeta, owner: FakeStream) -> torch.Tensor:
        nbytes = nbytes_of(kind)
        if not nbytes:
            return torch.empty(kind.shape, dtype=kind.dtype)
        block = _Block(nbytes, owner)
        held = block.bytes.view()
        weakref.finalize(held, self._free, block)
        flat = torch.from_numpy(held)
        self._blocks[flat.data_ptr()] = block
        return flat.view(kind.dtype).reshape(kind.shape)

    def lend(self, tensor: torch.Tensor, user: FakeStream) -> None:
        if tensor.numel():
            self._blocks[tensor.data_ptr()].user = user

    def address(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same memory as bytes, without holding it; the tensor itself where it is not of this memory."""
        block = self._blocks.get(tensor.data_ptr()) if tensor.numel() else None
        return tensor if block is None else torch.from_numpy(block.bytes)

    def _free(self, block: _Block) -> None:
        del self._blocks[block.bytes.ctypes.data]
        block.user.put(lambda: block.bytes.fill(self.POISON))


class FakeDevice:
    """One compute stream, any number beside it, and memory."""

    def __init__(self) -> None:
        self.compute = FakeStream()
        self.local = threading.local()
        self.lent: list[int] = []
        """Where the tensors begin that were lent to the compute."""
        self.streams = [self.compute]
        self.memory = FakeMemory()

    def computed(self, value: float, kind: TensorMeta) -> torch.Tensor:
        """A tensor of the compute's, filled when the compute comes to it."""
        tensor = self.memory.empty(kind, self.compute)
        address = self.memory.address(tensor).view(kind.dtype)
        self.compute.put(lambda: address.fill_(value))
        return tensor

    @property
    def current(self) -> FakeStream:
        stream: FakeStream = getattr(self.local, "stream", self.compute)
        return stream

    def stream(self) -> FakeStream:
        self.streams.append(FakeStream())
        return self.streams[-1]

    def end(self) -> None:
        for stream in self.streams:
            stream.end()


class _Deferred(TorchFunctionMode):
    """Copies of bytes that do not block happen when the stream comes to them."""

    def __init__(self, stream: FakeStream, memory: FakeMemory) -> None:
        self._stream = stream
        self._memory = memory

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.copy_ and (kwargs or {}).get("non_blocking"):
            target, source = map(self._memory.address, args)
            self._stream.put(lambda: target.copy_(source))
            return args[0]
        return function(*args, **(kwargs or {}))


class FakeSide(CudaSide):
    """A stream of a FakeDevice beside the compute's."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.stream = device.stream()

    @contextmanager
    def use(self) -> Iterator[None]:
        before = self.device.current
        self.device.local.stream = self.stream
        try:
            with _Deferred(self.stream, self.device.memory):
                yield
        finally:
            self.device.local.stream = before

    def follow_compute(self) -> None:
        self.stream.follow(self.device.compute.mark())

    def mark(self) -> FakeMark:
        return self.stream.mark()

    def precede_compute(self, mark: Any) -> None:
        self.device.compute.follow(mark)

    def mark_compute(self) -> FakeMark:
        return self.device.compute.mark()

    def empty(self, kind: TensorMeta) -> torch.Tensor:
        return self.device.memory.empty(kind, self.stream)

    def lend(self, tensor: torch.Tensor) -> None:
        self.device.lent.append(tensor.data_ptr())
        self.device.memory.lend(tensor, self.device.compute)

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)


class FakeLane:
    """One end of a connection like gloo's: what is sent waits for its receive, and a wait that runs out of time closes it."""

    def __init__(self, rank: int, shared: dict[tuple[int, int], queue.SimpleQueue[_Letter]], closed: threading.Event) -> None:
        self._rank = rank
        self._shared = shared
        self.closed = closed
        self.open = threading.Event()
        """What is sent from here waits until it is set."""
        self.open.set()
        self._held: deque[tuple[queue.SimpleQueue[_Letter], _Letter]] = deque()

    @staticmethod
    def pair() -> tuple[FakeLane, FakeLane]:
        shared: dict[tuple[int, int], queue.SimpleQueue[_Letter]] = {}
        closed = threading.Event()
        return FakeLane(0, shared, closed), FakeLane(1, shared, closed)

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return self._rank

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> _LaneWork:
        letter = _Letter(tensors[0])
        self._held.append((self._letters(peer, tag), letter))
        self.push()  # on its way, whether or not anybody waits for it
        return _LaneWork(self, letter.taken.is_set)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> _LaneWork:
        return _LaneWork(self, lambda: self._take(tensors[0], tag))

    def push(self) -> None:
        """Let go what is held, if the lane is open."""
        while self.open.is_set() and self._held:
            letters, letter = self._held.popleft()
            letters.put(letter)

    def _letters(self, rank: int, tag: int) -> queue.SimpleQueue[_Letter]:
        return self._shared.setdefault((rank, tag), queue.SimpleQueue())

    def _take(self, tensor: torch.Tensor, tag: int) -> bool:
        try:
            letter = self._letters(self._rank, tag).get_nowait()
        except queue.Empty:
            return False
        tensor.copy_(letter.tensor)
        letter.taken.set()
        return True


class _Letter:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.taken = threading.Event()


class _LaneWork:
    def __init__(self, lane: FakeLane, attempt: Callable[[], bool]) -> None:
        self._lane = lane
        self._attempt = attempt

    def wait(self, timeout: timedelta) -> None:
        waited_s = 0.0
        while not self._attempt():
            self._lane.push()
            if self._lane.closed.wait(0.001):
                raise RuntimeError("Connection closed by peer")
            waited_s += 0.001
            if waited_s > timeout.total_seconds():
                self._lane.closed.set()
                raise RuntimeError("Timed out waiting")


class _NcclWork:
    def __init__(self, device: FakeDevice, group: FakeNccl, end: FakeMark, tensors: list[torch.Tensor]) -> None:
        self._device = device
        self._group = group
        self._end = end
        self._stash = list(tensors)
        """As PyTorch, which marks no memory as used by NCCL's stream, but holds it until a stream has waited for the transfer."""

    def wait(self, timeout: timedelta | None = None) -> None:
        self._stash.clear()
        self._device.current.follow(self._end)
        if timeout is not None and self._group.error is not None:
            raise RuntimeError(self._group.error)

    def is_completed(self) -> bool:
        return self._end.query() or self._group.error is not None


class FakeNccl:
    """One end of a group of two ranks over NCCL: a stream of its own, which waits for the one that is current, and no tags."""

    def __init__(self, device: FakeDevice, rank: int, carried: queue.SimpleQueue[torch.Tensor]) -> None:
        self.device = device
        self._rank = rank
        self._carried = carried
        self._stream = device.stream()
        self.error: str | None = None
        self.aborted = False
        self.others_abort = threading.Event()
        """Until it is set, this communicator waits for another of the device, whose kernels are in front of its own."""
        self.others_abort.set()
        self.begun = threading.Event()
        """This end has begun its first transfer."""
        self.peer: FakeNccl | None = None
        """The other end, where communicators are made as NCCL does: the first transfer blocks the host until the peer's begins."""

    @staticmethod
    def pair(first: FakeDevice, second: FakeDevice, *, creates: bool = False) -> tuple[FakeNccl, FakeNccl]:
        carried: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
        ends = FakeNccl(first, 0, carried), FakeNccl(second, 1, carried)
        if creates:
            ends[0].peer, ends[1].peer = ends[::-1]
        return ends

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return self._rank

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> _NcclWork:
        source = self.device.memory.address(tensors[0])
        return self._start(lambda: self._carried.put(source.clone()), tensors)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> _NcclWork:
        target = self.device.memory.address(tensors[0])
        return self._start(lambda: self._receive(target), tensors)

    def abort(self) -> None:
        """As PyTorch's: what is under way ends, and it returns when the communicator is gone."""
        self.aborted = True
        assert self.others_abort.wait(WAIT_S)

    def _receive(self, tensor: torch.Tensor) -> None:
        while not self.aborted:
            try:
                tensor.copy_(self._carried.get(timeout=0.001))
            except queue.Empty:
                continue
            return

    def _start(self, work: Callable[[], None], tensors: list[torch.Tensor]) -> _NcclWork:
        self.begun.set()
        while self.peer is not None and not self.aborted and not self.peer.begun.wait(0.001):
            pass
        if self.aborted:
            raise RuntimeError("NCCL communicator was aborted")
        self._stream.follow(self.device.current.mark())
        self._stream.put(work)
        return _NcclWork(self.device, self, self._stream.mark(), tensors)
