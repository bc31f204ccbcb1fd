"""ZB-V's heuristic for any costs: a backward and a forward on each rank in turn, and W where a rank would wait.

A Problem with two chunks on each rank as a V goes in, a Schedule comes out. It follows Qi et al. (2023, section 6) and their
program: a W runs where it fits before what a rank waits for, where memory needs it, and where the rank would wait longer than the
worst of the ranks has waited so far. The last rule holds before F, before the second chunk's B, or before both, and
each form is run again with what ranks waited before. Times are those of each stage and link here, not one for all.

Where BW takes less time than B and W, it pays in the middle of a step: no gradient is urgent there, and the same order
still fits the memory. The first and last backwards stay split, in shares of the ranks.

A microbatch passes each rank four times: 0 is F of its first chunk, from the first rank to the last; 1 is F of the second, back to
the first rank; 2 is B of the second chunk, 3 that of the first.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import product
from math import inf
from typing import TYPE_CHECKING, Literal

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir import Kind, Op, Problem, Schedule
from schedc.solvers.common.method import Constructive, fusing_saves_time
from schedc.solvers.heuristics.greedy_rule import interpolated
from schedc.solvers.templates.shape import WAVE_OF_TWO, grid_for, need_split, schedule_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.solvers.templates.shape import Grid

SPLIT_ENDS = (
    (((0.0, 0.0), (0.0, 1.4)), ((2.0, 1.1), (0.9, 0.2))),
    (((0.0, 0.0), (0.0, 1.0)), ((2.0, 1.0), (1.0, 1.0))),
    (((0.0, 0.0), (0.0, 1.5)), ((2.0, 1.25), (1.0, 2.0))),
)
"""How many of a stage's backwards stay split, in shares of the number of ranks: of its first ones and of its last; each of the
first chunk and of the second; of either the first stage on a path and the last, the others in proportion. Searched for on Zero
Bubble's models of 8 and 16 ranks with BW = 0.9 (B + W)."""
NO_SCHEDULE = "zb-v-filled ends without a schedule: a rank has no room, or waits for what does not come; use greedy"


class ZBVFilled(Constructive, frozen=True):
    """ZB-V's heuristic: the shortest of what its forms make."""

    name, place = "zb-v-filled", 115
    fused: Literal["none", "steady"] = "none"
    """Which backwards are fused: none, or all but the first and last of each stage, the best of `SPLIT_ENDS`."""

    @classmethod
    def candidates(cls, problem: Problem) -> Iterator[str]:
        """Where the shape is a V."""
        with suppress(Unsupported):
            need_split(problem, cls.name)
            grid_for(problem, cls.name, WAVE_OF_TWO)
            yield cls.name
            if fusing_saves_time(problem):
                yield f"{cls.name}{{fused=steady}}"

    def construct(self, problem: Problem) -> Schedule:
        """The schedule.

        Raises:
            Unsupported: the placement is not a wave of 2 chunks, B and W cannot run apart, or the heuristic finds no schedule.
        """
        need_split(problem, self.name)
        grid = grid_for(problem, self.name, WAVE_OF_TWO)
        found: list[_Filling] = []
        for fills in product((True, False), (True, False)):
            with suppress(Unsupported):
                found.append(_filled(problem, grid, fills))
                while found[-1].worst_ns < max(found[-1].approved_ns, default=inf):
                    found.append(_filled(problem, grid, fills, found[-1].waited_ns))
        if not found:
            raise Unsupported(NO_SCHEDULE)
        best = min(found, key=lambda each: max(each.clock_ns))
        schedule = schedule_of(problem, grid, best.orders.__getitem__)
        if self.fused == "none":
            return schedule
        mixtures = [_fused(problem, grid, schedule, split) for split in SPLIT_ENDS]
        return min(mixtures, key=lambda each: simulate(problem, each).objective_ns(problem.objective))


