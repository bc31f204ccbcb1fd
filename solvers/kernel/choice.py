"""What a rank runs next: the part of the list scheduler's kernel that weighs what is known and decides; plain or compiled.

Nothing here starts or ends an op. An idle rank chooses, a backward is fused or split as it starts, and a running W ends early where
something else should run. The arguments are rows and tables of a `SchedulerState`. With reserves no choice strands the schedule on
memory: the proof is at `admits`.
"""

from __future__ import annotations

from typing import Any

from schedc.compiled.kernel import kernel
from schedc.solvers.kernel.tables import NEVER, B, F, W

FIRST_OF_ALL = 1 << 60
"""Taken off a priority to put it before all that a rule gives."""
GRAPHS = MYOPIC = RESERVES = TURNS = True
"""What a compiled form may leave out, so that it is smaller and faster: graphs and slices, rules without foresight, reserves, and
what is particular to single heuristics (`hold`, `alternate`, `priority_step`)."""


@kernel(inline=True)
def choose(rank: Any, lanes: Any, blocks: Any, units: Any, reserves: Any, settings: Any, sliced: Any) -> int:
    """Choose what an idle rank runs next of what is known; returns its entry of `when`: when it decides so."""
    latest_ns = rank.free_ns - 1
    while True:
        kind, lane, start_ns = scan(rank, latest_ns, lanes, blocks, units, reserves, settings, sliced)
        if kind < 0:
            return NEVER
        is_first = latest_ns < rank.free_ns
        if is_first or not MYOPIC or settings.foresight:
            decide_ns = start_ns
        if not is_first or settings.look_ahead_ns == 0:
            break
        latest_ns = start_ns + settings.look_ahead_ns
    rank.kind = kind
    rank.lane = lane
    rank.start_ns = start_ns
    return 2 * decide_ns + 1


@kernel(inline=True)
def scan(
    rank: Any, latest_ns: int, lanes: Any, blocks: Any, units: Any, reserves: Any, settings: Any, sliced: Any
) -> tuple[int, int, int]:
    """The op that goes first on an idle rank, as kind, lane and start; kind -1: there is none.

    It is, of the ops that can start until `latest_ns`, the one of smallest priority; before the rank is free, of those that can
    start first. `rank` is its row, `sliced` whether microbatches have several slices; the other arguments are of the
    `SchedulerState`.
    """
    # F, B and W compare in the same way, written out: a function for it would give back all that is best so far.
    free_ns, unlimited = rank.free_ns, rank.limit_bytes >= NEVER
    forward_first = TURNS and settings.alternate and rank.after_b
    foresight = not MYOPIC or settings.foresight
    best_kind, best_lane, best_ns, best_ready_ns, best_priority = -1, -1, NEVER, NEVER, NEVER
    is_first = latest_ns < free_ns
    bound_ns, floor_ns = (NEVER, NEVER) if is_first else (latest_ns, -1)  # none starts later; one before the floor goes first
    for number in range(rank.first_lane, rank.end_lane):
        lane = lanes[number]
        next_f, next_b = lane.next_f, lane.next_b
        if (
            next_f < lane.known_f
            and next_f - next_b < lane.cap
            and (unlimited or admits(rank, lane, blocks, units, reserves, settings, sliced))
        ):
            ready_ns, priority = blocks[next_f].f_at_ns, lane.priority_f
            if forward_first:
                priority -= FIRST_OF_ALL
            if TURNS:
                priority += blocks[next_f].microbatch * settings.priority_step
            start_ns = ready_ns if ready_ns > free_ns else free_ns
            if foresight:
                ready_ns = start_ns
            if start_ns <= bound_ns and (
                start_ns < floor_ns or priority < best_priority or (priority == best_priority and ready_ns < best_ready_ns)
            ):
                best_kind, best_lane, best_ns, best_ready_ns, best_priority = F, number, start_ns, ready_ns, priority
                if is_first:
                    bound_ns = floor_ns = start_ns
        fits = unlimited or rank.used_bytes + lane.again_bytes <= rank.limit_bytes
        if next_b < lane.known_b and fits and (not TURNS or next_f - lane.first >= lane.hold):
            at_b = next_b
            if sliced:
                at_b = backward_at(lane, next_b, settings)
            ready_ns, priority = blocks[at_b].b_at_ns, lane.priority_b
            if TURNS:
                priority += blocks[at_b].microbatch * settings.priority_step
            start_ns = ready_ns if ready_ns > free_ns else free_ns
            if foresight:
                ready_ns = start_ns
            if start_ns <= bound_ns and (
                start_ns < floor_ns or priority < best_priority or (priority == best_priority and ready_ns < best_ready_ns)
            ):
                best_kind, best_lane, best_ns, best_ready_ns, best_priority = B, number, start_ns, ready_ns, priority
                if is_first:
                    bound_ns = floor_ns = start_ns
        waiting = lane.waiting
        if waiting > 0 and (
            waiting > lane.lag
            or next_b == lane.last
            or (not unlimited and keeps_out(rank, lanes, blocks, units, reserves, settings, sliced))
        ):
            priority = lane.priority_w
            if free_ns <= bound_ns and (
                free_ns < floor_ns or priority < best_priority or (priority == best_priority and free_ns < best_ready_ns)
            ):
                best_kind, best_lane, best_ns, best_ready_ns, best_priority = W, number, free_ns, free_ns, priority
                if is_first:
                    bound_ns = floor_ns = free_ns
    return best_kind, best_lane, best_ns


