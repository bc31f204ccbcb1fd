"""The rule, and a Problem and a Rule as the tables of the list scheduler's kernel (`SchedulerState`), as lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schedc.errors import Unsupported
from schedc.ir import BLOCKS, Problem, Resource
from schedc.solvers.kernel.joints import NO_ROOM, Hops, Room, again_bytes_of, hops_of, room_for_values, takes_joints, units_of
from schedc.solvers.kernel.tables import NEVER, ROW, SchedulerState
from schedc.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What goes first, and what waits: all parameters of the list scheduler. Every tuple has one entry per stage."""

    priority: tuple[tuple[int, int, int], ...]
    """Of F, of B (or BW) and of W; of the ops that count as ready on a rank, the smallest runs; of equals, the first ready."""
    in_flight: tuple[int | None, ...]
    """The most microbatches whose F has started and whose B has not ended; at least 1, None: no cap. Of slices the most of these;
    where it is less than a microbatch has, that many."""
    warm_up: tuple[int, ...] = ()
    """This many F start before the stage's first B or W (PipeMorph's x_i); 0, or no entries: none need to. Only with one stage per
    rank."""
    weight_lag: tuple[int, ...]
    """This many W are left waiting for later gaps while the stage has B to run and memory has room for the rank's next F (ZB-H1
    leaves as many as the stage's index); 0: W run whenever nothing else can."""
    fused: tuple[tuple[bool, ...], ...] | None = None
    """Per stage and microbatch, whether the backward is one block, BW; None: where the problem does not split backwards, and only
    there."""
    look_ahead_ns: int = 0
    """An op that is known to become ready within this time counts as ready; if it is chosen, the rank waits for it."""
    foresight: bool = False
    """An op is known as soon as what it waits for has started, not only when that has ended; and a rank that waits for an op may
    still take another one that becomes known. Then blocks stay whole, and a trunk that several ranks share serves in the order of
    starts."""
    alternate: bool = False
    """After a B of a rank, its F go before its B, whatever the priorities say."""
    priority_step: int = 0
    """Added k times to the priority of F and B of microbatch k; where it is a period, priorities are times in a steady state."""
    n_sub: int = 1
    """Into how many equal parts a W may be cut, to make way for an op that goes first and becomes ready."""

    def __post_init__(self) -> None:
        """Refuse what could never run."""
        if self.n_sub < 1:
            raise ValueError(f"n_sub must be at least 1, got {self.n_sub}")
        if self.look_ahead_ns < 0:
            raise ValueError(f"look_ahead_ns must be at least 0, got {self.look_ahead_ns}")
        if self.foresight and self.n_sub > 1:
            raise ValueError(f"with foresight n_sub must be 1, got {self.n_sub}")
        caps = [cap for cap in self.in_flight if cap is not None]
        if caps and min(caps) < 1:
            raise ValueError(f"in_flight must be at least 1, got {min(caps)}")


