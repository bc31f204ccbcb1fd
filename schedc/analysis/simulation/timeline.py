"""The Timeline: when everything of a schedule happens. The simulator makes it; memory curves, lowering and pictures read it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from schedc.ir import WHOLE, Collective, Kind, Objective, Op

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Transfer(NamedTuple):
    """One message: ready when its producer ended, on its link from start to left, at its destination at arrival."""

    op: Op
    """The op that produced it."""
    source: int
    destination: int
    ready_ns: int
    start_ns: int
    left_ns: int
    arrival_ns: int


class CollectiveSpan(NamedTuple):
    """One data-parallel collective: from ready to end, waiting for its resource until start."""

    collective: Collective
    rank: int
    ready_ns: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: what follows from the arrays is computed once, when it is asked for
class Timeline:
    """Start and end of every op, transfer and collective of one schedule, in nanoseconds from the step's start.

    The arrays are flat, rank after rank in the order of the schedule; `begin[r]` to `begin[r + 1]` are rank r's ops.
    """

    ops: NDArray[np.int64]
    """One row (kind, stage, microbatch, part) per op."""
    begin: NDArray[np.int64]
    starts_ns: NDArray[np.int64]
    ends_ns: NDArray[np.int64]
    consumer: NDArray[np.int64]
    """Per op, the op that needs its transfer, or -1 where it sends none."""
    resource: NDArray[np.int64]
    """Per op, the link or trunk that its transfer occupies, or -1."""
    transfer_start_ns: NDArray[np.int64]
    transfer_left_ns: NDArray[np.int64]
    arrival_ns: NDArray[np.int64]
    collectives: tuple[CollectiveSpan, ...]

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.begin) - 1

    @cached_property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Per rank, its ops: from and to."""
        return tuple(pairwise(self.begin.tolist()))

    @cached_property
    def rank_of(self) -> NDArray[np.int64]:
        """Per op, its rank."""
        return np.repeat(np.arange(self.ranks), np.diff(self.begin))

    @cached_property
    def is_first(self) -> NDArray[np.bool_]:
        """Per op, whether it is the first of its rank."""
        first = np.zeros(len(self.ops), np.bool_)
        first[self.begin[:-1][np.diff(self.begin) > 0]] = True
        return first

    @cached_property
    def named_ops(self) -> tuple[Op, ...]:
        """The ops by name."""
        kinds = tuple(Kind)
        return tuple(Op(kinds[kind], stage, microbatch, part) for kind, stage, microbatch, part in self.ops.tolist())

    @cached_property
    def sent(self) -> NDArray[np.int64]:
        """The ops that send a transfer, ascending."""
        return np.flatnonzero(self.consumer >= 0)

    @cached_property
    def taken_from(self) -> NDArray[np.int64]:
        """Per op, the op whose transfer it takes, or -1."""
        taken_from = np.full(len(self.ops), -1, np.int64)
        taken_from[self.consumer[self.sent]] = self.sent
        return taken_from

    @cached_property
    def links(self) -> dict[int, tuple[int, int]]:
        """Per op that sends, the ranks from which and to which its transfer goes."""
        ends = self.rank_of[self.sent].tolist(), self.rank_of[self.consumer[self.sent]].tolist()
        return dict(zip(self.sent.tolist(), zip(*ends, strict=True), strict=True))

    @cached_property
    def number_of_transfer(self) -> dict[Op, int]:
        """Per transfer's name, the op that sends it."""
        return {self.named_ops[op]._replace(part=WHOLE): op for op in self.sent.tolist()}

    @property
    def makespan_ns(self) -> int:
        """From 0 to the end of the last op on any rank, collectives included."""
        return max([int(self.ends_ns.max(initial=0)), *(span.end_ns for span in self.collectives)])

    @property
    def stage_span_ns(self) -> int:
        """The longest time from first start to last end of the compute ops of any one rank (zero bubble's cost)."""
        spans = (self.ends_ns[b - 1] - self.starts_ns[a] for a, b in self.bounds if b > a)
        return int(max(spans, default=0))

    @property
    def busy_ns(self) -> tuple[int, ...]:
        """Per rank, the sum of its ops' durations."""
        return tuple(int((self.ends_ns[a:b] - self.starts_ns[a:b]).sum()) for a, b in self.bounds)

    @property
    def bubble_ratio(self) -> float:
        """1 − busy time / (ranks × makespan)."""
        whole_ns = self.ranks * self.makespan_ns
        return 1 - sum(self.busy_ns) / whole_ns if whole_ns else 0.0

    def objective_ns(self, objective: Objective) -> int:
        """The makespan or the stage span, as the problem's objective asks."""
        return self.stage_span_ns if objective is Objective.STAGE_SPAN else self.makespan_ns

    def start_ns(self, rank: int) -> list[int]:
        """The start of each op of the rank, in its order."""
        values: list[int] = self.starts_ns[self.begin[rank] : self.begin[rank + 1]].tolist()
        return values

    def end_ns(self, rank: int) -> list[int]:
        """The end of each op of the rank, in its order."""
        values: list[int] = self.ends_ns[self.begin[rank] : self.begin[rank + 1]].tolist()
        return values

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Every transfer, by source rank and the source's order."""
        kinds = tuple(Kind)
        times = (each[self.sent] for each in (self.ends_ns, self.transfer_start_ns, self.transfer_left_ns, self.arrival_ns))
        columns = [column.tolist() for column in (self.sent, self.ops[self.sent], *times)]
        return tuple(
            Transfer(Op(kinds[kind], stage, microbatch), *self.links[op], *rest)
            for op, (kind, stage, microbatch, _), *rest in zip(*columns, strict=True)
        )
