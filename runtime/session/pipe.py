"""A loaded plan, ready for training steps: `loss = pipe.step(inputs, targets)`, then the optimizer's step."""

from __future__ import annotations

import math
import warnings
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torch.autograd import profiler

from schedc.errors import InvalidInput, SchedcError
from schedc.ir import Plan, Trace, Updates
from schedc.runtime.common.failure import BatchRefused, NonFiniteLoss
from schedc.runtime.execution.runner import PipelineRunner
from schedc.runtime.session.beginning import Given
from schedc.runtime.stage.losses import non_finite
from schedc.runtime.stage.training import Training
from schedc.runtime.transports.gloo import hang_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, MutableMapping
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import TracebackType

    import torch
    from torch import nn

    from schedc.runtime.common.hooks import Observer
    from schedc.runtime.execution.gate import TrafficGate
    from schedc.runtime.replicas.buckets import Shard
    from schedc.runtime.session.evaluation import Forward
    from schedc.runtime.session.step import Steps
    from schedc.runtime.session.swap import PlanSwapper, Received, Swap
    from schedc.runtime.stage.batches import Batches
    from schedc.runtime.stage.weighing import Weights


class Beside(Protocol):
    """What goes on beside the steps of a pipe, and ends with it: checkpoints that are being written."""

    def settle(self) -> None:
        """Wait for it.

        Raises:
            SchedcError: it has failed, and nobody has been told yet.
        """

    def close(self) -> None:
        """Wait for it, but not longer than for another rank, and let go of everything. It warns where it has failed."""