def scheduler_of(problem: Problem, n_sub: int = 1, *, room: Room = NO_ROOM) -> SchedulerState:
    """The problem, and room for runs of rules that cut a W into at most `n_sub` parts.

    Raises:
        Unsupported: a rank's memory limit does not hold one microbatch: of slices, all that they can ever hold; with room for
            values, those that may wait for it, too.
    """
    stages, paths, ranks = problem.stages, problem.paths, range(problem.ranks)
    visitors = [[microbatch for microbatch, path in enumerate(problem.path_of) if path == number] for number in range(len(paths))]
    places = [
        (stages[stage].rank, number, at) for number, path in enumerate(paths) if visitors[number] for at, stage in enumerate(path)
    ]
    places.sort()
    number_of = {(path, at): lane for lane, (_, path, at) in enumerate(places)}
    links = {(link.source, link.destination): link for link in problem.links}
    resources: dict[Resource, int] = {}
    parallel = problem.data_parallel
    again_bytes = [
        max((again_bytes_of(problem, index) for index, stage in enumerate(stages) if stage.rank == rank), default=0)
        for rank in ranks
    ]
    joined = takes_joints(problem)
    lanes: list[Any] = []
    blocks: list[Any] = []
    for rank, number, at in places:
        path, microbatches = paths[number], visitors[number]
        stage = path[at]
        costs, lane = stages[stage], ROW["lanes"]()
        lane.stage, lane.path, lane.rank = stage, number, rank
        lane.previous, lane.following = number_of.get((number, at - 1), -1), number_of.get((number, at + 1), -1)
        lane.first, lane.last = len(blocks), len(blocks) + len(microbatches)
        lane.gather_ns, lane.scatter_ns = -1, -1 if parallel is None else parallel.reduce_scatter_ns[stage]
        lane.held_bytes, lane.kept_bytes = costs.activation_bytes, costs.activation_after_input_bytes
        lane.again_bytes = again_bytes_of(problem, stage) - again_bytes[rank]
        for name, neighbour in (("message", at + 1), ("gradient", at - 1)):
            on, occupancy_ns, latency_ns = -1, 0, 0
            if not joined and 0 <= neighbour < len(path) and stages[path[neighbour]].rank != rank:
                link = links[rank, stages[path[neighbour]].rank]
                size_bytes = costs.message_bytes if name == "message" else stages[path[neighbour]].gradient_message_bytes
                on = resources.setdefault(Resource.of_link(link), len(resources))
                occupancy_ns, latency_ns = link.occupancy_ns(size_bytes), link.latency_ns
            setattr(lane, f"{name}_on", on)
            setattr(lane, f"{name}_occupancy_ns", occupancy_ns)
            setattr(lane, f"{name}_latency_ns", latency_ns)
        lanes.append(lane)
        forward, b, w, backward = [
            values if len(values := costs.durations_ns(kind)) > 1 else values * problem.microbatches for kind in BLOCKS
        ]
        blocks += [ROW["blocks"](n, forward[n], b[n], w[n], backward[n]) for n in microbatches]
    graph, units = Hops([ROW["joints"]()], [ROW["hops"]()], [0]), [ROW["units"]()]
    if joined:
        graph, units = hops_of(problem, lanes, resources), units_of(problem, lanes, blocks)
        if not graph.hops:
            graph = Hops(graph.joints, [ROW["hops"]()], [0])
        slices = len(problem.slices) or 1
        for lane in lanes:
            lane.held_bytes = sum(unit.held_bytes for unit in units[lane.first : lane.first + slices])
    rank_rows: list[Any] = []
    reserves: list[Any] = []
    order_length = 0
    for rank, limit_bytes in enumerate(problem.memory_limit_bytes):
        mine = [lane for lane, place in enumerate(places) if place[0] == rank]
        row = ROW["ranks"]()
        row.first_lane = mine[0] if mine else 0
        row.end_lane = row.first_lane + len(mine)
        row.limit_bytes = NEVER if limit_bytes is None else limit_bytes - again_bytes[rank]
        row.collectives = resources.setdefault(Resource.of_collectives(parallel, rank), len(resources))
        row.order_from = order_length
        order_length += (2 + n_sub) * sum(lanes[lane].last - lanes[lane].first for lane in mine)
        along_paths = [[lane for lane in mine if lanes[lane].path == path] for path in range(len(paths))]
        inputs_bytes = max(sum(lanes[lane].held_bytes for lane in along) for along in along_paths)
        if not joined and limit_bytes is not None and row.limit_bytes < inputs_bytes:
            row.limit_bytes = limit_bytes
            for along in along_paths:
                _hold_at_once([lanes[lane] for lane in along], again_bytes[rank])
        if room.most is not None and limit_bytes is not None:
            row.limit_bytes = max(row.limit_bytes, inputs_bytes)
        needs = _needs(
            rank,
            row.limit_bytes if joined and limit_bytes is not None else limit_bytes,
            lanes,
            along_paths,
            sliced=bool(problem.slices),
        )
        row.reserves = -1
        if limit_bytes is not None and len(mine) > 1:
            row.reserves = len(reserves)
            reserves += needs
        rank_rows.append(row)
    most = NEVER if room.most is None else room.most * (len(problem.slices) or 1)
    if room.for_values and not problem.is_chain:
        most = _keep_room(problem, rank_rows, lanes)
    scheduler = SchedulerState(
        lanes=lanes,
        ranks=rank_rows,
        blocks=blocks,
        reserves=reserves or [ROW["reserves"]()],
        held=[[0] * (problem.microbatches if reserves else 1) for _ in ranks],
        links=[ROW["links"]() for _ in resources],
        left=[0] * len(stages),
        order=[0] * order_length,
        settings=[ROW["settings"]()],
        when=[0] * problem.ranks,
        units=units,
        **graph._asdict(),
    )
    if parallel is not None and parallel.all_gather_ns:
        _gather(scheduler, parallel.all_gather_ns)
    (settings,) = scheduler.settings
    settings.stages, settings.paths, settings.microbatches = len(stages), len(paths), problem.microbatches
    settings.span = int(problem.objective == "stage-span")
    settings.slices, settings.most = (len(problem.slices) or 1) if joined else 0, most
    return scheduler


