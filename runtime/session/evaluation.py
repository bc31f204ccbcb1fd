"""Evaluations: a plan's forwards alone, without gradients, between two of its steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from schedc.ir import Kind, Op, Plan, Problem, RankPlan
from schedc.runtime.common.boundary import Value, tensors_of
from schedc.runtime.common.hooks import check_same_way
from schedc.runtime.common.program import ends_of, program_of, starts_of
from schedc.runtime.execution.runner import Executor
from schedc.runtime.stage.autograd import forget_cast_weights
from schedc.runtime.stage.batches import inputs_of
from schedc.runtime.stage.losses import scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from schedc.runtime.common.program import Instruction
    from schedc.runtime.session.beginning import PipeCall
    from schedc.runtime.session.step import Steps
    from schedc.runtime.stage.batches import Microbatches
    from schedc.runtime.stage.losses import Losses
    from schedc.runtime.stage.slices import StageStates
    from schedc.runtime.stage.training import LossFn


def evaluate(steps: Steps, call: PipeCall, work: type[Forward] | None = None) -> torch.Tensor:
    """Run the forwards of the plan that runs; as `Pipe.evaluate`, of a call that has begun.

    `work` is what the ops compute; None: `Forward`.
    """
    hooks, wiring, problem = steps.hooks, steps.wiring, steps.plan.problem
    hooks.gather()
    # what is known of boundaries is kept for steps: without a graph tensors are others, and the batch may have another size
    known, forward = wiring.boundaries, forward_only(steps.plan)
    wiring.move(forward)
    steps.expect(call)
    way: Sequence[float] = ()

    def run() -> tuple[torch.Tensor, bool]:
        nonlocal way
        losses, states = steps.losses_for(call), {}
        if problem.slices:
            from schedc.runtime.stage.slices import states_of

            states = states_of(problem, steps.stages)
        compute = (work or Forward)(problem, steps.stages, steps.loss_fn, call.batch, losses, states)
        Executor(program=program_of(forward, wiring.rank), wiring=wiring, compute=compute).run()
        here = wiring.finish()
        steps.losses, way = losses.gather(), losses.way()
        return losses.mean(), here

    mean = steps.until_it_counts(run, call.batch)
    steps.release()
    wiring.move(steps.plan, known)
    divisor, count = way[0], hooks.pipelines
    common = hooks.total(torch.tensor(divisor, dtype=torch.float64, device="cpu")).item() / count
    if not math.isclose(common, divisor, rel_tol=1e-9):
        check_same_way([(divisor, 1.0), (common, 1.0)], "pipelines, in the mean,")
    return hooks.total(mean) / count


def forward_only(plan: Plan) -> Plan:
    """The plan without its backwards, their transfers and its collectives; what remains is in the plan's order.

    It cannot deadlock if the plan cannot. Each of its waits is one of the plan's, or follows from several: an op waits for the F
    before it in the queue, as it does in the plan, by way of the backwards between them; so does a transfer for the one before it
    in its channel; a receive is posted when the last F before `post_before` has ended, and in the plan not before that either. So a
    cycle here would be a cycle of the plan's waits, of which the verifier has found none.

    Args:
        plan: a sound one.

    Returns:
        The same problem with these queues. Its certificate is the plan's, and says nothing of them.
    """
    return replace(plan, ranks=tuple(_forward(rank) for rank in plan.ranks))


def _forward(rank: RankPlan) -> RankPlan:
    kept_before = list(accumulate((op.kind is Kind.F for op in rank.compute), initial=0))
    channels = []
    for channel in rank.channels:
        kept = [at for at, op in enumerate(channel.transfers) if op.kind is Kind.F]
        posts = [kept_before[channel.post_before[at]] for at in kept] if channel.receives else []
        if kept:
            channels.append(replace(channel, transfers=tuple(channel.transfers[at] for at in kept), post_before=tuple(posts)))
    return RankPlan(rank=rank.rank, compute=tuple(op for op in rank.compute if op.kind is Kind.F), channels=tuple(channels))


NO_LOSS = torch.tensor(torch.nan, dtype=torch.float64, device="cpu")
"""Of a microbatch without targets."""


@dataclass(eq=False)
class Forward:
    """The work of one rank's ops in one evaluation."""

    problem: Problem
    """Of the plan."""
    stages: Mapping[int, nn.Module]
    """Its stages."""
    loss_fn: LossFn | None
    """Takes a last stage's output and the microbatch's targets."""
    batch: Microbatches
    """This rank's."""
    losses: Losses
    """What takes the microbatches' losses."""
    states: Mapping[int, StageStates] = field(default_factory=dict)
    """By stage, where microbatches are in slices."""

    def __post_init__(self) -> None:
        """Nothing has run."""
        self._first, self._last = starts_of(self.problem), ends_of(self.problem)
        self._given: dict[tuple[int, int], Value] = {}
        """Of an F in parts: what its first part, which does the work of all, has given."""
        forget_cast_weights()

    def run(self, instruction: Instruction, values: Sequence[Value]) -> Sequence[Value]:
        """An F; what it gives to the next stage."""
        op = instruction.op
        key = op.stage, op.microbatch
        if instruction.first:
            source = inputs_of(self.batch.inputs[op.microbatch]) if op.stage in self._first else values[0]
            with torch.no_grad():
                output = self._stage(op)(*source)
                if op.stage in self._last:
                    self._take(op.microbatch, output)
                    self._given[key] = ()
                else:
                    self._given[key] = tuple(tensor.detach() for tensor in tensors_of(output))
        given = self._given.pop(key) if instruction.last else ()
        return (given,) if instruction.gives else ()

    def _stage(self, op: Op) -> Callable[..., Any]:
        """What is called for an F."""
        stage = self.states[op.stage].forward_of(op.microbatch) if self.states else self.stages[op.stage]
        kwargs = self.batch.kwargs_of(op.stage, op.microbatch)
        return partial(stage, **kwargs) if kwargs else stage

    def _take(self, microbatch: int, output: Any) -> None:
        """What a last stage gives, and its loss."""
        self.batch.keep(microbatch, output)
        if self.batch.targets is None:
            self.losses.add(microbatch, NO_LOSS)
        else:
            loss_fn = self.batch.with_kwargs(self.loss_fn, microbatch)
            self.losses.add(microbatch, scalar(loss_fn(output, self.batch.targets[microbatch])))
