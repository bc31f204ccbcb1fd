"""One microbatch after another, each with its whole way there and back reserved: serial where list schedulers go by time.

A Problem with one path and one stage on each rank goes in, a Schedule comes out. A list scheduler starts an F whenever a rank is
free, and its gradient may meet others at every rank anew. Here the way back is reserved when the F is placed, so that most
microbatches wait nowhere. In a long pipeline, or where memory is short and a link slow, waits on the way decide: a
microbatch that waits holds memory on all ranks before it.

A rank's F are in the order of microbatches, so when one is placed all before it is settled: W fill what is free there, the oldest
first, and what the rank holds is known to the byte. So no limit is ever exceeded.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

from schedc.errors import Unsupported
from schedc.ir import WHOLE, Kind, Op, Parts, Problem, Schedule
from schedc.solvers.common.method import SMALL_OPS, Constructive
from schedc.solvers.heuristics.greedy import PartsOfW
from schedc.solvers.templates.shape import LINE, grid_for, need_split, schedule_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class InTurn(Constructive, frozen=True):
    """Each microbatch's whole way is reserved at the first times that are free, one microbatch after another."""

    name, place = "in-turn", 112
    n_sub: PartsOfW = 8
    """Into how many equal parts a W may be cut; 1: blocks stay whole."""

    @classmethod
    def candidates(cls, problem: Problem) -> Iterator[str]:
        """Of problems that leave searches few tries."""
        with suppress(Unsupported):
            need_split(problem, cls.name)
            grid_for(problem, cls.name, LINE)
            if problem.num_ops > SMALL_OPS:
                yield from (cls.name, "in-turn{n_sub=32}") if problem.cut_blocks else ("in-turn{n_sub=1}",)

    def construct(self, problem: Problem) -> Schedule:
        """The schedule.

        Raises:
            Unsupported: the placement is another one, backwards may not be split, a block takes no time, or a rank's memory limit
                does not hold one microbatch.
        """
        need_split(problem, self.name)
        grid = grid_for(problem, self.name, LINE)
        stages = [problem.stages[stage] for (stage,) in grid.stages]
        if min(min(stage.durations_ns(kind)) for stage in stages for kind in (Kind.F, Kind.B, Kind.W)) < 1:
            raise Unsupported("in-turn needs blocks that take time")
        ways = [_Way(problem, stage, self.n_sub) for (stage,) in grid.stages]
        hops = list(pairwise(ways))
        for microbatch in range(problem.microbatches):
            ready_ns = ways[0].place_forward(microbatch, 0)
            for before, here in hops:
                ready_ns = here.place_forward(microbatch, before.sent(Kind.F, here, ready_ns))
            ready_ns = ways[-1].reserve_backward(microbatch, ready_ns)
            for here, after in reversed(hops):
                ready_ns = here.reserve_backward(microbatch, after.sent(Kind.B, here, ready_ns))
        schedule = schedule_of(problem, grid, lambda at: ways[at].finished())
        cut = {op.stage for order in schedule.orders for op in order if op.part != WHOLE}
        ways.sort(key=lambda way: way.stage)
        return replace(schedule, parts=tuple(way.cut for way in ways if way.cut and way.stage in cut))


