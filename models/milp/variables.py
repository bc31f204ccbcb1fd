"""The MILP and its variables, what the constraints write to and what is read back; and what must come before what, as a graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schedc.ir import Op, token
from schedc.models.blocks import Blocks, followers_of

if TYPE_CHECKING:
    import pulp


@dataclass(slots=True)
class MilpVariables:
    """The model and its variables; times are continuous, in ticks. Tasks (ops, transfers, collectives) go by their names."""

    model: pulp.LpProblem
    blocks: Blocks
    start: dict[Op, pulp.LpVariable]
    objective: pulp.LpVariable
    fused: dict[Op, pulp.LpVariable] = field(default_factory=dict)
    """Per B that may be fused: 1 where it is. Its W then takes no time, at a moment that keeps nobody waiting."""
    send: dict[Op, pulp.LpVariable] = field(default_factory=dict)
    """Per name of a transfer that occupies its link: when it starts to."""
    order: dict[tuple[str, str], pulp.LpVariable] = field(default_factory=dict)
    """Per pair of tasks whose order is open: 1 where the first one comes first."""
    before: dict[tuple[str, str], pulp.LpAffineExpression | int] = field(default_factory=dict)
    """Per pair of tasks of one resource, both ways: whether the first one comes first, as 0, 1 or a term."""

    def end(self, op: Op) -> pulp.LpAffineExpression:
        """The op's end."""
        end = self.start[op] + self.blocks.duration[op]
        if op in self.fused:
            return end + (self.blocks.fused[op] - self.blocks.duration[op]) * self.fused[op]
        fused = self.vanishes(op)
        return end if fused is None else end - self.blocks.duration[op] * fused

    def vanishes(self, op: Op) -> pulp.LpVariable | None:
        """1 where the op, a W, is fused into its backward; None where it never is."""
        return self.fused[self.blocks.backward_of(op)] if self.blocks.may_vanish(op) else None


def op_name(op: Op) -> str:
    """The name of an op in the model: its token, which holds none of the characters that PuLP replaces."""
    return token(op).replace("/", ":").replace(">", "@")


def send_name(transfer: Op) -> str:
    """The name in the model of the transfer with this name."""
    return f"send:{op_name(transfer)}"


@dataclass(frozen=True, slots=True)
class Graph:
    """The ops in an order in which every op follows what it needs."""

    after: dict[Op, list[tuple[Op, int]]]
    """Per op, what follows it directly, and how many ticks after its end at the least. In topological order."""
    place: dict[Op, int]
    """Per op, its number in that order."""
    reached: dict[Op, int]
    """Per op, the set of all that follows it, as the bits of their numbers."""

    def follows(self, before: Op, after: Op) -> bool:
        """Whether `after` starts after `before` has ended in every schedule."""
        return bool(self.reached[before] >> self.place[after] & 1)


def graph_of(blocks: Blocks) -> Graph:
    """The graph of the blocks."""
    after = followers_of(blocks)
    place = {op: number for number, op in enumerate(after)}
    reached: dict[Op, int] = {}
    for op in reversed(after):
        bits = 0
        for later, _ in after[op]:
            bits |= reached[later] | 1 << place[later]
        reached[op] = bits
    return Graph(after, place, reached)
