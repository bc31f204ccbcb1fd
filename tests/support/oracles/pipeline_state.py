"""The moment-by-moment state of a pipeline, for the brute force: what a problem asks for, what runs, what is on its way.

Shares no code with the product. Durations, of parts too, are at least 1 ns: all that ends at a moment is known when it comes.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.ir.ops import BLOCKS, WHOLE, Kind, Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Parts

FAR = 1 << 60
"""A time that never comes."""


class ProblemArrays:
    """Everything about a problem and its parts that does not change."""

    def __init__(self, problem: Problem, parts: Sequence[Parts]) -> None:
        self.problem = problem
        self.links = {(link.source, link.destination): link for link in problem.links}
        self.cut = {(each.kind, each.stage): each.shares for each in parts}
        self.visits = [(stage, microbatch) for microbatch in range(problem.microbatches) for stage in problem.path(microbatch)]
        self.on_rank = [[v for v in self.visits if problem.stages[v[0]].rank == rank] for rank in range(problem.ranks)]
        self.visitors = Counter(stage for stage, _ in self.visits)
        self.chain = {visit: self.chain_from(*visit) for visit in self.visits}
        self.twins = self.identical_before()
        self.before = self.same_path_before()
        self._neighbours: dict[tuple[int, int, int], int | None] = {}
        self._pieces: dict[tuple[Kind, int, int], list[int]] = {}
        for microbatch in range(problem.microbatches):
            for stage, after in pairwise((None, *problem.path(microbatch), None)):
                if stage is not None:
                    self._neighbours[stage, microbatch, 1] = after
                if after is not None:
                    self._neighbours[after, microbatch, -1] = stage
        self.least = {visit: self.least_work(*visit) for visit in self.visits}

    def pieces(self, kind: Kind, stage: int, microbatch: int) -> list[int]:
        """The durations of the parts that the block is cut into."""
        key = (kind, stage, microbatch)
        if key not in self._pieces:
            self._pieces[key] = self._cut(kind, stage, microbatch)
        return self._pieces[key]

    def _cut(self, kind: Kind, stage: int, microbatch: int) -> list[int]:
        block = self.problem.duration_ns(kind, stage, microbatch)
        shares = self.cut.get((kind, stage), (1,))
        edges = [block * sum(shares[:count]) // sum(shares) for count in range(len(shares) + 1)]
        found = [b - a for a, b in pairwise(edges)]
        if min(found) < 1:
            raise ValueError("durations must be at least 1 ns")
        return found

    def neighbour(self, stage: int, microbatch: int, step: int) -> int | None:
        return self._neighbours[stage, microbatch, step]

    def hop(self, op: Op) -> tuple[tuple[int, int] | str | None, int, int, int] | None:
        """The transfer that the op's block sends: (resource, occupancy, latency, receiving stage); resource None on one rank."""
        if op.kind == Kind.W:
            return None
        other = self.neighbour(op.stage, op.microbatch, 1 if op.kind == Kind.F else -1)
        if other is None:
            return None
        a, b = self.problem.stages[op.stage].rank, self.problem.stages[other].rank
        if a == b:
            return (None, 0, 0, other)
        link = self.links[a, b]
        size = (
            self.problem.stages[op.stage].message_bytes if op.kind == Kind.F else self.problem.stages[other].gradient_message_bytes
        )
        return ((a, b) if link.trunk is None else link.trunk, link.occupancy_ns(size), link.latency_ns, other)

    def shortest_backward(self, stage: int, microbatch: int) -> int:
        fused = self.problem.duration_ns(Kind.BW, stage, microbatch)
        return min(fused, self.problem.duration_ns(Kind.B, stage, microbatch)) if self.problem.split_backward else fused

    def least_work(self, stage: int, microbatch: int) -> int:
        fused = self.problem.duration_ns(Kind.BW, stage, microbatch)
        apart = self.problem.duration_ns(Kind.B, stage, microbatch) + self.problem.duration_ns(Kind.W, stage, microbatch)
        return min(fused, apart) if self.problem.split_backward else fused

    def chain_from(self, stage: int, microbatch: int) -> tuple[int, int]:
        """Without waiting, from the start of F, and from the start of the backward, to the end of the last gradient."""
        path = self.problem.path(microbatch)
        at = path.index(stage)
        back = sum(self.shortest_backward(s, microbatch) for s in path[: at + 1])
        there = sum(
            self.problem.duration_ns(Kind.F, s, microbatch) + (self.shortest_backward(s, microbatch) if s != stage else 0)
            for s in path[at:]
        )
        return there + back, back

    def same_path_before(self) -> dict[int, int]:
        """Per microbatch, the one before it on the same path."""
        path_of = self.problem.path_of
        return {b: a for b in range(len(path_of)) for a in range(b) if path_of[a] == path_of[b]}

    def identical_before(self) -> dict[int, int]:
        """Per microbatch, the one before it that costs the same everywhere on the same path."""
        kinds = [
            (self.problem.path_of[m], tuple(self.problem.duration_ns(kind, s, m) for s in self.problem.path(m) for kind in BLOCKS))
            for m in range(self.problem.microbatches)
        ]
        return {b: a for b in range(len(kinds)) for a in range(b) if kinds[a] == kinds[b]}