class _Way:
    """One rank: what it has settled, and the backwards reserved on it. All times are in ns."""

    def __init__(self, problem: Problem, stage: int, n_sub: int) -> None:
        self.problem, self.stage, self.rank = problem, stage, problem.stages[stage].rank
        costs, limit_bytes = problem.stages[stage], problem.memory_limit_bytes[self.rank]
        self.kept_bytes = costs.activation_after_input_bytes
        self.held_bytes = max(costs.activation_bytes, self.kept_bytes)
        self.room_bytes = inf if limit_bytes is None else limit_bytes - costs.recomputed_bytes
        """What is free of the limit when all before the clock has run."""
        most = min(n_sub, *costs.durations_ns(Kind.W)) if problem.cut_blocks else 1
        self.cut = Parts(kind=Kind.W, stage=stage, shares=(1,) * most) if most > 1 else None
        self.clock_ns = 0
        self.order: list[Op] = []
        self.reserved: list[tuple[int, int, int]] = []
        """Begin, end and microbatch of the backwards after the clock."""
        self.weights: deque[tuple[int, Op]] = deque()
        """Parts of W whose B has run, with what each takes."""
        self.links: dict[Kind, tuple[int, int]] = {}
        """What its messages meet: occupancy and latency."""
        self.link_free_ns = {Kind.F: 0, Kind.B: 0}

    def sent(self, kind: Kind, to: _Way, ready_ns: int) -> int:
        """When what the block sends at this moment arrives."""
        if kind not in self.links:
            link = self.problem.link(self.rank, to.rank)
            self.links[kind] = link.occupancy_ns(self.problem.message_bytes(Op(kind, self.stage, 0))), link.latency_ns
        occupancy_ns, latency_ns = self.links[kind]
        leaves_ns = self.link_free_ns[kind] = max(ready_ns, self.link_free_ns[kind]) + occupancy_ns
        return leaves_ns + latency_ns

    def place_forward(self, microbatch: int, ready_ns: int) -> int:
        """Run the F as soon as it is ready, there is room, and it ends before the next backward; returns its end."""
        takes_ns = self.problem.duration_ns(Kind.F, self.stage, microbatch)
        while True:
            begin_ns = max(self.clock_ns, ready_ns)
            next_ns = self.reserved[0][0] if self.reserved else None
            self._fill(begin_ns if next_ns is None else min(begin_ns, next_ns))
            fits = next_ns is None or begin_ns + takes_ns <= next_ns
            if fits and self.held_bytes <= self.room_bytes:
                break
            if next_ns is not None and not (fits and self.weights and self.clock_ns + self.weights[0][0] <= next_ns):
                self._fill(next_ns)
                self._next_backward()
            elif self.weights:
                self._weight()
            else:
                raise Unsupported(f"in-turn: the limit of rank {self.rank} does not hold one activation; raise it")
        self.order.append(Op(Kind.F, self.stage, microbatch))
        self.clock_ns = begin_ns + takes_ns
        self.room_bytes -= self.held_bytes
        return self.clock_ns

    def reserve_backward(self, microbatch: int, ready_ns: int) -> int:
        """Reserve the first time that is free for the B; returns its end."""
        takes_ns = self.problem.duration_ns(Kind.B, self.stage, microbatch)
        begin_ns = max(ready_ns, self.clock_ns)
        for taken_ns, end_ns, _ in self.reserved:
            if begin_ns + takes_ns <= taken_ns:
                break
            begin_ns = max(begin_ns, end_ns)
        insort(self.reserved, (begin_ns, begin_ns + takes_ns, microbatch))
        return begin_ns + takes_ns

    def finished(self) -> tuple[Op, ...]:
        """All its ops in order; a W whose parts are together is whole."""
        while self.reserved:
            self._fill(self.reserved[0][0])
            self._next_backward()
        while self.weights:
            self._weight()
        whole, size = list[Op](), len(self.cut.shares) if self.cut else 0
        for op in self.order:
            whole.append(op)
            # W run first in, first out, so these are of one microbatch.
            if op.part == size - 1 and [each.part for each in whole[-size:]] == list(range(size)):
                whole[-size:] = [op._replace(part=WHOLE)]
        return tuple(whole)

    def _fill(self, until_ns: int) -> None:
        """Run the parts of W that end by then."""
        while self.weights and self.clock_ns + self.weights[0][0] <= until_ns:
            self._weight()

    def _weight(self) -> None:
        takes_ns, op = self.weights.popleft()
        self.clock_ns += takes_ns
        self.order.append(op)
        if self.cut is None or op.part == len(self.cut.shares) - 1:
            self.room_bytes += self.kept_bytes

    def _next_backward(self) -> None:
        _, self.clock_ns, microbatch = self.reserved.pop(0)
        self.order.append(Op(Kind.B, self.stage, microbatch))
        self.room_bytes += self.held_bytes - self.kept_bytes
        whole_ns = self.problem.duration_ns(Kind.W, self.stage, microbatch)
        if self.cut is None:
            self.weights.append((whole_ns, Op(Kind.W, self.stage, microbatch)))
        else:
            parts_ns = self.cut.durations_ns(whole_ns)
            self.weights.extend((part_ns, Op(Kind.W, self.stage, microbatch, part)) for part, part_ns in enumerate(parts_ns))
