"""The Timeline: when everything of a schedule happens. The simulator makes it; memory curves, lowering and pictures read it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schedc.ir import Collective, Kind, Objective, Op
from schedc.ir.ops import sent_to

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Transfer(NamedTuple):
    """One message: ready when its producer ended, on its link from start to left, at its destination at arrival."""

    op: Op
    """The op that produced it; where stages are a graph, with the stage that it goes to (`schedc.ir.ops.sent_to`)."""
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

    Ops are numbered flat, rank after rank in the order of the schedule; `begin[r]` to `begin[r + 1]` are rank r's ops. Transfers
    are numbered by the op that sends them, and of one op in the order in which it sends them. As events, transfers come behind the
    ops, and collectives behind both.
    """

    ops: NDArray[np.int64]
    """One row (kind, stage, microbatch, part) per op."""
    begin: NDArray[np.int64]
    starts_ns: NDArray[np.int64]
    ends_ns: NDArray[np.int64]
    sender: NDArray[np.int64]
    """Per transfer, the op that sends it."""
    to_stage: NDArray[np.int64]
    """Per transfer, the stage that is in its name, or -1 where stages are a chain."""
    receiver: NDArray[np.int64]
    """Per transfer, its destination's rank."""
    resource: NDArray[np.int64]
    """Per transfer, the link or trunk that it occupies; -1: it never was, which happens in recordings alone."""
    taken: NDArray[np.int64]
    """Per need of an op for a transfer, the transfer; ascending. In a chain each transfer is needed once."""
    taker: NDArray[np.int64]
    """Per such need, the op."""
    transfer_start_ns: NDArray[np.int64]
    transfer_left_ns: NDArray[np.int64]
    arrival_ns: NDArray[np.int64]
    collectives: tuple[CollectiveSpan, ...]

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.begin) - 1

    @property
    def first_transfer(self) -> int:
        """The number of the first transfer, as an event."""
        return len(self.ops)

    @property
    def first_collective(self) -> int:
        """The number of the first collective, as an event."""
        return len(self.ops) + len(self.sender)

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
        """The transfers that were: all that there are, but in recordings."""
        return np.flatnonzero(self.resource >= 0)

    @cached_property
    def taken_from(self) -> NDArray[np.int64]:
        """Per op, the transfer that it takes, or -1; of several, the one that arrives last."""
        taken_from = np.full(len(self.ops), -1, np.int64)
        in_time = np.argsort(self.arrival_ns[self.taken], kind="stable")
        taken_from[self.taker[in_time]] = self.taken[in_time]
        return taken_from

    def of_taken(self, values: NDArray[Any], otherwise: object) -> NDArray[Any]:
        """Per op, the value of the transfer that it takes (`taken_from`), of one for each transfer; `otherwise` where none."""
        found = np.full(len(self.ops), otherwise, values.dtype)
        takes = self.taken_from >= 0
        found[takes] = values[self.taken_from[takes]]
        return found

    @cached_property
    def first_taker(self) -> NDArray[np.int64]:
        """Per transfer, the first op by number that takes it; -1 where it never was."""
        first_taker, last_first = np.full(len(self.sender), -1, np.int64), np.argsort(-self.taker)
        first_taker[self.taken[last_first]] = self.taker[last_first]
        return first_taker

    @cached_property
    def collective_after(self) -> NDArray[np.int64]:
        """Per collective, the op whose end makes it ready, or -1: of a reduction the stage's last W or BW."""
        after = np.full(len(self.collectives), -1, np.int64)
        weights = np.flatnonzero(self.ops[:, 0] >= Kind.W) if len(after) else after
        last = dict(zip(self.ops[weights, 1].tolist(), weights.tolist(), strict=True))
        for at, span in enumerate(self.collectives):
            if span.collective.before > 0:
                after[at] = self.begin[span.rank] + span.collective.before - 1
            elif span.collective.kind == "RS":
                after[at] = last[span.collective.stage]
        return after

    @cached_property
    def collective_taker(self) -> NDArray[np.int64]:
        """Per collective, the first op that waits for its end, or -1: of a gather the stage's next op, or its first F."""
        taker = np.full(len(self.collectives), -1, np.int64)
        for at, (collective, rank, *_) in enumerate(self.collectives):
            begin, end = self.bounds[rank]
            if collective.kind == "AG":
                first = begin + max(0, collective.before)
                waiting = self.ops[first:end, 1] == collective.stage
                taker[at] = (
                    first + np.flatnonzero(waiting if collective.before >= 0 else waiting & (self.ops[first:end, 0] == Kind.F))[0]
                )
            elif 0 <= collective.until < end - begin:
                taker[at] = begin + collective.until
        return taker

    @cached_property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Per transfer, the ranks from which and to which it goes."""
        return tuple(zip(self.rank_of[self.sender].tolist(), self.receiver.tolist(), strict=True))

    @cached_property
    def transfer_names(self) -> tuple[Op, ...]:
        """The transfers by name."""
        ops, to_stage = self.ops[self.sender, :3].tolist(), self.to_stage.tolist()
        kinds = tuple(Kind)
        return tuple(
            sent_to(Op(kinds[kind], stage, microbatch), to) for (kind, stage, microbatch), to in zip(ops, to_stage, strict=True)
        )

    @cached_property
    def number_of_transfer(self) -> dict[Op, int]:
        """Per transfer's name, its number."""
        return {name: number for number, name in enumerate(self.transfer_names)}

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
        times_ns = (self.ends_ns[self.sender], self.transfer_start_ns, self.transfer_left_ns, self.arrival_ns)
        rows = zip(self.transfer_names, self.links, *(each.tolist() for each in times_ns), strict=True)
        return tuple(Transfer(name, *link, *rest) for name, link, *rest in rows)
