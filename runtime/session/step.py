"""The steps of one rank: all ops of the plan, losses for all ranks, what replicas do; again where a channel has failed."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import permutations
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch
from torch.autograd import profiler

from schedc.ir import Plan, Problem
from schedc.runtime.common.hooks import Observers, observers_in
from schedc.runtime.common.program import program_of
from schedc.runtime.execution.wiring import Wiring
from schedc.runtime.session.beginning import Beginning, Given, PipeCall
from schedc.runtime.stage.losses import Losses
from schedc.runtime.stage.training import by_name, is_graph, losses_of
from schedc.runtime.transports.choice import stage_device

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import nn

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.hooks import Observer, ReplicaHooks
    from schedc.runtime.execution.runner import PipelineRunner
    from schedc.runtime.execution.wiring import Wrap
    from schedc.runtime.measure.memory import MemoryMeter
    from schedc.runtime.replicas.copies import TiedSums
    from schedc.runtime.replicas.sharded import ShardedStages
    from schedc.runtime.session.drawing import Drawing
    from schedc.runtime.session.retry import StepStart
    from schedc.runtime.session.swap import SwapGroup
    from schedc.runtime.stage.batches import Name
    from schedc.runtime.stage.training import LossFn, Training
    from schedc.runtime.transports.base import ChannelsOf


class Steps:
    """One rank's part of a plan, step after step; of another plan after `use`."""

    plan: Plan
    """The plan that the next step runs."""
    training: Training
    """What its ops compute."""

    def __init__(
        self,
        plan: Plan,
        stages: Mapping[int, nn.Module],
        groups: Groups,
        *,
        training: type[Training],
        runner: type[PipelineRunner],
        loss_fn: LossFn | None,
        timeout_s: float,
        observe: Observer | None,
        hooks: ReplicaHooks,
        among: Collection[int],
        recompute: bool | Collection[int],
        swap_group: SwapGroup | None,
        channels: ChannelsOf,
        wrap: Wrap | None,
        sequence_dim: int,
        varying: bool,
        first_timeout_s: float | None = None,
        recovery_timeout_s: float = 0.0,
        drawing: Drawing | None = None,
        first_step: int = 0,
    ) -> None:
        """Open the channels; all ranks do this together, with a plan and stages that `load` has checked.

        `training` makes what the ops compute, and `runner` what runs them; `among` are the processes of the job that this rank's
        gradients are summed over; the rest is as for `load`.
        """
        self.groups = groups
        self.stages = stages
        self.loss_fn = loss_fn
        self.hooks = hooks
        self._sharded: ShardedStages | None = None
        """What serves stages that FSDP2 is around."""
        self._among = among
        self.ties: list[TiedSums] = []
        """What ties weights of several ranks, after what the hooks do."""
        self.losses = torch.zeros(0, dtype=torch.float64, device="cpu")
        """Of the last step's or evaluation's microbatches."""
        self.count = 0
        """How many steps have been run."""
        self.made = first_step
        """How many the job has made, before this pipe and with it; each of a run of steps that overlap counts."""
        self.drawing = drawing
        self.swap_group = swap_group
        self._limits_s = timeout_s if first_timeout_s is None else first_timeout_s, timeout_s
        """How long to wait for another rank in the first step of a plan, and in others."""
        self._timeout_s, self.sequence_dim = timeout_s, sequence_dim
        self.is_graph = is_graph(plan.problem, stages)
        """Whether stages are called as those of a graph; so are those of all plans that take over."""
        if self.is_graph:
            from schedc.runtime.stage.graph import GraphTraining as training
        if plan.problem.slices:
            from schedc.runtime.stage.slices import sliced

            training = sliced(training)
        drawn = None if drawing is None else drawing.of
        self._make_training = partial(training, recompute=recompute, replicas=hooks.pipelines, drawn=drawn)
        self._device = stage_device(stages)
        self._held_bytes = torch.cuda.memory_allocated(self._device) if self._device.type == "cuda" else 0
        self.observer, self._now = observe, perf_counter_ns
        self._meter: MemoryMeter | None = None
        if observe is not None and self._device.type == "cuda":
            from schedc.runtime.measure.device_clock import clock_on

            self.observer, self._now = clock_on(self._device, observe)
        elif observe is not None:
            from schedc.runtime.measure.memory import MemoryMeter

            self._meter = next((one for one in observers_in(observe) if isinstance(one, MemoryMeter)), None)
        wiring = _wiring_for(channels, groups.size)
        self.runner = runner(partial(wiring, plan, groups, timeout_s, channels, device=self._device), wrap)
        self.wiring = self.runner.wiring
        self.retries = self.wiring.retries
        """Whether a step may have to run again; the same in all pipelines that `load` connects."""
        self._start: StepStart | None = None
        self.wiring.recovery_s = recovery_timeout_s
        all_see = None if swap_group is None else swap_group.all_see
        self.beginning = Beginning(groups, all_see, self.wiring.patience_s, sequence_dim, stages=stages, varying=varying)
        self.use(plan)

    def use(self, plan: Plan) -> None:
        """Run this plan from now on; its wires are laid."""
        self.plan = plan
        program = program_of(plan, self.groups.rank)
        names = losses_of(plan.problem, self.stages)
        self.ending = _losses_of(plan.problem, names)
        """Of each rank that computes losses, the microbatches; several times where it has several of one."""
        self._looking = min(self.ending)  # looks whether all ranks have called `swap`
        self.offered = False
        """Whether the last step has brought the word that all ranks have called `swap`."""
        self.training = self._make_training(plan, program, self.stages, self.loss_fn)
        if self.drawing is not None:
            self.drawing.use(plan, self.stages)
        own = [by_name(self.loss_fn, name) for stage in names.keys() & self.stages.keys() for name in names[stage]]
        loss_fns = [self.loss_fn] if callable(self.loss_fn) else own
        self.beginning.use(plan.problem, self.ending.keys(), loss_fns, getattr(self.training, "cut_by_name", None))  # of a graph
        if self.training.sharded and self._sharded is None:
            from schedc.runtime.replicas.sharded import ShardedStages

            self._sharded = ShardedStages(self.training.sharded, self.hooks, self._among)
        hooks = (self.hooks,) if self._sharded is None else (self._sharded, self.hooks)
        if self._meter is not None:
            self._meter.use(self.training.run, [*self.training.modules.values()])
        self.runner.use(plan, program, self._meter or self.training, self.observer, hooks, self._now)

    def begin(self, given: Given) -> PipeCall:
        """As `Beginning.agree`; in the first step of a plan, and before it, with its own limit."""
        limit_s = self._limits_s[self.beginning.has_run]
        if limit_s != self._timeout_s:
            self._timeout_s = limit_s
            self.wiring.limit(limit_s)
            self.beginning.limit(self.wiring.patience_s)
            for groups in (self.groups, *self.groups.beside):
                groups.timeout_s = limit_s
        return self.beginning.agree(given, self.hooks, self.runner.executor)

    def run(self, call: PipeCall, have_offered: Callable[[], bool]) -> torch.Tensor:
        """Run a step that has begun; the loss of all pipelines.

        Args:
            call: what this rank has of it.
            have_offered: whether all ranks have called `swap`, as far as this one sees; asked where it is this one that looks.
        """

        def word() -> int:
            """1: this rank looks for the others, and sees that all have called `swap`; else 0."""
            return int(self.groups.rank == self._looking and have_offered())

        if self.swap_group is not None:
            self.swap_group.way = call.way
        said = word if self.swap_group is None else word()
        loss = self.until_it_counts(partial(self._run_ops, call, said), call.batch, self._end)
        self.beginning.has_run = True
        if self.observer is not None:
            self.observer.end_step(self.count, perf_counter_ns())
        self.count, problem = self.count + 1, self.plan.problem
        self.made += 1 if problem.updates is None else problem.microbatches // problem.updates.microbatches
        return loss

    def until_it_counts(
        self,
        run: Callable[[], tuple[torch.Tensor, bool]],
        batch: object,
        end: Callable[[torch.Tensor, bool], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Run a step or an evaluation, which may have to run again; as `StepStart.until_it_counts`."""
        if not self.retries:
            loss, here = run()
            return loss if end is None else end(loss, here)
        if self._start is None:
            from schedc.runtime.session.retry import StepStart

            self._start = StepStart(self.training.modules.values(), self.hooks, self._device)
        all_see = None if self.swap_group is None else self.swap_group.all_see
        return self._start.until_it_counts(run, batch, end, all_see=all_see, change=self.wiring.change)

    def losses_for(self, call: PipeCall, word: int | Callable[[], int] = 0) -> Losses:
        """What takes the losses of a step or an evaluation."""
        own = None if call.shares is None else call.shares.losses
        return Losses(self.groups.all, self.ending, self._timeout_s, word, own, call.way)

    def peak_bytes(self) -> int | None:
        """The most that this rank's device has held beside what it held at the beginning; None: that is not known."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) - self._held_bytes
        return None if self._meter is None else self._meter.peak_bytes

    def release(self) -> None:
        """After an evaluation: let go of weights that were gathered for it."""
        if self._sharded is not None:
            self._sharded.release()

    def close(self) -> None:
        """Close the wires, and let go of everything. Closing again does nothing."""
        self.wiring.close()
        self.training.close()
        if self._sharded is not None:
            self._sharded.close()
        if self.drawing is not None:
            self.drawing.close()

    def expect(self, call: PipeCall) -> None:
        """Let the wires know what is to cross in a step or an evaluation, before its first op."""
        self.wiring.boundaries.shapes, self.wiring.boundaries.modules = call.shapes, self.stages.values()

    def _run_ops(self, call: PipeCall, word: int | Callable[[], int]) -> tuple[torch.Tensor, bool]:
        """Run all ops of a step once: the loss, and whether the step counts for this pipeline."""
        if self.observer is not None:
            self.observer.begin_step(self.count, perf_counter_ns())
        losses = self.losses_for(call, word)
        self.training.begin(call.batch, losses, None if call.shares is None else call.shares.gradients)
        for tie in self.ties:
            tie.begin_step()
        self.hooks.begin_step()
        if self._sharded is not None:
            self._sharded.begin_step()
        self.expect(call)
        with nullcontext() if self.drawing is None else self.drawing.step(self.made):
            if profiler._is_profiler_enabled:
                self._run_in_spans()
            else:
                self.runner.executor.run()
        if self._sharded is not None:
            self._sharded.finish()
        self.training.finish()
        here = self.wiring.finish()
        self.losses = losses.gather()
        self.hooks.way = losses.way()
        self.offered = bool(losses.word_of(self._looking))
        return losses.mean(), here

    def _run_in_spans(self) -> None:
        """The ops, where torch's profiler runs."""
        from schedc.runtime.measure.spans import TransferMarks, span, step_span

        executor = self.runner.executor
        executor.span, executor.observer = span, Observers([TransferMarks(), *observers_in(self.observer)])
        try:
            with step_span(self.count, self.groups.rank, self.plan):
                executor.run()
        finally:
            executor.span, executor.observer = None, self.observer

    def _end(self, loss: torch.Tensor, counts: bool) -> torch.Tensor:
        """Sum the gradients of replicas, and of weights of several ranks; the loss of all pipelines."""
        self.hooks.step_counts = counts
        loss = self.hooks.end_step(loss)
        for tie in self.ties if self.plan.problem.updates is None else ():  # else of each step before its updates
            tie.end_step()
        return loss


def _wiring_for(channels: ChannelsOf, ranks: int) -> type[Wiring]:
    """What lays the wires; all ranks choose the same."""
    if all(len(channels(*pair)) == 1 for pair in permutations(range(ranks), 2)):
        return Wiring
    from schedc.runtime.execution.failover import FailoverWiring

    return FailoverWiring


def _losses_of(problem: Problem, names: Mapping[int, Sequence[Name]]) -> dict[int, list[int]]:
    """Of each rank that has stages with losses, the microbatches, for each of these `names`."""
    ending: dict[int, list[int]] = {}
    for microbatch in range(problem.microbatches):
        for stage in names.keys() & problem.path(microbatch):
            ending.setdefault(problem.stages[stage].rank, []).extend([microbatch] * len(names[stage]))
    return ending
