"""A loaded plan, ready for training steps: `loss = pipe.step(inputs, targets)`, then the optimizer's step."""

from __future__ import annotations

import math
import warnings
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from schedc.errors import InvalidInput
from schedc.ir import Plan, Problem
from schedc.runtime.common.failure import BatchRefused, NonFiniteLoss
from schedc.runtime.common.hooks import check_same_way
from schedc.runtime.common.program import forward_only, program_of
from schedc.runtime.execution.runner import Executor, PipelineRunner
from schedc.runtime.execution.wiring import Wiring
from schedc.runtime.session.beginning import Beginning, Given, PipeCall
from schedc.runtime.session.retry import StepStart
from schedc.runtime.session.swap import PlanSwapper
from schedc.runtime.stage.losses import Losses, non_finite
from schedc.runtime.stage.training import Forward, Training
from schedc.runtime.transports.choice import stage_device
from schedc.runtime.transports.gloo import hang_up

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from torch import nn

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.hooks import Observer, ReplicaHooks
    from schedc.runtime.execution.wiring import Wrap
    from schedc.runtime.replicas.buckets import Shard
    from schedc.runtime.replicas.copies import TiedSums
    from schedc.runtime.session.swap import Received, Swap, SwapGroup
    from schedc.runtime.stage.batches import Batch, Weights
    from schedc.runtime.transports.base import ChannelsOf


