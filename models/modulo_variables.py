"""The variables of a modulo schedule (`schedc.models.modulo`): when ops start, in which rounds they meet, what is fused."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import Kind, Op, Problem, Versions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ortools.sat.python import cp_model, cp_model_helper

WIDE = 12
"""Where two ops may meet in more rounds, these are one variable, not a Boolean each."""

Lengths = list[tuple[int, list["cp_model_helper.Literal"]]]
"""What something takes, by literals of which those that count are true."""

Span = tuple["cp_model.LinearExpr", "cp_model.LinearExpr"]
"""When something starts, and when it has ended."""


class MetRounds(NamedTuple):
    """In which round of one op another of its rank runs: the least, and whether it is each later one or one behind that."""

    least: int
    later: tuple[cp_model.IntVar, ...]
    """Booleans; where there are too many, one variable: by how much it is more."""
    is_wide: bool

    number: cp_model.LinearExpr
    """Which one."""


@dataclass(slots=True)
class ModuloModel:
    """The model and what is read back of it."""

    problem: Problem
    period_ns: int
    model: cp_model.CpModel
    ranks: Collection[int]
    """Of the problem; what the others do is a latency alone."""
    is_strict: bool
    """Whether each microbatch keeps the mode's rule by itself; else as many as must have ended have, of any that are alike."""
    ops: list[list[Op]] = field(default_factory=list)
    """Per rank: U of its first stage first. B stands for BW where it is fused, and U has microbatch 0."""
    time: dict[Op, cp_model.IntVar] = field(default_factory=dict)
    """When it starts in step 0."""
    met: dict[tuple[Op, Op], MetRounds] = field(default_factory=dict)
    """Per two ops of a rank, in one order."""
    ends: dict[Op, cp_model.IntVar] = field(default_factory=dict)
    """Of ops whose length is a choice, when they have ended."""
    fused: dict[Op, cp_model.IntVar] = field(default_factory=dict)
    """Per B that may be fused, whether it is."""

    @property
    def is_mixed(self) -> bool:
        """Whether fused and split backwards mix, and when a backward has ended matters: then W need not run in order.

        It does where stashed versions count, and where a mode's rule says how updates and microbatches follow each other: sorting
        the last backwards apart from their forwards could move a W behind an update.
        """
        updates, stages = self.problem.updates, self.problem.stages
        assert updates is not None
        counts = updates.versions is not Versions.STASH or any(stage.version_bytes for stage in stages)
        return counts and bool(self.fused) and self.problem.microbatches > 1

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Every (stage, microbatch) of its ranks."""
        return ((stage, each) for stage, each in self.problem.blocks() if self.problem.stages[stage].rank in self.ranks)

    def path(self, microbatch: int) -> list[int]:
        """The stages of its ranks along the microbatch's path."""
        return [stage for stage in self.problem.path(microbatch) if self.problem.stages[stage].rank in self.ranks]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Of a block's ops, in order; B stands for BW where it is fused."""
        return (Kind.F, Kind.B, Kind.W) if self.problem.split_backward else (Kind.F, Kind.BW)

    @property
    def backward(self) -> Kind:
        """What sends the gradient."""
        return self.kinds[1]

    @property
    def last(self) -> Kind:
        """With what a backward has ended."""
        return self.kinds[-1]

    def lengths(self, op: Op) -> Lengths:
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

    def most_ns(self, op: Op) -> int:
        """What it takes at most."""
        return max(length_ns for length_ns, _ in self.lengths(op))

    def round(self, one: Op, other: Op) -> cp_model.LinearExpr:
        """The round of the one op, of step 0, in which the other runs: how many periods begin with the one, up to it, but one."""
        return self.met[one, other].number if (one, other) in self.met else -1 - self.met[other, one].number

    def add_if(self, linear: cp_model.BoundedLinearExpression | bool, literals: Sequence[cp_model_helper.Literal]) -> None:
        """The constraint, where all literals are true."""
        added = self.model.add(linear)
        if literals:
            added.only_enforce_if(*literals)

    def meet(self, one: Op, other: Op, least: int, most: int) -> None:
        """The rounds of the one in which the other may run."""
        if least > most:
            self.model.add_bool_or([])
            most = least
        is_wide = most - least > WIDE
        later = [self.model.new_int_var(0, most - least if is_wide else 1, "") for _ in range(1 if is_wide else most - least)]
        for fewer, more in pairwise(later):
            self.model.add_implication(more, fewer)
        number: cp_model.LinearExpr = self.model.new_constant(least) + 0
        for each in later:
            number += each
        self.met[one, other] = MetRounds(least, tuple(later), is_wide, number)

    def end(self, op: Op) -> cp_model.LinearExpr:
        """When it ends, or later. Where that is a choice it is a variable, so that no difference is under two Booleans.

        Such differences CP-SAT takes for sums: a cycle of them is no conflict, and times creep round it.
        """
        lengths = self.lengths(op)
        if len(lengths) == 1:
            return self.time[op] + lengths[0][0]
        if op not in self.ends:
            domain, (least_ns, most_ns) = self.time[op].proto.domain, (self.least_ns(op), self.most_ns(op))
            self.ends[op] = self.model.new_int_var(domain[0] + least_ns, domain[-1] + most_ns, "")
            self.model.add(self.ends[op] - self.time[op] >= least_ns)
            for length_ns, literals in lengths:
                if length_ns > least_ns:
                    self.add_if(self.ends[op] - self.time[op] >= length_ns, literals)
        return self.ends[op]

    def add_apart(self, pair: tuple[Op, Op], one: Span, other: Span) -> None:
        """What is busy in these spans does not overlap, modulo the period; in the rounds in which the pair of ops meets."""
        if pair not in self.met:
            pair, one, other = pair[::-1], other, one
        least, later, is_wide, number = self.met[pair]
        if is_wide:
            self.model.add(other[0] - one[1] - self.period_ns * number >= 0)
            self.model.add(one[0] - other[1] + self.period_ns * number >= -self.period_ns)
            return
        for at in range(len(later) + 1):
            begun, over = later[max(at - 1, 0) : at], [~each for each in later[at : at + 1]]
            self.add_if(other[0] - one[1] >= (least + at) * self.period_ns, begun)
            self.add_if(one[0] - other[1] >= -(least + at + 1) * self.period_ns, over)
