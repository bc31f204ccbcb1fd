"""The moment-by-moment state of a pipeline, for the brute force: what a problem asks for, what runs, what is on its way.

Of chains, graphs and slices. Shares no code with the product. Durations, of parts too, are at least 1 ns: all that ends at a moment
is known when it comes.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from math import ceil
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
        self.inputs: dict[tuple[bool, int, int], list[tuple[int, int]]] = {
            (way, *v): [] for way in (False, True) for v in self.visits
        }
        """(backward, stage, microbatch) to the stages that it takes from, each with the bytes of what comes."""
        self.sends: dict[tuple[bool, int, int], list[tuple[list[int], int]]] = {key: [] for key in self.inputs}
        """What F, or the backward, sends: to which stages of one rank, and the bytes of it; in the order in which it does."""
        for microbatch, path in enumerate(problem.path_of):
            sent: dict[tuple[int, int, int], list[int]] = {}
            for source, destination, size, gradient, value in self.edges(path):
                here, share = problem.stages[destination].rank, self.share(size, microbatch)
                self.inputs[False, destination, microbatch].append((source, share))
                taken_by = sent.setdefault((source, value, here), [])
                taken_by.append(destination)
                if len(taken_by) == 1:
                    self.sends[False, source, microbatch].append((taken_by, share))
                if gradient is not None:
                    back = self.share(gradient, microbatch)
                    self.inputs[True, source, microbatch].append((destination, back))
                    self.sends[True, destination, microbatch].append(([source], back))
        self._longest: dict[tuple[bool, int, int], int] = {}
        self.chain = {visit: self.chain_from(*visit) for visit in self.visits}
        self.twins = self.identical_before()
        self.before = self.same_path_before()
        self.sources = {visit[0] for visit in self.visits if not self.inputs[False, *visit]}
        self._pieces: dict[tuple[Kind, int, int], list[int]] = {}
        self.least = {visit: self.least_work(*visit) for visit in self.visits}

    def edges(self, path: int) -> list[tuple[int, int, int, int | None, int]]:
        """What the stages of a path take: from, to, bytes of the message and of the gradient (None: none), which value it is."""
        stages = self.problem.stages
        if self.problem.edges:
            each = self.problem.edges
            return [(e.source, e.destination, e.message_bytes, e.gradient_message_bytes, e.value) for e in each]
        return [(a, b, stages[a].message_bytes, stages[a].gradient_message_bytes, 0) for a, b in pairwise(self.problem.paths[path])]

    def share(self, size: int, microbatch: int) -> int:
        """What of the size of a whole microbatch this slice of one has."""
        lengths = self.problem.slices
        return ceil(Fraction(size * lengths[microbatch % len(lengths)], sum(lengths))) if lengths else size

    def other_slice(self, microbatch: int, step: int) -> int | None:
        """The slice of the same microbatch that is so many behind this one, if there is one."""
        count = len(self.problem.slices) or 1
        return microbatch + step if 0 <= microbatch % count + step < count else None

    def takes(self, kind: Kind, stage: int, microbatch: int) -> int:
        """What the block takes of its rank's memory when it starts."""
        costs = self.problem.stages[stage]
        if kind == Kind.W:
            return 0
        if kind == Kind.F:
            return self.share(costs.activation_bytes, microbatch)
        taken = self.share(costs.recomputed_bytes, microbatch)
        if self.other_slice(microbatch, 1) is None:
            for step in range(1, len(self.problem.slices)):
                taken += self.share(costs.state_gradient_bytes, microbatch - step)
        return taken

    def gives(self, kind: Kind, stage: int, microbatch: int) -> int:
        """What the block gives back when it ends."""
        costs = self.problem.stages[stage]
        after = self.share(costs.activation_after_input_bytes, microbatch)
        whole = self.share(costs.activation_bytes, microbatch) + self.share(costs.recomputed_bytes, microbatch)
        if self.other_slice(microbatch, 1) is not None:
            whole += self.share(costs.state_gradient_bytes, microbatch)
        return {Kind.F: 0, Kind.B: whole - after, Kind.W: after, Kind.BW: whole}[kind]

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

    def hops(self, op: Op) -> list[tuple[tuple[int, int] | str | None, int, int, list[int]]]:
        """The transfers that the op's block sends: (resource, occupancy, latency, receiving stages); resource None on one rank."""
        if op.kind == Kind.W:
            return []
        found: list[tuple[tuple[int, int] | str | None, int, int, list[int]]] = []
        a = self.problem.stages[op.stage].rank
        for receivers, size in self.sends[op.kind != Kind.F, op.stage, op.microbatch]:
            b = self.problem.stages[receivers[0]].rank
            if a == b:
                found.append((None, 0, 0, receivers))
            else:
                link = self.links[a, b]
                name = (a, b) if link.trunk is None else link.trunk
                found.append((name, link.occupancy_ns(size), link.latency_ns, receivers))
        return found

    def shortest_backward(self, stage: int, microbatch: int) -> int:
        fused = self.problem.duration_ns(Kind.BW, stage, microbatch)
        return min(fused, self.problem.duration_ns(Kind.B, stage, microbatch)) if self.problem.split_backward else fused

    def least_work(self, stage: int, microbatch: int) -> int:
        fused = self.problem.duration_ns(Kind.BW, stage, microbatch)
        apart = self.problem.duration_ns(Kind.B, stage, microbatch) + self.problem.duration_ns(Kind.W, stage, microbatch)
        return min(fused, apart) if self.problem.split_backward else fused

    def chain_from(self, stage: int, microbatch: int) -> tuple[int, int]:
        """Without waiting, from the start of F, and from the start of the backward, to the end of the last gradient."""
        return self.longest(False, stage, microbatch), self.longest(True, stage, microbatch)

    def longest(self, backward: bool, stage: int, microbatch: int) -> int:
        """Likewise, along the edges."""
        key = (backward, stage, microbatch)
        if key not in self._longest:
            further = [self.longest(backward, to, microbatch) for receivers, _ in self.sends[key] for to in receivers]
            if backward:
                own = self.shortest_backward(stage, microbatch)
            else:
                own = self.problem.duration_ns(Kind.F, stage, microbatch)
                further.append(self.longest(True, stage, microbatch))
            self._longest[key] = own + max(further, default=0)
        return self._longest[key]

    def same_path_before(self) -> dict[int, int]:
        """Per microbatch, the one before it on the same path."""
        path_of = self.problem.path_of
        return {b: a for b in range(len(path_of)) for a in range(b) if path_of[a] == path_of[b]}

    def identical_before(self) -> dict[int, int]:
        """Per microbatch, the one before it that costs the same everywhere on the same path; of one in slices, of its first."""
        kinds = [
            (self.problem.path_of[m], tuple(self.problem.duration_ns(kind, s, m) for s in self.problem.path(m) for kind in BLOCKS))
            for m in range(self.problem.microbatches)
        ]
        count = len(self.problem.slices) or 1
        whole = {m: kinds[m : m + count] for m in range(0, len(kinds), count)}
        return {b: a for b in whole for a in whole if a < b and whole[a] == whole[b]}


