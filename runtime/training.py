"""What the ops of a training step compute: stages forward and backward on PyTorch's autograd, the loss after a last stage.

Takes the rank's stages, the loss function and a step's microbatches; gives what crosses the boundaries, and adds to `.grad`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from schedc.errors import InvalidInput
from schedc.ir.ops import WHOLE, Kind
from schedc.runtime.batches import cut
from schedc.runtime.block import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from schedc.ir.ops import Op
    from schedc.ir.plan import Plan
    from schedc.runtime.batches import Batch
    from schedc.runtime.losses import Losses
    from schedc.runtime.program import Instruction, Program

__all__ = ["Training"]


class Training:
    """The work of one rank's ops."""

    def __init__(
        self,
        plan: Plan,
        program: Program,
        stages: Mapping[int, nn.Module],
        loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
    ) -> None:
        problem = plan.problem
        self._program = program
        self._stages = stages
        self._loss_fn = loss_fn
        self._microbatches = problem.microbatches
        self._shares = {(parts.kind, parts.stage): parts.shares for parts in plan.parts}
        self._first = {path[0] for path in problem.paths}
        self._last = {path[-1] for path in problem.paths}
        self._blocks: dict[tuple[int, int], Block] = {}
        self._inputs: Sequence[torch.Tensor] = ()
        self._targets: Sequence[torch.Tensor] = ()
        self._losses: Losses | None = None

    def begin(self, inputs: Batch | None, targets: Batch | None, losses: Losses) -> None:
        """Before a step.

        Args:
            inputs: the batch or its microbatches; looked at on ranks with a first stage only.
            targets: the same for the loss function; looked at on ranks with a last stage only.
            losses: what takes the microbatches' losses.

        Raises:
            InvalidInput: the batch does not fit the plan.
        """
        count, rank, own = self._microbatches, self._program.rank, self._stages.keys()
        self._inputs = cut(inputs, count, "inputs", rank) if self._first & own else ()
        self._targets = cut(targets, count, "targets", rank) if self._last & own else ()
        self._losses = losses

    def finish(self) -> None:
        """After a step: let go of its batch."""
        self._inputs = self._targets = ()
        self._losses = None

    def close(self) -> None:
        """Let go of everything."""
        self.finish()
        self._blocks.clear()

    def run(self, instruction: Instruction, value: torch.Tensor | None) -> torch.Tensor | None:
        """The op itself; what it gives to a neighbouring stage.

        Only W can be cut: of F, B and BW in parts, the first does the work of all, and the last hands the result on.
        """
        op = instruction.op
        key = op.stage, op.microbatch
        if op.kind is Kind.W:
            self._blocks[key].backward_weight(*((0, (1,)) if op.part == WHOLE else (op.part, self._shares[Kind.W, op.stage])))
        elif instruction.first:
            if op.kind is Kind.F:
                self._forward(op, value)
            elif op.kind is Kind.B:
                self._blocks[key].backward_input(value)
            else:
                self._blocks[key].backward(value)
        if not instruction.last:
            return None
        given = self._blocks[key].take()
        if op.kind in (Kind.W, Kind.BW):
            del self._blocks[key]
        return given

    def _forward(self, op: Op, value: torch.Tensor | None) -> None:
        """F, with the loss after a last stage."""
        key = op.stage, op.microbatch
        first, last = op.stage in self._first, op.stage in self._last
        work = partial(self._loss, op) if last else self._stages[op.stage]
        source = self._inputs[op.microbatch] if first else value
        assert source is not None
        self._blocks[key] = block = Block(work, source, first=first, split=key in self._program.split)
        if last:
            loss = block.take()
            assert loss is not None and self._losses is not None
            self._losses.add(loss)

    def _loss(self, op: Op, value: torch.Tensor) -> torch.Tensor:
        """A last stage's share of the step's loss."""
        assert self._loss_fn is not None
        loss = self._loss_fn(self._stages[op.stage](value), self._targets[op.microbatch])
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            found = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise InvalidInput(f"loss_fn must give a scalar tensor, the mean over its microbatch; found {found}")
        return loss / self._microbatches
