"""The part of the kernel that lays out a graph: edges between a draft's stages, and what the list scheduler needs of them.

What an edge carries is what `schedc.lower.problem.edges_between` says. Tables are those of `LayoutCosts`, `Sketch` and of a list
scheduler's state; loops over edges suit the few that a layout has.
"""

from __future__ import annotations

from typing import Any

from schedc.compiled.kernel import kernel


@kernel(inline=True)
def find_edges(costs: Any, sketch: Any) -> int:
    """Write the edges between the draft's stages, in their order; returns how many there are, -1 where ranks are not connected."""
    count = 0
    for stage in range(len(sketch.rank)):
        for layer in range(sketch.cuts[stage], sketch.cuts[stage + 1]):
            sketch.stage_of[layer] = stage
    for at in range(len(costs.edge_source)):
        source, destination = sketch.stage_of[costs.edge_source[at]], sketch.stage_of[costs.edge_destination[at]]
        sketch.carries[at] = -1
        if source == destination:
            continue
        same = costs.edge_same[at]  # an edge before it with the same value, which the stage may have taken already
        while same >= 0 and (sketch.carries[same] < 0 or sketch.ends[sketch.carries[same]] != destination):
            same = costs.edge_same[same]
        if same >= 0:
            first = sketch.brings[same]
            sketch.carries[at], sketch.brings[at] = sketch.carries[same], first
            sketch.value_back[first] = max(sketch.value_back[first], costs.edge_back[at])
            continue
        number = 0
        while number < count and (sketch.begins[number] != source or sketch.ends[number] != destination):
            number += 1
        if number == count:
            sketch.begins[number], sketch.ends[number] = source, destination
            sketch.forth[number], sketch.back[number], sketch.mark[number] = 0, -1, 0
            count += 1
        sketch.carries[at], sketch.brings[at], sketch.value_back[at] = number, at, costs.edge_back[at]
        sketch.forth[number] += costs.edge_bytes[at]
        sketch.mark[number] += costs.edge_mark[at]
    for at in range(len(costs.edge_source)):
        number = sketch.carries[at]
        if number >= 0 and sketch.brings[at] == at and sketch.value_back[at] >= 0:
            sketch.back[number] = max(0, sketch.back[number]) + sketch.value_back[at]
    for number in range(count):
        source, destination = sketch.rank[sketch.begins[number]], sketch.rank[sketch.ends[number]]
        sketch.forth_ns[number] = sketch.back_ns[number] = 0
        if source != destination:
            cost, cost_back = costs.cost[source][destination], costs.cost[destination][source]
            if cost < 0 or (sketch.back[number] >= 0 and cost_back < 0):
                return -1
            sketch.forth_ns[number] = occupied_ns(costs, cost, sketch.forth[number])
            if sketch.back[number] >= 0:
                sketch.back_ns[number] = occupied_ns(costs, cost_back, sketch.back[number])
    return count


@kernel()
def occupied_ns(costs: Any, cost: int, size_bytes: int) -> Any:
    """`MessageCost.occupancy_ns`, in 64 bits."""
    if costs.transfer[cost] >= 0:
        return costs.setup[cost] + costs.transfer[cost]
    speed = costs.bandwidth[cost]
    if speed == 0:
        return costs.setup[cost]
    whole_ns, rest = size_bytes // speed, size_bytes % speed
    for _ in range(3):
        rest *= 1000
        whole_ns = 1000 * whole_ns + rest // speed
        rest %= speed
    return costs.setup[cost] + whole_ns + (1 if rest > 0 else 0)


