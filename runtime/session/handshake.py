"""The handshake by which all ranks agree on the step before which they move to another plan, without a barrier.

Every rank *offers* its new plan, at any time, by a key in the job's store, and goes on training. One rank, the lowest that computes
losses, looks in each of its steps, when it sends the loss, whether the store has all offers. It says so with the loss, which all
ranks wait for anyway. Whoever has the loss of step s thus knows, at the same s, whether the offers are settled: if all ranks accept
the same plan, s + 1 is its first step everywhere; else nobody moves, and all read in the offers why. Nobody waits for a rank that
has not offered yet, however late it is.

A rank that offers before its step n moves with step n + 1, if it is the last: no loss of step n exists before every rank with a
stage has begun it, so the rank that looks sees all offers by then. Pipelines that move together look at the begin of a step, with
each other, and move with step n + 2 at the latest.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from schedc.runtime.common.failure import TransferFailed
from schedc.runtime.session.agreement import Offer

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Handshake:
    """One rank's side of the handshakes of a pipe, one after the other."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        """Take the ranks' store.

        Args:
            store: where the offers are; all ranks see the same.
            rank: this one.
            size: how many there are.
        """
        self._store = store
        self._rank = rank
        self._size = size
        self._number = 0

    def offer(self, offer: Offer) -> None:
        """Make this rank's next offer; the one before it is settled.

        Raises:
            TransferFailed: the store is lost.
        """
        key = self._key(self._rank)
        try:
            self._store.set(key, json.dumps(offer))
            self._store.wait([key])  # `set` returns before the store has it
        except RuntimeError as error:
            raise self._lost("offers a plan to the others") from error

    def complete(self) -> bool:
        """Whether all ranks have made the offer that this rank has made; returns at once.

        Raises:
            TransferFailed: the store is lost.
        """
        try:
            return self._store.check([self._key(rank) for rank in range(self._size)])
        except RuntimeError as error:
            raise self._lost("looks who has offered a plan") from error

    def settle(self) -> list[Offer]:
        """All ranks' offers, which are complete; each rank calls it once.

        Raises:
            TransferFailed: the store is lost.
        """
        try:
            offers = [json.loads(self._store.get(self._key(rank))) for rank in range(self._size)]
            if self._number:  # all have read it, or they would not have made the next
                self._store.delete_key(self._key(self._rank, before=1))
        except RuntimeError as error:
            raise self._lost("reads the offers of the others") from error
        self._number += 1
        return [Offer(*offer) for offer in offers]

    def _key(self, rank: int, before: int = 0) -> str:
        return f"swap/{self._number - before}/{rank}"

    def _lost(self, doing: str) -> TransferFailed:
        return TransferFailed(f"rank {self._rank} {doing}: the job's store is lost; the process that holds it has ended")