def count_by_stage(scheduler: SchedulerState) -> list[int]:
    """How many microbatches visit each stage."""
    counts = [0] * scheduler.settings[0].stages
    for lane in scheduler.lanes:
        counts[lane.stage] += lane.last - lane.first
    return counts


def depth_by_stage(problem: Problem) -> list[int]:
    """How many stages come before each on its path; on a graph, how many fewer follow it than the longest path has."""
    depth = [0] * len(problem.stages)
    if not problem.is_chain:
        following: dict[int, list[int]] = {}
        for edge in problem.edges:
            following.setdefault(edge.source, []).append(edge.destination)
        after = [0] * len(depth)
        for stage in reversed(problem.paths[0]):
            after[stage] = max((after[each] + 1 for each in following.get(stage, ())), default=0)
        return [max(after) - each for each in after]
    for path in problem.paths:
        for at, stage in enumerate(path):
            depth[stage] = at
    return depth


def set_rule(scheduler: SchedulerState, problem: Problem, rule: Rule) -> None:
    """Write the rule into the problem's scheduler.

    Raises:
        ValueError: the rule does not fit the problem's stages.
    """
    count = len(problem.stages)
    per_stage = (rule.priority, rule.in_flight, rule.weight_lag, rule.warm_up or rule.weight_lag)
    if {len(values) for values in per_stage} != {count}:
        raise ValueError(f"a rule for this problem has {count} entries in each of its tuples")
    (settings,) = scheduler.settings
    if any(rule.warm_up) and (settings.slices or any(rank.end_lane - rank.first_lane > 1 for rank in scheduler.ranks)):
        raise ValueError("a rule with warm_up needs a chain of whole microbatches, one stage per rank")
    for lane in scheduler.lanes:
        stage = lane.stage
        cap = rule.in_flight[stage]
        lane.cap, lane.lag = min(NEVER if cap is None else max(cap, settings.slices), settings.most), rule.weight_lag[stage]
        lane.priority_f, lane.priority_b, lane.priority_w = rule.priority[stage]
        lane.parts = 1
        blocks = scheduler.blocks[lane.first : lane.last]
        if rule.n_sub > 1 and problem.cut_blocks:  # never a part that takes no time
            lane.parts = max(1, min(rule.n_sub, *(block.weight_ns for block in blocks)))
        for block in blocks:
            block.fused = int(rule.fused[stage][block.microbatch] if rule.fused else not problem.split_backward)
    if not settings.slices:
        _set_holds(scheduler, rule)
    settings.look_ahead_ns, settings.alternate = rule.look_ahead_ns, int(rule.alternate)
    settings.priority_step = rule.priority_step
    settings.foresight, settings.width = int(rule.foresight), rule.n_sub + 1


