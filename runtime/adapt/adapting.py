"""Adapting a pipe to what links and ranks cost while it trains: one call between two steps, on every rank.

    with adapting(pipe, monitor) as adaptation:
        for inputs, targets in batches:
            loss = pipe.step(inputs, targets)
            optimizer.step()
            adaptation.between_steps()

Each rank's monitor says what that rank has measured. One rank, the leader, has a proposer: a process of its own that makes a plan
for what all ranks have measured, and verifies it. Where the predicted gain pays (`Hysteresis`), the leader publishes the plan's
bytes in the job's store; every rank takes them, checks their digest, and offers the plan (`Pipe.swap`). All of that is done by a
thread of each process, also while a step runs, so the thread of the step neither schedules nor verifies nor waits. Another one
waits for the next plan: the store answers once, when there is one, so it is asked ten times a second by the leader alone, however
many ranks there are.

The leader publishes a plan only once the one before it is settled, so no two are under way at once. A plan that does not come
whole is refused by all ranks. If the proposer dies or hangs, training goes on with the plan that it has.
"""

from __future__ import annotations

import threading
import warnings
from contextlib import suppress
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

from schedc.errors import InvalidInput, SchedcError, Unsupported
from schedc.formats.plan.plan_file import parse_plan
from schedc.ir import Conditions, Plan
from schedc.runtime.adapt.leading import Hysteresis, Leading, PlanStore, Settled
from schedc.runtime.common.failure import TransferFailed
from schedc.runtime.session.swap import Received, Swap

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from schedc.runtime.adapt.proposer import Proposer, ProposerAnswer
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.hooks import ReplicaHooks
    from schedc.runtime.session.swap import SwapGroup

LOOK_S = 0.1
"""How often each rank's thread looks at what there is to do, and the leader's at the job's store."""
GRACE = 1.5
"""In looks: conditions must stay what they are for this long before a plan for them is published. A link changes both ways at
once, and two ranks find that."""
PATIENCE_S = 60.0


class Adaptable(Protocol):
    """What a `Pipe` is to this."""

    @property
    def groups(self) -> Groups:
        """Of the plan's ranks."""

    @property
    def hooks(self) -> ReplicaHooks:
        """What connects it to other pipelines."""

    moving: Literal["adapting", "migration"] | None
    """As `Pipe.moving`."""

    @property
    def swap_group(self) -> SwapGroup | None:
        """None: it moves alone."""

    @property
    def plan(self) -> Plan:
        """The plan that the next step runs."""

    def prepare(self, plan: Plan) -> None:
        """As `Pipe.prepare`."""

    def swap(self, plan: Path | str | Plan | Received) -> Swap:
        """As `Pipe.swap`."""


class Measures(Protocol):
    """What a monitor is to this.

    If `conditions` may be asked for at any time, in any thread, it has a `changed: threading.Event`, and sets it when they have.
    """

    def conditions(self) -> Conditions | None:
        """What this rank has found to differ from the plan that the pipe was loaded with; None: nothing has been measured yet.

        Called between two steps, in the thread of the step.
        """
        ...


def adapting(
    pipe: Adaptable,
    monitor: Measures | None,
    *,
    known: Path | str | None = None,
    leader: int = 0,
    hysteresis: Hysteresis | None = None,
    look_s: float = LOOK_S,
    patience_s: float = PATIENCE_S,
) -> Adaptation:
    """Let the pipe adapt from now on; all ranks call it, with the plan that the pipe was loaded with. It waits for no other rank.

    While it does, leave `pipe.swap` to it.

    Args:
        pipe: a loaded pipe.
        monitor: of this rank; None: it measures nothing.
        known: the folder of a family that `schedc family` has made for the job: its plans are among the candidates. Only the leader
            reads it; others may give it or not.
        leader: the rank that has the proposer.
        hysteresis: when a move pays; None: `Hysteresis()`.
        look_s: how often the leader looks at the job's store.
        patience_s: how long the proposer may take for a plan before it counts as stuck.

    Raises:
        InvalidInput: there is no rank `leader`; layers of the pipe migrate, or it adapts already; or, on the leader, there is no
            family in the folder, or another job's.
        CheckFailed: a plan of the family breaks a rule.
        Unsupported: the pipe moves together with others (`swap_group`), whose links may ask for other plans.
    """
    if not 0 <= leader < pipe.groups.size:
        raise InvalidInput(f"adapting: leader: found {leader}, expected a rank from 0 to {pipe.groups.size - 1}")
    if pipe.swap_group is not None:
        raise Unsupported(
            "adapting: the pipelines of a swap_group move to one plan together, and each would propose its own; load without a"
            " swap_group, or call pipe.swap with a plan for all of them"
        )
    if pipe.moving is not None:
        raise InvalidInput("adapting: a migration of layers, or another adaptation, moves the pipe; wait until that has ended")
    plans: tuple[Plan, ...] = ()
    if known is not None and pipe.groups.rank == leader:
        from schedc.runtime.adapt.family import load_family

        plans = load_family(known).for_job(pipe.plan)
    return Adaptation(pipe, monitor, plans, leader, hysteresis or Hysteresis(), look_s, patience_s)