class Pipe:
    """One rank's part of a plan. `schedc.runtime.load` makes it; use it as a context manager, or `close` it."""

    training: type[Training] = Training
    """What its ops compute."""
    runner: type[PipelineRunner] = PipelineRunner
    """What runs them."""

    def __init__(self, steps: Steps, *, observe: Observer | None, fits: Callable[..., None], check_loss: bool) -> None:
        """Take the steps of a plan that `load` has checked, with open channels; all ranks do this together.

        `fits` checks another plan for this rank as `load` has checked the first, or with other stages.
        The hooks are closed with the pipe.
        """
        self.steps = steps
        self.groups, self.stages, self.hooks, self.swap_group = steps.groups, steps.stages, steps.hooks, steps.swap_group
        self._observe = observe
        self._fits = fits
        self._check_loss = check_loss
        self._swapper: PlanSwapper | None = None
        """What moves this rank to other plans, from the first that it offers on."""
        self._making_swapper = Lock()
        if self.swap_group is not None:  # its processes make theirs together
            self._made_swapper()
        self.moving: Literal["adapting", "migration"] | None = None
        """What alone moves it to other plans now; None: whoever calls `swap`."""
        self.beside: Beside | None = None
        self._gate: TrafficGate | None = None
        self._open = True

    @classmethod
    def check(cls, plan: Plan, modules: Mapping[int, nn.Module], *, alone: bool) -> None:
        """Raise a SchedcError where this class of pipes cannot run a sound plan, before it is made.

        `modules` is what is trained on this rank; `alone`, whether there is no `swap_group`.
        """

    def gate(self) -> TrafficGate:
        """Where what goes beside steps waits until no message of a step is under way; the same for all, from the first on."""
        from schedc.runtime.execution.gate import TrafficGate  # most pipes need none

        if self._gate is None:
            self._gate = TrafficGate()
        self._gate.watch(self.steps.wiring.senders.values())
        return self._gate

    def step(
        self,
        inputs: Batches | None = None,
        targets: Batches | None = None,
        *,
        weights: Weights | None = None,
        divide_by: float | None = None,
        scale: float = 1.0,
        kwargs: Mapping[str, Any] | Mapping[int, Mapping[str, Any]] | None = None,
        loss_kwargs: Mapping[str, Any] | None = None,
        outputs: MutableMapping[int, Any] | None = None,
    ) -> torch.Tensor:
        """Run the plan once: all microbatches forward and backward. Gradients are added to the parameters' `.grad`.

        Args:
            inputs: the batch (samples along dimension 0) or its microbatches; looked at on ranks with a first stage only. Where
                stages are a graph, one for all that begin with the batch, or a dict of one for each of these.
            targets: the same for the loss function; looked at on ranks with a last stage only, as are the others.
            weights: of the microbatches, as many tokens as each has, say; in all pipelines or in none. None: 1 each.
            divide_by: what the sum of all losses, each times its weight, is divided by; None: the sum of all weights.
            scale: multiplies the gradients, not what is returned.
            kwargs: keyword arguments of this rank's stages, each for those that take it, or a dict by stage, which may have those
                of other ranks. A tensor is cut as the batch, a list has one for each microbatch, and anything else is for all.
            loss_kwargs: likewise of the loss functions.
            outputs: gets what the last stage gives, by microbatch, without graph, on the rank that has it; a dict by loss where
                there are several. `merged` makes one of them.

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
        steps, ending, refused = self.steps, self.steps.ending, None
        given = Given("step", inputs, targets, weights, divide_by, scale, outputs, kwargs, loss_kwargs)
        updates = steps.plan.problem.updates
        with self._closing_on_errors():
            self._look_at(given)
            if self._gate is not None:
                self._gate.watch(steps.wiring.senders.values())
            call = steps.begin(given)
            total = steps.run(call, self._all_have_offered)
            call.forget_repeated()
            if self._swapper is not None and self._swapper.pending and steps.offered:
                refused = self._swapper.settle(steps.count, steps.plan, steps.wiring, steps.use)
                if refused is None and steps.observer is not None:
                    steps.observer.swapped(steps.plan)
        if refused is not None:
            warnings.warn(f"step {steps.count} goes on with plan {steps.plan.name!r}: {refused}", RuntimeWarning, stacklevel=2)
        if self._check_loss and not math.isfinite(total.item()) and (said := self._after_nonfinite(updates)) is not None:
            raise non_finite(steps.losses, total, ending, f"{said[0]} {steps.count - 1}", said[1])
        return self._loss_of(total, updates)

    def evaluate(
        self,
        inputs: Batches | None = None,
        targets: Batches | None = None,
        *,
        weights: Weights | None = None,
        divide_by: float | None = None,
        outputs: MutableMapping[int, Any] | None = None,
        kwargs: Mapping[str, Any] | Mapping[int, Mapping[str, Any]] | None = None,
        loss_kwargs: Mapping[str, Any] | None = None,
    ) -> torch.Tensor:
        """Run the plan's forwards alone, without gradients; all ranks of all pipelines call it, between the same two steps.

        Errors are as for `step`. Whether stages train or evaluate (`module.eval()`) is the caller's to say.

        Args:
            inputs: as for `step`; the batch may have another size.
            targets: as for `step`; None where only `outputs` are wanted: the loss is then NaN.
            weights: as for `step`.
            divide_by: as for `step`.
            outputs: as for `step`.
            kwargs: as for `step`.
            loss_kwargs: as for `step`.

        Returns:
            The loss as `step` gives it, and not checked; `losses` has those of the microbatches.
        """
        from schedc.runtime.session.evaluation import evaluate

        given = Given("evaluation", inputs, targets, weights, divide_by, 1.0, outputs, kwargs, loss_kwargs)
        with self._closing_on_errors():
            call = self.steps.begin(given)
            work: type[Forward] | None = None
            if self.steps.is_graph:
                from schedc.runtime.session.graph import GraphForward

                work = GraphForward
            loss = evaluate(self.steps, call, work)
            call.forget_repeated()
        return loss

    def merged(self, outputs: Mapping[int, Any]) -> Any:
        """What `step` or `evaluate` has given as `outputs`, as one output of the whole batch, samples along dimension 0."""
        from schedc.runtime.stage.batches import merged

        return merged(outputs, max(1, len(self.plan.problem.slices)), self.steps.sequence_dim)

    @property
    def losses(self) -> torch.Tensor:
        """Of the last step's or evaluation's microbatches in this pipeline, float64 [microbatches], the same on all its ranks."""
        return self.steps.losses

    @property
    def modules(self) -> Mapping[int, nn.Module]:
        """What is trained: the stages, the last ones with the loss function, where that has weights or buffers."""
        return self.steps.training.modules

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
    def is_open(self) -> bool:
        """Whether it is not closed, by `close()` or by an error."""
        return self._open

    @property
    def plan(self) -> Plan:
        """The plan that the next step runs."""
        return self.steps.plan

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
        return self._made_swapper().offer(self.steps.plan, plan)

    def _look_at(self, given: Given) -> None:
        """Before a step: raise a SchedcError where this class of pipes does not take what the plan that runs is given."""

    def _after_nonfinite(self, updates: Updates | None) -> tuple[str, str] | None:
        """What a step of a plan with these updates is called, and what to do where a loss of it is not finite; None: nothing."""
        return "step", "zero the gradients, which hold this step's, before going on, or give load check_loss=False"

    def _loss_of(self, total: torch.Tensor, updates: Updates | None) -> torch.Tensor:
        """What such a step gives, from the mean of its losses."""
        return total

    def _made_swapper(self) -> PlanSwapper:
        """What moves this rank; made once, whichever thread asks first."""
        from schedc.runtime.session.swap import PlanSwapper

        with self._making_swapper:
            if self._swapper is None:
                self._swapper = PlanSwapper(self.groups, self.swap_group, self._fits, self.hooks)
        return self._swapper

    def _all_have_offered(self) -> bool:
        """Whether this rank sees that all have called `swap`; it has not done so itself where it has no swapper yet."""
        return self._swapper is not None and self._swapper.all_have_offered()

    def prepare(self, plan: Plan) -> None:
        """As `PipelineRunner.prepare`, of a plan that is going to be given to `swap`, in any thread."""
        self.steps.runner.prepare(plan)

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

        write_trace(recorder_of(self._observe), self.plan, self.groups.all, path)

    def summary(self) -> str:
        """In one line how far the steps that a `Recorder` has recorded were from the plan, and why; all ranks call it together.

        Also the memory of each rank beside the plan's, where it is known: on GPUs the most that was allocated beside what was at
        `load`; on CPUs what a `MemoryMeter` has counted.

        Raises:
            InvalidInput, TransferFailed: as `write_trace`.
        """
        self._check_open()
        from schedc.analysis.comparison.compare import compare
        from schedc.analysis.comparison.line import in_a_line
        from schedc.analysis.simulation.simulate import simulate
        from schedc.runtime.measure.recording import recorder_of, with_trace

        plan, memory_bytes = self.plan, self.groups.exchange(self.steps.peak_bytes())

        def line(trace: Trace) -> str:
            return in_a_line(plan, compare(plan, simulate(plan.problem, plan.schedule()), trace), memory_bytes)

        return with_trace(recorder_of(self._observe), plan, self.groups.all, line, "sums the run up")

    def close(self) -> None:
        """Close all connections. Closing again does nothing."""
        self._open = False
        self.steps.close()
        self.hooks.close()
        if self.swap_group is not None:
            self.swap_group.close()
        if self.beside is not None:
            self.beside.close()
            self.beside = None
        self.groups.close()

    def __enter__(self) -> Pipe:
        """The pipe itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it."""
        if kind is not None and not issubclass(kind, (BatchRefused, NonFiniteLoss)):  # these all ranks raise, after their last word
            self._hang_up()
        try:
            if kind is None and self.beside is not None:
                self.beside.settle()
        finally:
            self.close()

    def _hang_up(self) -> None:
        """Let ranks that wait for this one's words know at once that it closes.

        A sum that only this rank has begun ends, too: gloo's thread waits for it, and who collects the closed group for the thread.
        """
        for groups in (self.groups, *self.groups.beside) if self._open else ():
            if groups.size > 1:
                hang_up(groups.all)

    @contextmanager
    def _closing_on_errors(self) -> Iterator[None]:
        self._check_open()
        quiet: AbstractContextManager[None] = nullcontext()
        if profiler._is_profiler_enabled:
            from schedc.runtime.measure.spans import hidden

            quiet = hidden()
        try:
            with quiet:
                yield
        except BatchRefused:
            raise
        except BaseException as error:
            self.steps.wiring.add_notes(error)
            refusal = None
            try:
                if isinstance(error, SchedcError) and not isinstance(error, NonFiniteLoss):
                    from schedc.runtime.common.refusals import refusal_behind

                    refusal = refusal_behind(self.groups, error)
            finally:  # the others wait
                self._hang_up()
                self.close()
            if refusal is not None:
                raise refusal from error
            raise

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidInput("the pipe is closed, by close() or by a failed step; load the plan again")
