"""The list scheduler that greedy and PipeMorph share: a Problem and a Rule in, a Schedule and its end out.

It runs the pipeline forward in time, event by event. Whenever a rank is free it starts the op of highest priority among those that
are ready and that memory admits; it never strands itself, on any placement (the proof is at `Rank.admits`). Links and trunks are
served in order of ready time, as the cost model has it, so the end that it returns is the one that the schedule really has; only
where a trunk is shared and durations are 0 does it not tell the moments within a nanosecond apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.ir.ops import Kind, Op
from schedc.ir.problem import Objective
from schedc.ir.schedule import Parts, Schedule
from schedc.solvers.kernel.scheduler_state import Rule, lanes_of

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.solvers.kernel.scheduler_state import Lane, Rank

__all__ = ["ListSchedule", "Rule", "list_schedule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSchedule:
    """What the list scheduler made.

    Its ops are packed into integers until `schedule` is asked for: making that many objects costs as much as finding their order,
    and most rules that are tried are not kept.
    """

    packed: tuple[tuple[int, ...], ...]
    """Per rank, `((microbatch * stages + stage) * kinds + kind) * width + part + 1`."""
    stages: int
    width: int
    parts: tuple[Parts, ...]
    end_ns: int
    """When the last compute op ends, by the scheduler's own clock."""
    span_ns: int
    """The longest time from the first start to the last end on one rank."""

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        orders = []
        kinds, width = tuple(Kind), self.width
        for packed in self.packed:
            order = []
            for code in packed:
                block, part = divmod(code, width)
                block, kind = divmod(block, len(kinds))
                microbatch, stage = divmod(block, self.stages)
                order.append(Op(kinds[kind], stage, microbatch, part - 1))
            orders.append(tuple(order))
        return Schedule(orders=tuple(orders), parts=self.parts)

    def objective_ns(self, objective: Objective) -> int:
        """What the problem's objective makes of it, collectives left out."""
        return self.span_ns if objective is Objective.STAGE_SPAN else self.end_ns


def list_schedule(problem: Problem, rule: Rule) -> ListSchedule:
    """The schedule that the rule gives. Its memory peaks never exceed the problem's limits.

    Backwards are split into B and W where the problem allows it, else fused. A W is cut only where something else ran between its
    parts. Warm-up counts are lowered to what the microbatches, the caps, the memory limits and the stage before allow, since no
    stage could wait for more.

    Args:
        problem: any placement, any links, any memory limits.
        rule: what goes first.

    Raises:
        ValueError: the rule does not fit the problem's stages.
        Unsupported: a rank's memory limit does not hold one microbatch.
    """
    if {len(rule.priority), len(rule.in_flight), len(rule.warm_up), len(rule.weight_lag)} != {len(problem.stages)}:
        raise ValueError(f"a rule for this problem has {len(problem.stages)} entries in each of its tuples")
    run = _Run(problem, rule)
    run.to_the_end()
    cut = {lane.stage: lane.parts for lane in run.lanes if lane.was_cut}
    return ListSchedule(
        packed=tuple(tuple(rank.order) for rank in run.ranks),
        stages=run.stages,
        width=run.width,
        parts=tuple(Parts(kind=Kind.W, stage=stage, shares=(1,) * count) for stage, count in sorted(cut.items())),
        end_ns=max(rank.end_ns for rank in run.ranks),
        span_ns=max(rank.end_ns - rank.begin_ns for rank in run.ranks),
    )


