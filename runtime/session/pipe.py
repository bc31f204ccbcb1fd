"""A loaded plan, ready for training steps: `loss = pipe.step(inputs, targets)`, then the optimizer's step."""

from __future__ import annotations

import warnings
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from schedc.errors import InvalidInput, SchedcError
from schedc.runtime.common.program import program_of
from schedc.runtime.execution.executor import Executor
from schedc.runtime.execution.wiring import Wiring, bare
from schedc.runtime.measure.device_clock import CudaEvents, DeviceClock
from schedc.runtime.measure.recording import Recorder, write_trace
from schedc.runtime.replicas.collectives import Collectives, check_same_collectives
from schedc.runtime.replicas.shared_weights import ReplicaSum, replicas_of
from schedc.runtime.session.swap import Handshake, Offer, Swap, check_same_stages, disagreement
from schedc.runtime.stage.losses import Losses, check_finite
from schedc.runtime.stage.training import Training
from schedc.runtime.transports.choice import stage_device
from schedc.runtime.transports.gloo import connect_gloo
from schedc.text.plan.plan_file import plan_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path
    from types import TracebackType

    from torch import nn

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.observer import Observer
    from schedc.runtime.common.program import Program
    from schedc.runtime.execution.wiring import Wrap
    from schedc.runtime.replicas.pipelines import Pipelines
    from schedc.runtime.replicas.shards import Shard
    from schedc.runtime.session.lockstep import Lockstep
    from schedc.runtime.stage.batches import Batch
    from schedc.runtime.transports.base import Connect

__all__ = ["Pipe"]


class _Pending(NamedTuple):
    """A plan that this rank has offered to move to; the plan is None where this rank refuses it."""

    swap: Swap
    plan: Plan | None
    program: Program | None