@kernel(inline=True)
def join(costs: Any, sketch: Any, scheduler: Any, count: int) -> None:
    """Write what each lane sends along these edges, and how much it needs, as `schedc.solvers.kernel.joints` does."""
    lanes, joints, hops, occupancy_ns = scheduler.lanes, scheduler.joints, scheduler.hops, scheduler.occupancy_ns
    at = 0
    for number in range(len(lanes)):
        lane, joint = lanes[number], joints[number]
        stage = lane.stage
        joint.needs_f = joint.needs_b = 0
        lane.previous = lane.following = -1
        joint.first_hop = at
        for edge in range(count):
            if sketch.begins[edge] == stage:
                there = sketch.rank[sketch.ends[edge]]
                set_hop(costs, hops[at], at, lane.rank, there, sketch.lane[sketch.ends[edge]])
                for before in range(edge):  # equal values are sent to a rank once
                    same = sketch.begins[before] == stage and sketch.mark[before] == sketch.mark[edge]
                    if same and hops[at].carrier == at and sketch.rank[sketch.ends[before]] == there:
                        hops[at].carrier = sketch.hop[before]
                sketch.hop[edge] = at
                occupancy_ns[at] = sketch.forth_ns[edge]
                joint.needs_b += 1 if sketch.back[edge] >= 0 else 0
                at += 1
        joint.end_hop = joint.first_back = at
        for edge in range(count):
            if sketch.ends[edge] == stage:
                joint.needs_f += 1
                if sketch.back[edge] >= 0:
                    set_hop(costs, hops[at], at, lane.rank, sketch.rank[sketch.begins[edge]], sketch.lane[sketch.begins[edge]])
                    occupancy_ns[at] = sketch.back_ns[edge]
                    if lane.previous < 0:
                        lane.previous = hops[at].to
                    at += 1
        joint.end_back = at


@kernel(inline=True)
def set_hop(costs: Any, hop: Any, at: int, here: int, there: int, to: int) -> None:
    """Write which lane the hop of this number is for, and over which link it goes from one rank to the other."""
    hop.to, hop.carrier, hop.on, hop.latency_ns = to, at, -1, 0
    if here != there:
        hop.on, hop.latency_ns = costs.resource[here][there], costs.latency[costs.cost[here][there]]


@kernel(inline=True)
def arrival_ns(costs: Any, sketch: Any, count: int, stage: int) -> Any:
    """The soonest that the stage's first F may start, those before it being known."""
    found_ns = 0
    for edge in range(count):
        if sketch.ends[edge] == stage:
            source = sketch.begins[edge]
            way_ns = (
                sketch.arrive_ns[source]
                + sketch.least_f_ns[source]
                + crossing_ns(costs, sketch, source, stage, sketch.forth_ns[edge])
            )
            found_ns = max(found_ns, way_ns)
    return found_ns


@kernel(inline=True)
def following_ns(costs: Any, sketch: Any, count: int, stage: int) -> Any:
    """The least time from the end of the stage's fused backward to the end of all, that of those before it being known."""
    found_ns = 0
    for edge in range(count):
        if sketch.ends[edge] == stage and sketch.back[edge] >= 0:
            source = sketch.begins[edge]
            way_ns = sketch.after_ns[source] + sketch.least_backward_ns[source]
            found_ns = max(found_ns, way_ns + crossing_ns(costs, sketch, stage, source, sketch.back_ns[edge]))
    return found_ns


@kernel(inline=True)
def crossing_ns(costs: Any, sketch: Any, source: int, destination: int, occupied_ns: Any) -> Any:
    """What a message takes from one stage to another."""
    here, there = sketch.rank[source], sketch.rank[destination]
    return occupied_ns + costs.latency[costs.cost[here][there]] if here != there else 0


@kernel(inline=True)
def round_trip_ns(costs: Any, sketch: Any, count: int, stage: int) -> Any:
    """From the start of the stage's F to the end of its backward if nothing queues; tells those before it, which come later."""
    trip_ns = sketch.trip_ns[stage] + sketch.f_ns[stage] + sketch.b_ns[stage]
    for edge in range(count):
        if sketch.ends[edge] == stage:
            source = sketch.begins[edge]
            sketch.depth[source] = max(sketch.depth[source], sketch.depth[stage] + 1)
            if sketch.back[edge] >= 0:
                way_ns = trip_ns + crossing_ns(costs, sketch, source, stage, sketch.forth_ns[edge])
                way_ns += crossing_ns(costs, sketch, stage, source, sketch.back_ns[edge])
                sketch.trip_ns[source] = max(sketch.trip_ns[source], way_ns)
    return trip_ns
