"""The Schedule: in which order every rank runs its compute ops. Start times follow from the simulator and are stored nowhere.

For each (stage, microbatch) of the problem a schedule holds `F` and then either `B` and `W`, or `BW`. Where `parts` splits a
kind of block of a stage, each such block is in the order whole (all its parts in one piece) or as each of its parts, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from schedc.ir.ops import WHOLE, Kind, Op

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """How the blocks of one kind of one stage are cut (CrossPipe 4.2, sub-blocks)."""

    kind: Kind
    stage: int
    shares: tuple[int, ...]
    """The relative time of each part; four equal parts are (1, 1, 1, 1)."""

    def __post_init__(self) -> None:
        """Refuse fewer than two parts, shares that are not positive, and an update, which is never cut."""
        if self.kind is Kind.U:
            raise ValueError("an update is never cut into parts")
        if len(self.shares) < 2 or min(self.shares) <= 0:
            raise ValueError(f"parts need two or more shares above 0, got {self.shares}")

    def durations_ns(self, block_ns: int) -> tuple[int, ...]:
        """The parts' durations; they add up to the block's exactly."""
        total = sum(self.shares)
        edges = [0, *(block_ns * done // total for done in accumulate(self.shares))]
        return tuple(after - before for before, after in pairwise(edges))


@dataclass(frozen=True, slots=True, order=True)
class Collective:
    """A data-parallel collective of one stage: `RS` (reduce-scatter or all-reduce) or `AG` (all-gather).

    With sharded weights it has its place in the compute queue: it is issued when the op before `before` has ended, and what it
    holds is given back when the op before `until` has ended. An `AG` holds the stage's gathered weights, and the stage's ops from
    `before` to `until` need it. An `RS` holds the stage's gradients, and op `until` waits for its end, as do gathers that are
    issued before that op; there is none at the end of the queue.
    """

    kind: str
    stage: int
    before: int = -1
    """An index in the rank's compute queue; -1: it follows from the order (weights are not sharded)."""
    until: int = -1

    @property
    def token(self) -> str:
        """Its name in the plan, `RS3`, or `AG3@0-17`."""
        return f"{self.kind}{self.stage}" + (f"@{self.before}-{self.until}" if self.before >= 0 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Per rank, its compute ops in the order in which it runs them."""

    orders: tuple[tuple[Op, ...], ...]
    parts: tuple[Parts, ...] = ()
    """At most one entry per kind and stage; blocks of the others are not cut."""
    collectives: tuple[tuple[Collective, ...], ...] = ()
    """Where weights are sharded (`Problem.is_sharded`), per rank in the order in which they are issued; else they follow from the
    orders, and there are none."""

    def parts_of(self, kind: Kind, stage: int) -> Parts | None:
        """How blocks of this kind and stage are cut, or None."""
        return next((parts for parts in self.parts if parts.kind == kind and parts.stage == stage), None)

    def duration_ns(self, problem: Problem, op: Op) -> int:
        """The duration of one op of this schedule, which may be a part of a block."""
        block_ns = problem.duration_ns(op.kind, op.stage, op.microbatch)
        if op.part == WHOLE:
            return block_ns
        parts = self.parts_of(op.kind, op.stage)
        if parts is None or not op.part < len(parts.shares):
            raise ValueError(f"{op} is a part that this schedule does not have")
        return parts.durations_ns(block_ns)[op.part]