class Pipe:
    """One rank's part of a plan. `schedc.runtime.load` makes it; use it as a context manager, or `close` it."""

    training: type[Training] = Training
    """What its ops compute."""
    runner: type[PipelineRunner] = PipelineRunner
    """What runs them."""

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
        swap_group: SwapGroup | None,
        channels: ChannelsOf,
        wrap: Wrap | None,
    ) -> None:
        """Open the channels. All ranks do this together, with a plan and stages that `load` has checked.

        `fits` checks another plan for this rank as `load` has checked the first. `hooks` are closed with the pipe.
        """
        self.groups = groups
        self.stages = stages
        self.hooks = hooks
        self.ties: list[TiedSums] = []
        """What ties weights of several ranks, after what the hooks do."""
        self._loss_fn = loss_fn
        self._timeout_s = timeout_s
        self._given_observer = self._observer = observe
        self._now = perf_counter_ns
        device = stage_device(stages)
        if observe is not None and device.type == "cuda":
            from schedc.runtime.measure.device_clock import clock_on

            self._observer, self._now = clock_on(device, observe)
        self._recompute = recompute
        self._check_loss = check_loss
        self._runner = self.runner(partial(Wiring, plan, groups, timeout_s, channels, device=device), wrap)
        self._wiring = self._runner.wiring
        self.retries = self._wiring.retries
        """Whether a step may have to run again; the same in all pipelines that `load` connects."""
        all_see = None if swap_group is None else swap_group.all_see
        self._beginning = Beginning(groups, all_see, timeout_s * self._wiring.patience)
        self._start: StepStart | None = None
        self._training: Training
        self._use(plan)
        self.swap_group = swap_group
        self._swapper = PlanSwapper(groups, swap_group, fits, hooks)
        self._losses = torch.zeros(0, dtype=torch.float64, device="cpu")
        self._steps = 0
        self._open = True

    @classmethod
    def check(cls, plan: Plan, modules: Mapping[int, nn.Module], *, alone: bool) -> None:
        """Raise a SchedcError where this class of pipes cannot run a sound plan, before it is made.

        `modules` is what is trained on this rank; `alone`, whether there is no `swap_group`.
        """

    def step(
        self,
        inputs: Batch | None = None,
        targets: Batch | None = None,
        *,
        weights: Weights | None = None,
        divide_by: float | None = None,
        scale: float = 1.0,
    ) -> torch.Tensor:
        """Run the plan once: all microbatches forward and backward. Gradients are added to the parameters' `.grad`.

        Args:
            inputs: the batch (samples along dimension 0) or its microbatches; looked at on ranks with a first stage only.
            targets: the same for the loss function; looked at on ranks with a last stage only, as are the others.
            weights: of the microbatches, as many tokens as each has, say; in all pipelines or in none. None: 1 each.
            divide_by: what the sum of all losses, each times its weight, is divided by; None: the sum of all weights.
            scale: multiplies the gradients, not what is returned.

        Returns:
            The mean of the microbatches' losses, by their weights, a float64 scalar without graph, the same on all ranks; with data
            parallelism over all pipelines, the same on all processes. The gradients are those of this mean.

        Raises:
            InvalidInput: a stage's output does not have the shape of the one before, or the pipe is closed.
            TransferFailed: another rank has ended, failed, or does not answer. Where it has refused the step, as it found something
                while it ran, all ranks of all pipelines raise that.
            BatchRefused: the batch or the weights of a rank do not fit; all ranks of all pipelines raise it, nothing has run, the
                pipe is open.
            NonFiniteLoss: the loss of a microbatch is infinite or NaN; all ranks of all pipelines raise it, after the step. The
                pipe is closed after any exception but these two, so that the other ranks fail as well and do not wait.
        """
        ending, refused = self._losses_of, None
        with self._closing_on_errors():
            total = self._step(self._begin(Given("step", inputs, targets, weights, divide_by, scale)))
            if self._swapper.pending and self._offered:
                refused = self._swapper.settle(self._steps, self._plan, self._wiring, self._use)
                if refused is None and self._observer is not None:
                    self._observer.swapped(self._plan)
        if refused is not None:
            warnings.warn(f"step {self._steps} goes on with plan {self._plan.name!r}: {refused}", RuntimeWarning, stacklevel=2)
        if self._check_loss and not math.isfinite(total.item()):
            raise non_finite(self._losses, total, ending, self._steps - 1)
        return total

    def evaluate(
        self,
        inputs: Batch | None = None,
        targets: Batch | None = None,
        *,
        weights: Weights | None = None,
        divide_by: float | None = None,
        outputs: MutableMapping[int, Any] | None = None,
    ) -> torch.Tensor:
        """Run the plan's forwards alone, without gradients; all ranks of all pipelines call it, between the same two steps.

        Errors are as for `step`. Whether stages train or evaluate (`module.eval()`) is the caller's to say.

        Args:
            inputs: as for `step`; the batch may have another size.
            targets: as for `step`; None where only `outputs` are wanted: the loss is then NaN.
            weights: as for `step`.
            divide_by: as for `step`.
            outputs: gets what the last stage gives, by microbatch, on the rank that has it.

        Returns:
            The loss as `step` gives it, and not checked; `losses` has those of the microbatches.
        """
        with self._closing_on_errors():
            call = self._begin(Given("evaluation", inputs, targets, weights, divide_by, outputs=outputs is not None))
            self.hooks.gather()
            # what is known of boundaries is kept for steps: without a graph tensors are others, and the batch may have another size
            known, forward = self._wiring.boundaries, forward_only(self._plan)
            self._wiring.move(forward)
            way: Sequence[float] = ()

            def run() -> tuple[torch.Tensor, bool]:
                nonlocal way
                losses = self._losses_for(call)
                compute = Forward(self._plan.problem, self.stages, self._loss_fn, call.batch, outputs, losses)
                Executor(program=program_of(forward, self.groups.rank), wiring=self._wiring, compute=compute).run()
                here = self._wiring.finish()
                self._losses, way = losses.gather(), losses.way()
                return losses.mean(), here

            mean = self._until_it_counts(run, call.batch)
            self._wiring.move(self._plan, known)
            divisor, count = way[0], self.hooks.pipelines
            common = self.hooks.total(torch.tensor(divisor, dtype=torch.float64, device="cpu")).item() / count
            if not math.isclose(common, divisor, rel_tol=1e-9):
                check_same_way([(divisor, 1.0), (common, 1.0)], "pipelines, in the mean,")
            return self.hooks.total(mean) / count

    @property
    def losses(self) -> torch.Tensor:
        """Of the last step's or evaluation's microbatches in this pipeline, float64 [microbatches], the same on all its ranks."""
        return self._losses

    @property
    def modules(self) -> Mapping[int, nn.Module]:
        """What is trained: the stages, the last ones with the loss function, where that has weights or buffers."""
        return self._training.modules

    def shards(self) -> list[Shard]:
        """What this process owns of its stages' weights under ZeRO 1: what to give to the optimizer, by stage.

        Raises:
            InvalidInput: the plan is not for ZeRO 1.
        """
        return self.hooks.shards()

    def gather(self) -> None:
        """Make the modules' parameters whole after the optimizer's step, for a checkpoint; the next step does it by itself.

        All replicas call it together. Under ZeRO 1 it gathers the weights; buffers become those of the first replica.

        Raises:
            InvalidInput: the pipe is closed.
            TransferFailed: a replica has ended, failed, or does not answer.
        """
        with self._closing_on_errors():
            self.hooks.begin_call("gather")
            self.hooks.gather()

    @property
    def plan(self) -> Plan:
        """The plan that the next step runs."""
        return self._plan

    def swap(self, plan: Path | str | Plan | Received) -> Swap:
        """Move to another plan of the same stages, between two steps; all ranks call it, each between any two of its steps.

        It waits for no other rank. When the last rank has called it, say before its step n, all ranks, of all pipelines of a
        `swap_group`, move with the same step, n + 1 or n + 2. Until then training goes on with the old plan; also if a rank refuses
        the plan, or their plans differ: no rank moves then, and `step` warns once.

        Args:
            plan: the plan file, or the plan; or one that another process has verified. It has the stages, paths and ranks of the
                plan that runs; orders, parts and costs may differ, and the number of microbatches (`pipe.plan`).

        Returns:
            What has become of it: pending, done from which step on, or refused why.

        Raises:
            InvalidInput: the move before it is still pending, or the pipe is closed.
            TransferFailed: the job's store is lost.
        """
        self._check_open()
        return self._swapper.offer(self._plan, plan)

    def prepare(self, plan: Plan) -> None:
        """As `PipelineRunner.prepare`, of a plan that is going to be given to `swap`, in any thread."""
        self._runner.prepare(plan)

    def write_trace(self, path: Path | str) -> None:
        """Write what the `Recorder` given to `load` as `observe` has recorded of the plan that runs; all ranks call it together.

        Args:
            path: the trace file, which rank 0 writes.

        Raises:
            InvalidInput: `observe` is no Recorder, it has recorded no step yet, the file cannot be written, or the pipe is closed.
            TransferFailed: another rank has ended or does not answer.
        """
        self._check_open()
        from schedc.runtime.measure.recording import recorder_of, write_trace

        write_trace(recorder_of(self._given_observer), self._plan, self.groups.all, path)

    def close(self) -> None:
        """Close all connections. Closing again does nothing."""
        self._open = False
        self._wiring.close()
        self._training.close()
        self.hooks.close()
        if self.swap_group is not None:
            self.swap_group.close()
        self.groups.close()

    def __enter__(self) -> Pipe:
        """The pipe itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it."""
        if kind is not None and not issubclass(kind, (BatchRefused, NonFiniteLoss)):  # these all ranks raise, after their last word
            self._hang_up()
        self.close()

    def _hang_up(self) -> None:
        """Let ranks that wait for this one's words know at once that it closes."""
        if self._open and self.groups.size > 1:
            hang_up(self.groups.all)

    @contextmanager
    def _closing_on_errors(self) -> Iterator[None]:
        self._check_open()
        try:
            yield
        except BatchRefused:
            raise
        except BaseException as error:
            self._wiring.add_notes(error)
            refusal = self.groups.refusal_behind(error)
            self._hang_up()
            self.close()
            if refusal is not None:
                raise refusal from error
            raise

    def _begin(self, given: Given) -> PipeCall:
        return self._beginning.agree(given, self.hooks, self._runner.executor)

    def _losses_for(self, call: PipeCall, word: int | Callable[[], int] = 0) -> Losses:
        """What takes the losses of a step or an evaluation."""
        own = None if call.shares is None else call.shares.losses
        return Losses(self.groups.all, self._losses_of, self._timeout_s, word, own, call.way)

    def _step(self, call: PipeCall) -> torch.Tensor:
        if self.swap_group is not None:
            self.swap_group.way = call.way
        word = self._all_have_offered if self.swap_group is None else self._all_have_offered()
        loss = self._until_it_counts(partial(self._run_ops, call, word), call.batch, self._end_step)
        self._beginning.ran(call.batch.inputs, [kinds[0].shape for kinds in self._wiring.boundaries.values()])
        if self._observer is not None:
            self._observer.end_step(self._steps, perf_counter_ns())
        self._steps += 1
        return loss

    def _all_have_offered(self) -> int:
        """1: this rank looks for the others, and sees that all have called `swap`; else 0."""
        return int(self.groups.rank == self._looking and self._swapper.all_have_offered())

    def _until_it_counts(
        self,
        run: Callable[[], tuple[torch.Tensor, bool]],
        batch: object,
        end: Callable[[torch.Tensor, bool], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Run a step or an evaluation, which may have to run again.

        Args:
            run: runs all ops once; gives the loss of this pipeline, and whether it counts here.
            batch: the inputs and targets.
            end: called then, with the loss and whether it counts everywhere; gives the loss of all pipelines.

        Returns:
            The loss.

        Raises:
            Unsupported: it cannot run again.
        """

        def attempt() -> tuple[torch.Tensor, bool, bool]:
            """The loss, and whether the step counts for this pipeline, and for all."""
            loss, here = run()
            counts = here if self.swap_group is None or not self.retries else self.swap_group.all_see(here)
            return (loss, here, counts) if end is None else (end(loss, counts), here, self.hooks.step_counts)

        if not self.retries:
            return attempt()[0]
        start = self._start = self._start or StepStart(self.modules.values(), self.hooks, stage_device(self.stages))
        start.keep(batch)
        loss, here, everywhere = attempt()
        while not everywhere:
            start.put_back()
            if not here:
                self._wiring.change()
            loss, here, everywhere = attempt()
        start.let_go()
        return loss

    def _run_ops(self, call: PipeCall, word: int | Callable[[], int]) -> tuple[torch.Tensor, bool]:
        """Run all ops of a step once: the loss, and whether the step counts for this pipeline."""
        if self._observer is not None:
            self._observer.begin_step(self._steps, perf_counter_ns())
        losses = self._losses_for(call, word)
        self._training.begin(call.batch, losses, None if call.shares is None else call.shares.gradients)
        for tie in self.ties:
            tie.begin_step()
        self.hooks.begin_step()
        self._runner.executor.run()
        self._training.finish()
        here = self._wiring.finish()
        self._losses = losses.gather()
        self.hooks.way = losses.way()
        self._offered = bool(losses.word_of(self._looking))
        return losses.mean(), here

    def _end_step(self, loss: torch.Tensor, counts: bool) -> torch.Tensor:
        """Sum the gradients of replicas, and of weights of several ranks; the loss of all pipelines."""
        self.hooks.step_counts = counts
        loss = self.hooks.end_step(loss)
        for tie in self.ties:
            tie.end_step()
        return loss

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidInput("the pipe is closed, by close() or by a failed step; load the plan again")

    def _use(self, plan: Plan) -> None:
        """Run this plan from now on; its wires are laid."""
        self._plan = plan
        self._beginning.use(plan.problem)
        program = program_of(plan, self.groups.rank)
        self._losses_of = _losses_of(plan.problem)
        self._looking = min(self._losses_of)  # looks whether all ranks have called `swap`
        self._offered = False
        self._training = self.training(
            plan, program, self.stages, self._loss_fn, recompute=self._recompute, replicas=self.hooks.pipelines
        )
        self._runner.use(plan, program, self._training, self._observer, self.hooks, self._now)


def _losses_of(problem: Problem) -> dict[int, list[int]]:
    """Of each rank that has a last stage, the microbatches that end there."""
    ending: dict[int, list[int]] = {}
    for microbatch in range(problem.microbatches):
        ending.setdefault(problem.stages[problem.path(microbatch)[-1]].rank, []).append(microbatch)
    return ending