@kernel(inline=True)
def backward_at(lane: Any, position: int, settings: Any) -> Any:
    """The position whose backward is the one of this number in the lane: of slices, those of a microbatch go backwards."""
    return position + settings.slices - 1 - 2 * ((position - lane.first) % settings.slices)


@kernel(inline=True)
def admits(rank: Any, lane: Any, blocks: Any, units: Any, reserves: Any, settings: Any, sliced: Any) -> bool:
    """Whether memory lets the next F of the lane start: it fits, and it strands nobody.

    It strands nobody if every microbatch can still finish when all of them finish one after another, lowest first (the banker's
    algorithm with a fixed order, the same on all ranks). For a microbatch with forwards left on this rank that means: all it
    ever holds here, `NEED_BYTES`, fits beside what the microbatches above it hold. On one path that is hardest for the
    lowest such microbatch, `OLDEST`, since fewer are above the others; so one check per path is enough, and none where a rank
    has one lane (nothing above `OLDEST` holds anything).

    Why the scheduler then never stands still: suppose nothing runs and nothing is on its way, and take the lowest microbatch
    with an F or B left. Its next one is ready, since those before it are done. A B can start, or, where stages recompute, keeps W
    from being left waiting, as it is due: once all of them have run, what F took is all that is held, and F leave room for any
    recomputation. An F has no lower microbatch in flight on its lane, so no cap stops it; and no reserve does, since no path has a
    lower microbatch with forwards left. If it does not fit, then only because of W of lower microbatches, for `NEED_BYTES` is
    free of those above; memory then keeps an F out of this rank (one that is known, too), so these W are not left waiting, and one
    can start. If no F or B is left, no W is left waiting.
    """
    bytes_left = rank.limit_bytes - (units[lane.next_f].held_bytes if sliced else lane.held_bytes)
    if rank.used_bytes > bytes_left:
        return False
    if RESERVES and rank.reserves >= 0:
        microbatch = blocks[lane.next_f].microbatch
        if sliced:
            microbatch //= settings.slices
        for row in range(rank.reserves, rank.reserves + settings.paths):
            reserve = reserves[row]
            if reserve.oldest < microbatch and reserve.need_bytes + reserve.above_bytes > bytes_left:
                return False
    return True


@kernel(inline=True)
def keeps_out(rank: Any, lanes: Any, blocks: Any, units: Any, reserves: Any, settings: Any, sliced: Any) -> bool:
    """Whether memory does not let the next F of some lane start: with foresight one that is known, else come when it may; or a B.

    Without foresight nothing in the answer depends on what is on its way, so a W that it lets run has not waited for anything.
    """
    for number in range(rank.first_lane, rank.end_lane):
        lane = lanes[number]
        next_f = lane.next_f
        comes = next_f < lane.known_f
        if MYOPIC and not settings.foresight:
            comes = next_f < lane.last and next_f - lane.next_b < lane.cap
        if comes and not admits(rank, lane, blocks, units, reserves, settings, sliced):
            return True
        if lane.next_b < next_f and rank.used_bytes + lane.again_bytes > rank.limit_bytes:
            return True
    return False


