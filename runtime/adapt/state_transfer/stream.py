"""Records from one process to another in chunks, behind training traffic: each is a note and tensors.

They come in the order in which they are put, with a thread on either side. The sender copies what it is given, so that training may
go on with it. Each chunk is answered with a byte, so that one is in the air at most, and goes when no message of training is under
way (`TrafficGate`): training waits for at most one.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.common.failure import ConnectionLost, NoAnswer
from schedc.runtime.transports.gloo import FOREVER_S, GlooTransport, hang_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch.distributed as dist

    from schedc.runtime.execution.gate import TrafficGate

Tensors = dict[Any, torch.Tensor]
SIZES, DATA, THROUGH = range(3)
"""Tags."""
ALIGNED = 16


class Outlet:
    """The sending end."""

    def __init__(
        self, group: dist.ProcessGroup, gate: TrafficGate | None, chunk_bytes: int | None, lost: Callable[[], None]
    ) -> None:
        """Begin.

        Args:
            group: of the two processes.
            gate: that chunks wait for; None: they do not.
            chunk_bytes: at most; None: a record's tensors are one chunk.
            lost: called where the connection is lost.
        """
        self._group, self._gate, self._chunk_bytes, self._lost = group, gate, chunk_bytes, lost
        self._records: SimpleQueue[tuple[Any, torch.Tensor, torch.Tensor] | None] = SimpleQueue()
        self.put_in = Counter[Any]()
        """How many records have been put in, by the kind that they are counted as; of the caller's thread."""
        self.through = Counter[Any]()
        """How many of them the other process has; of the thread that sends."""
        self._ended = False
        """Whether nothing is sent any more, as where the pipe was closed while layers were under way."""
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, note: Any, tensors: Mapping[Any, torch.Tensor], counted: Any = None) -> None:
        """Send a record, `counted` as of a kind; the tensors are copied before this returns."""
        if self._ended:
            return
        places, end = [], 0
        for key, tensor in tensors.items():
            places.append((key, tensor.dtype, tuple(tensor.shape), end))
            end += -(-tensor.nbytes // ALIGNED) * ALIGNED
        memory = torch.empty(end, dtype=torch.uint8, device="cpu")
        for tensor, copy in zip(tensors.values(), _views(memory, places).values(), strict=True):
            copy.copy_(tensor.detach())
        about = torch.frombuffer(bytearray(pickle.dumps((note, places))), dtype=torch.uint8)
        self.put_in[counted] += 1
        self._records.put((counted, about, memory))

    def close(self) -> None:
        """End; what is under way fails on both sides."""
        self._records.put(None)
        hang_up(self._group)

    def _run(self) -> None:
        wire, through = GlooTransport(self._group), torch.empty(1, dtype=torch.uint8, device="cpu")
        try:
            while (found := self._records.get()) is not None:
                counted, *record = found
                wire.send(torch.tensor([each.numel() for each in record], device="cpu"), SIZES).wait(FOREVER_S)
                for part in record:
                    for chunk in _chunks(part, self._chunk_bytes):
                        if self._gate is not None:
                            self._gate.wait()
                        wire.send(chunk, DATA).wait(FOREVER_S)
                        wire.receive_into(through, THROUGH).wait(FOREVER_S)
                self.through[counted] += 1
        except (ConnectionLost, NoAnswer):
            self._lost()
        finally:
            self._ended = True


class Inlet:
    """The receiving end; `chunk_bytes` as the other's."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        chunk_bytes: int | None,
        take: Callable[[Any, Tensors], None],
        lost: Callable[[], None],
    ) -> None:
        """Begin.

        Args:
            group: of the two processes.
            chunk_bytes: as the sender has it.
            take: called with each record in the thread of this end.
            lost: called where the connection is lost.
        """
        self._group, self._chunk_bytes, self._take, self._lost = group, chunk_bytes, take, lost
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """End."""
        hang_up(self._group)

    def _run(self) -> None:
        wire, through = GlooTransport(self._group), torch.zeros(1, dtype=torch.uint8, device="cpu")
        try:
            while True:
                sizes = wire.receive(TensorMeta(torch.int64, (2,)), SIZES).wait(FOREVER_S)
                parts = [torch.empty(int(size), dtype=torch.uint8, device="cpu") for size in sizes]
                for part in parts:
                    for chunk in _chunks(part, self._chunk_bytes):
                        wire.receive_into(chunk, DATA).wait(FOREVER_S)
                        wire.send(through, THROUGH).wait(FOREVER_S)
                note, places = pickle.loads(parts[0].numpy().tobytes())
                self._take(note, _views(parts[1], places))
        except (ConnectionLost, NoAnswer):
            self._lost()


def _views(memory: torch.Tensor, places: list[tuple[Any, torch.dtype, tuple[int, ...], int]]) -> Tensors:
    """The tensors in a record's memory."""
    found: Tensors = {}
    for key, dtype, shape, first in places:
        count = torch.Size(shape).numel()
        bytes_of = memory[first : first + count * dtype.itemsize]
        found[key] = bytes_of.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype, device="cpu")
    return found


def _chunks(part: torch.Tensor, most_bytes: int | None) -> list[torch.Tensor]:
    step = most_bytes or max(part.numel(), 1)
    return [part[first : first + step] for first in range(0, part.numel(), step)]
