"""What the leader of a job that adapts does, in a thread: it asks the proposer, decides whether a move pays, and publishes.

When a move to another plan pays is a pure rule (`Hysteresis`), so that plans do not change with every tremor of a link.

The `PlanStore` is what a pipeline's ranks have in the job's store: plans that one of them publishes, and what each has measured. No
call but `wait_for` waits for another rank. A plan is cut into pieces, as stores limit their values, and is named by its number;
once all pieces are there each rank is woken. Whoever takes a plan checks the digest of its bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import pickle
from dataclasses import dataclass, fields
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from schedc.errors import CheckFailed, InvalidInput
from schedc.ir import Conditions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch._C._distributed_c10d import Store

    from schedc.runtime.adapt.proposer import Proposer, ProposerAnswer

PIECE_BYTES = 1 << 18
YEAR = timedelta(days=365)
MOST_REFUSALS = 3
"""After this many refused plans in a row there are no more: the next would most likely be refused, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hysteresis:
    """What a move must bring."""

    cost_s: float = 0.05
    """What a move takes from training: every rank lays the wires of the new plan between two steps."""
    expected_steps: int = 50
    """For how many steps conditions are expected to last; a move pays if its gain over this many exceeds its cost."""
    least_gain: float = 0.01
    """The least share of a step that a move must gain: predictions are no better than that."""
    rest_steps: int = 10
    """How many steps there are between one move and the next proposal, at least, unless that gains `plain_gain`."""
    plain_gain: float = 0.1
    """A move that gains this share of a step rests for nothing."""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be.

        Raises:
            InvalidInput: names the first.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidInput(f"hysteresis: {field.name}: found {value}, expected a number from 0")

    def pays(self, running_ns: int, proposed_ns: int, *, since_move: int | None, back: bool) -> bool:
        """Whether to move.

        Args:
            running_ns: a step of the plan that runs, under the conditions.
            proposed_ns: a step of the proposed one.
            since_move: how many steps ago the last proposal was settled; None: there was none.
            back: whether conditions are as the job's own plan expects, and that plan is proposed: it need not be faster then, only
                as fast, since its quality is known best.
        """
        gain_ns = running_ns - proposed_ns
        if since_move is not None and since_move < self.rest_steps and gain_ns < self.plain_gain * running_ns:
            return False
        if back:
            return gain_ns >= 0
        return gain_ns >= self.least_gain * running_ns and gain_ns * self.expected_steps > self.cost_s * 1e9


class Settled(NamedTuple):
    """What became of a plan that was published."""

    number: int
    moved: bool
    """Whether it runs now."""
    step: int
    """After this many steps it was known."""


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
        self._waiting: Store | None = None
        self._posts = 0
        self._posted: dict[int, Conditions] = {}

    def publish(self, number: int, content: bytes) -> StoredPlan:
        """Publish the plan of this number, one above the last."""
        pieces = [content[at : at + PIECE_BYTES] for at in range(0, len(content), PIECE_BYTES)]
        notice = StoredPlan(number, len(pieces), hashlib.sha256(content).hexdigest())
        values = {f"plan/{number}/{index}": piece for index, piece in enumerate(pieces)}
        values[f"plan/{number}"] = json.dumps(notice).encode()
        for key, value in values.items():
            self._store.set(key, value)  # type: ignore[arg-type]  # bytes are as good as text
        self._store.wait(list(values))  # `set` returns before the store has it
        for rank in range(self._size):
            self.wake(rank, number)
        return notice

    def wake(self, rank: int, number: int) -> None:
        """Let this rank's `wait_for` return."""
        self._store.set(f"wake/{rank}/{number}", "")

    def wait_for(self, number: int) -> None:
        """Wait until the plan of this number is published, or this rank's own `wake`; in a thread that may be blocked.

        It asks the store once, which answers when it is so: ranks that ask again and again are too many for one store.
        """
        if self._waiting is None:  # a connection of its own, as others wait for what goes over the same
            store: Any = self._store  # torch's stubs lack its `clone`
            self._waiting = store.clone()
        self._waiting.wait([f"wake/{self._rank}/{number}"], YEAR)
        self._waiting.delete_key(f"wake/{self._rank}/{number}")

    def take(self, number: int) -> tuple[StoredPlan, bytes]:
        """A published plan and its bytes.

        Raises:
            CheckFailed: not all of it is there, or its bytes are not those that were published.
        """
        head = f"plan/{number}"
        if not self._store.check([head]):
            raise CheckFailed(f"plan {number} of the proposer is not in the job's store, though it was published")
        notice = StoredPlan(*json.loads(self._store.get(head)))
        keys = [f"plan/{number}/{index}" for index in range(notice.pieces)]
        if not self._store.check(keys):
            raise CheckFailed(f"plan {number} of the proposer is not whole in the job's store")
        content = b"".join(self._store.get(key) for key in keys)
        if hashlib.sha256(content).hexdigest() != notice.sha256:
            raise CheckFailed(f"plan {number} of the proposer does not have the digest with which it was published")
        return notice, content

    def remove(self, notice: StoredPlan) -> None:
        """Remove a plan that all ranks have taken."""
        for index in range(notice.pieces):
            self._store.delete_key(f"plan/{notice.number}/{index}")
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


