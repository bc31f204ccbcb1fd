"""A loaded plan, ready for training steps: `loss = pipe.step(inputs, targets)`, then the optimizer's step."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.runtime.executor import Executor
from schedc.runtime.losses import Losses
from schedc.runtime.program import program_of
from schedc.runtime.replicas import ReplicaSum, replicas_of
from schedc.runtime.training import Training
from schedc.runtime.wiring import Wiring

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    import torch
    from torch import nn

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.runtime.batches import Batch
    from schedc.runtime.groups import Groups
    from schedc.runtime.observe import Observer

__all__ = ["Pipe"]


class Pipe:
    """One rank's part of a plan. `schedc.runtime.load` makes it; use it as a context manager, or `close` it."""

    def __init__(
        self,
        plan: Plan,
        stages: Mapping[int, nn.Module],
        groups: Groups,
        *,
        loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
        timeout_s: float,
        observe: Observer | None,
    ) -> None:
        """Open the channels. All ranks do this together, with a plan and stages that `load` has checked."""
        program = program_of(plan, groups.rank)
        self._groups = groups
        self._timeout_s = timeout_s
        self._observer = observe
        self._losses_of = _losses_of(plan.problem)
        self._wiring = Wiring(plan, groups, timeout_s)
        self._replicas = _replica_sums(plan.problem, stages, groups)
        self._training = Training(plan, program, stages, loss_fn)
        self._executor = Executor(program, self._wiring, self._training, observe)
        self._steps = 0
        self._open = True

    def step(self, inputs: Batch | None = None, targets: Batch | None = None) -> torch.Tensor:
        """Run the plan once: all microbatches forward and backward. Gradients are added to the parameters' `.grad`.

        Args:
            inputs: the batch (samples along dimension 0) or its microbatches; looked at on ranks with a first stage only.
            targets: the same for the loss function; looked at on ranks with a last stage only.

        Returns:
            The mean of the microbatches' losses, a float64 scalar without graph, the same on all ranks. The gradients are those
            of this mean.

        Raises:
            InvalidInput: the batch does not fit the plan, a stage's output does not have the shape of the one before, or the
                pipe is closed.
            TransferFailed: another rank has ended, failed, or does not answer. The pipe is closed after any exception, so that
                the other ranks fail as well and do not wait.
        """
        if not self._open:
            raise InvalidInput("the pipe is closed, by close() or by a failed step; load the plan again")
        try:
            return self._step(inputs, targets)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections. Closing again does nothing."""
        self._open = False
        self._wiring.close()
        self._training.close()
        self._replicas.clear()
        self._groups.close()

    def __enter__(self) -> Pipe:
        """The pipe itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def _step(self, inputs: Batch | None, targets: Batch | None) -> torch.Tensor:
        if self._observer is not None:
            self._observer.begin_step(self._steps, perf_counter_ns())
        losses = Losses(self._groups.all, self._groups.rank, self._losses_of, self._timeout_s)
        self._training.begin(inputs, targets, losses)
        for replica in self._replicas:
            replica.begin()
        self._executor.run()
        self._training.finish()
        for replica in self._replicas:
            replica.finish()
        self._wiring.finish()
        total = losses.total()
        if self._observer is not None:
            self._observer.end_step(self._steps, perf_counter_ns())
        self._steps += 1
        return total


def _losses_of(problem: Problem) -> dict[int, int]:
    """Of each rank that has a last stage, how many microbatches end there."""
    roots = [problem.stages[problem.path(microbatch)[-1]].rank for microbatch in range(problem.microbatches)]
    return {root: roots.count(root) for root in roots}


def _replica_sums(problem: Problem, stages: Mapping[int, nn.Module], groups: Groups) -> list[ReplicaSum]:
    """What sums the gradients of this rank's replicas; all ranks do this together."""
    sums = []
    for members in replicas_of(problem):
        own = [stages[stage] for stage in members if stage in stages]
        if own:
            ranks = sorted({problem.stages[stage].rank for stage in members})
            group = groups.make(ranks) if len(ranks) > 1 else None
            sums.append(ReplicaSum(own, group, f"stages {' and '.join(map(str, members))}"))
    return sums
