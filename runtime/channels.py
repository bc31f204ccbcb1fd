"""The ends of the plan's channels on one rank: sends that nobody waits for, receives posted early, over `torch.distributed`.

Each wire has a process group of two ranks, so no channel ever waits behind another (CrossPipe 6.3: four streams, {send, recv} x
{next, prev}). A transfer's tag is its place in the channel. A wait that fails says which op waited for what from whom.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from schedc.errors import InvalidInput
from schedc.ir.ops import token
from schedc.runtime.block import differentiable
from schedc.runtime.failure import TransferFailed
from schedc.runtime.header import TensorKind, decode, empty_header, encode

if TYPE_CHECKING:
    from schedc.runtime.program import Message, Wire

__all__ = ["Boundaries", "Receiver", "Sender", "await_work", "connection_lost"]


def await_work(work: dist.Work, timeout_s: float, waiting: str, peer: int) -> None:
    """Wait for a send or a receive.

    Args:
        work: what to wait for.
        timeout_s: how long.
        waiting: who waits for what from whom, `rank 0: B0.3 waits for B1.3 from rank 1`.
        peer: the rank at the other end.

    Raises:
        TransferFailed: it failed or took too long.
    """
    try:
        work.wait(timedelta(seconds=timeout_s))
    except RuntimeError as error:
        if any(words in str(error).lower() for words in ("timed out", "timeout")):
            why = f"no answer in {timeout_s:g} s; it is stuck or slower than the timeout_s given to load"
        else:
            why = connection_lost(peer)
        raise TransferFailed(f"{waiting}: {why}") from error


def connection_lost(peer: int) -> str:
    """What a broken connection means."""
    return f"the connection is lost; rank {peer} has ended or failed, and its own message says why"


class Boundaries(dict[int, TensorKind]):
    """By stage, what its output is; known from the first tensor on, and the same for all microbatches and steps."""

    def learn(self, tensor: torch.Tensor, message: Message) -> None:
        """Take note of a tensor of a boundary, an output or a gradient.

        Raises:
            InvalidInput: it is not like the first.
        """
        kind = TensorKind.of(tensor)
        known = self.setdefault(message.boundary, kind)
        if known != kind:
            what = f"{'the gradient of ' if message.gradient else ''}stage {message.boundary}'s output"
            raise InvalidInput(
                f"microbatch {message.microbatch}: {what} is {kind}, expected {known} as before;"
                " give all microbatches the same shape"
            )


class Sender:
    """The sending end of a wire."""

    def __init__(self, wire: Wire, group: dist.ProcessGroup, boundaries: Boundaries, timeout_s: float) -> None:
        self._wire = wire
        self._group = group
        self._boundaries = boundaries
        self._timeout_s = timeout_s
        self._introduced: set[int] = set()
        self._under_way: dict[int, list[tuple[dist.Work, torch.Tensor]]] = {}

    def send(self, at: int, tensor: torch.Tensor) -> None:
        """Send transfer `at` of the wire without waiting; before a boundary's first output goes a header.

        Raises:
            InvalidInput: the tensor is not like the boundary's first.
            TransferFailed: the connection is lost.
        """
        message = self._wire.messages[at]
        self._boundaries.learn(tensor, message)
        if message.gradient and not differentiable(tensor.dtype):
            return
        if not message.gradient and message.boundary not in self._introduced:
            self._introduced.add(message.boundary)
            self._start(at, 2 * at + 1, encode(TensorKind.of(tensor)))
        self._start(at, 2 * at, tensor.contiguous())

    def arrived(self, at: int) -> None:
        """Let go of transfer `at`, which the peer has already used."""
        for work, _ in self._under_way.pop(at, ()):
            await_work(work, self._timeout_s, self._doing(at), self._wire.destination)

    def flush(self) -> None:
        """Wait until all is sent."""
        for at in list(self._under_way):
            self.arrived(at)

    def _start(self, at: int, tag: int, tensor: torch.Tensor) -> None:
        try:
            work = dist.isend(tensor, self._wire.destination, group=self._group, tag=tag)
        except RuntimeError as error:
            raise TransferFailed(f"{self._doing(at)}: {connection_lost(self._wire.destination)}") from error
        assert work is not None
        self._under_way.setdefault(at, []).append((work, tensor))

    def _doing(self, at: int) -> str:
        wire = self._wire
        return f"rank {wire.source} sends {token(wire.transfers[at])} to rank {wire.destination} on {wire.name}"


class Receiver:
    """The receiving end of a wire."""

    def __init__(self, wire: Wire, group: dist.ProcessGroup, boundaries: Boundaries, timeout_s: float) -> None:
        self._wire = wire
        self._group = group
        self._boundaries = boundaries
        self._timeout_s = timeout_s
        self._posted: dict[int, tuple[dist.Work, torch.Tensor]] = {}
        self._headers: dict[int, tuple[int, dist.Work, torch.Tensor]] = {}

    def introduce(self) -> None:
        """Post the receives of the headers of all boundaries that are not known yet; before a step's first op."""
        for at, message in enumerate(self._wire.messages):
            if not message.gradient and message.boundary not in self._boundaries and message.boundary not in self._headers:
                header = empty_header()
                self._headers[message.boundary] = (at, self._start(at, 2 * at + 1, header), header)

    def post(self, at: int) -> None:
        """Post the receive of transfer `at`; in the first step, where its shape is not known yet, `take` does it."""
        message = self._wire.messages[at]
        kind = self._boundaries.get(message.boundary)
        if kind is not None and not (message.gradient and not differentiable(kind.dtype)):
            buffer = torch.empty(kind.shape, dtype=kind.dtype)
            self._posted[at] = (self._start(at, 2 * at, buffer), buffer)

    def take(self, at: int, waiting: str) -> torch.Tensor | None:
        """Wait for transfer `at` and give its tensor; None for the gradient of a boundary whose type has none.

        Args:
            at: its place in the channel.
            waiting: the op that needs it.

        Raises:
            TransferFailed: it does not come.
        """
        message = self._wire.messages[at]
        if message.boundary in self._headers:
            first, work, header = self._headers.pop(message.boundary)
            self._await(work, f"{waiting} waits for the shape of {token(self._wire.transfers[first])}")
            self._boundaries.setdefault(message.boundary, decode(header))
        if at not in self._posted:
            self.post(at)
        if at not in self._posted:
            return None
        work, buffer = self._posted.pop(at)
        self._await(work, f"{waiting} waits for {token(self._wire.transfers[at])}")
        return buffer

    def _await(self, work: dist.Work, waiting: str) -> None:
        wire = self._wire
        await_work(
            work,
            self._timeout_s,
            f"rank {wire.destination}: {waiting} from rank {wire.source} on {wire.receiver_name}",
            wire.source,
        )

    def _start(self, at: int, tag: int, buffer: torch.Tensor) -> dist.Work:
        try:
            work = dist.irecv(buffer, self._wire.source, group=self._group, tag=tag)
        except RuntimeError as error:
            wire, transfer = self._wire, token(self._wire.transfers[at])
            raise TransferFailed(
                f"rank {wire.destination} posts the receive of {transfer} from rank {wire.source} on {wire.receiver_name}:"
                f" {connection_lost(wire.source)}"
            ) from error
        assert work is not None
        return work
