"""What the list scheduler keeps while it runs: lanes, ranks, and the room that must be kept so that memory never strands them.

A *lane* is one stage on one path. `lanes_of` takes a Problem and a Rule and gives the lanes and ranks, before the first op.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.errors import Unsupported
from schedc.ir.ops import Kind
from schedc.ir.resource import Resource
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.problem import Problem

__all__ = ["Lane", "Rank", "Reserve", "Rule", "lanes_of"]

UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """All that the list scheduler can be told; what searches over rules search over (design "solving", point 5).

    Every tuple holds one entry per stage.
    """

    priority: tuple[tuple[int, int, int], ...]
    """Of F, of B (or BW) and of W; of the ops that count as ready on a rank, the greatest runs; of equals, the first ready."""
    in_flight: tuple[int | None, ...]
    """The most microbatches whose F has started and whose B has not ended; at least 1, None: no cap."""
    warm_up: tuple[int, ...]
    """So many F start before the stage's first B or W (PipeMorph's x_i); 0: none need to. Only with one stage per rank."""
    weight_lag: tuple[int, ...]
    """So many W are left waiting for later gaps while the stage still has B to run and memory has room for the rank's next F (ZB-H1
    leaves as many as the stage's index); 0: W run whenever nothing else can."""
    look_ahead_ns: int = 0
    """An op that is known to become ready within this time counts as ready; if it is chosen, the rank waits for it."""
    alternate: bool = False
    """After a B of a rank, its F go before its B, whatever the priorities say."""
    n_sub: int = 1
    """Into how many equal parts a W may be cut, to make way for an op of higher priority that becomes ready."""

    def __post_init__(self) -> None:
        """Refuse what could never run."""
        if self.n_sub < 1:
            raise ValueError(f"n_sub must be at least 1, got {self.n_sub}")
        if self.look_ahead_ns < 0:
            raise ValueError(f"look_ahead_ns must be at least 0, got {self.look_ahead_ns}")
        caps = [cap for cap in self.in_flight if cap is not None]
        if caps and min(caps) < 1:
            raise ValueError(f"in_flight must be at least 1, got {min(caps)}")


class Lane:
    """One stage on one path: its costs, what has become ready on it and how far it got. Positions count the path's microbatches."""

    __slots__ = (
        "activation_bytes",
        "after_input_bytes",
        "backward_at_ns",
        "backward_begun",
        "backward_ended",
        "backward_ns",
        "cap",
        "forward_at_ns",
        "forward_begun",
        "forward_ns",
        "gate_ns",
        "gradient_to",
        "hold",
        "lag",
        "message_to",
        "microbatches",
        "next",
        "parts",
        "parts_done",
        "path",
        "previous",
        "priority",
        "rank",
        "stage",
        "was_cut",
        "weight_ended",
        "weight_ns",
    )

    def __init__(self, problem: Problem, rule: Rule, path: int, stage: int, microbatches: list[int], rank: Rank) -> None:
        costs = problem.stages[stage]
        self.path, self.stage, self.rank = path, stage, rank
        self.microbatches = microbatches
        self.forward_ns = _per_position(costs.forward_ns, microbatches)
        self.backward_ns = _per_position(costs.durations_ns(Kind.B if problem.split_backward else Kind.BW), microbatches)
        self.weight_ns = _per_position(costs.backward_weight_ns, microbatches)
        self.activation_bytes = costs.activation_bytes
        self.after_input_bytes = costs.activation_after_input_bytes if problem.split_backward else 0
        self.priority = rule.priority[stage]
        cap = rule.in_flight[stage]
        self.cap = UNLIMITED if cap is None else cap
        self.hold = min(rule.warm_up[stage], len(microbatches))
        self.lag = rule.weight_lag[stage]
        most = rule.n_sub if problem.cut_blocks else 1
        self.parts = max(1, min(most, min(costs.backward_weight_ns)))  # never a part that takes no time
        self.next: Lane | None = None
        self.previous: Lane | None = None
        self.message_to: tuple[int, int, int] | None = None
        """(resource, occupancy_ns, latency_ns) of what F sends to `next`; None: the same rank."""
        self.gradient_to: tuple[int, int, int] | None = None
        self.gate_ns = 0
        """The first F starts no earlier: the end of the stage's all-gather."""
        self.forward_at_ns: list[int] = []
        """When each F becomes ready, in microbatch order, as far as known; may lie in the future."""
        self.backward_at_ns: list[int] = []
        self.forward_begun = self.backward_begun = self.backward_ended = self.weight_ended = 0
        self.parts_done = 0
        """Of the W at position `weight_ended`."""
        self.was_cut = False

    def below_cap(self) -> bool:
        """Whether the cap lets the next F start."""
        return self.forward_begun - self.backward_ended < self.cap


