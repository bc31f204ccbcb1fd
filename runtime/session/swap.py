"""Moving to another plan between two steps: the handshake by which all ranks agree on the step, without a barrier.

Every rank *offers* its new plan, at any time, by a key in the job's store, and goes on training. One rank, the lowest that computes
losses, looks at the beginning of each of its steps whether all offers are there, and says so with the step's loss, which all ranks
wait for anyway. Whoever has the loss of step s thus knows, at the same s, whether the offers are settled: if all ranks accept the
same plan, s + 1 is its first step everywhere; else nobody moves, and all read in the offers why. Nobody waits for a rank that has
not offered yet, however late it is.

A rank that offers before its step n moves with step n + 2 at the latest, if it is the last: no loss of step n exists before every
rank with a stage has begun it, so the rank that looks sees all offers before its step n + 1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from schedc.errors import InvalidInput
from schedc.runtime.common.failure import TransferFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._C._distributed_c10d import Store

    from schedc.ir.plan import Plan

__all__ = ["Handshake", "Offer", "Swap", "check_same_stages", "disagreement"]


class Swap:
    """What has become of one `Pipe.swap`, as its rank knows it."""

    def __init__(self) -> None:
        self.state: Literal["pending", "done", "refused"] = "pending"
        """`pending` until all ranks have called `swap`; then `done` or `refused`, the same on all of them."""
        self.step: int | None = None
        """The number of the first step of the new plan, or the first for which its refusal was known."""
        self.reason: str | None = None
        """Why it was refused."""

    def __repr__(self) -> str:
        """Its state."""
        return f"Swap(state={self.state!r}, step={self.step}, reason={self.reason!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a rank says about the plan that it was given."""

    refusal: str | None
    """Why it does not take it; None: it does."""
    plan_sha256: str


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
            self._store.set(key, json.dumps([offer.refusal, offer.plan_sha256]))
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
        return [Offer(refusal=refusal, plan_sha256=digest) for refusal, digest in offers]

    def _key(self, rank: int, before: int = 0) -> str:
        return f"swap/{self._number - before}/{rank}"

    def _lost(self, doing: str) -> TransferFailed:
        return TransferFailed(f"rank {self._rank} {doing}: the job's store is lost; the process that holds it has ended")


def disagreement(offers: Sequence[Offer], ranks: int) -> str | None:
    """Why the ranks cannot all run the plan that each was given; None where they can.

    Args:
        offers: of all ranks; of several pipelines one after the other, where they are to agree.
        ranks: how many a pipeline has.
    """

    def named(at: int) -> str:
        return f"rank {at}" if len(offers) == ranks else f"rank {at % ranks} of pipeline {at // ranks}"

    for rank, offer in enumerate(offers):
        if offer.refusal is not None:
            return f"{named(rank)} has refused the plan: {offer.refusal}"
    for rank, offer in enumerate(offers):
        if offer.plan_sha256 != offers[0].plan_sha256:
            both = f"ranks 0 and {rank}" if len(offers) == ranks else f"{named(0)} and {named(rank)}"
            return (
                f"{both} have different plans (sha256 {offers[0].plan_sha256[:12]}… and {offer.plan_sha256[:12]}…);"
                " give all ranks the same file"
            )
    return None


def check_same_stages(running: Plan, other: Plan) -> None:
    """Refuse to move from one plan to another that does not leave every stage where its weights are.

    What may differ: the orders, the parts, all costs, and the number of microbatches.

    Raises:
        InvalidInput: names the first thing that differs.
    """
    old, new = running.problem, other.problem
    what = f"plan {other.name!r} cannot take over from plan {running.name!r}: it"
    remedy = "a swap leaves every stage where it is; load the plan instead"
    if len(new.stages) != len(old.stages):
        raise InvalidInput(f"{what} has {len(new.stages)} stages, expected {len(old.stages)}; {remedy}")
    for stage, (before, after) in enumerate(zip(old.stages, new.stages, strict=True)):
        if after.rank != before.rank:
            raise InvalidInput(f"{what} puts stage {stage} on rank {after.rank}, expected rank {before.rank}; {remedy}")
        if after.layers != before.layers:
            raise InvalidInput(f"{what} has the layers {after.layers} in stage {stage}, expected {before.layers}; {remedy}")
    if new.paths != old.paths:
        raise InvalidInput(f"{what} has the paths {new.paths}, expected {old.paths}; {remedy}")
