"""The norm of a step's gradients over all ranks, which comes while the next step runs; whether a plan leaves it that time.

Under 2bw the weights that step k makes are first read by step k + 2. So the norm is exchanged once a rank has ended its backwards
of step k, and waited for where the update is read: at the latest before a stage's first F of step k + 2. Before it come the sums
of replicas, and of weights that several ranks have: all of that is for a thread, as the next of them begins when the one before has
come, while the rank's own thread may wait for what another rank sends only once it has the norm.
"""

from __future__ import annotations

import math
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from schedc.errors import Unsupported
from schedc.ir import Kind, Op, Plan, token
from schedc.runtime.common.failure import with_others
from schedc.runtime.transports.gloo import finish
from schedc.runtime.transports.helpers import SerialExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableMapping, Sequence
    from contextlib import AbstractContextManager

    import torch.distributed as dist
    from torch import nn

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.replicas.buckets import Bucket, GradientSum
    from schedc.runtime.replicas.copies import TiedSums


def square_of(gradients: Iterable[torch.Tensor | None]) -> torch.Tensor:
    """The square of their norm, a float64 scalar on the CPU; infinite or NaN if one of them is."""
    found = [
        torch.linalg.vector_norm(each, dtype=torch.promote_types(each.dtype, torch.float32)).real.double().square()
        for each in (one.coalesce().values() if one is not None and one.is_sparse else one for one in gradients)
        if each is not None
    ]
    return torch.stack(found).sum().cpu() if found else torch.zeros((), dtype=torch.float64)


class StageSum:
    """A stage's gradients of a step, which its weights have no more: their sums over replicas are under way."""

    def __init__(
        self, sums: Sequence[tuple[Bucket, GradientSum]], gradients: MutableMapping[nn.Parameter, torch.Tensor | None]
    ) -> None:
        """Take what is under way, by bucket, and the gradients that no bucket has."""
        self._sums = [*sums]
        self._gradients = gradients

    def has_come(self) -> bool:
        """Whether `wait` would not wait."""
        return all(one.has_come() for _, one in self._sums)

    def wait(self) -> MutableMapping[nn.Parameter, torch.Tensor | None]:
        """The sums by weight, None where no replica has a gradient; the same mapping each time.

        Raises:
            TransferFailed: a replica is lost, or too late.
        """
        while self._sums:
            bucket, total = self._sums[0]
            self._gradients.update(zip(bucket.first_weights, total.wait(), strict=True))
            del self._sums[0]
        return self._gradients