def _set_holds(scheduler: SchedulerState, rule: Rule) -> None:
    """Write each lane's warm-up count, lowered so that it ends.

    A stage that may start this many forwards before any backward, and whose predecessor may start at least as many, gets them: by
    induction along the path. With several lanes on a rank that does not follow.
    """
    for first in (lane for lane in scheduler.lanes if lane.previous < 0):
        lane, most = first, NEVER
        while True:
            wanted = rule.warm_up[lane.stage] if rule.warm_up else 0
            most = min(most, wanted, lane.cap, lane.last - lane.first)
            if lane.held_bytes:
                most = min(most, scheduler.ranks[lane.rank].limit_bytes // lane.held_bytes)
            lane.hold = most
            if lane.following < 0:
                break
            lane = scheduler.lanes[lane.following]


def _hold_at_once(along: list[Any], most_again_bytes: int) -> None:
    """Let the first of the lanes of a path on a rank take at once all that a microbatch ever holds there, and give it back last.

    The limit then has no room for all inputs and the largest recomputation, but for the former until the latter: each stage's comes
    when later ones have given theirs back. What is held is never more than this says: before the first lane's backward ends at most
    that, and what is left for W besides, which is no more than its stage has taken.
    """
    held_bytes = need_bytes = 0
    for lane in along:
        held_bytes += lane.held_bytes
        need_bytes = max(need_bytes, held_bytes + lane.again_bytes + most_again_bytes)
        lane.held_bytes = lane.again_bytes = 0
    if along:
        along[0].held_bytes = need_bytes


def _keep_room(problem: Problem, ranks: list[Any], lanes: list[Any]) -> int:
    """Take room for values that wait off the limits of ranks; returns how many microbatches or slices may then be in flight."""
    whole_bytes = [sum(lane.held_bytes for lane in lanes[rank.first_lane : rank.end_lane]) for rank in ranks]
    free_bytes = [None if rank.limit_bytes >= NEVER else rank.limit_bytes for rank in ranks]
    most, waiting_bytes = room_for_values(problem, whole_bytes, free_bytes)
    for number, (rank, whole, waiting) in enumerate(zip(ranks, whole_bytes, waiting_bytes, strict=True)):
        if rank.limit_bytes >= NEVER:
            continue
        rank.limit_bytes -= waiting
        if rank.limit_bytes < whole:
            raise Unsupported(
                f"rank {number}: one microbatch holds {format_bytes(whole, 40)} of activations, and {format_bytes(waiting, 40)} may"
                " wait for other values, together more than the memory limit; raise that, or take the method sequential"
            )
    return most


def _needs(rank: int, limit_bytes: int | None, lanes: list[Any], along_paths: list[list[int]], *, sliced: bool) -> list[Any]:
    """The rank's rows of `reserves`, one for each path; refuses a limit that does not hold one microbatch."""
    rows = []
    for along in along_paths:
        need_bytes = sum(lanes[lane].held_bytes for lane in along)
        if limit_bytes is not None and need_bytes > limit_bytes:
            holds = "the slices of one microbatch may hold" if sliced else "one microbatch holds"
            raise Unsupported(
                f"rank {rank}: {holds} {format_bytes(need_bytes, 40)} of activations, more than the"
                f" limit of {format_bytes(limit_bytes, 40)}; raise the limit to at least that"
            )
        rows.append(ROW["reserves"](need_bytes, along[-1] if along else -1))
    return rows


def _gather(scheduler: SchedulerState, all_gather_ns: tuple[int, ...]) -> None:
    """Write what each lane's all-gather takes and when it can end, and how long all of them occupy links.

    Ranks on a shared trunk take turns.
    """
    for rank in scheduler.ranks:
        link, mine = scheduler.links[rank.collectives], scheduler.lanes[rank.first_lane : rank.end_lane]
        for lane in mine:
            lane.gather_ns = all_gather_ns[lane.stage]
            lane.first_gate_ns = link.gathered_ns + lane.gather_ns
        link.gathered_ns += sum(all_gather_ns[stage] for stage in {lane.stage for lane in mine})