class _Run:
    """One pass of the list scheduler.

    Events are integers, `time_ns * stride + code`: code r is the end of what rank r runs, code ranks + r a moment at which rank r
    should look again. At one time, ends come before looks, and ends in the order of ranks, as the links' ties ask for.
    """

    __slots__ = ("backward", "events", "free_ns", "lanes", "look_ahead_ns", "ranks", "rule", "split", "stages", "stride", "width")

    def __init__(self, problem: Problem, rule: Rule) -> None:
        self.rule = rule
        self.look_ahead_ns = rule.look_ahead_ns
        self.lanes, self.ranks, resources = lanes_of(problem, rule)
        self.free_ns = [0] * resources
        self.stages, self.width = len(problem.stages), rule.n_sub + 1
        self.split = problem.split_backward
        self.backward = Kind.B if self.split else Kind.BW
        self.stride = 2 * problem.ranks
        self.events: list[int] = []
        _lower_holds(self.lanes, self.ranks)
        for lane in self.lanes:
            heappush(self.events, lane.gate_ns * self.stride + problem.ranks + lane.rank.number)
            if lane.previous is None:
                lane.forward_at_ns = [lane.gate_ns] * len(lane.microbatches)

    def to_the_end(self) -> None:
        """Run until nothing is left."""
        events, ranks, stride = self.events, self.ranks, self.stride
        count = len(ranks)
        while events:
            now_ns = events[0] // stride
            base, beyond = now_ns * stride, (now_ns + 1) * stride
            looking = []
            while events and events[0] < beyond:
                code = heappop(events) - base
                if code >= count:
                    looking.append(ranks[code - count])
                elif ranks[code].end_ns == now_ns and ranks[code].running is not None:  # else the piece of a W that was cut shorter
                    self._finish(ranks[code], now_ns)
                    looking.append(ranks[code])
            for rank in looking:
                if rank.running is None:
                    self._start_next(rank, now_ns)
                elif rank.running[0] is Kind.W:
                    self._make_way(rank, now_ns)
        for lane in self.lanes:
            done = lane.weight_ended if self.split else lane.backward_ended
            assert done == len(lane.microbatches), "the list scheduler stranded itself"

    def _choose(self, rank: Rank, now_ns: int) -> tuple[Kind, Lane, int] | None:
        """The op to run next, as kind, lane and start; None if nothing can start now."""
        horizon_ns = now_ns + self.look_ahead_ns
        forward_first = rank.after_backward and self.rule.alternate
        chosen: tuple[Kind, Lane] | None = None
        top, top_at_ns, first_at_ns = 0, 0, horizon_ns + 1
        for lane in rank.lanes:
            at = lane.forward_begun
            if (
                at < len(lane.forward_at_ns)
                and lane.forward_at_ns[at] <= horizon_ns
                and at - lane.backward_ended < lane.cap
                and rank.admits(lane)
            ):
                at_ns, priority = lane.forward_at_ns[at], lane.priority[0]
                if forward_first:
                    priority += _ABOVE_ALL
                if chosen is None or priority > top or (priority == top and at_ns < top_at_ns):
                    chosen, top, top_at_ns = (Kind.F, lane), priority, at_ns
                if at_ns < first_at_ns:
                    first_at_ns = at_ns
            if at < lane.hold:
                continue
            at = lane.backward_begun
            if at < len(lane.backward_at_ns) and lane.backward_at_ns[at] <= horizon_ns:
                at_ns, priority = lane.backward_at_ns[at], lane.priority[1]
                if chosen is None or priority > top or (priority == top and at_ns < top_at_ns):
                    chosen, top, top_at_ns = (self.backward, lane), priority, at_ns
                if at_ns < first_at_ns:
                    first_at_ns = at_ns
        if self.split:
            for lane in rank.lanes:
                waiting = lane.backward_ended - lane.weight_ended
                if waiting > lane.lag or (waiting and (lane.backward_ended == len(lane.microbatches) or rank.keeps_out())):
                    first_at_ns = now_ns
                    if chosen is None or lane.priority[2] > top:
                        chosen, top, top_at_ns = (Kind.W, lane), lane.priority[2], now_ns
        if chosen is None or first_at_ns > now_ns:
            return None
        return chosen[0], chosen[1], max(top_at_ns, now_ns)

    def _start_next(self, rank: Rank, now_ns: int) -> None:
        """Start the next op of a free rank, if there is one."""
        chosen = self._choose(rank, now_ns)
        if chosen is None:
            return
        kind, lane, start_ns = chosen
        if kind is Kind.F:
            duration_ns = lane.forward_ns[lane.forward_begun]
            rank.order.append(self._pack(Kind.F, lane, lane.forward_begun))
            lane.forward_begun += 1
            rank.acquire(lane)
            rank.after_backward = False
        elif kind is Kind.W:
            block_ns = lane.weight_ns[lane.weight_ended]
            duration_ns = block_ns - block_ns * lane.parts_done // lane.parts
        else:
            duration_ns = lane.backward_ns[lane.backward_begun]
            rank.order.append(self._pack(kind, lane, lane.backward_begun))
            lane.backward_begun += 1
            rank.after_backward = True
        rank.running = chosen
        if rank.begin_ns < 0:
            rank.begin_ns = start_ns
        rank.end_ns = start_ns + duration_ns
        heappush(self.events, rank.end_ns * self.stride + rank.number)

    def _make_way(self, rank: Rank, now_ns: int) -> None:
        """End the running W at its next part's edge, if something else should run from there."""
        assert rank.running is not None
        _, lane, start_ns = rank.running
        block_ns, parts = lane.weight_ns[lane.weight_ended], lane.parts
        if parts == 1:
            return
        origin_ns = start_ns - block_ns * lane.parts_done // parts
        edge = max(lane.parts_done + 1, -(-(now_ns - origin_ns) * parts // block_ns))
        while origin_ns + block_ns * edge // parts < now_ns:
            edge += 1
        edge_ns = origin_ns + block_ns * edge // parts
        if edge_ns >= rank.end_ns:
            return
        chosen = self._choose(rank, edge_ns)
        if chosen is not None and (chosen[0] is not Kind.W or chosen[1] is not lane):
            rank.end_ns = edge_ns
            heappush(self.events, edge_ns * self.stride + rank.number)

    def _finish(self, rank: Rank, now_ns: int) -> None:
        """What the rank ran has ended: release memory, send, make what depends on it ready."""
        assert rank.running is not None
        kind, lane, start_ns = rank.running
        rank.running = None
        if kind is Kind.W:
            self._finish_weight(rank, lane, start_ns)
        elif kind is Kind.F:
            if lane.next is None:
                lane.backward_at_ns.append(now_ns)
            else:
                at_ns = self._send(lane.message_to, lane.next.rank, now_ns)
                lane.next.forward_at_ns.append(max(at_ns, lane.next.gate_ns))
        else:
            rank.release(lane.microbatches[lane.backward_ended], lane.activation_bytes - lane.after_input_bytes)
            lane.backward_ended += 1
            if lane.previous is not None:
                lane.previous.backward_at_ns.append(self._send(lane.gradient_to, lane.previous.rank, now_ns))

    def _finish_weight(self, rank: Rank, lane: Lane, start_ns: int) -> None:
        """Write the parts that ran since `start_ns`, as one op if they are the whole block."""
        block_ns, parts, begun = lane.weight_ns[lane.weight_ended], lane.parts, lane.parts_done
        origin_ns = start_ns - block_ns * begun // parts
        done = begun + 1
        while done < parts and origin_ns + block_ns * done // parts < rank.end_ns:
            done += 1
        whole = self._pack(Kind.W, lane, lane.weight_ended)
        if begun == 0 and done == parts:
            rank.order.append(whole)
        else:
            lane.was_cut = True
            rank.order.extend(range(whole + 1 + begun, whole + 1 + done))
        lane.parts_done = done
        if done == parts:
            lane.parts_done = 0
            rank.release(lane.microbatches[lane.weight_ended], lane.after_input_bytes)
            lane.weight_ended += 1

    def _pack(self, kind: Kind, lane: Lane, position: int) -> int:
        """The whole block as a number of `ListSchedule.packed`; its parts are the numbers after it."""
        return ((lane.microbatches[position] * self.stages + lane.stage) * _KINDS + kind) * self.width

    def _send(self, connection: tuple[int, int, int] | None, destination: Rank, now_ns: int) -> int:
        """When what becomes ready now arrives; the destination looks again at that time."""
        if connection is None:
            return now_ns
        resource, occupancy_ns, latency_ns = connection
        left_ns = max(now_ns, self.free_ns[resource]) + occupancy_ns
        self.free_ns[resource] = left_ns
        at_ns = left_ns + latency_ns
        code = len(self.ranks) + destination.number
        heappush(self.events, at_ns * self.stride + code)
        if self.look_ahead_ns:
            heappush(self.events, max(now_ns, at_ns - self.look_ahead_ns) * self.stride + code)
        return at_ns


_KINDS = len(Kind)
_ABOVE_ALL = 1 << 40
"""Added to a priority to put it above all that a rule gives."""


def _lower_holds(lanes: list[Lane], ranks: list[Rank]) -> None:
    """Lower every lane's hold so that it ends.

    A stage that may start `hold` forwards before any backward, and whose predecessor holds for at least as many, gets them: by
    induction along the path. With several lanes on a rank that does not follow, and a hold is refused.
    """
    if any(lane.hold for lane in lanes) and any(len(rank.lanes) > 1 for rank in ranks):
        raise ValueError("a rule with warm_up needs one stage per rank")
    for lane in lanes:
        lane.hold = min(lane.hold, lane.cap)
        if lane.activation_bytes:
            lane.hold = min(lane.hold, lane.rank.limit_bytes // lane.activation_bytes)
    for before, after in pairwise(lanes):
        if before.path == after.path:
            after.hold = min(after.hold, before.hold)
