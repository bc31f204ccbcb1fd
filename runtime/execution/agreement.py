"""Whether every rank has received all that was sent to it in a step: said by each, heard by all, before any leaves the step.

A rank says it after its last transfer, while it still computes. In a pipeline the first rank receives last, and its word is at the
others before its next forward can be: nobody waits longer than for what comes next anyway. Words go straight from rank to rank, so
that a slow link is crossed once.

Nobody waits for a send as such, which a lost peer may never end (see `schedc.runtime.transports.gloo`): its receiver's word does
for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed, connection_lost, waiting_failed
from schedc.runtime.transports.gloo import finish

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch.distributed as dist

__all__ = ["Agreement"]

TAG = 1
"""The losses have 0 on the same group."""


class Agreement:
    """One rank's side of it."""

    def __init__(self, group: dist.ProcessGroup, rank: int, peers: Iterable[int]) -> None:
        """Take the ranks.

        Args:
            group: of all ranks, over gloo.
            rank: this one.
            peers: the ranks that exchange words with this one.
        """
        self._group = group
        self._rank = rank
        self._words = {peer: torch.zeros(1, dtype=torch.uint8, device="cpu") for peer in peers}
        self._coming: dict[int, dist.Work] = {}
        self._under_way: list[tuple[int, dist.Work]] = []
        self._own: bool | None = True
        """This rank's word, once it is said."""

    def begin(self) -> None:
        """Before a step.

        Raises:
            TransferFailed: a rank has ended.
        """
        self._own = None
        for peer, word in self._words.items():
            try:
                self._coming[peer] = self._group.recv([word], peer, TAG)
            except RuntimeError as error:
                raise TransferFailed(f"{self._waiting(peer)}: {connection_lost(peer)}") from error

    def say(self, *, good: bool) -> None:
        """Say whether all has come. Only the first word of a step counts.

        Raises:
            TransferFailed: a rank has ended.
        """
        if self._own is not None:
            return
        self._own = good
        word = torch.tensor([good], dtype=torch.uint8, device="cpu")
        for peer in self._words:
            try:
                self._under_way.append((peer, self._group.send([word], peer, TAG)))
            except RuntimeError as error:
                raise TransferFailed(f"{self._saying(peer)}: {connection_lost(peer)}") from error

    def hear(self, timeout_s: float) -> bool:
        """Wait for the others' words: whether all of them, and this rank's own, are good.

        Raises:
            TransferFailed: a rank has ended, or says nothing in time.
        """
        for peer in list(self._coming):
            self._finish(self._coming.pop(peer), self._waiting(peer), timeout_s, peer)
        while self._under_way:  # a rank that ends now must not take its word with it
            peer, sent = self._under_way.pop()
            self._finish(sent, self._saying(peer), timeout_s, peer)
        return bool(self._own) and all(bool(word) for word in self._words.values())

    def _finish(self, work: dist.Work, doing: str, timeout_s: float, peer: int) -> None:
        try:
            finish(work, timeout_s)
        except (ConnectionLost, NoAnswer) as error:
            raise waiting_failed(doing, error, timeout_s, peer) from error

    def _waiting(self, peer: int) -> str:
        return f"rank {self._rank} waits until rank {peer} has received all of the step"

    def _saying(self, peer: int) -> str:
        return f"rank {self._rank} says to rank {peer} that it has received all of the step"