@kernel(inline=True)
def decide(rank: Any, lanes: Any, ranks: Any, blocks: Any, joints: Any, hops: Any, occupancy_ns: Any, settings: Any) -> None:
    """Fuse or split the backward that the rank starts now, as its patience has it: `NEVER`: fuse, `-NEVER`: split.

    Others are fused if the gradient of BW comes no later, beyond this patience, than the receiver could take it: as far as is known
    now, after what it runs and the backwards of the lane that it has waiting. Where nobody receives a gradient, they are fused.
    """
    lane, start_ns = lanes[rank.lane], rank.start_ns
    at_b = lane.next_b
    if GRAPHS and settings.slices > 1:
        at_b = backward_at(lane, at_b, settings)
    block = blocks[at_b]
    patience_ns = block.patience_ns
    fused = patience_ns > -NEVER
    if fused and patience_ns < NEVER and lane.previous >= 0:
        end_ns = start_ns + block.backward_ns
        if GRAPHS and settings.slices > 0:
            joint, at = joints[rank.lane], (at_b - lane.first) % settings.slices
            for number in range(joint.first_back, joint.end_back):
                hop = hops[number]
                arrival_ns = end_ns + hop.latency_ns + occupancy_ns[number * settings.slices + at]
                if arrival_ns > taken_ns(start_ns, hop.to, lanes, ranks, blocks, settings) + patience_ns:
                    fused = False
        else:
            arrival_ns = end_ns
            if lane.gradient_on >= 0:
                arrival_ns += lane.gradient_occupancy_ns + lane.gradient_latency_ns
            fused = arrival_ns <= taken_ns(start_ns, lane.previous, lanes, ranks, blocks, settings) + patience_ns
    block.fused = 1 if fused else 0


@kernel(inline=True)
def taken_ns(start_ns: int, number: int, lanes: Any, ranks: Any, blocks: Any, settings: Any) -> Any:
    """When the lane of this number could take a gradient: after what its rank runs, and after its backwards that are known."""
    to = lanes[number]
    receiver = ranks[to.rank]
    by_ns, first = max(start_ns, receiver.free_ns), to.next_b
    if receiver.running and receiver.kind == B and receiver.lane == number:  # with foresight it counts as done
        first += 1
    for position in range(first, to.known_b):
        at_b = position
        if GRAPHS and settings.slices > 1:
            at_b = backward_at(to, position, settings)
        by_ns = max(by_ns, blocks[at_b].b_at_ns) + blocks[at_b].backward_input_ns
    return by_ns


@kernel()
def shorten(
    rank: Any, now_ns: int, seen_ns: int, lanes: Any, blocks: Any, units: Any, reserves: Any, settings: Any, sliced: Any
) -> None:
    """End the running W at the first part's edge from which something else should run, of what is known at `now_ns`.

    What was in sight at `seen_ns` was weighed when the W was chosen; -1: not all of it.
    """
    mine = lanes[rank.lane]
    at_w = mine.next_w
    if sliced:
        at_w = backward_at(mine, at_w, settings)
    parts, begun, block_ns = mine.parts, mine.done_parts, blocks[at_w].weight_ns
    if parts == 1:
        return
    origin_ns = rank.start_ns - block_ns * begun // parts
    for number in range(rank.first_lane, rank.end_lane):
        lane = lanes[number]
        f_at_ns = blocks[lane.next_f].f_at_ns if lane.next_f < lane.known_f else NEVER
        at_b = lane.next_b
        if sliced:
            at_b = backward_at(lane, at_b, settings)
        b_at_ns = blocks[at_b].b_at_ns if lane.next_b < lane.known_b else NEVER
        for ready_ns in (f_at_ns, b_at_ns):
            end_ns, look_ns = rank.free_ns, ready_ns - settings.look_ahead_ns
            if look_ns <= seen_ns or look_ns >= end_ns:
                continue
            look_ns = max(now_ns, look_ns)
            edge = max(begun + 1, -(-(look_ns - origin_ns) * parts // block_ns))
            while origin_ns + block_ns * edge // parts < look_ns:
                edge += 1
            edge_ns = origin_ns + block_ns * edge // parts
            if edge_ns < end_ns:
                rank.free_ns = edge_ns
                if not gives_way(rank, edge_ns, lanes, blocks, units, reserves, settings, sliced):
                    rank.free_ns = end_ns


@kernel()
def gives_way(rank: Any, edge_ns: int, lanes: Any, blocks: Any, units: Any, reserves: Any, settings: Any, sliced: Any) -> bool:
    """Whether something else than the W that the rank runs should run from `edge_ns` on, when it is free."""
    kind, number, start_ns = scan(rank, edge_ns - 1, lanes, blocks, units, reserves, settings, sliced)
    if kind < 0 or start_ns > edge_ns:
        return False
    if settings.look_ahead_ns > 0:
        kind, number, start_ns = scan(rank, edge_ns + settings.look_ahead_ns, lanes, blocks, units, reserves, settings, sliced)
    return kind != W or number != rank.lane
