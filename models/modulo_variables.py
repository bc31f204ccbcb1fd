"""The variables of a modulo schedule (`schedc.models.modulo`): when ops start, turns, orders, and which backwards are fused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schedc.ir import Kind, Op, Problem, Versions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ortools.sat.python import cp_model, cp_model_helper


@dataclass(slots=True)
class ModuloModel:
    """The model and what is read back of it."""

    problem: Problem
    period_ns: int
    model: cp_model.CpModel
    turns: int
    """No op's turn is further from that of another."""
    ranks: Collection[int]
    """Of the problem; what the others do is a latency alone."""
    ops: list[list[Op]] = field(default_factory=list)
    """Per rank: U of its first stage first. B stands for BW where it is fused, and U has microbatch 0."""
    time: dict[Op, cp_model.IntVar] = field(default_factory=dict)
    """When it starts in its rank's period."""
    turn: dict[Op, cp_model.IntVar] = field(default_factory=dict)
    lead: list[cp_model.IntVar] = field(default_factory=list)
    """Per rank, whole periods by which it is behind the first."""
    before: dict[tuple[Op, Op], cp_model_helper.Literal] = field(default_factory=dict)
    """Of two ops of a rank, whether the first is before the second in its period."""
    fused: dict[Op, cp_model.IntVar] = field(default_factory=dict)
    """Per B that may be fused, whether it is."""

    @property
    def sorted(self) -> bool:
        """Whether alike microbatches run in order: not where fused and split backwards mix, and when a backward has ended matters.

        It does where stashed versions count, and where a mode's rule says how updates and microbatches follow each other: sorting
        the last backwards apart from their forwards could move a W behind an update.
        """
        updates, stages = self.problem.updates, self.problem.stages
        assert updates is not None
        counts = updates.versions is not Versions.STASH or any(stage.version_bytes for stage in stages)
        return not (counts and self.fused and self.problem.microbatches > 1)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Every (stage, microbatch) of its ranks."""
        return ((stage, each) for stage, each in self.problem.blocks() if self.problem.stages[stage].rank in self.ranks)

    def path(self, microbatch: int) -> list[int]:
        """The stages of its ranks along the microbatch's path."""
        return [stage for stage in self.problem.path(microbatch) if self.problem.stages[stage].rank in self.ranks]

    @property
    def backward(self) -> Kind:
        """What sends the gradient; B stands for BW where it is fused."""
        return Kind.B if self.problem.split_backward else Kind.BW

    @property
    def last(self) -> Kind:
        """With what a backward has ended."""
        return Kind.W if self.problem.split_backward else Kind.BW

    def lengths(self, op: Op) -> list[tuple[int, list[cp_model_helper.Literal]]]:
        """What the op takes, by what its backward is; a fused W takes none."""
        problem, backward = self.problem, op._replace(kind=Kind.B)
        if op.kind is Kind.U:
            return [(problem.stages[op.stage].update_ns, [])]
        own_ns = problem.duration_ns(op.kind, op.stage, op.microbatch)
        if op.kind not in (Kind.B, Kind.W) or backward not in self.fused:
            return [(own_ns, [])]
        fused = self.fused[backward]
        together_ns = problem.duration_ns(Kind.BW, op.stage, op.microbatch) if op.kind is Kind.B else 0
        return [(own_ns, [~fused]), (together_ns, [fused])]

    def least_ns(self, op: Op) -> int:
        """What the op takes at least."""
        return min(length_ns for length_ns, _ in self.lengths(op))

    def place(self, op: Op) -> cp_model.LinearExpr:
        """The period, of all ranks, in which the rank's period begins in which its op of step 0 runs."""
        return self.turn[op] + self.lead[self.problem.rank_of(op)]

    def add_if(self, linear: cp_model.BoundedLinearExpression | bool, literals: Sequence[cp_model_helper.Literal]) -> None:
        """The constraint, where all literals are true."""
        added = self.model.add(linear)
        if literals:
            added.only_enforce_if(*literals)

    def add_follows(self, earlier: Op, later: Op) -> None:
        """Of one rank, the one starts after the other has ended."""
        self.model.add(self.turn[later] - self.turn[earlier] + self.before[earlier, later] >= 1)