class State:
    """A moment: what runs, what has been done, what is on its way."""

    __slots__ = (
        "begun",
        "collectives_end",
        "complete",
        "declined",
        "ended",
        "free",
        "gathered",
        "held",
        "input_at",
        "now",
        "parts_done",
        "running",
        "weights_left",
        "work",
    )

    def __init__(self, facts: ProblemArrays, gathers: Sequence[int]) -> None:
        """Before anything has run; `gathers` has the stages in the order of their all-gathers, rank after rank."""
        problem = facts.problem
        self.now = 0
        self.running: list[tuple[int, Op] | None] = [None] * problem.ranks
        self.declined: list[frozenset[Op]] = [frozenset()] * problem.ranks
        self.begun: list[int | None] = [None] * problem.ranks
        self.ended = [0] * problem.ranks
        self.held = [0] * problem.ranks
        self.free: dict[tuple[int, int] | str, int] = {}
        self.collectives_end = 0
        self.input_at: dict[tuple[bool, int, int], int] = {}
        """(backward, stage, microbatch) to when its input is there; absent: not sent yet."""
        self.parts_done: dict[tuple[Kind, int, int], int] = {}
        self.complete: frozenset[tuple[Kind, int, int]] = frozenset()
        self.work = [sum(problem.duration_ns(Kind.F, *v) + facts.least[v] for v in mine) for mine in facts.on_rank]
        self.weights_left = dict(facts.visitors)
        self.gathered = dict.fromkeys(facts.visitors, 0)
        parallel = problem.data_parallel
        if parallel is not None and parallel.all_gather_ns:
            for stage in gathers:
                self.gathered[stage] = self.collective(facts, stage, parallel.all_gather_ns[stage])
        for microbatch in range(problem.microbatches):
            stage = problem.path(microbatch)[0]
            self.input_at[False, stage, microbatch] = self.gathered[stage]

    def collective(self, facts: ProblemArrays, stage: int, duration: int) -> int:
        parallel = facts.problem.data_parallel
        assert parallel is not None
        rank = facts.problem.stages[stage].rank
        resource = (rank, rank) if parallel.trunk is None else parallel.trunk
        self.free[resource] = max(self.now, self.free.get(resource, 0)) + duration
        self.collectives_end = max(self.collectives_end, self.free[resource])
        return self.free[resource]

    def copy(self) -> State:
        other = State.__new__(State)  # attribute by attribute: a search spends most of its time here
        other.now = self.now
        other.running = self.running.copy()
        other.declined = self.declined.copy()
        other.begun = self.begun.copy()
        other.ended = self.ended.copy()
        other.held = self.held.copy()
        other.free = self.free.copy()
        other.collectives_end = self.collectives_end
        other.input_at = self.input_at.copy()
        other.parts_done = self.parts_done.copy()
        other.complete = self.complete
        other.work = self.work.copy()
        other.weights_left = self.weights_left.copy()
        other.gathered = self.gathered
        return other

    def is_there(self, backward: bool, visit: tuple[int, int]) -> bool:
        """Whether the input of a block has arrived."""
        return self.input_at.get((backward, *visit), FAR) <= self.now

    def may_come(self, facts: ProblemArrays, rank: int) -> bool:
        """Whether the rank has a block whose input is still to come, so that waiting can make sense."""
        for visit in facts.on_rank[rank]:
            if not self.is_there(False, visit):
                return True
            if (Kind.F, *visit) in self.complete and facts.neighbour(*visit, 1) is not None and not self.is_there(True, visit):
                return True
        return False

    def candidates(self, facts: ProblemArrays, rank: int) -> Iterator[Op]:
        """The ops, or next parts, that the rank could start now."""
        problem = facts.problem
        for visit in facts.on_rank[rank]:
            stage, microbatch = visit
            if (Kind.F, *visit) not in self.complete:
                limit = problem.memory_limit_bytes[rank]
                fits = limit is None or self.held[rank] + problem.stages[stage].activation_bytes <= limit
                if self.is_there(False, visit) and (fits or self.parts_done.get((Kind.F, *visit), 0)):
                    yield self.next_op(facts, Kind.F, visit)
                continue
            if (Kind.BW, *visit) in self.complete:
                continue
            if (Kind.B, *visit) in self.complete:
                if (Kind.W, *visit) not in self.complete:
                    yield self.next_op(facts, Kind.W, visit)
                continue
            if facts.neighbour(stage, microbatch, 1) is None or self.is_there(True, visit):
                limit = problem.memory_limit_bytes[rank]
                if limit is not None and self.held[rank] + problem.stages[stage].recomputed_bytes > limit:
                    continue
                b_begun, bw_begun = ((kind, *visit) in self.parts_done for kind in (Kind.B, Kind.BW))
                if problem.split_backward and not bw_begun:
                    yield self.next_op(facts, Kind.B, visit)
                if not b_begun:
                    yield self.next_op(facts, Kind.BW, visit)

    def next_op(self, facts: ProblemArrays, kind: Kind, visit: tuple[int, int]) -> Op:
        part = self.parts_done.get((kind, *visit), 0) if (kind, visit[0]) in facts.cut else WHOLE
        return Op(kind, *visit, part)

    def start(self, facts: ProblemArrays, rank: int, op: Op) -> None:
        pieces = facts.pieces(op.kind, op.stage, op.microbatch)
        duration = sum(pieces) if op.part == WHOLE else pieces[op.part]
        if self.begun[rank] is None:
            self.begun[rank] = self.now
        if op.kind != Kind.W and op.part <= 0:
            costs = facts.problem.stages[op.stage]
            self.held[rank] += costs.activation_bytes if op.kind == Kind.F else costs.recomputed_bytes
        self.running[rank] = (self.now + duration, op)
        self.declined[rank] = frozenset()
        self.work[rank] -= duration
        if op.kind in (Kind.B, Kind.BW) and op.part <= 0:  # what the choice of fused or split costs
            chosen = sum(sum(facts.pieces(k, *op[1:3])) for k in ((Kind.BW,) if op.kind == Kind.BW else (Kind.B, Kind.W)))
            self.work[rank] += chosen - facts.least[op.stage, op.microbatch]

    def end_ops(self, facts: ProblemArrays) -> None:
        """End every op that is due, and send what they send in the links' order."""
        sends = []
        for rank, busy in enumerate(self.running):
            if busy is None or busy[0] > self.now:
                continue
            op = busy[1]
            self.running[rank] = None
            self.ended[rank] = self.now
            block = (op.kind, op.stage, op.microbatch)
            count = len(facts.pieces(*block))
            self.parts_done[block] = count if op.part == WHOLE else op.part + 1
            if self.parts_done[block] < count:
                continue
            del self.parts_done[block]
            self.complete |= {block}
            stage = facts.problem.stages[op.stage]
            after = stage.activation_after_input_bytes
            whole = stage.activation_bytes + stage.recomputed_bytes
            released = {Kind.F: 0, Kind.B: whole - after, Kind.W: after, Kind.BW: whole}
            self.held[rank] -= released[op.kind]
            sends.append((rank, op.stage, op.microbatch, op))
        for _, _, microbatch, op in sorted(sends):
            hop = facts.hop(op)
            if hop is not None:
                resource, occupancy, latency, other = hop
                arrival = self.now
                if resource is not None:
                    self.free[resource] = max(self.now, self.free.get(resource, 0)) + occupancy
                    arrival = self.free[resource] + latency
                if op.kind == Kind.F:
                    arrival = max(arrival, self.gathered[other])
                self.input_at[op.kind != Kind.F, other, microbatch] = arrival
            if op.kind in (Kind.W, Kind.BW):
                self.weights_left[op.stage] -= 1
                if self.weights_left[op.stage] == 0 and facts.problem.data_parallel is not None:
                    self.collective(facts, op.stage, facts.problem.data_parallel.reduce_scatter_ns[op.stage])

    def next_moment(self) -> int | None:
        times = [busy[0] for busy in self.running if busy is not None]
        times += [at for at in self.input_at.values() if at > self.now]
        return min(times, default=None)

    def spans(self) -> list[int]:
        return [end - (begun or 0) for begun, end in zip(self.begun, self.ended, strict=True)]
