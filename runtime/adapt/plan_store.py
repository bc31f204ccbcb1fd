"""The store of a pipeline's ranks: plans that one of them publishes, and what each has measured, in the job's store.

No call waits for another rank. A plan is cut into pieces, as stores limit their values, and is named by its number; the number of
the newest is increased once all pieces are there. Whoever takes a plan checks the digest of its bytes.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from typing import TYPE_CHECKING, NamedTuple

from schedc.errors import CheckFailed

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from schedc.ir.conditions import Conditions

PIECE_BYTES = 1 << 18


class StoredPlan(NamedTuple):
    """A plan that has been published."""

    number: int
    """The first is 1."""
    pieces: int
    sha256: str
    """Of its bytes."""


class PlanStore:
    """One rank's view. A store that is lost raises `RuntimeError`."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        """Take the store that the pipeline's ranks, and they alone, share."""
        self._store = store
        self._rank = rank
        self._size = size
        self._posts = 0
        self._posted: dict[int, Conditions] = {}

    def publish(self, number: int, content: bytes) -> StoredPlan:
        """Publish the plan of this number, one above the last."""
        pieces = [content[at : at + PIECE_BYTES] for at in range(0, len(content), PIECE_BYTES)]
        notice = StoredPlan(number, len(pieces), hashlib.sha256(content).hexdigest())
        values = {self._piece(number, index): piece for index, piece in enumerate(pieces)}
        values[f"plan/{number}"] = json.dumps(notice).encode()
        for key, value in values.items():
            self._store.set(key, value)  # type: ignore[arg-type]  # bytes are as good as text
        self._store.wait(list(values))  # `set` returns before the store has it
        self._store.add("newest", 1)
        return notice

    def newest(self) -> int:
        """The number of the newest plan; 0: there is none yet."""
        return self._store.add("newest", 0)

    def take(self, number: int) -> tuple[StoredPlan, bytes]:
        """A published plan and its bytes.

        Raises:
            CheckFailed: not all of it is there, or its bytes are not those that were published.
        """
        head = f"plan/{number}"
        if not self._store.check([head]):
            raise CheckFailed(f"plan {number} of the proposer is not in the job's store, though it was published")
        notice = StoredPlan(*json.loads(self._store.get(head)))
        keys = [self._piece(number, index) for index in range(notice.pieces)]
        if not self._store.check(keys):
            raise CheckFailed(f"plan {number} of the proposer is not whole in the job's store")
        content = b"".join(self._store.get(key) for key in keys)
        if hashlib.sha256(content).hexdigest() != notice.sha256:
            raise CheckFailed(f"plan {number} of the proposer does not have the digest with which it was published")
        return notice, content

    def remove(self, notice: StoredPlan) -> None:
        """Remove a plan that all ranks have taken."""
        for index in range(notice.pieces):
            self._store.delete_key(self._piece(notice.number, index))
        self._store.delete_key(f"plan/{notice.number}")

    def post(self, conditions: Conditions) -> None:
        """Post what this rank has measured; what it posted before counts no more."""
        key = f"measured/{self._rank}"
        self._store.set(key, pickle.dumps(conditions))  # type: ignore[arg-type]
        self._store.wait([key])
        self._store.add("posts", 1)

    def posted(self) -> dict[int, Conditions]:
        """What each rank has measured, of those that have posted anything."""
        posts = self._store.add("posts", 0)
        if posts != self._posts:
            keys = {rank: f"measured/{rank}" for rank in range(self._size)}
            self._posted = {rank: pickle.loads(self._store.get(key)) for rank, key in keys.items() if self._store.check([key])}
            self._posts = posts
        return self._posted

    @staticmethod
    def _piece(number: int, index: int) -> str:
        return f"plan/{number}/{index}"
