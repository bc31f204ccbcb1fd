"""One rank's part of a plan as an emulation runs it: a pipe whose compute is waiting, and that moves to other plans as `Pipe` does.

Its ops wait for as long as the first plan's costs say, whichever plan gives their order: a plan that was made for other conditions
has its makers' beliefs as costs, and the emulated cluster does not change by them.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING

from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.common.observer import Observer, OpTimes
from schedc.runtime.common.program import program_of
from schedc.runtime.emulation.timer import wait_until
from schedc.runtime.emulation.waiting import Waiting
from schedc.runtime.session.swap import PlanSwapper, Received, Swap

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.ops import Op
    from schedc.ir.plan import Plan
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.emulation.delays import Reservable
    from schedc.runtime.execution.runner import PipelineRunner


class _TrueBegin(Observer):
    """Reports when an op's time really began: after what held it back in the compute itself."""

    def __init__(self, compute: Waiting, observer: Observer) -> None:
        self._compute = compute
        self._observer = observer

    def op(self, times: OpTimes) -> None:
        self._observer.op(times._replace(begun_ns=self._compute.begun_ns))

    def sent(self, transfer: Op, peer: int, now_ns: int) -> None:
        self._observer.sent(transfer, peer, now_ns)

    def taken(self, transfer: Op, peer: int, now_ns: int) -> None:
        self._observer.taken(transfer, peer, now_ns)


class EmulatedPipe:
    """One rank of the plan."""

    swap_group = None
    """It moves alone."""

    def __init__(
        self, plan: Plan, groups: Groups, runner: PipelineRunner, observer: Observer, scale: float, trunk: Reservable | None
    ) -> None:
        """Take what runs the ops.

        Args:
            plan: the first plan.
            groups: of its ranks.
            runner: this rank's, with the wires of the first plan.
            observer: is called with what happens.
            scale: what all times are multiplied by.
            trunk: where the rank's collectives queue with transfers; None: on a resource of their own.
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
        self._runner.use(plan, program_of(plan, rank), self._compute, _TrueBegin(self._compute, self._observer))
