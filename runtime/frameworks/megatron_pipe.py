"""A pipe for backwards that cannot be split."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from schedc.ir.ops import Kind
from schedc.runtime.session.pipe import Pipe
from schedc.runtime.stage.training import Training

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.runtime.common.boundary import Value
    from schedc.runtime.common.program import Instruction, Program


class Fused(Training):
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


class FusedPipe(Pipe):
    """A pipe whose plan has B and W apart, and runs fused."""

    training = Fused