class Reserve:
    """Keeps room on one rank for the remaining forwards of the oldest microbatch of one path (`Rank.admits`)."""

    __slots__ = ("above_bytes", "last", "need_bytes", "oldest")

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.last = lanes[-1]
        self.need_bytes = sum(lane.activation_bytes for lane in lanes)
        self.oldest = self.last.microbatches[0]
        """The lowest microbatch of the path with a forward on this rank not yet started."""
        self.above_bytes = 0
        """What the microbatches above `oldest`, of all paths, hold on this rank."""


class Rank:
    """One rank: what runs on it, what it has run, what its memory holds."""

    __slots__ = (
        "after_backward",
        "begin_ns",
        "end_ns",
        "held_by",
        "held_bytes",
        "lanes",
        "limit_bytes",
        "number",
        "order",
        "reserves",
        "running",
    )

    def __init__(self, number: int, limit_bytes: int | None) -> None:
        self.number = number
        self.lanes: list[Lane] = []
        self.order: list[int] = []
        """What it has run, packed (`ListSchedule.packed`)."""
        self.running: tuple[Kind, Lane, int] | None = None
        """The kind and the lane of what runs, and when it (or this piece of it) started."""
        self.begin_ns = self.end_ns = -1
        """When its first op started and its last op ended or will end; -1: there is none."""
        self.after_backward = False
        """The last F or B that started was a B."""
        self.limit_bytes = UNLIMITED if limit_bytes is None else limit_bytes
        self.held_bytes = 0
        self.held_by: list[int] = []
        """Per microbatch; kept only where `reserves` has entries."""
        self.reserves: list[Reserve] = []

    def keep_reserves(self, problem: Problem) -> None:
        """Check that the limit holds one microbatch of any path, and prepare the reserves where several lanes share it.

        Raises:
            Unsupported: the limit does not hold one microbatch.
        """
        for path in sorted({lane.path for lane in self.lanes}):
            reserve = Reserve([lane for lane in self.lanes if lane.path == path])
            if reserve.need_bytes > self.limit_bytes:
                raise Unsupported(
                    f"rank {self.number}: one microbatch holds {format_bytes(reserve.need_bytes, 40)} of activations, more than the"
                    f" limit of {format_bytes(self.limit_bytes, 40)}; raise the limit to at least that"
                )
            self.reserves.append(reserve)
        if len(self.lanes) == 1 or self.limit_bytes == UNLIMITED:
            self.reserves = []
        if self.reserves:
            self.held_by = [0] * problem.microbatches

    def admits(self, lane: Lane) -> bool:
        """Whether memory lets the next F of the lane start: it fits, and it strands nobody.

        It strands nobody if every microbatch can still finish when all of them finish one after another, lowest first (the banker's
        algorithm with a fixed order, the same on all ranks). For a microbatch with forwards left on this rank that means: all it
        ever holds here, `need_bytes`, fits beside what the microbatches above it hold. On one path that is hardest for the
        lowest such microbatch, `oldest`, since fewer are above the others; so one check per path is enough, and none where a rank
        has one lane (nothing above `oldest` holds anything).

        Why the scheduler then never stands still: suppose nothing runs and nothing is on its way, and take the lowest microbatch
        with an F or B left. Its next one is ready, since those before it are done. A B can start. An F has no lower microbatch in
        flight on its lane, so no cap stops it; and no reserve does, since no path has a lower microbatch with forwards left. If
        it does not fit, then only because of W of lower microbatches, for `need_bytes` is free of those above; memory then keeps
        an F out of this rank, so these W are not left waiting, and one can start. If no F or B is left, no W is left waiting.
        """
        activation_bytes = lane.activation_bytes
        if self.held_bytes + activation_bytes > self.limit_bytes:
            return False
        if self.reserves:
            microbatch = lane.microbatches[lane.forward_begun]
            for reserve in self.reserves:
                needed_bytes = reserve.need_bytes + reserve.above_bytes + activation_bytes
                if reserve.oldest < microbatch and needed_bytes > self.limit_bytes:
                    return False
        return True

    def keeps_out(self) -> bool:
        """Whether memory does not let the next F of some lane start, come when it may.

        Nothing in the answer depends on what is on its way, so a W that it lets run has not waited for anything.
        """
        return any(
            lane.forward_begun < len(lane.microbatches) and lane.below_cap() and not self.admits(lane) for lane in self.lanes
        )

    def acquire(self, lane: Lane) -> None:
        """The next F of the lane starts. Its `forward_begun` has been counted already."""
        self.held_bytes += lane.activation_bytes
        if self.reserves:
            self._hold(lane.microbatches[lane.forward_begun - 1], lane.activation_bytes)
            for reserve in self.reserves:
                if reserve.last is lane:
                    oldest = reserve.oldest
                    begun = lane.forward_begun
                    reserve.oldest = lane.microbatches[begun] if begun < len(lane.microbatches) else UNLIMITED
                    reserve.above_bytes -= sum(self.held_by[oldest + 1 : reserve.oldest + 1])

    def release(self, microbatch: int, released_bytes: int) -> None:
        """The end of a B, W or BW of the microbatch gives back what it held."""
        self.held_bytes -= released_bytes
        if self.reserves:
            self._hold(microbatch, -released_bytes)

    def _hold(self, microbatch: int, more_bytes: int) -> None:
        self.held_by[microbatch] += more_bytes
        for reserve in self.reserves:
            if microbatch > reserve.oldest:
                reserve.above_bytes += more_bytes


