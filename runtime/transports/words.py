"""Words: small tensors straight from rank to rank, so that a slow link is crossed once, and what of them is still under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed, connection_lost, waiting_failed
from schedc.runtime.transports.gloo import finish

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch.distributed as dist

LOSSES, COMPLETION, BEGINNING = range(3)
"""Tags on the group of all ranks."""


class PeerWords:
    """One rank's side of one kind of them. Between two ranks they come in the order in which they were sent."""

    def __init__(self, group: dist.ProcessGroup, tag: int) -> None:
        """Take a group over gloo, and a tag that nothing else has on it."""
        self._group = group
        self._tag = tag
        self._coming: list[tuple[dist.Work, str, int]] = []
        self._sent: list[tuple[dist.Work, str, int]] = []

    def receive(self, tensor: torch.Tensor, peer: int, doing: str) -> None:
        """Begin to receive; `doing` is for messages.

        Raises:
            TransferFailed: the peer has ended.
        """
        try:
            self._coming.append((self._group.recv([tensor], peer, self._tag), doing, peer))
        except RuntimeError as error:
            raise TransferFailed(f"{doing}: {connection_lost(peer)}") from error

    def send(self, tensor: torch.Tensor, peer: int, doing: str) -> None:
        """Begin to send; as `receive`."""
        try:
            self._sent.append((self._group.send([tensor], peer, self._tag), doing, peer))
        except RuntimeError as error:
            raise TransferFailed(f"{doing}: {connection_lost(peer)}") from error

    def expect(self, peers: Iterable[int], doing: str) -> dict[int, torch.Tensor]:
        """Begin to receive a yes or no of each peer; what it is, once it is heard. `doing` has `{peer}` in it."""
        words = {peer: torch.zeros(1, dtype=torch.uint8, device="cpu") for peer in peers}
        for peer, word in words.items():
            self.receive(word, peer, doing.format(peer=peer))
        return words

    def say(self, word: bool, peers: Iterable[int], doing: str) -> None:
        """Begin to send a yes or no to each peer; as `expect`."""
        said = torch.tensor([word], dtype=torch.uint8, device="cpu")
        for peer in peers:
            self.send(said, peer, doing.format(peer=peer))

    def hear(self, timeout_s: float) -> None:
        """Wait for all that comes.

        Raises:
            TransferFailed: a peer has ended, or sends nothing in time.
        """
        _finish(self._coming, timeout_s)

    def flush(self, timeout_s: float) -> None:
        """Wait until all that was sent has come; as `hear`."""
        _finish(self._sent, timeout_s)


class Completion:
    """Whether every rank has received all that was sent to it in a step: said by each, heard by all, before any leaves the step.

    A rank says it after its last transfer, while it still computes. In a pipeline the first rank receives last, and its word is at
    the others before its next forward can be: nobody waits longer than for what comes next anyway.

    Nobody waits for a send as such, which a lost peer may never end (see `schedc.runtime.transports.gloo`): its receiver's word
    does for that. All of it raises TransferFailed where a rank has ended.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int, peers: Iterable[int]) -> None:
        """Take the group of all ranks, over gloo, this rank, and those that exchange words with it."""
        self._rank = rank
        self._peers = tuple(peers)
        self._words = PeerWords(group, COMPLETION)
        self._heard: dict[int, torch.Tensor] = {}
        self._own: bool | None = True
        """This rank's word, once it is said."""

    def begin(self) -> None:
        """Before a step."""
        self._own = None
        self._heard = self._words.expect(self._peers, f"rank {self._rank} waits until rank {{peer}} has received all of the step")

    def say(self, *, good: bool) -> None:
        """Say whether all has come. Only the first word of a step counts."""
        if self._own is None:
            self._own = good
            doing = f"rank {self._rank} says to rank {{peer}} that it has received all of the step"
            self._words.say(good, self._peers, doing)

    def hear(self, timeout_s: float) -> bool:
        """Wait for the others' words: whether all of them, and this rank's own, are good.

        Raises:
            TransferFailed: a rank has ended, or says nothing in time.
        """
        self._words.hear(timeout_s)
        self._words.flush(timeout_s)  # a rank that ends now must not take its word with it
        return bool(self._own) and all(map(bool, self._heard.values()))


def _finish(works: list[tuple[dist.Work, str, int]], timeout_s: float) -> None:
    while works:
        work, doing, peer = works.pop(0)
        try:
            finish(work, timeout_s)
        except (ConnectionLost, NoAnswer) as error:
            raise waiting_failed(doing, error, timeout_s, peer) from error