def _fused(problem: Problem, grid: Grid, schedule: Schedule, split: Sequence[Sequence[tuple[float, float]]]) -> Schedule:
    """Each B in the middle, with its W, as BW in its place."""
    steady: dict[int, range] = {}
    for (at, stages), chunk in product(enumerate(grid.stages), (0, 1)):
        share = at / max(1, grid.positions - 1)
        first, last = (interpolated(ends[chunk], 1 - share if chunk else share, grid.positions) for ends in split)
        steady[stages[chunk]] = range(first, problem.microbatches - last)

    def mixed(order: Sequence[Op]) -> tuple[Op, ...]:
        kept = (op for op in order if op.kind is not Kind.W or op.microbatch not in steady[op.stage])
        return tuple(op._replace(kind=Kind.BW) if op.kind is Kind.B and op.microbatch in steady[op.stage] else op for op in kept)

    return Schedule(orders=tuple(map(mixed, schedule.orders)))


class _Filling:
    """What has run at each position of the pipeline. All times are in ns."""

    def __init__(self, problem: Problem, grid: Grid, fills: tuple[bool, bool], approved_ns: Sequence[int]) -> None:
        p = grid.positions
        self.problem, self.grid, self.approved_ns, self.last = problem, grid, approved_ns, p - 1
        self.fill_second_backward, self.fill_forward = fills
        self.ends_ns: list[list[list[int]]] = [[[] for _ in range(p)] for _ in range(4)]
        self.clock_ns, self.waited_ns = [0] * p, [0] * p
        limits = [problem.memory_limit_bytes[rank] for rank in grid.ranks]
        again_bytes = [max(problem.stages[stage].recomputed_bytes for stage in stages) for stages in grid.stages]
        self.room_bytes = [inf if most is None else most - again for most, again in zip(limits, again_bytes, strict=True)]
        """What is free of the limit beside the activations that a backward computes again."""
        self.pending: list[deque[Op]] = [deque() for _ in range(p)]
        self.orders: list[list[Op]] = [[] for _ in range(p)]
        self.ways_ns: dict[tuple[int, int], int] = {}

    @property
    def worst_ns(self) -> int:
        """The longest that a rank waits after its first F."""
        return max(self.waited_ns)

    def count(self, which: int, at: int) -> int:
        """How many microbatches have passed."""
        return len(self.ends_ns[which][at])

    def stage(self, which: int, at: int) -> int:
        """The stage that a pass runs here."""
        return self.grid.stages[at][which in (1, 2)]

    def before(self, which: int, at: int) -> int | None:
        """The position before on this pass; None: it begins here."""
        other = at - 1 if which % 2 == 0 else at + 1
        return other if 0 <= other <= self.last else None

    def way_ns(self, which: int, at: int) -> int:
        """What a message of the pass takes to come here."""
        other = self.before(which, at)
        if other is None:
            return 0
        if (which, at) not in self.ways_ns:
            link = self.problem.link(self.grid.ranks[other], self.grid.ranks[at])
            op = Op(Kind.F if which < 2 else Kind.B, self.stage(which, other), 0)
            self.ways_ns[which, at] = link.latency_ns + link.occupancy_ns(self.problem.message_bytes(op))
        return self.ways_ns[which, at]

    def arrival_ns(self, which: int, at: int) -> int | None:
        """When the pass's next microbatch comes from the position before; None: it does not, or not yet."""
        other, number = self.before(which, at), self.count(which, at)
        if other is None or self.count(which, other) <= number:
            return None
        return self.ends_ns[which][other][number] + self.way_ns(which, at)

    def put(self, which: int, at: int) -> None:
        """Run the pass's next microbatch."""
        number, comes_ns = self.count(which, at), self.arrival_ns(which, at)
        missing = comes_ns is None and self.before(which, at) is not None
        if number >= self.problem.microbatches or missing or (which and self.count(which - 1, at) <= number):
            raise Unsupported(NO_SCHEDULE)
        begin_ns = max(self.clock_ns[at], comes_ns or 0, self.ends_ns[which - 1][at][number] if which else 0)
        if self.count(0, at):
            self.waited_ns[at] += begin_ns - self.clock_ns[at]
        self.clock_ns[at] = begin_ns
        self._run(Op(Kind.F if which < 2 else Kind.B, self.stage(which, at), number), at)
        self.ends_ns[which][at].append(self.clock_ns[at])
        if which > 1:
            self.pending[at].append(Op(Kind.W, self.stage(which, at), number))

    def put_weight(self, at: int) -> None:
        """Run the oldest W."""
        if not self.pending[at]:
            raise Unsupported(NO_SCHEDULE)
        self._run(self.pending[at].popleft(), at)

    def put_filling(self, which: int, at: int) -> None:
        """Run the pass's next microbatch, W before it while they fit or there is no room, and one more where it waits long."""
        while self.pending[at] and self.room_bytes[at] < self._taken_bytes(Kind.F if which < 2 else Kind.B, self.stage(which, at)):
            self.put_weight(at)
        comes_ns = self.arrival_ns(which, at)
        while self.pending[at] and comes_ns is not None and comes_ns >= self.clock_ns[at] + self._duration_ns(self.pending[at][0]):
            self.put_weight(at)
        wait_ns = (self.way_ns(which, at) if comes_ns is None else comes_ns) - self.clock_ns[at]
        most_ns = max(self.worst_ns, max(self.approved_ns) - self.approved_ns[at] if self.approved_ns else 0)
        fills = which == 3 or (self.fill_second_backward if which == 2 else self.fill_forward)
        if fills and self.pending[at] and wait_ns > most_ns - self.waited_ns[at]:
            self.put_weight(at)
        self.put(which, at)

    def _taken_bytes(self, kind: Kind, stage: int) -> int:
        costs = self.problem.stages[stage]
        return costs.activation_bytes if kind is Kind.F else -(costs.activation_bytes - costs.activation_after_input_bytes)

    def _duration_ns(self, op: Op) -> int:
        return self.problem.duration_ns(op.kind, op.stage, op.microbatch)

    def _run(self, op: Op, at: int) -> None:
        kept_bytes = self.problem.stages[op.stage].activation_after_input_bytes
        self.room_bytes[at] += kept_bytes if op.kind is Kind.W else -self._taken_bytes(op.kind, op.stage)
        if self.room_bytes[at] < 0:
            raise Unsupported(NO_SCHEDULE)
        self.clock_ns[at] += self._duration_ns(op)
        self.orders[at].append(op)