class Leading:
    """What the leader's thread does: asks the proposer, decides, publishes."""

    def __init__(
        self, proposer: Proposer, plan_store: PlanStore, hysteresis: Hysteresis, published: list[ProposerAnswer], grace_s: float
    ) -> None:
        """Begin.

        `published` gets what is published, and why; conditions must stay what they are for `grace_s` before a plan for them is.
        """
        self.ended: str | None = None
        """Why there are no more proposals."""
        self._proposer = proposer
        self._plan_store = plan_store
        self._hysteresis = hysteresis
        self._published = published
        self._grace_s = grace_s
        self._asked_s = 0.0
        """When it was last asked."""
        self._running: str | None = None
        """The digest of the plan that runs."""
        self._asked: tuple[str, Conditions] | None = None
        self._answer: ProposerAnswer | None = None
        """The newest, while it may still be published."""
        self._number = 0
        self._under_way: StoredPlan | None = None
        self._refusals = 0

    def go_on(self, settled: Settled | None, step: int) -> None:
        """Do what there is to do now, after `step` steps; `settled` says what became of the last plan that was published."""
        if self._under_way is not None and settled is not None and settled.number == self._under_way.number:
            self._refusals = 0 if settled.moved else self._refusals + 1
            self._running = self._under_way.sha256 if settled.moved else self._running
            self._plan_store.remove(self._under_way)
            self._under_way = self._asked = None
            if self._refusals == MOST_REFUSALS:
                self.ended = f"the ranks have refused {MOST_REFUSALS} plans in a row"
                return
        if self._proposer.ended is not None:
            self.ended = f"the proposer has ended: {self._proposer.ended}"
            return
        self._running = self._running or self._proposer.own_sha256
        conditions = _all_measured(self._plan_store.posted())
        if self._running is None or conditions is None or self._under_way is not None:
            return
        if (self._running, conditions) != self._asked:
            self._asked, self._asked_s = (self._running, conditions), monotonic()
            self._proposer.ask(*self._asked)
        self._answer = self._proposer.answer() or self._answer
        if self._answer is not None and (self._answer.running_sha256, self._answer.conditions) != self._asked:
            self._answer = None  # since then the proposer has been asked anew, and keeps no plan of before
        rests = monotonic() - self._asked_s < self._grace_s
        if self._answer is not None and not rests and self._pays(self._answer, None if settled is None else step - settled.step):
            self._number += 1
            self._under_way = self._plan_store.publish(self._number, self._answer.content)
            self._published.append(self._answer)
            self._answer = None

    def _pays(self, answer: ProposerAnswer, since_move: int | None) -> bool:
        if answer.refusal is not None or answer.running_sha256 != self._running or answer.sha256 == self._running:
            return False
        return self._hysteresis.pays(answer.running_ns, answer.proposed_ns, since_move=since_move, back=answer.back)


def _all_measured(measured: Mapping[int, Conditions]) -> Conditions | None:
    """What all ranks have measured; None: nothing. Of a link that two have measured, what the higher one says counts."""
    if not measured:
        return None
    ranks = sorted(measured)
    links = {pair: state for rank in ranks for pair, state in measured[rank].links.items()}
    return Conditions(links=links, slowdown={key: factor for rank in ranks for key, factor in measured[rank].slowdown.items()})
