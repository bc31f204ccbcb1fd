"""One rank's part of a plan as an emulation runs it, as a pipe that moves to other plans: what `adapting` needs of one.

Its ops wait for as long as the first plan's costs say, whichever plan gives their order: a plan that was made for other conditions
has its makers' beliefs as costs, and the emulated cluster does not change by them.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.common.observer import Observer
from schedc.runtime.common.program import program_of
from schedc.runtime.emulation.timer import wait_until
from schedc.runtime.emulation.waiting import Waiting
from schedc.runtime.execution.arrivals import Arrivals
from schedc.runtime.execution.choosing import ChoosingExecutor, earliest_ns
from schedc.runtime.execution.executor import Executor
from schedc.runtime.execution.wiring import Wiring
from schedc.runtime.session.swap import PlanSwapper
from schedc.runtime.transports.base import only
from schedc.runtime.transports.gloo import connect_gloo

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan
    from schedc.runtime.adapt.monitor import Monitor
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.observer import OpTimes
    from schedc.runtime.emulation.injected import Injection
    from schedc.runtime.session.swap import Received, Swap

LOOKING = 0
"""The rank that looks whether all have offered a plan."""


class _Measured(Observer):
    """What the monitor sees of the ops: each from when its emulated compute begins."""

    def __init__(self, compute: Waiting, monitor: Monitor) -> None:
        self._compute = compute
        self._monitor = monitor

    def op(self, times: OpTimes) -> None:
        self._monitor.op(times._replace(begun_ns=self._compute.begun_ns))


class ReplayPipe:
    """One rank of the plan."""

    lockstep = None
    """It moves alone."""

    def __init__(
        self, plan: Plan, groups: Groups, injection: Injection, monitor: Monitor, *, scale: float, choose: bool, timeout_s: float
    ) -> None:
        """Connect the wires; all ranks do this together.

        Args:
            plan: the first plan.
            groups: of its ranks.
            injection: of the links' delays.
            monitor: of this rank.
            scale: what all times are multiplied by.
            choose: whether this rank chooses its next op by what has come; it keeps the order of a plan for which it may not.
            timeout_s: how long an op waits for another rank.

        Raises:
            TransferFailed: another rank has ended or does not answer.
        """
        self.groups = groups
        self.plan = plan
        self.ran: list[int] = []
        """Of each step, its plan: 0 is the first plan, n the nth that this rank has offered."""
        self._problem = plan.problem
        self._scale = scale
        self._timeout_s = timeout_s
        self._monitor = monitor
        self._arrivals = Arrivals() if choose else None
        wrap = monitor.wrap(plan.problem, groups, torch.device("cpu"), around=lambda *_: injection.wrap)
        if self._arrivals is not None:
            wrap = self._arrivals.around(wrap)
        self._wiring = Wiring(plan, groups, timeout_s, only(connect_gloo), wrap)
        parallel = plan.problem.data_parallel
        self._trunk = None if parallel is None or parallel.trunk is None else injection.trunk(parallel.trunk)
        self.hooks = ReplicaHooks()
        self._mover = PlanSwapper(groups, None, lambda _: None, self.hooks)
        self._offers = self._number = 0
        self._prepared: tuple[Plan, list[int]] | None = None
        self._use(plan)

    def prepare(self, plan: Plan) -> None:
        """As `ChoosingPipe.prepare`, where this rank chooses."""
        if self._arrivals is not None:
            self._prepared = plan, earliest_ns(plan, self.groups.rank)

    def swap(self, plan: Path | str | Plan | Received) -> Swap:
        """As `Pipe.swap`."""
        swap = self._mover.offer(self.plan, plan)
        self._offers += 1
        return swap

    def all_have_offered(self) -> bool:
        """Whether this rank sees that all ranks have offered the next plan; on the rank `LOOKING`, before a step."""
        return self._mover.all_have_offered()

    def step(self, start_ns: int, *, moves: bool) -> int:
        """Run the plan once, with all other ranks.

        Args:
            start_ns: when all ranks begin, on `time.perf_counter_ns`.
            moves: whether the offers are settled at its end, the same on all ranks.

        Returns:
            When this rank's last op, or collective, had ended.

        Raises:
            TransferFailed: another rank has ended or does not answer.
        """
        self._compute.begin(start_ns)
        wait_until(start_ns)
        self._executor.run()
        self._compute.finish()
        end_ns = perf_counter_ns()
        self._wiring.finish()
        self._monitor.end_step(len(self.ran), end_ns)
        self.ran.append(self._number)
        if moves and self._mover.settle(len(self.ran), self.plan, self._wiring, self._use) is None:
            self._number = self._offers
        return end_ns

    def _use(self, plan: Plan) -> None:
        """Run this plan from now on; its wires are laid."""
        self.plan = plan
        rank = self.groups.rank
        program = program_of(plan, rank)
        self._compute = Waiting(replace(plan, problem=self._problem), rank, self._scale, self._trunk)
        observer = _Measured(self._compute, self._monitor)
        if self._arrivals is None:
            self._executor = Executor(program, self._wiring, self._compute, observer)
            return
        parts = program, self._wiring, self._arrivals, self._compute, observer
        prepared = self._prepared
        earliest = prepared[1] if prepared is not None and prepared[0] is plan else earliest_ns(plan, rank)
        self._executor = ChoosingExecutor(plan, earliest, *parts, None, perf_counter_ns, self._timeout_s, self._scale)