def lanes_of(problem: Problem, rule: Rule) -> tuple[list[Lane], list[Rank], int]:
    """The lanes, path after path in path order, the ranks, and how many links and trunks there are.

    Raises:
        Unsupported: a rank's memory limit does not hold one microbatch.
    """
    ranks = [Rank(number, limit) for number, limit in enumerate(problem.memory_limit_bytes)]
    resources: dict[Resource, int] = {}
    links = {(link.source, link.destination): link for link in problem.links}

    def connection(source: int, destination: int, message_bytes: int) -> tuple[int, int, int] | None:
        if source == destination:
            return None
        link = links[source, destination]
        resource = resources.setdefault(Resource.of_link(link), len(resources))
        return resource, link.occupancy_ns(message_bytes), link.latency_ns

    lanes: list[Lane] = []
    for number, path in enumerate(problem.paths):
        microbatches = [microbatch for microbatch, chosen in enumerate(problem.path_of) if chosen == number]
        if not microbatches:
            continue
        along = [Lane(problem, rule, number, stage, microbatches, ranks[problem.stages[stage].rank]) for stage in path]
        for before, after in pairwise(along):
            source, destination, costs = before.rank.number, after.rank.number, problem.stages[before.stage]
            before.next, after.previous = after, before
            before.message_to = connection(source, destination, costs.message_bytes)
            after.gradient_to = connection(destination, source, costs.gradient_message_bytes)
        for lane in along:
            lane.rank.lanes.append(lane)
        lanes += along
    for rank in ranks:
        rank.keep_reserves(problem)
    _gate(problem, ranks)
    return lanes, ranks, len(resources)


def _gate(problem: Problem, ranks: list[Rank]) -> None:
    """Set when the all-gather of each lane's stage has ended; a rank gathers in path order, ranks on a shared trunk in turn."""
    parallel = problem.data_parallel
    if parallel is None or not parallel.all_gather_ns:
        return
    end_ns = 0
    for rank in ranks:
        end_ns = 0 if parallel.trunk is None else end_ns
        gathered: dict[int, int] = {}
        for lane in rank.lanes:
            if lane.stage not in gathered:
                end_ns = gathered[lane.stage] = end_ns + parallel.all_gather_ns[lane.stage]
            lane.gate_ns = gathered[lane.stage]


def _per_position(durations_ns: tuple[int, ...], microbatches: list[int]) -> list[int]:
    if len(durations_ns) == 1:
        return list(durations_ns) * len(microbatches)
    return [durations_ns[microbatch] for microbatch in microbatches]