class Pipe:
    """One rank's part of a plan. `schedc.runtime.load` makes it; use it as a context manager, or `close` it."""

    def __init__(
        self,
        plan: Plan,
        stages: Mapping[int, nn.Module],
        groups: Groups,
        *,
        loss_fn: Callable[[Any, Any], torch.Tensor] | None,
        timeout_s: float,
        observe: Observer | None,
        accept: Callable[[Path | str | Plan], Plan],
        check_loss: bool,
        recompute: Collection[int] = (),
        pipelines: Pipelines | None = None,
        lockstep: Lockstep | None = None,
        connect: Connect = connect_gloo,
        wrap: Wrap = bare,
    ) -> None:
        """Open the channels. All ranks do this together, with a plan and stages that `load` has checked.

        `accept` checks another plan for this rank as `load` has checked the first.
        """
        self._groups = groups
        self._stages = stages
        self._loss_fn = loss_fn
        self._timeout_s = timeout_s
        self._recorder = observe if isinstance(observe, Recorder) else None
        self._observer, self._now = observe, perf_counter_ns
        device = stage_device(stages)
        if observe is not None and device.type == "cuda":
            clock = DeviceClock(observe, CudaEvents(device))
            self._observer, self._now = clock, clock.now
        self._accept = accept
        self._recompute = recompute
        self._pipelines = pipelines
        self._collectives: Collectives | None = None
        if pipelines is not None:
            self._collectives = Collectives(plan, groups.rank, stages, *pipelines.over(stages.values()))
        self._check_loss = check_loss
        self._wiring = Wiring(plan, groups, timeout_s, connect, wrap)
        self._replicas = _replica_sums(plan.problem, stages, groups)
        self._training: Training
        self._executor: Executor
        self._use(plan, program_of(plan, groups.rank))
        self._lockstep = lockstep
        self._handshake = Handshake(groups.store, groups.rank, groups.size) if lockstep is None else lockstep.handshake(groups)
        self._pending: _Pending | None = None
        self._losses = torch.zeros(0, dtype=torch.float64)
        self._steps = 0
        self._open = True

    def step(self, inputs: Batch | None = None, targets: Batch | None = None) -> torch.Tensor:
        """Run the plan once: all microbatches forward and backward. Gradients are added to the parameters' `.grad`.

        Args:
            inputs: the batch (samples along dimension 0) or its microbatches; looked at on ranks with a first stage only.
            targets: the same for the loss function; looked at on ranks with a last stage only.

        Returns:
            The mean of the microbatches' losses, a float64 scalar without graph, the same on all ranks; with data parallelism the
            mean over all pipelines, the same on all processes. The gradients are those of this mean.

        Raises:
            InvalidInput: the batch does not fit the plan, a stage's output does not have the shape of the one before, or the
                pipe is closed.
            TransferFailed: another rank has ended, failed, or does not answer.
            NonFiniteLoss: the loss of a microbatch is infinite or NaN; all ranks of all pipelines raise it, after the step. The
                pipe is closed after any exception but this one, so that the other ranks fail as well and do not wait.
        """
        self._check_open()
        ending = self._losses_of
        try:
            total = self._step(inputs, targets)
            refused = self._settle() if self._pending is not None and self._offered else None
        except BaseException:
            self.close()
            raise
        if refused is not None:
            warnings.warn(f"step {self._steps} goes on with plan {self._plan.name!r}: {refused}", RuntimeWarning, stacklevel=2)
        if self._check_loss:
            check_finite(self._losses, total, ending, self._steps - 1)
        return total

    @property
    def losses(self) -> torch.Tensor:
        """The losses of the last step's microbatches in this pipeline, float64 [microbatches], the same on all its ranks.

        Empty before the first step.
        """
        return self._losses

    def shards(self) -> list[Shard]:
        """What this process owns of its stages' weights under ZeRO 1: what to give to the optimizer, by stage.

        Raises:
            InvalidInput: the plan is not for ZeRO 1.
        """
        if self._collectives is None:
            raise InvalidInput(
                "there are no shards: load was given no data_parallel_group; the modules' parameters are the weights"
            )
        return self._collectives.shards()

    def gather(self) -> None:
        """Make the modules' parameters whole after the optimizer's step, for a checkpoint; the next step does it by itself.

        All replicas call it together. Only under ZeRO 1 is there anything to do.

        Raises:
            InvalidInput: the pipe is closed.
            TransferFailed: a replica has ended, failed, or does not answer.
        """
        self._check_open()
        if self._collectives is not None:
            try:
                self._collectives.gather()
            except BaseException:
                self.close()
                raise

    @property
    def plan(self) -> Plan:
        """The plan that the next step runs."""
        return self._plan

    def swap(self, plan: Path | str | Plan) -> Swap:
        """Move to another plan of the same stages, between two steps; all ranks call it, each between any two of its steps.

        It waits for no other rank, and training goes on with the old plan. When the last rank has called it, say before its step n,
        all ranks move with the same step, n + 1 or n + 2. A rank that calls it late delays the move and nothing else. If a rank
        refuses the plan, or their plans differ, no rank moves, training goes on with the old plan, and `step` warns once.
        With a `swap_group` given to `load`, all this holds for the ranks of all its pipelines together.

        Stages, paths and ranks must be those of the plan that runs; orders, parts and costs may differ, and so may the number of
        microbatches: `pipe.plan` says what the next step takes.

        Args:
            plan: the plan file, or the plan.

        Returns:
            What has become of it: pending, done from which step on, or refused why.

        Raises:
            InvalidInput: the move before it is still pending, or the pipe is closed.
            TransferFailed: the job's store is lost.
        """
        self._check_open()
        if self._pending is not None:
            raise InvalidInput("another swap is pending until all ranks have called it; wait until its state is not 'pending'")
        swap = Swap()
        try:
            accepted = self._accept(plan)
            check_same_stages(self._plan, accepted)
            if self._pipelines is not None:
                check_same_collectives(self._plan, accepted)
            self._pending = _Pending(swap, accepted, program_of(accepted, self._groups.rank))
            offer = Offer(refusal=None, plan_sha256=plan_sha256(accepted))
        except SchedcError as error:
            self._pending = _Pending(swap, None, None)
            offer = Offer(refusal=str(error), plan_sha256="")
        self._handshake.offer(offer)
        return swap

    def write_trace(self, path: Path | str) -> None:
        """Write what the `Recorder` given to `load` as `observe` has recorded of the plan that runs; all ranks call it together.

        Args:
            path: the trace file, which rank 0 writes.

        Raises:
            InvalidInput: `observe` is no Recorder, it has recorded no step yet, the file cannot be written, or the pipe is closed.
            TransferFailed: another rank has ended or does not answer.
        """
        self._check_open()
        if self._recorder is None:
            raise InvalidInput("there is nothing recorded to write; give load observe=schedc.runtime.measure.recording.Recorder()")
        write_trace(self._recorder, self._plan, self._groups.all, path)

    def close(self) -> None:
        """Close all connections. Closing again does nothing."""
        self._open = False
        self._wiring.close()
        self._training.close()
        self._replicas.clear()
        for others in (self._pipelines, self._lockstep):
            if others is not None:
                others.close()
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
        word = int(self._all_have_offered()) if self._groups.rank == self._looking else 0
        losses = Losses(self._groups.all, self._groups.rank, self._losses_of, self._timeout_s, word=word)
        self._training.begin(inputs, targets, losses)
        for replica in self._replicas:
            replica.begin()
        if self._collectives is not None:
            self._collectives.begin()
        self._executor.run()
        self._training.finish()
        for replica in self._replicas:
            replica.finish()
        self._wiring.finish()
        self._losses = losses.gather()
        loss = self._losses.mean()
        if self._pipelines is not None and self._collectives is not None:
            self._pipelines.share(loss)
            self._collectives.finish()
            loss = self._pipelines.mean()
        self._offered = bool(losses.word(self._looking))
        if self._observer is not None:
            self._observer.end_step(self._steps, perf_counter_ns())
        self._steps += 1
        return loss

    def _all_have_offered(self) -> bool:
        """Whether this rank, which looks for the others, sees all offers; and so do those of the pipelines that move with it."""
        seen = self._pending is not None and self._handshake.complete()
        return seen if self._lockstep is None else self._lockstep.all_see(seen)

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidInput("the pipe is closed, by close() or by a failed step; load the plan again")

    def _use(self, plan: Plan, program: Program) -> None:
        """Run this plan from now on; its wires are laid."""
        self._plan = plan
        self._losses_of = _losses_of(plan.problem)
        self._looking = min(self._losses_of)  # looks whether all ranks have called `swap`
        self._offered = False
        self._training = Training(
            plan,
            program,
            self._stages,
            self._loss_fn,
            recompute=self._recompute,
            replicas=1 if self._pipelines is None else self._pipelines.size,
        )
        self._executor = Executor(program, self._wiring, self._training, self._observer, self._collectives, self._now)

    def _settle(self) -> str | None:
        """Move to the plan that all ranks have offered, between two steps; the reason if they disagree."""
        assert self._pending is not None
        (swap, plan, program), self._pending = self._pending, None
        swap.step = self._steps
        swap.reason = disagreement(self._handshake.settle(), self._groups.size)
        if swap.reason is not None or plan is None or program is None:
            swap.state = "refused"
            return swap.reason
        old, new = self._plan.problem, plan.problem
        self._wiring.move(plan, keep_shapes=(new.microbatches, new.path_of) == (old.microbatches, old.path_of))
        self._use(plan, program)
        swap.state = "done"
        if self._observer is not None:
            self._observer.swapped(plan)
        return None


def _losses_of(problem: Problem) -> dict[int, list[int]]:
    """Of each rank that has a last stage, the microbatches that end there."""
    ending: dict[int, list[int]] = {}
    for microbatch in range(problem.microbatches):
        ending.setdefault(problem.stages[problem.path(microbatch)[-1]].rank, []).append(microbatch)
    return ending


def _replica_sums(problem: Problem, stages: Mapping[int, nn.Module], groups: Groups) -> list[ReplicaSum]:
    """What sums the gradients of this rank's replicas; all ranks do this together."""
    sums = []
    for members in replicas_of(problem):
        own = [stages[stage] for stage in members if stage in stages]
        if own:
            ranks = sorted({problem.stages[stage].rank for stage in members})
            group = groups.make(ranks) if len(ranks) > 1 else None
            others = " and ".join(f"rank {rank}" for rank in ranks if rank != groups.rank)
            doing = f"rank {groups.rank} sums the gradients of stages {' and '.join(map(str, members))} with {others}"
            sums.append(ReplicaSum(own, group, doing))
    return sums
