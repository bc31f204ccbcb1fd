"""The norm of a step's gradients over all ranks, which comes while the next step runs; whether a plan leaves it that time.

Under 2bw the weights that step k makes are first read by step k + 2. So the norm is exchanged once a rank has ended its backwards
of step k, and waited for where the update is read: at the latest before a stage's first F of step k + 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from schedc.errors import Unsupported
from schedc.ir import Kind, Op, Plan, token
from schedc.runtime.common.failure import with_others
from schedc.runtime.transports.gloo import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch.distributed as dist

    from schedc.runtime.common.groups import Groups


def square_of(gradients: Iterable[torch.Tensor | None]) -> torch.Tensor:
    """The square of their norm, a float64 scalar on the CPU; infinite or NaN if one of them is."""
    found = [
        torch.linalg.vector_norm(each, dtype=torch.promote_types(each.dtype, torch.float32)).real.double().square()
        for each in (one.coalesce().values() if one is not None and one.is_sparse else one for one in gradients)
        if each is not None
    ]
    return torch.stack(found).sum().cpu() if found else torch.zeros((), dtype=torch.float64)


class GlobalNorms:
    """Those of one run, on one rank."""

    def __init__(self, groups: Groups, left: Sequence[int], square: Callable[[int], torch.Tensor]) -> None:
        """Take what is to be done.

        Args:
            groups: of the pipeline.
            left: per step, how many blocks' backwards this rank has to run.
            square: gives `square_of` of all of this rank's gradients of a step, which are whole.
        """
        self._groups = groups
        self._left = [*left]
        self._square = square
        self._begun: list[tuple[torch.Tensor, dist.Work]] = []
        self._begin()

    def ended(self, step: int) -> None:
        """The last backward of a block of the step has ended."""
        self._left[step] -= 1
        self._begin()

    def has(self, step: int) -> bool:
        """Whether the norm is there: `square` does not wait."""
        return step < len(self._begun) and self._begun[step][1].is_completed()

    def square(self, step: int) -> float:
        """The square of the norm over all ranks.

        Raises:
            TransferFailed: another rank has ended, or does not answer.
        """
        total, work = self._begun[step]
        rank, limit_s = self._groups.rank, self._groups.timeout_s
        late = f"no answer in {limit_s:g} s; it is stuck or slower than the timeout_s given to load"
        with with_others(f"rank {rank} waits for the norm of step {step}", "one of them has ended or failed", late):
            finish(work, limit_s)
        return total.item()

    def _begin(self) -> None:
        """Exchange what is whole, in the order of the steps: the same on all ranks."""
        while len(self._begun) < len(self._left) and not self._left[len(self._begun)]:
            total = self._square(len(self._begun))
            with with_others(f"rank {self._groups.rank} exchanges the norm of a step", "one of them has ended or failed"):
                self._begun.append((total, self._groups.all.allreduce([total])))


def check_slack(plan: Plan) -> None:
    """Refuse a run, under 2bw, in which ranks would wait for each other as they wait for norms. The plan need not be sound.

    Raises:
        Unsupported: they would; names an op.
    """
    problem, updates = plan.problem, plan.problem.updates
    assert updates is not None
    count, orders = updates.microbatches, [rank.compute for rank in plan.ranks]
    steps = problem.microbatches // count
    left = [0] * steps
    ending = _last_parts(orders)
    for op in ending:
        left[op.microbatch // count] += 1
    at, done = [0] * len(orders), set[tuple[bool, int, int]]()

    def runs(op: Op) -> bool:
        step, path = op.microbatch // count, problem.path(op.microbatch)
        place = path.index(op.stage)
        if op.kind is Kind.F:
            comes = not place or (True, path[place - 1], op.microbatch) in done
            return comes and (step < 2 or not left[step - 2])
        return op.kind is Kind.W or place == len(path) - 1 or (False, path[place + 1], op.microbatch) in done

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while at[rank] < len(order) and (order[at[rank]].kind is Kind.U or runs(order[at[rank]])):
                op = order[at[rank]]
                at[rank] += 1
                moved = True
                if op in ending:
                    left[op.microbatch // count] -= 1
                if op.kind in (Kind.F, Kind.B, Kind.BW):
                    done.add((op.kind is Kind.F, op.stage, op.microbatch))
    for rank, order in enumerate(orders):
        if at[rank] < len(order):
            raise Unsupported(
                f"plan {plan.name!r}: {token(order[at[rank]])} on rank {rank} would wait for a norm that waits for it; give"
                " StageOptimizers per_stage=True"
            )


def _last_parts(orders: Sequence[Sequence[Op]]) -> set[Op]:
    """Of each block, the last op of its backwards."""
    found: dict[tuple[int, int], Op] = {}
    for order in orders:
        for op in order:
            if op.kind in (Kind.W, Kind.BW):
                found[op.stage, op.microbatch] = op
    return {*found.values()}
