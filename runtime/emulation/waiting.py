"""One rank's part of a plan as an emulation runs it: a pipe whose compute is waiting, and that moves to other plans as `Pipe` does.

Every op takes the time that the first plan's costs say, whichever plan gives their order, counted from when it begins: a plan that
was made for other conditions has its makers' beliefs as costs, and the emulated cluster does not change by them. `Waiting` is the
executor's `Compute`. It also waits for the plan's data-parallel collectives: an all-gather holds back its stage's first F, a
reduce-scatter begins with the end of its stage's last W and ends beside compute.

Waiting until a time on `time.perf_counter_ns` is being asleep for most of it, so that nobody else is kept from computing. A sleep
ends some time after it was asked to; the last stretch is therefore waited awake. `keep_sharp` makes that stretch short and wakes
this process before others, where the system allows it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Literal

import torch

from schedc.ir import Kind, Op, Plan
from schedc.runtime.common.hooks import Observer, OpTimes, ReplicaHooks
from schedc.runtime.common.program import program_of
from schedc.runtime.emulation.delays import OwnLink, Reservable
from schedc.runtime.session.swap import PlanSwapper, Received, Swap

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from schedc.runtime.common.boundary import Value
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Instruction
    from schedc.runtime.execution.runner import PipelineRunner

AWAKE_NS = 150_000
"""The last stretch: twice what a sleep is usually late on Linux, whose timers have 50 µs of slack."""
SET_TIMER_SLACK = 29
"""Linux, prctl(2): PR_SET_TIMERSLACK."""
PAYLOAD = 1
"""Numbers in a message; what a message costs is injected."""


def wait_until(time_ns: int) -> None:
    """Return at this time or just after it, never before; at once where it has passed."""
    while (left_ns := time_ns - perf_counter_ns()) > 0:
        if left_ns > AWAKE_NS:
            time.sleep((left_ns - AWAKE_NS) / 1e9)


def keep_sharp() -> bool:
    """Ask for exact timers, and to run before other processes, for this thread and those it starts from now on.

    For processes that do nothing but wait. Returns whether they run before others; most systems allow that to root only.
    """
    if sys.platform != "linux":
        return False
    ctypes.CDLL(None).prctl(SET_TIMER_SLACK, 1, 0, 0, 0)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return True
    return False


class Waiting:
    """The work of one rank's ops, done by waiting."""

    def __init__(self, plan: Plan, rank: int, scale: float, trunk: Reservable | None) -> None:
        """Take the plan's costs.

        The rank's collectives queue with transfers on the trunk; None: on a resource of their own.
        """
        problem, schedule = plan.problem, plan.schedule()
        order = plan.ranks[rank].compute
        self._duration_ns = {op: round(schedule.duration_ns(problem, op) * scale) for op in order}
        self._gather_ns = _gathers(plan, rank, scale)
        self._shared = trunk is not None
        of_ranks = [sum(_gathers(plan, other, scale).values()) for other in range(problem.ranks)]
        self._before_ns, self._everybodys_ns = sum(of_ranks[:rank]), sum(of_ranks)
        self._first_forward = {op.stage: op for op in reversed(order) if op.kind is Kind.F}
        self._scatter_ns: dict[Op, int] = {}
        if problem.data_parallel is not None:
            last = {op.stage: op for op in order if op.kind in (Kind.W, Kind.BW)}
            self._scatter_ns = {op: round(problem.data_parallel.reduce_scatter_ns[stage] * scale) for stage, op in last.items()}
        self._collectives: Reservable = trunk or OwnLink()
        self._gathered_ns: dict[Op, int] = {}
        self._output = (torch.zeros(PAYLOAD, requires_grad=True),)
        self._gradient = (torch.zeros(PAYLOAD),)
        self._end_ns = 0
        self.begun_ns = 0
        """When the last op's time began to count."""

    def begin(self, start_ns: int) -> None:
        """Before a step that all ranks begin at `start_ns`.

        All all-gathers are ready then. On a trunk, those of lower ranks go first, so that each rank knows its own times.
        """
        self._gathered_ns.clear()
        end_ns = start_ns + self._before_ns if self._shared and self._gather_ns else start_ns
        for stage, gather_ns in self._gather_ns.items():
            end_ns += gather_ns
            self._gathered_ns[self._first_forward[stage]] = end_ns
        self._collectives.reserve(start_ns + self._everybodys_ns if self._shared else end_ns, 0)
        self._end_ns = end_ns

    def run(self, instruction: Instruction, values: Sequence[Value]) -> Sequence[Value]:
        """As `Compute.run`."""
        op = instruction.op
        wait_until(self._gathered_ns.get(op, 0))
        self.begun_ns = perf_counter_ns()
        wait_until(self.begun_ns + self._duration_ns[op])
        if op in self._scatter_ns:
            self._end_ns = max(self._end_ns, self._collectives.reserve(perf_counter_ns(), self._scatter_ns[op]))
        return [self._output if op.kind is Kind.F else self._gradient] * len(instruction.gives)

    def finish(self) -> None:
        """After the step's last op: wait for the collectives."""
        wait_until(self._end_ns)


