"""The CP-SAT model and its variables: what the constraints write to and what is read back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schedc.ir import Kind, Op
from schedc.models.blocks import Blocks, NothingAtMost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortools.sat.python import cp_model

    from schedc.models.start_windows import Windows


@dataclass(frozen=True, slots=True)
class Stays:
    """When a stage's weights are there, and when its gradients are reduced."""

    begin: list[cp_model.IntVar]
    """Per stay, in the order of time, when its gather begins."""
    until: list[cp_model.IntVar]
    there: list[cp_model.IntVar]
    """Whether there is such a stay."""
    of_op: dict[Op, list[cp_model.IntVar]]
    """Per op and stay, whether it runs in that one."""
    first: cp_model.IntVar
    """No later than the first W or BW."""
    reduction: cp_model.IntVar
    """When the reduction begins."""


@dataclass(slots=True)
class CpSatVariables:
    """The model and the variables that are read back."""

    model: cp_model.CpModel
    blocks: Blocks
    start: dict[Op, cp_model.IntVar]
    send: dict[Op, cp_model.IntVar]
    """Per name of a transfer that occupies its link: when it starts to."""
    fused: dict[Op, cp_model.IntVar]
    """Per B that may be fused: whether it is. Its W then starts at a moment of its own, takes no time, and keeps nobody waiting."""
    objective: cp_model.IntVar
    besides: defaultdict[int, list[tuple[cp_model.IntervalVar, int]]] = field(default_factory=lambda: defaultdict(list))
    """Per rank, what it holds beside activations: when, and how many bytes."""
    stays: dict[int, Stays] = field(default_factory=dict)
    """Per stage, where weights are sharded."""

    def end(self, op: Op) -> cp_model.LinearExprT:
        """The end of the op, whichever it takes."""
        end = self.start[op] + self.blocks.duration[op]
        return end if op not in self.fused else end + (self.blocks.fused[op] - self.blocks.duration[op]) * self.fused[op]

    def add_after(self, later: cp_model.LinearExprT, op: Op, gap: int = 0, only_if: Sequence[cp_model.BoolVarT] = ()) -> None:
        """The moment `later` is at least `gap` ticks after the end of the op, whichever it takes; where all of `only_if` hold."""
        start, duration = self.start[op], self.blocks.duration[op]
        choices: list[tuple[int, cp_model.BoolVarT]] = []
        if op in self.fused:
            choices = [(duration, ~self.fused[op]), (self.blocks.fused[op], self.fused[op])]
        elif self.blocks.may_vanish(op):
            fused = self.fused[self.blocks.backward_of(op)]
            choices = [(0, fused), (duration, ~fused)]
        least = min((length for length, _ in choices), default=duration)
        enforced = [(least, [*only_if]), *((length, [*only_if, literal]) for length, literal in choices if length > least)]
        for length, literals in enforced:
            added = self.model.add(later >= start + (gap + length))
            if literals:
                added.only_enforce_if(literals)


def variables_of(blocks: Blocks, windows: Windows, lower: int, upper: int) -> CpSatVariables:
    """A model without constraints: when each op starts, in its window, and the objective, from `lower` to `upper` ticks.

    Raises:
        NothingAtMost: `upper` is below `lower` or what every schedule takes.
    """
    from ortools.sat.python import cp_model  # takes long

    lower = max(lower, windows.least)
    if upper < lower:
        raise NothingAtMost(upper, lower)
    model = cp_model.CpModel()
    start = {
        op: model.new_int_var(windows.earliest[op], windows.latest[op], f"{Kind(op.kind).name}{op[1:]}") for op in blocks.duration
    }
    fused = {op: model.new_bool_var("") for op in blocks.fused}
    return CpSatVariables(model, blocks, start, {}, fused, model.new_int_var(lower, upper, "objective"))
