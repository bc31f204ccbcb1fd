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

from schedc.runtime.transports.words import AGREEMENT, PeerWords

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch.distributed as dist


class Agreement:
    """One rank's side of it. All of it raises TransferFailed where a rank has ended."""

    def __init__(self, group: dist.ProcessGroup, rank: int, peers: Iterable[int]) -> None:
        """Take the ranks.

        Args:
            group: of all ranks, over gloo.
            rank: this one.
            peers: the ranks that exchange words with this one.
        """
        self._rank = rank
        self._heard = {peer: torch.zeros(1, dtype=torch.uint8, device="cpu") for peer in peers}
        self._words = PeerWords(group, AGREEMENT)
        self._own: bool | None = True
        """This rank's word, once it is said."""

    def begin(self) -> None:
        """Before a step."""
        self._own = None
        for peer, word in self._heard.items():
            self._words.receive(word, peer, f"rank {self._rank} waits until rank {peer} has received all of the step")

    def say(self, *, good: bool) -> None:
        """Say whether all has come. Only the first word of a step counts."""
        if self._own is not None:
            return
        self._own = good
        word = torch.tensor([good], dtype=torch.uint8, device="cpu")
        for peer in self._heard:
            self._words.send(word, peer, f"rank {self._rank} says to rank {peer} that it has received all of the step")

    def hear(self, timeout_s: float) -> bool:
        """Wait for the others' words: whether all of them, and this rank's own, are good.

        Raises:
            TransferFailed: a rank has ended, or says nothing in time.
        """
        self._words.hear(timeout_s)
        self._words.flush(timeout_s)  # a rank that ends now must not take its word with it
        return bool(self._own) and all(map(bool, self._heard.values()))
