"""A loaded plan, ready for training steps: `loss = pipe.step(inputs, targets)`, then the optimizer's step."""

from __future__ import annotations

import math
import warnings
from functools import partial
from itertools import permutations
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from schedc.errors import InvalidInput
from schedc.runtime.common.program import program_of
from schedc.runtime.execution.executor import Executor
from schedc.runtime.execution.wiring import Wiring
from schedc.runtime.session.acceptance import read
from schedc.runtime.stage.losses import Losses
from schedc.runtime.stage.training import Training
from schedc.runtime.transports.wishes import stage_device

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path
    from types import TracebackType

    from torch import nn

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.hooks import ReplicaHooks
    from schedc.runtime.common.observer import Observer
    from schedc.runtime.execution.wiring import Wrap
    from schedc.runtime.replicas.shards import Shard
    from schedc.runtime.session.lockstep import Lockstep
    from schedc.runtime.session.retry import StepStart
    from schedc.runtime.session.swap import Mover, Swap
    from schedc.runtime.stage.batches import Batch
    from schedc.runtime.transports.base import ChannelsOf

__all__ = ["Pipe"]


class Pipe:
    """One rank's part of a plan. `schedc.runtime.load` makes it; use it as a context manager, or `close` it."""

    training: type[Training] = Training
    """What its ops compute."""

    def __init__(
        self,
        plan: Plan,
        stages: Mapping[int, nn.Module],
        groups: Groups,
        *,
        loss_fn: Callable[[Any, Any], torch.Tensor] | None,
        timeout_s: float,
        observe: Observer | None,
        fits: Callable[[Plan], None],
        check_loss: bool,
        hooks: ReplicaHooks,
        recompute: bool | Collection[int],
        lockstep: Lockstep | None,
        channels: ChannelsOf,
        wrap: Wrap | None,
    ) -> None:
        """Open the channels. All ranks do this together, with a plan and stages that `load` has checked.

        `fits` checks another plan for this rank as `load` has checked the first. `hooks` are closed with the pipe.
        """
        self._groups = groups
        self._stages = stages
        self._loss_fn = loss_fn
        self._timeout_s = timeout_s
        self._given_observer = self._observer = observe
        self._now = perf_counter_ns
        device = stage_device(stages)
        if observe is not None and device.type == "cuda":
            from schedc.runtime.measure.device_clock import CudaEvents, DeviceClock

            clock = DeviceClock(observe, CudaEvents(device))
            self._observer, self._now = clock, clock.now
        self._fits = fits
        self._recompute = recompute
        self._hooks = hooks
        self._check_loss = check_loss
        wiring: type[Wiring] = Wiring
        if any(len(channels(*pair)) > 1 for pair in permutations(range(groups.size), 2)):
            from schedc.runtime.execution.takeover import Takeover

            wiring = Takeover
        self._wiring = wiring(plan, groups, timeout_s, channels, wrap, device)
        self.retries = wiring.retries
        """Whether a step may have to run again; the same in all pipelines that `load` connects."""
        self._start: StepStart | None = None
        self._training: Training
        self._executor: Executor
        self._use(plan)
        self._lockstep = lockstep
        self._mover: Mover | None = None
        if lockstep is not None:
            self._make_mover()  # with the peers
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
            refused = self._settle(self._mover) if self._mover is not None and self._mover.pending and self._offered else None
        except BaseException as error:
            self._wiring.add_notes(error)
            self.close()
            raise
        if refused is not None:
            warnings.warn(f"step {self._steps} goes on with plan {self._plan.name!r}: {refused}", RuntimeWarning, stacklevel=2)
        if self._check_loss and not math.isfinite(total.item()):
            from schedc.runtime.stage.non_finite import non_finite

            raise non_finite(self._losses, total, ending, self._steps - 1)
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
        return self._hooks.shards()

    def gather(self) -> None:
        """Make the modules' parameters whole after the optimizer's step, for a checkpoint; the next step does it by itself.

        All replicas call it together. Only under ZeRO 1 is there anything to do.

        Raises:
            InvalidInput: the pipe is closed.
            TransferFailed: a replica has ended, failed, or does not answer.
        """
        self._check_open()
        try:
            self._hooks.gather()
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
        mover = self._mover or self._make_mover()
        return mover.offer(self._plan, lambda: self._accepted(plan))

    def write_trace(self, path: Path | str) -> None:
        """Write what the `Recorder` given to `load` as `observe` has recorded of the plan that runs; all ranks call it together.

        Args:
            path: the trace file, which rank 0 writes.

        Raises:
            InvalidInput: `observe` is no Recorder, it has recorded no step yet, the file cannot be written, or the pipe is closed.
            TransferFailed: another rank has ended or does not answer.
        """
        self._check_open()
        from schedc.runtime.measure.recording import Recorder, write_trace

        if not isinstance(self._given_observer, Recorder):
            raise InvalidInput("there is nothing recorded to write; give load observe=schedc.runtime.measure.recording.Recorder()")
        write_trace(self._given_observer, self._plan, self._groups.all, path)

    def close(self) -> None:
        """Close all connections. Closing again does nothing."""
        self._open = False
        self._wiring.close()
        self._training.close()
        self._hooks.close()
        if self._lockstep is not None:
            self._lockstep.close()
        self._groups.close()

    def __enter__(self) -> Pipe:
        """The pipe itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def _step(self, inputs: Batch | None, targets: Batch | None) -> torch.Tensor:
        looks = self._groups.rank == self._looking
        word = int(looks and self._mover is not None and self._mover.all_have_offered())
        attempt = partial(self._attempt, inputs, targets, word)
        loss = self._until_it_counts(attempt, (inputs, targets)) if self.retries else attempt()[0]
        if self._observer is not None:
            self._observer.end_step(self._steps, perf_counter_ns())
        self._steps += 1
        return loss

    def _until_it_counts(self, attempt: Callable[[], tuple[torch.Tensor, bool, bool]], batch: object) -> torch.Tensor:
        """Run a step that may have to run again; the loss."""
        from schedc.runtime.session.retry import StepStart, module_of

        if self._start is None:
            modules = (*self._stages.values(), *module_of(self._loss_fn))
            self._start = StepStart(modules, self._hooks, stage_device(self._stages))
        return self._start.run(attempt, self._wiring.change, batch)

    def _attempt(self, inputs: Batch | None, targets: Batch | None, word: int) -> tuple[torch.Tensor, bool, bool]:
        """Run all ops once: the loss, and whether the step counts for this pipeline, and for all."""
        if self._observer is not None:
            self._observer.begin_step(self._steps, perf_counter_ns())
        losses = Losses(self._groups.all, self._groups.rank, self._losses_of, self._timeout_s, word=word)
        self._training.begin(inputs, targets, losses)
        self._hooks.begin_step()
        self._executor.run()
        self._training.finish()
        here = self._wiring.finish()
        self._losses = losses.gather()
        everywhere = here if self._lockstep is None or not self.retries else self._lockstep.all_see(here)
        self._hooks.step_counts = everywhere
        loss = self._hooks.end_step(self._losses.mean())
        self._offered = bool(losses.word(self._looking))
        return loss, here, self._hooks.step_counts

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidInput("the pipe is closed, by close() or by a failed step; load the plan again")

    def _make_mover(self) -> Mover:
        from schedc.runtime.session.swap import Mover

        self._mover = Mover(self._groups, self._lockstep)
        return self._mover

    def _accepted(self, plan: Path | str | Plan) -> Plan:
        """The plan, if this rank can run it after the one that runs.

        Raises:
            SchedcError: says why not.
        """
        accepted = read(plan, verify=True)
        self._fits(accepted)
        self._hooks.check_swap(self._plan, accepted)
        return accepted

    def _use(self, plan: Plan) -> None:
        """Run this plan from now on; its wires are laid."""
        self._plan = plan
        program = program_of(plan, self._groups.rank)
        self._losses_of = _losses_of(plan.problem)
        self._looking = min(self._losses_of)  # looks whether all ranks have called `swap`
        self._offered = False
        self._training = self.training(
            plan, program, self._stages, self._loss_fn, recompute=self._recompute, replicas=self._hooks.pipelines
        )
        self._executor = Executor(program, self._wiring, self._training, self._observer, self._hooks, self._now)

    def _settle(self, mover: Mover) -> str | None:
        """Move to the plan that all ranks have offered, between two steps; the reason if they disagree."""
        swap, plan = mover.settle(self._steps)
        if plan is None:
            return swap.reason
        old, new = self._plan.problem, plan.problem
        self._wiring.move(plan, keep_shapes=(new.microbatches, new.path_of) == (old.microbatches, old.path_of))
        self._use(plan)
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
