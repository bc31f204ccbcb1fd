"""Tensors in the host's memory over gloo: a process group of two ranks for each wire, so that no wire waits for another.

When a connection is lost, gloo (of torch 2.13) ends the waits of receives of which nothing has come yet, and of sends that the peer
is not ready for; other waits run into their time limit. So behind a large tensor goes a byte, for which its receiver waits.
Who waits for a send should know that it has come; where it does not, let the peer say so.

Words are small tensors that go straight from rank to rank, so that a slow link is crossed once, over the group of all ranks.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed, connection_lost, waiting_failed
from schedc.runtime.common.lateness import WAITS
from schedc.runtime.transports.base import Ends

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import torch.distributed as dist

    from schedc.runtime.common.boundary import TensorMeta
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Wire

FOREVER_S = 1e8
"""The limit of a wait that others end, by `hang_up`: gloo closes a group whose wait runs out of time."""
LARGE_BYTES = 1 << 16
"""Less comes in one piece, but for rare cases, and the time for a byte behind it would be felt."""
BEHIND, NOBODY_SENDS = 2**29, 2**30
"""Tags: of the byte behind a large tensor, added to the tensor's own; of nothing."""


def connect_gloo(wire: Wire, groups: Groups) -> Ends:
    """Connect a wire over gloo. Both of its ranks do this together."""
    group = groups.make((wire.source, wire.destination))
    end = GlooTransport(group)
    return Ends(end, end, give_up=lambda: hang_up(group), close=lambda: hang_up(group))


def finish(work: dist.Work, timeout_s: float) -> None:
    """Wait for what was started on a gloo group.

    Raises:
        ConnectionLost: the peer is gone.
        NoAnswer: it has not done its part in time.
    """
    try:
        work.wait(timedelta(seconds=timeout_s))
    except RuntimeError as error:
        late = any(words in str(error).lower() for words in ("timed out", "timeout"))
        raise (NoAnswer if late else ConnectionLost)(str(error)) from error


def hang_up(group: dist.ProcessGroup) -> None:
    """Close the connections of a group of two or more ranks at once: all waits on it fail, in all threads here, and at the peers.

    gloo does that to a group whose wait runs out of time; its own `shutdown` and `abort` leave threads waiting.
    """
    with suppress(RuntimeError):
        group.recv([torch.empty(1, dtype=torch.uint8, device="cpu")], (group.rank() + 1) % group.size(), NOBODY_SENDS).wait(
            timedelta(milliseconds=1)
        )


class GlooTransfer:
    """A send or receive, and that of the byte behind it; once the last is through, so are all. It keeps all of it alive."""

    __slots__ = ("_tensor", "_works")

    def __init__(self, works: Sequence[dist.Work], tensor: torch.Tensor) -> None:
        """Take what was started, and the tensor."""
        self._works = works
        self._tensor = tensor

    def wait(self, timeout_s: float) -> torch.Tensor:
        """As `Outgoing.wait` and `Incoming.wait`."""
        finish(self._works[-1], timeout_s)
        return self._tensor


class GlooTransport:
    """One end of a wire on its own group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Take a group of this rank and its peer."""
        self._group = group
        self._peer = 1 - group.rank()
        self._byte, self._heard = torch.zeros(2, 1, dtype=torch.uint8, device="cpu")  # what goes behind, and where it comes

    def send(self, tensor: torch.Tensor, tag: int) -> GlooTransfer:
        """As `Transport.send`. The group is called directly: `dist.isend` checks its arguments for longer than gloo takes."""
        return self._start(self._group.send, tensor, self._byte, tag)

    def receive(self, kind: TensorMeta, tag: int) -> GlooTransfer:
        """As `Transport.receive`."""
        return self.receive_into(torch.empty(kind.shape, dtype=kind.dtype, device="cpu"), tag)

    def receive_into(self, buffer: torch.Tensor, tag: int) -> GlooTransfer:
        """As `receive`, into memory that is there."""
        return self._start(self._group.recv, buffer, self._heard, tag)

    def _start(
        self, transfer: Callable[[list[torch.Tensor], int, int], dist.Work], tensor: torch.Tensor, behind: torch.Tensor, tag: int
    ) -> GlooTransfer:
        try:
            works = [transfer([tensor], self._peer, tag)]
            if tensor.nbytes >= LARGE_BYTES:
                works.append(transfer([behind], self._peer, BEHIND + tag))
        except RuntimeError as error:
            raise ConnectionLost(str(error)) from error
        return GlooTransfer(works, tensor)


