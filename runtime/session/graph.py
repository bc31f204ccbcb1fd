"""What a session does where stages are a graph: what it refuses, and the work of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from schedc.errors import Unsupported
from schedc.runtime.execution.runner import PipelineRunner
from schedc.runtime.session.evaluation import NO_LOSS, Forward
from schedc.runtime.stage.graph import calls_of
from schedc.runtime.stage.losses import scalar
from schedc.runtime.stage.training import Training, by_name, losses_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir import Plan
    from schedc.runtime.common.boundary import Value
    from schedc.runtime.common.program import Instruction


def check_graph(plan: Plan, runner: type[PipelineRunner], training: type[Training], *, joint: bool) -> None:
    """Refuse what does not run with stages that are a graph, or microbatches in slices.

    `joint`: whether what observes the steps changes plans with the other ranks.

    Raises:
        Unsupported: says what.
    """
    if runner is not PipelineRunner:
        what = "ranks that choose inside a step"
    elif training is not Training:
        what = f"a pipe with {training.__name__}"
    elif joint:
        what = "adapting while training"
    elif len(plan.problem.paths) > 1:
        what = "a bidirectional placement"
    else:
        return
    found = "microbatches are in slices" if plan.problem.slices else "stages are a graph"
    raise Unsupported(
        f"plan {plan.name!r}: its {found}, which {what} does not support; expected a chain of whole ones, or load without it"
    )


@dataclass(eq=False)
class GraphForward(Forward):
    """The work of one rank's ops in one evaluation."""

    def __post_init__(self) -> None:
        """Look at the edges, too."""
        super().__post_init__()
        self._calls = calls_of(self.problem, self.stages)
        self._several = sum(map(len, losses_of(self.problem, self.stages).values())) > 1
        self._values: dict[tuple[int, int], dict[int, tuple[torch.Tensor, ...]]] = {}

    def run(self, instruction: Instruction, values: Sequence[Value]) -> Sequence[Value]:
        """An F; what it gives, a value for each message."""
        op, call = instruction.op, self._calls[instruction.op.stage]
        key, microbatch = (op.stage, op.microbatch), op.microbatch
        if instruction.first:
            taken = [[tensor for tensor in value if tensor is not None] for value in values]
            targets = {name: batch[microbatch] for name, batch in self.batch.targets_of.items() if name in call.targets}
            with torch.no_grad():
                call.module = self._stage(op)
                begins = {name: self.batch.inputs_of[name][microbatch] for name in call.begins}
                ends, self._values[key] = call(taken, begins, targets)
                for name, output in ends.items():
                    self.batch.keep(microbatch, output, name if self._several else None)
                    loss_fn = self.batch.with_kwargs(by_name(self.loss_fn, name), microbatch)
                    self.losses.add(microbatch, scalar(loss_fn(output, targets[name])) if name in targets else NO_LOSS)
        if not instruction.last:
            return ()
        given = self._values.pop(key)
        return [tuple(tensor.detach() for tensor in given[call.value_to[gift.message.destination]]) for gift in instruction.gives]
