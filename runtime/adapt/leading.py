"""What the leader of a job that adapts does, in a thread: it asks the proposer, decides whether a move pays, and publishes."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir.conditions import Conditions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schedc.runtime.adapt.hysteresis import Hysteresis
    from schedc.runtime.adapt.plan_store import PlanStore, StoredPlan
    from schedc.runtime.adapt.proposer import Proposer, ProposerAnswer

MOST_REFUSALS = 3
"""After this many refused plans in a row there are no more: the next would most likely be refused, too."""


class Settled(NamedTuple):
    """What became of a plan that was published."""

    number: int
    moved: bool
    """Whether it runs now."""
    step: int
    """After this many steps it was known."""


class Leading:
    """What the leader's thread does: asks the proposer, decides, publishes."""

    def __init__(
        self, proposer: Proposer, plan_store: PlanStore, hysteresis: Hysteresis, published: list[ProposerAnswer], grace_s: float
    ) -> None:
        """Begin.

        Args:
            proposer: whom it asks.
            plan_store: where it publishes.
            hysteresis: when a move pays.
            published: gets what is published, and why.
            grace_s: conditions must stay what they are for this long before a plan for them is published.
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
        """Do what there is to do now.

        Args:
            settled: what became of the last plan that was published.
            step: how many steps there have been.
        """
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
