"""One rank of a replay: it runs steps one after another, while its monitor measures and plans that pay are taken up."""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING

from schedc.runtime.adapt.adapting import LOOK_S, adapting
from schedc.runtime.adapt.monitor import Monitor
from schedc.runtime.common.groups import Groups
from schedc.runtime.emulation.injected import Injection
from schedc.runtime.emulation.rank import LEAD_NS
from schedc.runtime.emulation.timer import keep_sharp
from schedc.runtime.replay.pipe import LOOKING, ReplayPipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schedc.ir.conditions import LinkTrace
    from schedc.ir.plan import Plan
    from schedc.runtime.adapt.adapting import Adaptation
    from schedc.runtime.adapt.proposer import ProposerAnswer

LEAST_LOOK_S = 0.02
"""How often a rank looks at the job's store at most: this takes time from the others."""
READY_S = 0.1
"""How often to ask whether the proposer is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReplay:
    """What one rank brings home. All but `ends_ns` and `before_others` is the same on all ranks, or known to the leader alone."""

    begins_ns: tuple[int, ...]
    """When each recorded run began, on the clock of the ranks' machine."""
    ends_ns: tuple[int, ...]
    """When the rank's last op of it ended."""
    begun_ns: tuple[int, ...]
    """When it began on the clock of the link trace."""
    ran: tuple[int, ...]
    """Of each recorded run, its plan: 0 is the first, n the nth that was published."""
    moved: tuple[int | None, ...]
    """Of each plan that was published, the first recorded run (from 0; below 0: before them) that could have it; None: it was
    refused, or not settled before the end."""
    refusals: tuple[str | None, ...]
    """Why each was refused."""
    published: tuple[ProposerAnswer, ...]
    """On the leader."""
    ended: str | None
    """Why adapting ended before the runs did."""
    before_others: bool
    """As of `RankResult`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """What to run."""

    plan: Plan
    scale: float
    """What all of the plan's times are multiplied by."""
    runs: int
    """How many are recorded."""
    warm_up: int
    """How many go before them, with links as planned: from these the monitor learns what is usual."""
    timeout_s: float
    """How long an op waits for another rank."""
    choose: bool
    """Whether each rank chooses its next op by what has come."""
    links: LinkTrace | None
    """How the links change, from the first recorded run on; None: they do not."""

    def run(self, rank: int, ran: Callable[[int], None]) -> RankReplay:
        """Do it as one of the ranks, in a process with a default group.

        Args:
            rank: this one.
            ran: called with the number of every recorded run that has ended here, after 0 for those before.

        Raises:
            TransferFailed: another rank has ended or does not answer.
        """
        before_others = keep_sharp()  # before gloo starts its threads
        groups = Groups(self.timeout_s)
        monitor = Monitor(scale=self.scale, least_gap_s=0.0)  # nothing is computed that measuring takes time from
        try:
            injection = Injection(self.plan.problem, groups, scale=self.scale, trace=self.links, before_ns=-1)
            pipe = ReplayPipe(self.plan, groups, injection, monitor, scale=self.scale, choose=self.choose, timeout_s=self.timeout_s)
            with _as_others(before=before_others):
                adaptation = adapting(pipe, monitor, look_s=max(LEAST_LOOK_S, LOOK_S * self.scale))
            with adaptation:
                _wait_for_proposer(adaptation, groups)
                gc.collect()
                gc.freeze()
                gc.disable()  # a collection takes longer than the timers are off
                begins_ns, ends_ns, begun_ns = self._steps(pipe, adaptation, injection, ran)
                groups.exchange(None)  # no rank closes its connections while another needs them
            return RankReplay(
                begins_ns=tuple(begins_ns),
                ends_ns=tuple(ends_ns),
                begun_ns=tuple(begun_ns),
                ran=tuple(pipe.ran[self.warm_up :]),
                moved=tuple(
                    None if swap.state != "done" or swap.step is None else swap.step - self.warm_up for swap in adaptation.swaps
                ),
                refusals=tuple(swap.reason for swap in adaptation.swaps),
                published=tuple(adaptation.published),
                ended=adaptation.ended,
                before_others=before_others,
            )
        finally:
            monitor.close()
            groups.close()

    def _steps(
        self, pipe: ReplayPipe, adaptation: Adaptation, injection: Injection, ran: Callable[[int], None]
    ) -> tuple[list[int], list[int], list[int]]:
        """Run them; of the recorded ones when they began and ended, and when they began on the trace's clock."""
        begins_ns: list[int] = []
        ends_ns: list[int] = []
        begun_ns: list[int] = []
        end_ns = 0
        for step in range(self.warm_up + self.runs):
            offered = pipe.groups.rank == LOOKING and pipe.all_have_offered()
            everybodys = pipe.groups.exchange((perf_counter_ns(), end_ns, offered))
            ready_ns, ended_ns, seen = zip(*everybodys, strict=True)
            start_ns = max(ready_ns) + LEAD_NS
            if begins_ns:
                injection.clock.stop(max(ended_ns))
            if step >= self.warm_up:
                injection.clock.start(start_ns)
                begins_ns.append(start_ns)
                begun_ns.append(injection.clock.time_ns(start_ns))
            end_ns = pipe.step(start_ns, moves=seen[LOOKING])
            adaptation.between_steps()
            if step >= self.warm_up:
                ends_ns.append(end_ns)
            if step >= self.warm_up - 1:
                ran(step - self.warm_up + 1)
        return begins_ns, ends_ns, begun_ns


@contextmanager
def _as_others(*, before: bool) -> Iterator[None]:
    """Run like other processes for now, so that the threads and processes that are started do not run before the ranks' steps."""
    if before and sys.platform == "linux":
        policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        try:
            yield
        finally:
            os.sched_setscheduler(0, policy, parameters)
        return
    yield


def _wait_for_proposer(adaptation: Adaptation, groups: Groups) -> None:
    """A job's first steps take longer than its proposer takes to start; here they would not."""
    while True:
        proposer = adaptation.proposer
        if any(groups.exchange(proposer is not None and (proposer.own_sha256 or proposer.ended) is not None)):
            return
        time.sleep(READY_S)