class State:
    """A moment: what runs, what has been done, what is on its way."""

    __slots__ = (
        "arrived",
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
        """(backward, stage, microbatch) to when all its inputs are there; absent: one is not sent yet."""
        self.arrived: dict[tuple[bool, int, int], tuple[tuple[int, int], ...]] = {}
        """The same, of blocks with several inputs that have not begun: when each input that was sent arrives, and its bytes."""
        self.parts_done: dict[tuple[Kind, int, int], int] = {}
        self.complete: frozenset[tuple[Kind, int, int]] = frozenset()
        self.work = [sum(problem.duration_ns(Kind.F, *v) + facts.least[v] for v in mine) for mine in facts.on_rank]
        self.weights_left = dict(facts.visitors)
        self.gathered = dict.fromkeys(facts.visitors, 0)
        parallel = problem.data_parallel
        if parallel is not None and parallel.all_gather_ns:
            for stage in gathers:
                self.gathered[stage] = self.collective(facts, stage, parallel.all_gather_ns[stage])
        for stage, microbatch in facts.visits:
            if not facts.inputs[False, stage, microbatch]:
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
        other.arrived = self.arrived.copy()
        other.parts_done = self.parts_done.copy()
        other.complete = self.complete
        other.work = self.work.copy()
        other.weights_left = self.weights_left.copy()
        other.gathered = self.gathered
        return other

    def is_there(self, backward: bool, visit: tuple[int, int]) -> bool:
        """Whether the inputs of a block have arrived."""
        return self.input_at.get((backward, *visit), FAR) <= self.now

    def in_turn(self, facts: ProblemArrays, backward: bool, visit: tuple[int, int]) -> bool:
        """Whether the block's slice is the next of its microbatch on this stage."""
        other = facts.other_slice(visit[1], 1 if backward else -1)
        if other is None:
            return True
        return any((kind, visit[0], other) in self.complete for kind in ((Kind.B, Kind.BW) if backward else (Kind.F,)))

    def bytes_on(self, facts: ProblemArrays) -> list[int]:
        """Per rank, what it holds now, with values that wait for others."""
        held = self.held.copy()
        for (_, stage, _), inputs in self.arrived.items():
            held[facts.problem.stages[stage].rank] += sum(size for at, size in inputs if at <= self.now)
        return held

    def fits(self, facts: ProblemArrays) -> bool:
        """Whether no rank holds more than its limit, now that everything that starts at this moment has."""
        limits = facts.problem.memory_limit_bytes
        return not self.arrived or all(
            limit is None or held <= limit for held, limit in zip(self.bytes_on(facts), limits, strict=True)
        )

    def may_come(self, facts: ProblemArrays, rank: int) -> bool:
        """Whether the rank has a block whose input is still to come, so that waiting can make sense."""
        for visit in facts.on_rank[rank]:
            if not self.is_there(False, visit):
                return True
            if (Kind.F, *visit) in self.complete and facts.inputs[True, *visit] and not self.is_there(True, visit):
                return True
        return False

    def candidates(self, facts: ProblemArrays, rank: int) -> Iterator[Op]:
        """The ops, or next parts, that the rank could start now."""
        problem = facts.problem
        for visit in facts.on_rank[rank]:
            if (Kind.F, *visit) not in self.complete:
                limit = problem.memory_limit_bytes[rank]
                fits = limit is None or self.held[rank] + facts.takes(Kind.F, *visit) <= limit
                able = self.is_there(False, visit) and self.in_turn(facts, False, visit)
                if able and (fits or self.parts_done.get((Kind.F, *visit), 0)):
                    yield self.next_op(facts, Kind.F, visit)
                continue
            if (Kind.BW, *visit) in self.complete:
                continue
            if (Kind.B, *visit) in self.complete:
                if (Kind.W, *visit) not in self.complete:
                    yield self.next_op(facts, Kind.W, visit)
                continue
            if (not facts.inputs[True, *visit] or self.is_there(True, visit)) and self.in_turn(facts, True, visit):
                limit = problem.memory_limit_bytes[rank]
                b_begun, bw_begun = ((kind, *visit) in self.parts_done for kind in (Kind.B, Kind.BW))
                more = 0 if b_begun or bw_begun else facts.takes(Kind.BW, *visit)
                if limit is not None and self.held[rank] + more > limit:
                    continue
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
        if op.part <= 0:
            self.held[rank] += facts.takes(op.kind, op.stage, op.microbatch)
            if op.kind != Kind.W:
                self.arrived.pop((op.kind != Kind.F, op.stage, op.microbatch), None)
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
            self.held[rank] -= facts.gives(*block)
            sends.append((rank, op.stage, op.microbatch, op))
        for _, _, microbatch, op in sorted(sends):
            for resource, occupancy, latency, receivers in facts.hops(op):
                arrival = self.now
                if resource is not None:
                    self.free[resource] = max(self.now, self.free.get(resource, 0)) + occupancy
                    arrival = self.free[resource] + latency
                for other in receivers:
                    self.receive(facts, (op.kind != Kind.F, other, microbatch), op.stage, arrival)
            if op.kind in (Kind.W, Kind.BW):
                self.weights_left[op.stage] -= 1
                if self.weights_left[op.stage] == 0 and facts.problem.data_parallel is not None:
                    self.collective(facts, op.stage, facts.problem.data_parallel.reduce_scatter_ns[op.stage])

    def receive(self, facts: ProblemArrays, key: tuple[bool, int, int], sender: int, arrival: int) -> None:
        """An input of a block arrives then."""
        inputs = facts.inputs[key]
        if len(inputs) > 1:
            size = next(size for stage, size in inputs if stage == sender)
            found = self.arrived[key] = (*self.arrived.get(key, ()), (arrival, size))
            if len(found) < len(inputs):
                return
            arrival = max(at for at, _ in found)
        self.input_at[key] = arrival if key[0] else max(arrival, self.gathered[key[1]])

    def next_moment(self) -> int | None:
        times = [busy[0] for busy in self.running if busy is not None]
        times += [at for at in self.input_at.values() if at > self.now]
        times += [at for inputs in self.arrived.values() for at, _ in inputs if at > self.now]
        return min(times, default=None)

    def spans(self) -> list[int]:
        return [end - (begun or 0) for begun, end in zip(self.begun, self.ended, strict=True)]