LOSSES, COMPLETION, BEGINNING = range(3)
"""Tags on the group of all ranks."""


class PeerWords:
    """One rank's side of one kind of them. Between two ranks they come in the order in which they were sent.

    All of it raises TransferFailed where a peer has ended, or sends nothing in time. What is being done is for messages, with
    `{rank}`, this one, and `{peer}` in it.
    """

    def __init__(self, group: dist.ProcessGroup, tag: int) -> None:
        """Take a group over gloo, and a tag that nothing else has on it."""
        self._group = group
        self._tag = tag
        self._coming: list[tuple[dist.Work, str, int]] = []
        self._sent: list[tuple[dist.Work, str, int]] = []

    def receive(self, tensor: torch.Tensor, peer: int, doing: str) -> None:
        """Begin to receive."""
        self._coming.append(self._begin(self._group.recv, tensor, peer, doing))

    def send(self, tensor: torch.Tensor, peer: int, doing: str) -> None:
        """Begin to send."""
        self._sent.append(self._begin(self._group.send, tensor, peer, doing))

    def expect(self, peers: Collection[int], doing: str, numbers: int = 1) -> dict[int, torch.Tensor]:
        """Begin to receive a word of this many numbers of each peer that is another rank; what it is, once it has come."""
        words = {peer: torch.zeros(numbers, dtype=torch.int64, device="cpu") for peer in self._others(peers)}
        for peer, word in words.items():
            self.receive(word, peer, doing)
        return words

    def say(self, word: Sequence[int], peers: Collection[int], doing: str) -> None:
        """Begin to send a word to each peer that is another rank."""
        said = torch.tensor(word, dtype=torch.int64, device="cpu")
        for peer in self._others(peers):
            self.send(said, peer, doing)

    def finish(self, timeout_s: float, *, sent: bool = True) -> None:
        """Wait for all that comes, and then until all that was `sent` has come."""
        for works in (self._coming, self._sent) if sent else (self._coming,):
            while works:
                work, doing, peer = works.pop(0)
                WAITS.current = str, timeout_s, (doing,)
                try:
                    finish(work, timeout_s)
                except (ConnectionLost, NoAnswer) as error:
                    raise waiting_failed(doing, error, timeout_s, peer) from error
                finally:
                    WAITS.current = None

    def _begin(
        self, transfer: Callable[[list[torch.Tensor], int, int], dist.Work], tensor: torch.Tensor, peer: int, doing: str
    ) -> tuple[dist.Work, str, int]:
        doing = doing.format(rank=self._group.rank(), peer=peer)
        try:
            return transfer([tensor], peer, self._tag), doing, peer
        except RuntimeError as error:
            raise TransferFailed(f"{doing}: {connection_lost(peer)}") from error

    def _others(self, peers: Collection[int]) -> list[int]:
        return sorted({*peers} - {self._group.rank()})


class Completion:
    """Whether every rank has received all that was sent to it in a step: said by each, heard by all, before any leaves the step.

    A rank says it after its last transfer, while it still computes. In a pipeline the first rank receives last, and its word is at
    the others before its next forward can be: nobody waits longer than for what comes next anyway.

    Nobody waits for a send as such, which a lost peer may never end (see `schedc.runtime.transports.gloo`): its receiver's word
    does for that. All of it raises TransferFailed where a rank has ended.
    """

    def __init__(self, group: dist.ProcessGroup, peers: Collection[int]) -> None:
        """Take the group of all ranks, over gloo, and those that exchange words with this one."""
        self._peers = peers
        self._words = PeerWords(group, COMPLETION)
        self._heard: dict[int, torch.Tensor] = {}
        self._own: bool | None = True
        """This rank's word, once it is said."""

    def begin(self) -> None:
        """Before a step."""
        self._own = None
        self._heard = self._words.expect(self._peers, "rank {rank} waits until rank {peer} has received all of the step")

    def say(self, *, good: bool) -> None:
        """Say whether all has come. Only the first word of a step counts."""
        if self._own is None:
            self._own = good
            self._words.say([good], self._peers, "rank {rank} says to rank {peer} that it has received all of the step")

    def hear(self, timeout_s: float) -> bool:
        """Wait for the others' words: whether all of them, and this rank's own, are good.

        Raises:
            TransferFailed: a rank has ended, or says nothing in time.
        """
        self._words.finish(timeout_s)  # a rank that ends now must not take its word with it
        return bool(self._own) and all(map(bool, self._heard.values()))
