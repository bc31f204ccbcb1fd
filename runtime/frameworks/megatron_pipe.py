"""Pipes for losses that a framework has scaled itself, and for backwards that cannot be split."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from schedc.ir.ops import Kind
from schedc.runtime.session.pipe import Pipe
from schedc.runtime.stage.seeds import Seeds
from schedc.runtime.stage.training import Training

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.runtime.common.program import Instruction, Program
    from schedc.runtime.common.values import Value

__all__ = ["FusedPipe", "SummingPipe"]


class Summing(Training):
    """Gradients are those of the sum of the microbatches' losses, not of their mean."""

    def __init__(self, plan: Plan, program: Program, *arguments: Any, **more: Any) -> None:
        """As `Training`."""
        super().__init__(plan, program, *arguments, **more)
        self._even = [Seeds(1.0, "1")] * plan.problem.microbatches


class Fused(Summing):
    """Where a plan has B and W apart, B computes all gradients and W nothing."""

    def __init__(self, plan: Plan, program: Program, *arguments: Any, **more: Any) -> None:
        """As `Training`."""
        super().__init__(plan, replace(program, split=frozenset()), *arguments, **more)

    def run(self, instruction: Instruction, value: Value) -> Value:
        """The op itself; what it gives to a neighbouring stage."""
        if instruction.op.kind is Kind.W:
            return ()
        if instruction.op.kind is Kind.B:
            instruction = replace(instruction, op=instruction.op._replace(kind=Kind.BW))
        return super().run(instruction, value)


class SummingPipe(Pipe):
    """For losses that are shares of a step's already."""

    training = Summing


class FusedPipe(Pipe):
    """The same, with fused backwards."""

    training = Fused