def _gathers(plan: Plan, rank: int, scale: float) -> dict[int, int]:
    """What the all-gathers of a rank take, by stage, in the order of first use (as the simulator orders them)."""
    parallel = plan.problem.data_parallel
    if parallel is None or not parallel.all_gather_ns:
        return {}
    stages = dict.fromkeys(op.stage for op in plan.ranks[rank].compute if op.kind is Kind.F)
    return {stage: round(parallel.all_gather_ns[stage] * scale) for stage in stages}


class EmulatedPipe(Observer):
    """One rank of the plan. It observes its executor, and reports when an op's time really began: after what held it back."""

    swap_group = None
    """It moves alone."""
    moving: Literal["adapting", "migration"] | None = None
    """As `Pipe.moving`."""

    def __init__(
        self, plan: Plan, groups: Groups, runner: PipelineRunner, observer: Observer, scale: float, trunk: Reservable | None
    ) -> None:
        """Take what runs the ops.

        The runner has the wires of the first plan. The rank's collectives queue with transfers on the trunk; None: on their own.
        """
        self.groups = groups
        self.hooks = ReplicaHooks()
        self.prepare = runner.prepare
        self.ran: list[int] = []
        """Of each step, its plan: 0 is the first plan, n the nth that this rank has offered."""
        self._problem = plan.problem
        self._scale = scale
        self._trunk = trunk
        self._runner = runner
        self._observer = observer
        self._mover = PlanSwapper(groups, None, lambda _: None, self.hooks)
        self._offers = self._number = 0
        self._use(plan)

    def swap(self, plan: Path | str | Plan | Received) -> Swap:
        """As `Pipe.swap`."""
        swap = self._mover.offer(self.plan, plan)
        self._offers += 1
        return swap

    def all_have_offered(self) -> bool:
        """Whether this rank sees that all ranks have offered the next plan, before a step."""
        return self._mover.all_have_offered()

    def op(self, times: OpTimes) -> None:
        """As `Observer.op`."""
        self._observer.op(times._replace(begun_ns=self._compute.begun_ns))

    def sent(self, transfer: Op, peer: int, now_ns: int) -> None:
        """As `Observer.sent`."""
        self._observer.sent(transfer, peer, now_ns)

    def taken(self, transfer: Op, peer: int, now_ns: int) -> None:
        """As `Observer.taken`."""
        self._observer.taken(transfer, peer, now_ns)

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
        self._observer.begin_step(len(self.ran), start_ns)
        self._runner.executor.run()
        self._compute.finish()
        end_ns = perf_counter_ns()
        self._runner.wiring.finish()
        self._observer.end_step(len(self.ran), end_ns)
        self.ran.append(self._number)
        if moves and self._mover.settle(len(self.ran), self.plan, self._runner.wiring, self._use) is None:
            self._number = self._offers
        return end_ns

    def _use(self, plan: Plan) -> None:
        """Run this plan from now on; its wires are laid."""
        self.plan = plan
        rank = self.groups.rank
        self._compute = Waiting(replace(plan, problem=self._problem), rank, self._scale, self._trunk)
        self._runner.use(plan, program_of(plan, rank), self._compute, self)
