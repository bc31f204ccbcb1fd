"""A timetable modulo the period: when ranks, links and trunks are busy, and where ops find a place (Rau, 1994).

A Problem whose steps overlap and a period go in; when each op of step 0 starts comes out, or that something found no place.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from schedc.ir import Kind, Op, Problem, Resource
from schedc.models.modulo_orders import needs_of


@dataclass(slots=True)
class ModuloLane:
    """A rank, link or trunk modulo the period: when it is busy, and how much idle time may be left in pieces too small for use."""

    period_ns: int
    shortest_ns: int
    """Of what it has to serve; an idle piece below that is lost. 0: all idle time but the longest piece is."""
    spare_ns: int
    """Idle time that may still be lost."""
    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    idle_ns: int = field(init=False)

    def __post_init__(self) -> None:
        """All of it is idle."""
        self.idle_ns = self.period_ns

    def place(self, moment_ns: int, length_ns: int, *, late: bool) -> int | None:
        """Reserve the first time from the moment on, or the last that ends by then; when it starts. None: there is no room."""
        period_ns, begins, ends = self.period_ns, self.begins, self.ends
        wanted = moment_ns - length_ns if late else moment_ns
        if not self.shortest_ns:
            longest = heapq.nlargest(2, [following - end for end, following in map(self._gap, range(len(begins) or 1))])
            longest.append(0)
        count = len(begins) or 1
        # The gap where it is wanted, or next to that.
        turn = (bisect_right if late else bisect_left)(begins, wanted % period_ns) - 1
        ways: list[tuple[int, int, int]] = []
        for step in range(count + 1):  # gap after gap, away from where it is wanted; the first one's other side is the last
            at = (turn - step if late else turn + step) % count
            end, following = self._gap(at)
            slack_ns = following - end - length_ns
            if slack_ns >= 0:
                offsets = {0, slack_ns}  # at the edges of the gap, or where it is wanted
                if (wanted - end) % period_ns <= slack_ns:
                    offsets.add((wanted - end) % period_ns)
                for offset in offsets:
                    start = wanted - (wanted - end - offset) % period_ns if late else wanted + (end + offset - wanted) % period_ns
                    if self.shortest_ns:
                        lost = self._lost(offset) + self._lost(slack_ns - offset) - self._lost(following - end)
                    else:
                        other = longest[1] if following - end == longest[0] else longest[0]
                        lost = self.idle_ns - length_ns - max(other, offset, slack_ns - offset)
                    if lost <= self.spare_ns:
                        ways.append((abs(start - wanted), start, lost))
            if not step and late and (wanted - end) % period_ns > following - end:
                continue  # it is busy where it is wanted, and this gap is behind that
            # What gaps to come have is at least as far away as the far edge of this one.
            if ways and min(ways)[0] < ((wanted - end) if late else (following - wanted)) % period_ns:
                break
        if not ways:
            return None
        _, start, lost = min(ways)
        self.spare_ns -= lost if self.shortest_ns else 0
        self.idle_ns -= length_ns
        begin = start % period_ns
        place = bisect_right(begins, begin) if length_ns else bisect_left(begins, begin)
        begins.insert(place, begin)
        ends.insert(place, begin + length_ns)
        return start

    def _gap(self, at: int) -> tuple[int, int]:
        """That behind the reservation of this number; where there is none, all of the period, which may as well begin anywhere."""
        if not self.begins:
            return 0, self.period_ns
        last = at + 1 == len(self.begins)
        return self.ends[at], self.begins[0] + self.period_ns if last else self.begins[at + 1]

    def _lost(self, piece_ns: int) -> int:
        return piece_ns if piece_ns < self.shortest_ns else 0


@dataclass(slots=True)
class ModuloTimetable:
    """A timetable in the making."""

    problem: Problem
    period_ns: int
    lanes: dict[Resource, ModuloLane]
    hops: dict[tuple[Op, Op], tuple[Resource, int, int]]
    at: dict[Op, int] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, period_ns: int, *, packed: bool) -> ModuloTimetable:
        """An empty one; `packed`: what is busy stays together, so that everything finds a place."""
        hops = {
            (need.producer, need.consumer): (need.resource, need.occupancy_ns, need.latency_ns)
            for need in needs_of(problem)
            if need.resource is not None
        }
        loads: dict[Resource, list[int]] = defaultdict(list)
        for resource, occupancy_ns, _ in hops.values():
            loads[resource].append(occupancy_ns)
        kinds = (Kind.F, Kind.B, Kind.W) if problem.split_backward else (Kind.F, Kind.BW)
        for stage, microbatch in problem.blocks():
            rank = Resource.of_rank(problem.stages[stage].rank)
            loads[rank] += [problem.duration_ns(kind, stage, microbatch) for kind in kinds]
        for each in problem.stages:
            loads[Resource.of_rank(each.rank)].append(each.update_ns)
        lanes = {
            resource: ModuloLane(period_ns, 0 if packed else min((ns for ns in all_ns if ns), default=0), period_ns - sum(all_ns))
            for resource, all_ns in loads.items()
        }
        return cls(problem, period_ns, lanes, hops)

    def starts(self) -> dict[Op, int] | None:
        """When each op of step 0 starts; None: something found no place."""
        backward = Kind.B if self.problem.split_backward else Kind.BW
        turn_ns = 0
        for microbatch in range(self.problem.microbatches):
            path = self.problem.path(microbatch)
            turn = self._start(Op(Kind.F, path[-1], microbatch), turn_ns, late=False)
            if turn is None:
                return None
            turn_ns = turn
            chain = [Op(backward, stage, microbatch) for stage in reversed(path)]
            if not self._along([Op(Kind.F, path[-1], microbatch), *chain]):
                return None
            if not self._back([Op(Kind.F, stage, microbatch) for stage in reversed(path)]):
                return None
            if backward is Kind.B:
                for op in chain:
                    ready = self.at[op] + self.problem.duration_ns(Kind.B, op.stage, microbatch)
                    if self._start(op._replace(kind=Kind.W), ready, late=False) is None:
                        return None
        ended: dict[int, int] = defaultdict(int)
        for op, at_ns in self.at.items():
            ended[op.stage] = max(ended[op.stage], at_ns + self.problem.duration_ns(op.kind, op.stage, op.microbatch))
        for stage in range(len(self.problem.stages)):
            if self._start(Op(Kind.U, stage, 0), ended[stage], late=False) is None:
                return None
        return self.at

    def _start(self, op: Op, moment_ns: int, *, late: bool) -> int | None:
        length_ns = self.problem.duration_ns(op.kind, op.stage, op.microbatch)
        found = self.lanes[Resource.of_rank(self.problem.rank_of(op))].place(moment_ns, length_ns, late=late)
        if found is not None:
            self.at[op] = found
        return found

    def _along(self, chain: list[Op]) -> bool:
        """Each as early as it can after the one before, which has its place."""
        for before, after in pairwise(chain):
            moment = self.at[before] + self.problem.duration_ns(before.kind, before.stage, before.microbatch)
            if (before, after) in self.hops:
                resource, occupancy_ns, latency_ns = self.hops[before, after]
                sent = self.lanes[resource].place(moment, occupancy_ns, late=False)
                if sent is None:
                    return False
                moment = sent + occupancy_ns + latency_ns
            if self._start(after, moment, late=False) is None:
                return False
        return True

    def _back(self, chain: list[Op]) -> bool:
        """Each as late as it can before the one before in the list, which has its place."""
        for after, before in pairwise(chain):
            moment = self.at[after]
            if (before, after) in self.hops:
                resource, occupancy_ns, latency_ns = self.hops[before, after]
                sent = self.lanes[resource].place(moment - latency_ns, occupancy_ns, late=True)
                if sent is None:
                    return False
                moment = sent
            if self._start(before, moment, late=True) is None:
                return False
        return True