def _filled(problem: Problem, grid: Grid, fills: tuple[bool, bool], approved_ns: Sequence[int] = ()) -> _Filling:
    """One run of the heuristic: the warm-up, then a backward and a forward on each rank until all have run.

    Raises:
        Unsupported: it ends without a schedule.
    """
    state = _Filling(problem, grid, fills, approved_ns)
    n, positions = problem.microbatches, range(grid.positions)
    for at in positions:
        state.put(0, at)
    for at in reversed(positions):
        if at < state.last:
            comes_ns = state.arrival_ns(1, at) or 0
            first_ns = problem.duration_ns(Kind.F, state.stage(0, at), 0)
            most_bytes = (2 + 2 * at) * problem.stages[state.stage(0, at)].activation_bytes
            while most_bytes <= state.room_bytes[at] and state.clock_ns[at] + first_ns <= comes_ns and state.count(0, at) < n:
                for other in range(at + 1):
                    state.put(0, other)
        state.put(1, at)
    which = 0
    for at in positions[1:]:
        while sum(state.count(each, at) - state.count(each, at - 1) for each in (0, 1)) < 0 or (
            state.count(1, at) <= state.count(1, at - 1) < n
        ):
            for other in reversed(positions[at:]):
                if state.count(which, other) < n:
                    state.put(which, other)
            which = 1 - which
    for _ in range(2 * n):
        _backwards_and_forwards(state, n)
    for at in positions:
        while state.pending[at]:
            state.put_weight(at)
    return state


def _backwards_and_forwards(state: _Filling, n: int) -> None:
    """One backward on each rank, those of the first chunk first, then one forward where there is one."""
    positions = range(state.last + 1)
    first_chunk = [
        at
        for at in positions
        if state.count(3, at) < state.count(2, at)
        and (at == state.last or state.arrival_ns(3, at) is not None or state.count(2, at) >= n)
    ]
    for at in reversed(first_chunk):
        state.put_filling(3, at)
    for at in positions:
        if at not in first_chunk:
            state.put_filling(2, at)
    for at in positions:
        down, up = state.count(0, at), state.count(1, at)
        if up < down and (at == state.last or state.arrival_ns(1, at) is not None):
            state.put_filling(1, at)
        elif down < n and (up >= down or at == 0 or state.arrival_ns(0, at) is not None):
            state.put_filling(0, at)
