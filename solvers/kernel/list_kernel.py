"""The list scheduler's kernel: tables of a problem and of a rule in, each rank's order and the end out; plain or compiled.

`run_rule` is the whole of it. It always takes the rank for which something happens first, and starts or ends an op there. It works
on the tables of a `SchedulerState`. What a rank runs next is chosen in `choice`; with reserves that never strands a schedule on
memory.
"""

from __future__ import annotations

import heapq
from typing import Any

from schedc.compiled.kernel import kernel
from schedc.solvers.kernel.choice import MYOPIC, RESERVES, choose, decide, shorten
from schedc.solvers.kernel.tables import BW, KINDS, NEVER, B, F, W, example_scheduler

HEAP = MIXING = PARTS = True
"""What a compiled form may leave out, besides what `choice` has: the heap of events (it takes the soonest of all ranks), patience,
and W in parts."""


@kernel(lambda: tuple(example_scheduler()), without=("HEAP",), lean=True)
def run_rule(
    lanes: Any, ranks: Any, blocks: Any, reserves: Any, held: Any, links: Any, left: Any, order: Any, all_settings: Any, when: Any
) -> int:
    """Schedule all ops; returns the objective in nanoseconds, or `NEVER` if it stranded itself, which it may without reserves.

    The arguments are a `SchedulerState`.
    """
    settings = all_settings[0]
    reset(lanes, ranks, blocks, reserves, held, links, left, when, settings)
    count, foresight = len(ranks), not MYOPIC or settings.foresight
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
                    decide(rank, lanes, ranks, blocks)
                start(number, rank, lanes, blocks, reserves, held, order, settings)
                if not foresight:
                    when[number] = soonest = 2 * rank.free_ns
                    if HEAP:
                        pending = soonest * count + number
                    continue
            receiver = finish(number, rank, lanes, blocks, reserves, held, links, left, order, settings)
            if receiver >= 0:
                changed = receiver
        while True:  # those for which something has changed choose anew: the receiver, then the rank itself
            other, after = ranks[changed], when[changed]
            if other.running == 0:
                after = choose(other, lanes, blocks, reserves, settings)
            elif PARTS and other.kind == W:
                shorten(other, soonest // 2, -1, lanes, blocks, reserves, settings)
                after = 2 * other.free_ns
            if HEAP and changed != number and after != when[changed]:
                heapq.heappush(events, after * count + changed if after < NEVER else NEVER)
            when[changed] = after
            if changed == number:
                break
            changed = number
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


@kernel(inline=True)
def reset(lanes: Any, ranks: Any, blocks: Any, reserves: Any, held: Any, links: Any, left: Any, when: Any, settings: Any) -> None:
    """Everything as before the first op: each rank is about to look for one."""
    for stage in range(len(left)):
        left[stage] = 0
    for number in range(len(lanes)):
        lane = lanes[number]
        first = lane.first
        lane.next_f = lane.next_b = lane.next_w = lane.known_b = first
        lane.known_f = first if lane.previous >= 0 else lane.last
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
        rank.begun_ns, rank.order_at = -1, rank.order_from
        rank.kind = when[number] = -1
        if RESERVES and rank.reserves >= 0:
            for microbatch in range(settings.microbatches):
                held[number][microbatch] = 0
            for row in range(rank.reserves, rank.reserves + settings.paths):
                last = reserves[row].last_lane
                reserves[row].oldest = blocks[lanes[last].first].microbatch if last >= 0 else NEVER
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
def start(number: int, rank: Any, lanes: Any, blocks: Any, reserves: Any, held: Any, order: Any, settings: Any) -> None:
    """The rank of this number runs what was chosen, until `FREE_NS`."""
    kind, lane, start_ns = rank.kind, lanes[rank.lane], rank.start_ns
    rank.running = 1
    if rank.begun_ns < 0:
        rank.begun_ns = start_ns
    if kind == W:
        while blocks[lane.next_w].fused:
            lane.next_w += 1
        block_ns = blocks[lane.next_w].weight_ns
        rank.free_ns = start_ns + block_ns
        if PARTS and lane.parts > 1:
            rank.free_ns -= block_ns * lane.done_parts // lane.parts
            shorten(rank, start_ns, start_ns, lanes, blocks, reserves, settings)
        return
    if kind == F:
        block = blocks[lane.next_f]
        duration_ns = block.forward_ns
        lane.next_f += 1
        if lane.gathered == 0:
            gather(rank, lane.stage, lane.gather_ns, lanes, blocks)
        rank.after_b = 0
        rank.used_bytes += lane.held_bytes
        if RESERVES and rank.reserves >= 0:
            record(rank, block.microbatch, lane.held_bytes, reserves, held[number], settings)
            move_on(rank, lane, blocks, reserves, held[number], settings)
    else:
        block = blocks[lane.next_b]
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
    reserves: Any,
    held: Any,
    links: Any,
    left: Any,
    order: Any,
    settings: Any,
) -> Any:
    """What the rank runs ends: memory is released, a message sent; returns the rank that it is for, or -1."""
    lane, now_ns, released_bytes = lanes[rank.lane], rank.free_ns, 0
    rank.running = 0
    receiver = -1
    if rank.kind == F:
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
        block = blocks[lane.next_b]
        lane.next_b += 1
        released_bytes = lane.held_bytes
        if not block.fused:
            released_bytes -= lane.kept_bytes
            lane.waiting += 1
        if lane.previous >= 0:
            to = lanes[lane.previous]
            at_ns = now_ns
            if lane.gradient_on >= 0:
                at_ns = send(now_ns, links[lane.gradient_on], lane.gradient_occupancy_ns, lane.gradient_latency_ns)
            blocks[to.known_b].b_at_ns = at_ns
            to.known_b += 1
            receiver = to.rank
    else:
        block = blocks[lane.next_w]
        if not finish_weight(rank, lane, block, order, settings):
            return -1
        released_bytes = lane.kept_bytes
    rank.used_bytes -= released_bytes
    if RESERVES and rank.reserves >= 0:
        record(rank, block.microbatch, -released_bytes, reserves, held[number], settings)
    if lane.next_b == lane.last and lane.waiting == 0:
        left[lane.stage] -= 1
        if left[lane.stage] == 0 and lane.scatter_ns >= 0:
            settings.scattered_ns = max(settings.scattered_ns, send(now_ns, links[rank.collectives], lane.scatter_ns, 0))
    return receiver


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
def move_on(rank: Any, lane: Any, blocks: Any, reserves: Any, held: Any, settings: Any) -> None:
    """An F of the lane has started: if it was its microbatch's last on the rank, room is kept for the next one."""
    reserve = reserves[rank.reserves + lane.path]
    if reserve.last_lane != rank.lane:
        return
    oldest, next_f = reserve.oldest, lane.next_f
    reserve.oldest = blocks[next_f].microbatch if next_f < lane.last else NEVER
    for other in range(oldest + 1, min(reserve.oldest + 1, settings.microbatches)):
        reserve.above_bytes -= held[other]


@kernel(inline=True)
def write(rank: Any, lane: Any, microbatch: int, kind: int, part: int, order: Any, settings: Any) -> None:
    """The next op of the rank's order; part 0: the whole block, else 1 more than its number."""
    at = rank.order_at
    order[at] = ((microbatch * settings.stages + lane.stage) * KINDS + kind) * settings.width + part
    rank.order_at = at + 1
