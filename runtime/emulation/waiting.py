"""Compute that is only waited for: every op takes the time that the plan's costs say, counted from when it begins.

`Waiting` is the executor's `Compute`. It also waits for the plan's data-parallel collectives: an all-gather holds back its stage's
first F, a reduce-scatter begins with the end of its stage's last W and ends beside compute.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from schedc.ir.ops import Kind, Op
from schedc.runtime.emulation.delays import OwnLink, Reservable
from schedc.runtime.emulation.timer import wait_until

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.runtime.common.program import Instruction
    from schedc.runtime.common.values import Value

PAYLOAD = 1
"""Numbers in a message; what a message costs is injected."""


class Waiting:
    """The work of one rank's ops, done by waiting."""

    def __init__(self, plan: Plan, rank: int, scale: float, trunk: Reservable | None) -> None:
        """Take the plan's costs.

        Args:
            plan: what is run.
            rank: this one.
            scale: what all times are multiplied by.
            trunk: where the rank's collectives queue with transfers; None: on a resource of their own.
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

    def run(self, instruction: Instruction, value: Value) -> Value:
        """As `Compute.run`."""
        op = instruction.op
        wait_until(self._gathered_ns.get(op, 0))
        self.begun_ns = perf_counter_ns()
        wait_until(self.begun_ns + self._duration_ns[op])
        if op in self._scatter_ns:
            self._end_ns = max(self._end_ns, self._collectives.reserve(perf_counter_ns(), self._scatter_ns[op]))
        if instruction.gives is None:
            return ()
        return self._output if op.kind is Kind.F else self._gradient

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
