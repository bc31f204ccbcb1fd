"""The list scheduler's kernel: tables of a problem and of a rule in, each rank's order and the end out; plain or compiled.

`run_rule` is the whole of it. It always takes the rank for which something happens first, and starts or ends an op there. It works
on the tables of a `SchedulerState`. What a rank runs next is chosen in `choice`; with reserves that never strands a schedule on
memory.
"""

from __future__ import annotations

import heapq
from typing import Any

from schedc.compiled.kernel import kernel, variant
from schedc.solvers.kernel.choice import GRAPHS, MYOPIC, RESERVES, backward_at, choose, decide, shorten
from schedc.solvers.kernel.tables import BW, KINDS, NEVER, B, F, W, example_scheduler

HEAP = MIXING = PARTS = True
"""What a compiled form may leave out, besides what `choice` has: the heap of events (it takes the soonest of all ranks), patience,
and W in parts."""


@kernel(lambda: tuple(example_scheduler()), without=("HEAP",), lean=True)
def run_rule(
    lanes: Any,
    ranks: Any,
    blocks: Any,
    reserves: Any,
    held: Any,
    links: Any,
    left: Any,
    order: Any,
    all_settings: Any,
    when: Any,
    joints: Any,
    units: Any,
    hops: Any,
    occupancy_ns: Any,
) -> int:
    """Schedule all ops; returns the objective in nanoseconds, or `NEVER` if it stranded itself, which it may without reserves.

    The arguments are a `SchedulerState`.
    """
    settings = all_settings[0]
    reset(lanes, ranks, blocks, units, reserves, held, links, left, when, joints, settings)
    count, foresight, joined = len(ranks), not MYOPIC or settings.foresight, GRAPHS and settings.slices > 0
    sliced = GRAPHS and settings.slices > 1
    if HEAP:  # when something happens on each rank, times `count`, plus the rank; one that no longer agrees with `when` is void
        events, pending = [soonest * count + number for number, soonest in enumerate(when)], NEVER
    while True:
        if HEAP:
            event = heapq.heappushpop(events, pending)
            if event >= NEVER:
                break
            soonest, number = event // count, event % count
            if soonest != when[number]:
                pending = NEVER
                continue
        else:
            number = soonest_of(when)
            soonest = when[number]
            if soonest >= NEVER:
                break
        rank = ranks[number]
        changed = number
        if rank.kind >= 0:
            if rank.running == 0:
                if MIXING and settings.mixes and rank.kind == B:
                    decide(rank, lanes, ranks, blocks, joints, hops, occupancy_ns, settings)
                start(number, rank, lanes, blocks, units, reserves, held, order, settings, sliced)
                if not foresight:
                    when[number] = soonest = 2 * rank.free_ns
                    if HEAP:
                        pending = soonest * count + number
                    continue
            if joined:
                deliver(rank, lanes, ranks, blocks, units, joints, hops, occupancy_ns, links, settings)
            receiver = finish(number, rank, lanes, blocks, units, reserves, held, links, left, order, settings, joined, sliced)
            if receiver >= 0:
                changed = receiver
            if joined:
                changed = told_of(ranks, number)
        while True:  # those for which something has changed choose anew: the receivers, then the rank itself
            other, after = ranks[changed], when[changed]
            if other.running == 0:
                after = choose(other, lanes, blocks, units, reserves, settings, sliced)
            elif PARTS and other.kind == W:
                shorten(other, soonest // 2, -1, lanes, blocks, units, reserves, settings, sliced)
                after = 2 * other.free_ns
            if HEAP and changed != number and after != when[changed]:
                heapq.heappush(events, after * count + changed if after < NEVER else NEVER)
            when[changed] = after
            if changed == number:
                break
            changed = told_of(ranks, number) if joined else number
        if HEAP:
            pending = after * count + number if after < NEVER else NEVER
    for stage in range(len(left)):
        if left[stage] > 0:
            return NEVER
    span_ns, end_ns = 0, settings.scattered_ns
    for number in range(count):
        span_ns = max(span_ns, ranks[number].free_ns - ranks[number].begun_ns)
        end_ns = max(end_ns, ranks[number].free_ns)
    return span_ns if settings.span else end_ns


run_chain_rule = variant(run_rule, "run_chain_rule", without=("GRAPHS",))
"""`run_rule` for chains of whole microbatches."""


@kernel(inline=True)
def reset(
    lanes: Any,
    ranks: Any,
    blocks: Any,
    units: Any,
    reserves: Any,
    held: Any,
    links: Any,
    left: Any,
    when: Any,
    joints: Any,
    settings: Any,
) -> None:
    """Everything as before the first op: each rank is about to look for one."""
    for stage in range(len(left)):
        left[stage] = 0
    for number in range(len(lanes)):
        lane = lanes[number]
        first = lane.first
        lane.next_f = lane.next_b = lane.next_w = lane.known_b = first
        lane.known_f = first if lane.previous >= 0 else lane.last
        if GRAPHS and settings.slices > 0:
            joint = joints[number]
            lane.known_f = first if joint.needs_f > 0 else lane.last
            for position in range(first, lane.last):
                blocks[position].f_at_ns = blocks[position].b_at_ns = 0
                units[position].f_left, units[position].b_left = joint.needs_f, joint.needs_b
        lane.waiting = lane.done_parts = lane.gate_ns = 0
        lane.gathered = 1
        if lane.gather_ns >= 0:
            lane.gate_ns, lane.gathered = lane.first_gate_ns, 0
            for position in range(first, lane.known_f):
                blocks[position].f_at_ns = lane.gate_ns
        left[lane.stage] += 1
    for number in range(len(ranks)):
        rank = ranks[number]
        rank.free_ns = rank.after_b = rank.used_bytes = rank.running = 0
        rank.begun_ns, rank.order_at, rank.told = -1, rank.order_from, 0
        rank.kind = when[number] = -1
        if RESERVES and rank.reserves >= 0:
            for microbatch in range(settings.microbatches):
                held[number][microbatch] = 0
            for row in range(rank.reserves, rank.reserves + settings.paths):
                last = reserves[row].last_lane
                reserves[row].oldest = blocks[lanes[last].first].microbatch if last >= 0 else NEVER
                if GRAPHS and settings.slices > 1 and last >= 0:
                    reserves[row].oldest //= settings.slices
                reserves[row].above_bytes = 0
    for resource in range(len(links)):
        links[resource].free_ns = links[resource].gathered_ns
    settings.scattered_ns = 0


@kernel(inline=True)
def soonest_of(when: Any) -> int:
    """The rank where something happens first."""
    number = 0
    for other in range(1, len(when)):
        if when[other] < when[number]:
            number = other
    return number


@kernel(inline=True)
def told_of(ranks: Any, number: int) -> Any:
    """The first rank to which something became known that it has not weighed, which it is about to do; else this one."""
    ranks[number].told = 0
    for other in range(len(ranks)):
        if ranks[other].told:
            ranks[other].told = 0
            return other
    return number


@kernel(inline=True)
def start(
    number: int, rank: Any, lanes: Any, blocks: Any, units: Any, reserves: Any, held: Any, order: Any, settings: Any, sliced: Any
) -> None:
    """The rank of this number runs what was chosen, until `FREE_NS`."""
    kind, lane, start_ns = rank.kind, lanes[rank.lane], rank.start_ns
    rank.running = 1
    if rank.begun_ns < 0:
        rank.begun_ns = start_ns
    if kind == W:
        at = lane.next_w
        while blocks[backward_at(lane, at, settings) if sliced else at].fused:
            at += 1
        lane.next_w = at
        block_ns = blocks[backward_at(lane, at, settings) if sliced else at].weight_ns
        rank.free_ns = start_ns + block_ns
        if PARTS and lane.parts > 1:
            rank.free_ns -= block_ns * lane.done_parts // lane.parts
            shorten(rank, start_ns, start_ns, lanes, blocks, units, reserves, settings, sliced)
        return
    if kind == F:
        block = blocks[lane.next_f]
        duration_ns, held_bytes, group = block.forward_ns, lane.held_bytes, block.microbatch
        if sliced:
            held_bytes, group = units[lane.next_f].held_bytes, group // settings.slices
        lane.next_f += 1
        if lane.gathered == 0:
            gather(rank, lane.stage, lane.gather_ns, lanes, blocks)
        rank.after_b = 0
        rank.used_bytes += held_bytes
        if RESERVES and rank.reserves >= 0:
            record(rank, group, held_bytes, reserves, held[number], settings)
            move_on(rank, lane, group, lanes, blocks, reserves, held[number], settings)
    else:
        block = blocks[backward_at(lane, lane.next_b, settings) if sliced else lane.next_b]
        rank.after_b = 1
        duration_ns = block.backward_ns if block.fused else block.backward_input_ns
        kind = BW if block.fused else B
    rank.free_ns = start_ns + duration_ns
    write(rank, lane, block.microbatch, kind, 0, order, settings)


@kernel(inline=True)
def gather(rank: Any, stage: int, gather_ns: int, lanes: Any, blocks: Any) -> None:
    """The stage's first F starts: a rank gathers in the order of first use, so what it has not used yet comes later."""
    for number in range(rank.first_lane, rank.end_lane):
        lane = lanes[number]
        if lane.stage == stage:
            lane.gathered = 1
        elif lane.gathered == 0:
            lane.gate_ns += gather_ns
            for position in range(lane.first, lane.known_f):
                blocks[position].f_at_ns = max(blocks[position].f_at_ns, lane.gate_ns)


@kernel(inline=True)
def finish(
    number: int,
    rank: Any,
    lanes: Any,
    blocks: Any,
    units: Any,
    reserves: Any,
    held: Any,
    links: Any,
    left: Any,
    order: Any,
    settings: Any,
    joined: Any,
    sliced: Any,
) -> Any:
    """What the rank runs ends: memory is released, a message sent; returns the rank that it is for, or -1.

    Of graphs and slices, `deliver` has sent all, and tells the ranks.
    """
    lane, now_ns, released_bytes = lanes[rank.lane], rank.free_ns, 0
    rank.running = 0
    receiver = -1
    if rank.kind == F:
        if joined:
            return -1
        if lane.following < 0:
            blocks[lane.known_b].b_at_ns = now_ns
            lane.known_b += 1
            return -1
        to = lanes[lane.following]
        at_ns = now_ns
        if lane.message_on >= 0:
            at_ns = send(now_ns, links[lane.message_on], lane.message_occupancy_ns, lane.message_latency_ns)
        blocks[to.known_f].f_at_ns = at_ns if at_ns > to.gate_ns else to.gate_ns
        to.known_f += 1
        return to.rank
    if rank.kind == B:
        at = lane.next_b
        released_bytes, kept_bytes = lane.held_bytes, lane.kept_bytes
        if sliced:
            at = backward_at(lane, at, settings)
            released_bytes, kept_bytes = units[at].held_bytes, units[at].kept_bytes
        block = blocks[at]
        lane.next_b += 1
        if not block.fused:
            released_bytes -= kept_bytes
            lane.waiting += 1
        if lane.previous >= 0 and not joined:
            to = lanes[lane.previous]
            at_ns = now_ns
            if lane.gradient_on >= 0:
                at_ns = send(now_ns, links[lane.gradient_on], lane.gradient_occupancy_ns, lane.gradient_latency_ns)
            blocks[to.known_b].b_at_ns = at_ns
            to.known_b += 1
            receiver = to.rank
    else:
        at, released_bytes = lane.next_w, lane.kept_bytes
        if sliced:
            at = backward_at(lane, at, settings)
            released_bytes = units[at].kept_bytes
        block = blocks[at]
        if not finish_weight(rank, lane, block, order, settings):
            return -1
    rank.used_bytes -= released_bytes
    if RESERVES and rank.reserves >= 0:
        group = block.microbatch
        if sliced:
            group //= settings.slices
        record(rank, group, -released_bytes, reserves, held[number], settings)
    if lane.next_b == lane.last and lane.waiting == 0:
        left[lane.stage] -= 1
        if left[lane.stage] == 0 and lane.scatter_ns >= 0:
            settings.scattered_ns = max(settings.scattered_ns, send(now_ns, links[rank.collectives], lane.scatter_ns, 0))
    return receiver


@kernel(inline=True)
def deliver(
    rank: Any,
    lanes: Any,
    ranks: Any,
    blocks: Any,
    units: Any,
    joints: Any,
    hops: Any,
    occupancy_ns: Any,
    links: Any,
    settings: Any,
) -> None:
    """What the rank runs ends, of a graph or slices: it sends values or gradients, and tells the ranks that now know all of an op.

    A lane's values come in the order of its forwards, its gradients in that of its backwards, along each edge; so what is complete
    comes in that order, too.
    """
    lane, joint, now_ns, slices = lanes[rank.lane], joints[rank.lane], rank.free_ns, settings.slices
    if rank.kind == W:
        return
    forward = rank.kind == F
    number, end, unit = joint.first_back, joint.end_back, lane.next_b
    if forward:
        number, end, unit = joint.first_hop, joint.end_hop, lane.next_f - 1
    elif slices > 1:
        unit = backward_at(lane, unit, settings)
    unit -= lane.first
    at = unit % slices
    if forward and joint.needs_b == 0:  # a loss begins its backwards when the last slice is there
        blocks[lane.first + unit].b_at_ns = now_ns
        if at == slices - 1:
            lane.known_b += slices
    while number < end:
        hop = hops[number]
        if hop.carrier != number:
            hop.arrival_ns = hops[hop.carrier].arrival_ns
        elif hop.on >= 0:
            hop.arrival_ns = send(now_ns, links[hop.on], occupancy_ns[number * slices + at], hop.latency_ns)
        else:
            hop.arrival_ns = now_ns
        to = lanes[hop.to]
        position = to.first + unit
        if forward:
            blocks[position].f_at_ns = max(blocks[position].f_at_ns, hop.arrival_ns)
            units[position].f_left -= 1
            if units[position].f_left == 0:
                blocks[position].f_at_ns = max(blocks[position].f_at_ns, to.gate_ns)
                to.known_f += 1
                ranks[to.rank].told = 1
        else:
            blocks[position].b_at_ns = max(blocks[position].b_at_ns, hop.arrival_ns)
            units[position].b_left -= 1
            if units[position].b_left == 0:
                to.known_b += 1
                ranks[to.rank].told = 1
        number += 1


@kernel(inline=True)
def finish_weight(rank: Any, lane: Any, block: Any, order: Any, settings: Any) -> bool:
    """Write the parts of W that ran, as one op if they are the whole block; returns whether the block is done."""
    parts, begun, done = lane.parts, lane.done_parts, lane.parts
    if PARTS and parts > 1:
        block_ns = block.weight_ns
        origin_ns = rank.start_ns - block_ns * begun // parts
        done = begun + 1
        while done < parts and origin_ns + block_ns * done // parts < rank.free_ns:
            done += 1
    if not PARTS or (begun == 0 and done == parts):
        write(rank, lane, block.microbatch, W, 0, order, settings)
    else:
        for part in range(begun, done):
            write(rank, lane, block.microbatch, W, part + 1, order, settings)
    lane.done_parts = 0
    if PARTS and done < parts:
        lane.done_parts = done
        return False
    lane.next_w += 1
    lane.waiting -= 1
    return True


@kernel(inline=True)
def send(now_ns: int, link: Any, occupancy_ns: int, latency_ns: int) -> Any:
    """When what is ready now arrives; a link or trunk serves in the order of calls."""
    left_ns = (now_ns if now_ns > link.free_ns else link.free_ns) + occupancy_ns
    link.free_ns = left_ns
    return left_ns + latency_ns


@kernel(inline=True)
def record(rank: Any, microbatch: int, more_bytes: int, reserves: Any, held: Any, settings: Any) -> None:
    """On a rank with reserves the microbatch takes bytes, or gives them back (negative); `held` is the rank's."""
    held[microbatch] += more_bytes
    for row in range(rank.reserves, rank.reserves + settings.paths):
        if microbatch > reserves[row].oldest:
            reserves[row].above_bytes += more_bytes


@kernel(inline=True)
def move_on(rank: Any, lane: Any, microbatch: int, lanes: Any, blocks: Any, reserves: Any, held: Any, settings: Any) -> None:
    """An F of the lane has started: if it was its microbatch's last on the rank, room is kept for the next one."""
    reserve = reserves[rank.reserves + lane.path]
    oldest, next_f = reserve.oldest, lane.next_f
    if GRAPHS and settings.slices > 0:
        if microbatch != oldest:
            return
        reserve.oldest = NEVER
        for number in range(rank.first_lane, rank.end_lane):
            other_lane = lanes[number]
            if other_lane.path == lane.path and other_lane.next_f < other_lane.last:
                reserve.oldest = min(reserve.oldest, blocks[other_lane.next_f].microbatch // settings.slices)
    else:
        if reserve.last_lane != rank.lane:
            return
        reserve.oldest = blocks[next_f].microbatch if next_f < lane.last else NEVER
    for other in range(oldest + 1, min(reserve.oldest + 1, settings.microbatches)):
        reserve.above_bytes -= held[other]


@kernel(inline=True)
def write(rank: Any, lane: Any, microbatch: int, kind: int, part: int, order: Any, settings: Any) -> None:
    """The next op of the rank's order; part 0: the whole block, else 1 more than its number."""
    at = rank.order_at
    order[at] = ((microbatch * settings.stages + lane.stage) * KINDS + kind) * settings.width + part
    rank.order_at = at + 1
