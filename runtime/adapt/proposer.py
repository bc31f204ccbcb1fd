"""The proposer as the rank that has it sees it: a process of its own, asked by a thread, so that nothing waits for it.

The process is `schedc.adapt.proposer`. It ends with this one, however that ends. If it dies, or has no answer in time, there are
no more proposals: it is not started again, since what ended it would most likely end the next one.
"""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, NamedTuple

from schedc.io.child import Child, ChildDied, TookTooLong
from schedc.ir import Conditions, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence


FIRST_S = 600.0
"""How long it may take to begin: where the kernels are not in the cache yet, they are compiled."""


class ProposerAnswer(NamedTuple):
    """What the proposer says to a question."""

    conditions: Conditions
    """Those that it was asked about."""
    running_sha256: str
    """The plan that it was asked to compare with, by its bytes."""
    refusal: str | None
    """Why there is no proposal under these conditions; None: there is one."""
    back: bool
    """Whether the proposal is the job's own plan, and conditions are as that expects."""
    running_ns: int
    proposed_ns: int
    sha256: str
    """Of the proposed plan's bytes; that of the running plan where none is better."""
    content: bytes
    """Its bytes; none where the running plan is proposed."""


class Proposer:
    """Asks the process; all methods return at once but `close`."""

    def __init__(self, plan: Plan, patience_s: float, known: Sequence[Plan] = (), replicas: int = 1) -> None:
        """Start the process.

        It is killed where it has not answered after `patience_s`. `known` are more plans of the job to choose from, verified.
        """
        self.ended: str | None = None
        """Why there are no more proposals; None: there may be."""
        self.own_sha256: str | None = None
        """Of the job's plan, once the process is ready."""
        self._patience_s = patience_s
        self._condition = threading.Condition()
        self._question: tuple[str, Conditions] | None = None
        self._answer: ProposerAnswer | None = None
        self._closing = False
        self._child = Child(["-m", "schedc.adapt.proposer"])
        self._thread = threading.Thread(target=self._run, args=(plan, tuple(known), replicas), name="schedc proposer", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    def ask(self, running_sha256: str, conditions: Conditions) -> None:
        """Ask for the best plan under the conditions, beside the one that runs. A question not yet taken up is dropped for it."""
        with self._condition:
            self._question = running_sha256, conditions
            self._condition.notify()

    def answer(self) -> ProposerAnswer | None:
        """The newest answer that has not been taken yet."""
        with self._condition:
            answer, self._answer = self._answer, None
        return answer

    def close(self) -> None:
        """End the process and the thread. Closing again does nothing."""
        with self._condition:
            if self._closing:
                return
            self._closing = True
            self._condition.notify()
        if self.ended is None:
            self._child.hang_up()
        self._thread.join()
        self._child.close()

    def _run(self, plan: Plan, known: tuple[Plan, ...], replicas: int) -> None:
        try:
            self.own_sha256 = self._child.ask(pickle.dumps((plan, known, replicas)), FIRST_S).decode()
            while True:
                with self._condition:
                    self._condition.wait_for(lambda: self._closing or self._question is not None)
                    question, self._question = self._question, None
                    if self._closing or question is None:
                        return
                running_sha256, conditions = question
                found = pickle.loads(self._child.ask(pickle.dumps(question), self._patience_s))
                with self._condition:
                    self._answer = ProposerAnswer(conditions, running_sha256, *found)
        except ChildDied as error:
            self.ended = f"it {error}"
        except TookTooLong:
            self.ended = f"it had no answer after {self._patience_s:g} s"