class Adaptation:
    """One rank's side of it; as a context manager, it ends with the block."""

    def __init__(
        self,
        pipe: Adaptable,
        monitor: Measures | None,
        known: Sequence[Plan],
        leader: int,
        hysteresis: Hysteresis,
        look_s: float,
        patience_s: float,
    ) -> None:
        """Start; `adapting` says what with."""
        self.steps = 0
        """How often `between_steps` has been called."""
        self.swaps: list[Swap] = []
        """What has become of each plan that this rank has offered."""
        self.published: list[ProposerAnswer] = []
        """On the leader, the plans that it has published, in the order of `swaps`, and why."""
        self.ended: str | None = None
        """Why there is no more adapting; None: there is."""
        self._pipe = pipe
        self._monitor = monitor
        self._hysteresis = hysteresis
        self._look_s = look_s
        self._plan_store = PlanStore(pipe.groups.store_of(range(pipe.groups.size)), pipe.groups.rank, pipe.groups.size)
        self._measured: Conditions | None = None
        self._received: Received | None = None
        """A plan that this rank's thread has taken, and has not offered yet."""
        self._offering = threading.Lock()
        """Held from before a plan is offered until it is in `swaps`: it may be settled at once, and all ranks count it then."""
        self._settled: Settled | None = None
        """What became of the last plan that was published."""
        self._said = False
        """Whether it has been said that there is no more adapting."""
        self._stop = threading.Event()
        changed = getattr(monitor, "changed", None)
        self._changed = changed if isinstance(changed, threading.Event) else None
        self.proposer: Proposer | None = None
        """On the leader."""
        if pipe.groups.rank == leader:
            from schedc.runtime.adapt.proposer import Proposer

            self.proposer = Proposer(pipe.plan, patience_s, known, pipe.hooks.pipelines)
        pipe.moving = "adapting"
        self._published = 0
        """How many plans have been published."""
        self._lost: RuntimeError | None = None
        """Why the store is lost."""
        self._watcher = threading.Thread(target=self._watch, name="schedc plans", daemon=True)
        self._watcher.start()
        self._thread = threading.Thread(target=self._run, name="schedc adapting", daemon=True)
        self._thread.start()

    def between_steps(self) -> None:
        """Take note of what was measured, and of what has become of plans; once after each step, on every rank.

        Raises:
            InvalidInput: the monitor gives no `Conditions`.
            TransferFailed: the job's store is lost.
        """
        self.steps += 1
        if self._monitor is not None:
            measured = self._monitor.conditions()
            if not isinstance(measured, (Conditions, NoneType)):
                raise InvalidInput(
                    f"adapting: the monitor's conditions(): found {type(measured).__name__}, expected Conditions or None"
                )
            self._measured = measured
        with self._offering:
            offered = len(self.swaps)
        if offered and self.swaps[-1].state != "pending" and (self._settled is None or self._settled.number < offered):
            self._settled = Settled(offered, self.swaps[-1].state == "done", self.steps)
        if self.ended is not None and not self._said:
            self._said = True
            warnings.warn(f"no more adapting: {self.ended}; plan {self._pipe.plan.name!r} goes on", RuntimeWarning, stacklevel=2)

    def close(self) -> None:
        """End the threads, and the proposer with them. Closing again does nothing."""
        was_open = not self._stop.is_set()
        self._stop.set()
        if self._changed is not None:
            self._changed.set()
        if self.proposer is not None:
            self.proposer.close()
        self._thread.join()
        with suppress(RuntimeError):  # the job's store is lost, and the watcher ends by itself
            while self._watcher.is_alive():
                self._plan_store.wake(self._pipe.groups.rank, self._published + 1)
                self._watcher.join(self._look_s)
        if was_open:
            self._pipe.moving = None

    def __enter__(self) -> Adaptation:
        """The adaptation itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End it."""
        self.close()

    def _watch(self) -> None:
        """Wait for plans."""
        try:
            while not self._stop.is_set():
                self._plan_store.wait_for(self._published + 1)
                self._published += not self._stop.is_set()
        except RuntimeError as error:
            self._lost = error

    def _run(self) -> None:
        """What this rank's thread does."""
        leading = None
        if self.proposer is not None:
            leading = Leading(self.proposer, self._plan_store, self._hysteresis, self.published, GRACE * self._look_s)
        posted: Conditions | None = None
        taken = 0
        try:
            while not self._wait():
                if self._measured is not None and self._measured != posted:
                    posted = self._measured
                    self._plan_store.post(posted)
                if leading is not None:
                    leading.go_on(self._settled, self.steps)
                    if leading.ended is not None:
                        self.ended, leading = leading.ended, None
                        assert self.proposer is not None
                        self.proposer.close()
                if self._lost is not None:
                    raise self._lost
                if self._published > taken:  # by one: all ranks have settled those before
                    taken += 1
                    self._received = self._take(taken)
                if self._received is not None:
                    with self._offering, suppress(InvalidInput):  # the job has called swap itself, and that is pending
                        self.swaps.append(self._pipe.swap(self._received))
                        self._received = None
        except (RuntimeError, TransferFailed) as error:
            self.ended = f"the job's store is lost: {str(error).splitlines()[0]}"
        finally:
            if self.ended is None and not self._stop.is_set():  # a defect, which the thread's traceback shows
                self.ended = "its thread has failed, and its own message says why"

    def _wait(self) -> bool:
        """Until it is time to look again, or the monitor has found something; whether this is the end."""
        if self._changed is None or self._monitor is None:
            return self._stop.wait(self._look_s)
        self._changed.wait(self._look_s)
        self._changed.clear()
        self._measured = self._monitor.conditions()
        return self._stop.is_set()

    def _take(self, number: int) -> Received:
        try:
            notice, content = self._plan_store.take(number)
            plan = parse_plan(content, f"plan {number} of the proposer")
            self._pipe.prepare(plan)
            return Received(plan=plan, digest=notice.sha256)
        except SchedcError as error:
            return Received(plan=None, refusal=str(error))
