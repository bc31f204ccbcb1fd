"""What happens when, in the CP-SAT model of `unit_model`: tasks, what they wait for, and what serves one of them at a time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from ortools.sat.python import cp_model

from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.ops import Op

HALF_WORD = 1 << 30
"""A presolve rule of ortools 9.15 adds up the coefficients of a row in 32 bits (google/or-tools, issue 5293), and then claims what
is false. Where times come near that, the rule must be off; bytes are added in two digits."""
DIGIT = 1 << 20
Moment = cp_model.LinearExprT
Literal = cp_model.BoolVarT


@dataclass(eq=False)
class Task:
    """An op, a transfer or a collective."""

    start: Moment
    end: Moment
    rank: int
    """Whose it is; a transfer's or a collective's is the one that sends."""
    op: Op | None = None
    """The op that it is, or that sends it; None: a collective."""
    present: Literal | None = None
    """Whether it happens at all; None: always."""
    ready: Moment = 0
    """When a transfer or collective may be served."""


class Clock:
    """Tasks on a time line of whole nanoseconds."""

    def __init__(self, horizon: int, cut: frozenset[Kind], may_wait: bool) -> None:
        """An empty model.

        Args:
            horizon: all ends by then.
            cut: the kinds of ops that are cut into parts of 1 ns; with F among them, links serve in any order.
            may_wait: whether a task may start later than it could; else it starts at one of the moments that it waits for.
        """
        self.model = cp_model.CpModel()
        self.horizon, self.cut, self.may_wait = horizon, cut, may_wait
        self.units = Kind.F in cut
        self.always: Literal = self.model.new_constant(1)
        self.first: dict[tuple[Op, Op], Literal] = {}
        """Per pair of ops of one rank, whether the first one comes before the second; not for ops in units."""
        self._causes: dict[Task, list[Literal]] = {}

    def moment(self, length: int = 0) -> cp_model.IntVar:
        """Some moment from which something of this length can still take place."""
        return self.model.new_int_var(0, max(0, self.horizon - length), "")

    def op(self, op: Op, rank: int, length: int, present: Literal | None) -> tuple[Task, list[cp_model.IntervalVar]]:
        """An op, and when it keeps its rank busy."""
        is_cut = op.kind in self.cut
        starts = [self.moment(1 if is_cut else length) for _ in range(length if is_cut else 1)]
        piece = 1 if is_cut else length
        for a, b in pairwise(starts):
            self.model.add(b >= a + 1)
        there = self.always if present is None else present
        busy = [self.model.new_optional_fixed_size_interval_var(start, piece, there, "") for start in starts]
        return Task(starts[0], starts[-1] + piece, rank, op, present), busy

    def task(self, length: int, rank: int, ready: Moment, op: Op | None = None, present: Literal | None = None) -> Task:
        """A transfer or a collective, which is served when it is ready or later."""
        start = self.moment(length)
        task = Task(start, start + length, rank, op, present, ready)
        self.add_wait(task, ready)
        return task

    def add_wait(self, task: Task, moment: Moment, *conditions: Literal | None) -> None:
        """Where the conditions hold, the task starts at the moment or later; this may be what it starts at."""
        literals = [each for each in conditions if each is not None]
        self.model.add(task.start >= moment).only_enforce_if([*literals, *([] if task.present is None else [task.present])])
        if not self.may_wait:
            cause = self.model.new_bool_var("")
            self.model.add(task.start == moment).only_enforce_if(cause)
            for literal in literals:
                self.model.add_implication(cause, literal)
            self._causes.setdefault(task, []).append(cause)

    def add_causes(self) -> None:
        """Once all waits are known: every task starts at a moment that it waits for."""
        for task, causes in self._causes.items():
            self.model.add_bool_or(causes if task.present is None else [*causes, ~task.present])

    def add_rank(self, tasks: Sequence[Task], busy: Sequence[cp_model.IntervalVar]) -> None:
        """A rank runs one op at a time."""
        self.model.add_no_overlap(busy)
        for a, b in combinations(tasks, 2):
            if a.op is not None and b.op is not None and not self.cut & {a.op.kind, b.op.kind}:
                order = self.model.new_bool_var("")
                self.first[a.op, b.op], self.first[b.op, a.op] = order, ~order
                self._add_turns(a, b, order)

    def add_gathers(self, gathers: Sequence[tuple[Task, Moment]]) -> None:
        """One all-gather at a time, by rank, on a rank in the order of the moments that come with them (or in any, in units)."""
        for (a, a_first), (b, b_first) in combinations(gathers, 2):
            if a.rank != b.rank and not self.units:
                self._add_turns(a, b, self.always)
                continue
            order = self.model.new_bool_var("")
            self._add_turns(a, b, order)
            if not self.units:
                self.model.add(a_first <= b_first).only_enforce_if(order)
                self.model.add(b_first <= a_first).only_enforce_if(~order)

    def add_queue(self, queue: Sequence[Task]) -> None:
        """One at a time, as they become ready (in units, in any order); together, by rank, and there the transfer first."""
        for a, b in combinations(sorted(queue, key=lambda task: (task.rank, task.op is None)), 2):
            if (a.op, b.op) in self.first:  # the order of the sender's ops
                assert a.op is not None and b.op is not None
                self._add_turns(a, b, self.first[a.op, b.op])
                continue
            order = self.model.new_bool_var("")
            self._add_turns(a, b, order)
            if not self.units:
                both = [each for each in (a.present, b.present) if each is not None]
                self.model.add(a.ready <= b.ready).only_enforce_if([order, *both])
                self.model.add(b.ready + 1 <= a.ready).only_enforce_if([~order, *both])

    def _add_turns(self, a: Task, b: Task, a_first: Literal) -> None:
        self.add_wait(b, a.end, a_first, a.present)
        if a_first is not self.always:
            self.add_wait(a, b.end, ~a_first, b.present)

    def add_at_most(self, terms: Sequence[tuple[int, Literal]], most: int) -> None:
        """The sum of the numbers whose literals hold is at most this; where they are large, in a high and a low digit."""
        if sum(abs(number) for number, _ in terms) + abs(most) < HALF_WORD:
            self.model.add(sum(number * literal for number, literal in terms) <= most)
            return
        carry, low = self.model.new_int_var(0, len(terms), ""), self.model.new_int_var(0, DIGIT - 1, "")
        self.model.add(sum(number % DIGIT * literal for number, literal in terms) == carry * DIGIT + low)
        high = sum(number // DIGIT * literal for number, literal in terms) + carry
        is_less = self.model.new_bool_var("")
        self.model.add(high <= most // DIGIT)
        self.model.add(high <= most // DIGIT - 1).only_enforce_if(is_less)
        self.model.add(low <= most % DIGIT).only_enforce_if(~is_less)
