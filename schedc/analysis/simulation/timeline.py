"""The Timeline: when everything of a schedule happens. The simulator makes it; memory curves, lowering and pictures read it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from schedc.ir.ops import Kind, Op
from schedc.ir.problem import Objective

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.ir.plan import Collective


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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

    @property
    def makespan_ns(self) -> int:
        """From 0 to the end of the last op on any rank, collectives included."""
        return max([int(self.ends_ns.max(initial=0)), *(span.end_ns for span in self.collectives)])

    @property
    def stage_span_ns(self) -> int:
        """The longest time from first start to last end of the compute ops of any one rank (zero bubble's cost)."""
        spans = (self.ends_ns[b - 1] - self.starts_ns[a] for a, b in self._bounds() if b > a)
        return int(max(spans, default=0))

    @property
    def busy_ns(self) -> tuple[int, ...]:
        """Per rank, the sum of its ops' durations."""
        return tuple(int((self.ends_ns[a:b] - self.starts_ns[a:b]).sum()) for a, b in self._bounds())

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
        rank_of_item = np.repeat(np.arange(self.ranks), np.diff(self.begin))
        sent = np.flatnonzero(self.consumer >= 0)
        columns = (
            self.ops[sent],
            rank_of_item[sent],
            rank_of_item[self.consumer[sent]],
            self.ends_ns[sent],
            self.transfer_start_ns[sent],
            self.transfer_left_ns[sent],
            self.arrival_ns[sent],
        )
        kinds = tuple(Kind)
        return tuple(
            Transfer(Op(kinds[kind], stage, microbatch), *rest)
            for (kind, stage, microbatch, _), *rest in zip(*(column.tolist() for column in columns), strict=True)
        )

    def _bounds(self) -> list[tuple[int, int]]:
        edges: list[int] = self.begin.tolist()
        return list(pairwise(edges))
