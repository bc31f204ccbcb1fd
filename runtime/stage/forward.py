"""What the ops of an evaluation compute: stages forward without a graph, and the loss after a last stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from schedc.runtime.common.values import Value, tensors_of
from schedc.runtime.stage.batches import Microbatches, inputs_of
from schedc.runtime.stage.precision import forget_cast_weights
from schedc.runtime.stage.seeds import scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    from torch import nn

    from schedc.ir.problem import Problem
    from schedc.runtime.common.program import Instruction
    from schedc.runtime.stage.losses import Losses

NO_LOSS = torch.tensor(torch.nan, dtype=torch.float64, device="cpu")
"""Of a microbatch without targets."""


class Forward:
    """The work of one rank's ops in one evaluation."""

    def __init__(
        self,
        problem: Problem,
        stages: Mapping[int, nn.Module],
        loss_fn: Callable[[Any, Any], torch.Tensor] | None,
        batch: Microbatches,
        outputs: MutableMapping[int, Any] | None,
        losses: Losses,
    ) -> None:
        """Take what it needs.

        Args:
            problem: of the plan.
            stages: its stages.
            loss_fn: takes a last stage's output and the microbatch's targets.
            batch: this rank's.
            outputs: gets what a last stage gives, by microbatch; None: nobody wants it.
            losses: what takes the microbatches' losses.
        """
        self._stages = stages
        self._loss_fn = loss_fn
        self._first = {path[0] for path in problem.paths}
        self._last = {path[-1] for path in problem.paths}
        self._batch = batch
        self._losses = losses
        self._outputs = outputs
        self._given: dict[tuple[int, int], Value] = {}
        """Of an F in parts: what its first part, which does the work of all, has given."""
        forget_cast_weights()

    def run(self, instruction: Instruction, value: Value) -> Value:
        """An F; what it gives to the next stage."""
        op = instruction.op
        key = op.stage, op.microbatch
        if instruction.first:
            source = inputs_of(self._batch.inputs[op.microbatch]) if op.stage in self._first else value
            with torch.no_grad():
                output = self._stages[op.stage](*source)
                if op.stage in self._last:
                    self._take(op.microbatch, output)
                    self._given[key] = ()
                else:
                    self._given[key] = tuple(tensor.detach() for tensor in tensors_of(output))
        return self._given.pop(key) if instruction.last else ()

    def _take(self, microbatch: int, output: Any) -> None:
        """What a last stage gives, and its loss."""
        if self._outputs is not None:
            self._outputs[microbatch] = output
        if self._batch.targets is None:
            self._losses.add(microbatch, NO_LOSS)
        else:
            assert self._loss_fn is not None
            self._losses.add(microbatch, scalar(self._loss_fn(output, self._batch.targets[microbatch])))