class GlobalNorms:
    """Those of one run, on one rank, and the sums of tied weights, exchanged step after step as on all ranks."""

    def __init__(
        self,
        groups: Groups,
        left: Sequence[int],
        sums: Callable[[int], Sequence[StageSum]],
        ties: Sequence[TiedSums],
        device: torch.device,
        *,
        replicas: bool,
        norms: bool,
    ) -> None:
        """Take what is to be done.

        Args:
            groups: of the pipeline.
            left: per step, how many blocks' backwards this rank has to run.
            sums: gives the `StageSum` of each of this rank's stages in a step, which are whole.
            ties: sum the gradients of weights that other ranks have as well, after the replicas' sums.
            device: of the gradients.
            replicas: whether there are any, with whom gradients are summed.
            norms: whether norms are wanted, or the sums of ties alone.
        """
        self._groups = groups
        self._left = [*left]
        self._sums = sums
        self._ties, self._norms = ties, norms
        self._elsewhere = {weight for tie in ties for weight in tie.counted_elsewhere}
        self._begun: list[_Norm | Future[_Norm]] = []
        self._thread = SerialExecutor() if replicas or ties else None
        """Waits for sums before norms; where there are no sums, this thread begins a norm as well as any."""
        self._stream: AbstractContextManager[object] = nullcontext()
        """Where the thread's device work goes."""
        if device.type != "cpu":
            self._stream = torch.accelerator.current_stream(device)
        self._begin()

    def ended(self, step: int) -> None:
        """The last backward of a block of the step has ended."""
        self._left[step] -= 1
        self._begin()

    def has(self, step: int) -> bool:
        """Whether all is exchanged: `square` does not wait."""
        if step >= len(self._begun):
            return False
        begun = self._begun[step]
        return begun.done() if isinstance(begun, Future) else begun.has_come()

    def square(self, step: int) -> float:
        """The square of the norm over all ranks, or NaN; the gradients of tied weights are summed then.

        Raises:
            TransferFailed: another rank or a replica has ended, or does not answer.
        """
        begun = self._begun[step]
        return (begun.result() if isinstance(begun, Future) else begun).wait(self._groups, step)

    def _begin(self) -> None:
        """Exchange what is whole, in the order of the steps: the same on all ranks."""
        while len(self._begun) < len(self._left) and not self._left[len(self._begun)]:
            step = len(self._begun)
            exchange = partial(self._exchange, step, self._sums(step))
            self._begun.append(exchange() if self._thread is None else self._thread.submit(exchange))

    def _exchange(self, step: int, sums: Sequence[StageSum]) -> _Norm:
        """The norm under way; in the thread, once it has come."""
        with self._stream:
            gradients = [one.wait() for one in sums]
            for tie in self._ties:
                tie.add_up(gradients)
            own = (one for found in gradients for weight, one in found.items() if weight not in self._elsewhere)
            total = square_of(own) if self._norms else None
        with with_others(f"rank {self._groups.rank} exchanges the norm of step {step}", "one of them has ended or failed"):
            norm = _Norm(total, None if total is None else self._groups.all.allreduce([total]))
        if self._thread is not None:
            norm.wait(self._groups, step)
        return norm


class _Norm(NamedTuple):
    """The square of one, under way; None: nobody wants it."""

    square: torch.Tensor | None
    work: dist.Work | None

    def has_come(self) -> bool:
        """Whether `wait` would not wait."""
        return self.work is None or self.work.is_completed()

    def wait(self, groups: Groups, step: int) -> float:
        """As `GlobalNorms.square`; again it does not wait."""
        if self.square is None or self.work is None:
            return math.nan
        limit_s = groups.timeout_s
        late = f"no answer in {limit_s:g} s; it is stuck or slower than the timeout_s given to load"
        with with_others(f"rank {groups.rank} waits for the norm of step {step}", "one of them has ended or failed", late):
            finish(self.work, limit_s)
        return self.square.item()


def check_slack(plan: Plan, what: str = "a norm", remedy: str = "give StageOptimizers per_stage=True") -> None:
    """Refuse a run, under 2bw, in which ranks would wait for each other as they wait for norms. The plan need not be sound.

    Args:
        plan: the plan.
        what: they wait for; sums of tied weights are known when norms are.
        remedy: what to do, for the message.

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
    at, done, whole = [0] * len(orders), set[tuple[bool, int, int]](), 0  # steps whose norms, exchanged in turn, all ranks begin

    def runs(op: Op) -> bool:
        step, path = op.microbatch // count, problem.path(op.microbatch)
        place = path.index(op.stage)
        if op.kind is Kind.F:
            comes = not place or (True, path[place - 1], op.microbatch) in done
            return comes and step - 2 < whole
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
                    while whole < steps and not left[whole]:
                        whole += 1
                if op.kind in (Kind.F, Kind.B, Kind.BW):
                    done.add((op.kind is Kind.F, op.stage, op.microbatch))
    for rank, order in enumerate(orders):
        if at[rank] < len(order):
            raise Unsupported(
                f"plan {plan.name!r}: {token(order[at[rank]])} on rank {rank} would wait for {what} that waits for it; {remedy}"
            )


def _last_parts(orders: Sequence[Sequence[Op]]) -> set[Op]:
    """Of each block, the last op of its backwards."""
    found: dict[tuple[int, int], Op] = {}
    for order in orders:
        for op in order:
            if op.kind in (Kind.W, Kind.BW):
                found[op.stage, op.microbatch] = op
    return {*found.values()}
