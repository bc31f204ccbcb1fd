"""The kernel of the search over layouts: a draft's costs written into a list scheduler's scheduler, and a few rules run.

Stages, lanes and positions are as in `schedc.solvers.kernel.tables`. There is one path, so a lane is a stage; lanes are sorted by
rank, then along the path. What a stage costs is what `schedc.lower.problem.problem_of` makes of it, from sums over layers.
Of layers that are a graph, `edges` says what stages take from each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from schedc.compiled.kernel import kernel, variant
from schedc.solvers.kernel.choice import GRAPHS
from schedc.solvers.kernel.list_kernel import run_rule
from schedc.solvers.kernel.tables import NEVER
from schedc.solvers.layout.evaluation.edges import arrival_ns, find_edges, following_ns, join, round_trip_ns
from schedc.solvers.layout.evaluation.tables import NUMBERS, LayoutCosts
from schedc.units import MAX_QUANTITY

RULE_COLUMNS = ("fused", "look_ahead_20ths", "place_f", "place_b", "place_w", "in_flight", "more", "lag")
"""A rule of the table: whether backwards are fused where they may be split; how far a rank looks ahead, in 20ths of the longest op;
the places of F, B and W among ops that are ready, 0 goes first; activations in flight: 0: as many as memory holds, 1: what the
round trip takes without W, 2: with W, 3: as many as before the first backward; this many more; whether W are left waiting."""
MICROBATCHES, SPLIT, TORCH, SPAN = range(len(NUMBERS))
FUSED, LOOK_AHEAD, PLACE_F, PLACE_B, PLACE_W, IN_FLIGHT, MORE, LAG = range(len(RULE_COLUMNS))
LEAN = ("HEAP", "MYOPIC", "PARTS", "TURNS")
"""What no rule of the table needs of the list scheduler."""


class Sketch(NamedTuple):
    """A draft, and what is computed of it; by stage, but for what is by rank."""

    cuts: Any
    """One more than there are stages."""
    rank: Any
    again: Any
    lane: Any
    f_ns: Any
    """The mean over microbatches; so the next two."""
    b_ns: Any
    """Of the backward if none is split, else of B."""
    w_ns: Any
    arrive_ns: Any
    """The soonest that its first F may start."""
    after_ns: Any
    """The least time from the end of a fused backward to the end of all."""
    trip: Any
    """The round trip in microbatches, without W."""
    trip_whole: Any
    """The same with W."""
    first_trip: Any
    """How many F it runs before its first backward without making that wait."""
    work_ns: Any
    """By rank, as those that follow: the least work of all microbatches."""
    period_ns: Any
    """Of all microbatches, without W."""
    whole_ns: Any
    """The same with W."""
    forward_ns: Any
    """Of one microbatch."""
    held: Any
    waiting: Any
    """What a microbatch holds at most while none of its blocks runs."""
    static: Any
    free: Any
    """The most that a backward takes besides."""
    need: Any
    """What one microbatch ever holds: a backward takes what it takes besides when later stages have given theirs back."""
    least_f_ns: Any
    """The shortest of any microbatch, as is the next."""
    least_backward_ns: Any
    trip_ns: Any
    """Of graphs, as all that follows but `over`: the longest way from the end of its F to the start of its backward."""
    depth: Any
    """How many stages follow one another behind it."""
    stage_of: Any
    """By layer."""
    carries: Any
    """By edge between layers: the edge between stages that carries it, or -1; its value comes with the edge between layers ..."""
    brings: Any
    value_back: Any
    """... of this number, whose gradient is as large as this."""
    begins: Any
    """By edge between stages, as the next seven: the stage that it leaves."""
    ends: Any
    forth: Any
    """Bytes."""
    back: Any
    """-1: no gradient comes back."""
    mark: Any
    """The same of those of a stage that carry the same values."""
    forth_ns: Any
    """How long it occupies its link, as `back_ns`."""
    back_ns: Any
    hop: Any
    edges: Any
    """One entry: how many edges between stages there are."""
    over: Any
    """One entry: how many bytes too many the ranks hold together, with one microbatch in each stage; -1: it cannot run at all."""


class KernelResult(NamedTuple):
    """What the kernel writes: one entry each."""

    rule: Any
    """The rule that was best; -1: none was run, or all strand themselves."""
    bound_ns: Any
    """No schedule of the layout ends sooner. `NEVER`: none can run: ranks are not connected or have no stage, or memory does not
    hold one microbatch."""


def _example() -> tuple[Any, ...]:
    import numpy as np

    from schedc.solvers.kernel.tables import example_scheduler

    row, grid = np.zeros(1, np.int64), np.zeros((1, 1), np.int64)
    two = {"forward", "backward_input", "backward_weight", "backward", "forward_again", "occupancy_on", "occupancy_back", "tie_ns"}
    costs = LayoutCosts(*(grid if name in two | {"cost", "resource"} else row for name in LayoutCosts._fields))
    sketch, found = Sketch(*(row for _ in Sketch._fields)), KernelResult(row, row)
    return costs, sketch, example_scheduler(), grid, row, 0, 0, found


@kernel(_example, without=LEAN, lean=True)
def evaluate(
    costs: LayoutCosts, sketch: Sketch, scheduler: Any, rules: Any, tried: Any, refuse_ns: int, enough_ns: int, found: KernelResult
) -> Any:
    """The objective of the draft's best schedule among those of some rules; `NEVER` if it has none.

    The rules with the numbers `tried` run in this order: none where the bound is `refuse_ns` or more, no more once one gives
    `enough_ns` or less. `sketch` has the draft, and room; the scheduler has as many lanes as the draft has stages; `rules` are the
    table, [rule, column]; `found` is written.
    """
    found.rule[0] = -1
    bound_ns = lay_out(costs, sketch, scheduler)
    found.bound_ns[0] = bound_ns
    best_ns = NEVER
    if bound_ns >= refuse_ns or bound_ns >= NEVER:
        return best_ns
    measure(costs, sketch, scheduler)
    for number in tried:
        set_rule(costs, sketch, scheduler, rules[number])
        value_ns = run_rule(*scheduler)
        if value_ns >= NEVER and keep_reserves(scheduler, 1):  # else in vain where memory is ample, which it mostly is
            value_ns = run_rule(*scheduler)
            keep_reserves(scheduler, 0)
        if value_ns < best_ns:
            best_ns = value_ns
            found.rule[0] = number
            if best_ns <= enough_ns:
                break
    return best_ns


evaluate_chain = variant(evaluate, "evaluate_chain", without=("GRAPHS",))
"""`evaluate` for layers that are a chain."""


@kernel(inline=True)
def lay_out(costs: LayoutCosts, sketch: Sketch, scheduler: Any) -> Any:
    """Write the draft into the scheduler, all but the rule; returns a lower bound, `NEVER` where it cannot run."""
    lanes, ranks, links = scheduler.lanes, scheduler.ranks, scheduler.links
    stages, count, numbers = len(lanes), len(ranks), costs.numbers
    microbatches, is_split = numbers[MICROBATCHES], numbers[SPLIT]
    sketch.over[0] = -1
    for link in range(len(links)):
        links[link].gathered_ns = 0
    for number in range(count):
        ranks[number].end_lane = 0
        sketch.work_ns[number] = sketch.period_ns[number] = sketch.whole_ns[number] = sketch.forward_ns[number] = 0
        sketch.held[number] = sketch.waiting[number] = sketch.static[number] = sketch.free[number] = sketch.need[number] = 0
    for stage in range(stages):
        ranks[sketch.rank[stage]].end_lane += 1
    begin = 0
    for number in range(count):
        rank = ranks[number]
        size = rank.end_lane
        if size == 0:
            return NEVER
        rank.first_lane = rank.end_lane = begin
        rank.order_from, rank.collectives, rank.reserves = 3 * microbatches * begin, costs.collectives[number], -1
        begin += size
    for stage in range(stages):
        rank = ranks[sketch.rank[stage]]
        sketch.lane[stage] = rank.end_lane
        rank.end_lane += 1
    joined, edges = GRAPHS and len(costs.edge_source) > 0, 0
    if joined:
        edges = sketch.edges[0] = find_edges(costs, sketch)
        if edges < 0:
            return NEVER
    arrive_ns, after_ns = 0, 0
    for stage in range(stages):
        if joined:
            arrive_ns, after_ns = arrival_ns(costs, sketch, edges, stage), following_ns(costs, sketch, edges, stage)
        sketch.arrive_ns[stage], sketch.after_ns[stage] = arrive_ns, after_ns
        lane = lanes[sketch.lane[stage]]
        lane.stage, lane.rank, lane.path, lane.parts, lane.hold = stage, sketch.rank[stage], 0, 1, 0
        if not joined:
            lane.previous = sketch.lane[stage - 1] if stage > 0 else -1
            lane.following = sketch.lane[stage + 1] if stage + 1 < stages else -1
        lane.first = sketch.lane[stage] * microbatches
        lane.last = lane.first + microbatches
        lane.gather_ns = costs.gather[stage if len(costs.gather) > 1 else 0]
        lane.scatter_ns = costs.scatter[stage if len(costs.scatter) > 1 else 0]
        lane.first_gate_ns = 0
        hold_bytes(costs, sketch, lane, stage, edges)
        if not joined and not connect(costs, sketch, lane, stage, stages):
            return NEVER
        least_f_ns, least_backward_ns = set_blocks(costs, sketch, scheduler, lane, stage)
        if joined:
            sketch.least_f_ns[stage], sketch.least_backward_ns[stage] = least_f_ns, least_backward_ns
            continue
        if lane.message_on >= 0:
            arrive_ns += lane.message_occupancy_ns + lane.message_latency_ns
        arrive_ns += least_f_ns
        after_ns += least_backward_ns
        if stage + 1 < stages and sketch.rank[stage] != sketch.rank[stage + 1]:
            cost = costs.cost[sketch.rank[stage + 1]][sketch.rank[stage]]
            if cost < 0:
                return NEVER
            after_ns += costs.occupancy_back[cost][sketch.cuts[stage + 1] - 1] + costs.latency[cost]
    if joined:
        join(costs, sketch, scheduler, edges)
    for tie in range(len(costs.tie_one)):
        if not sum_of_tie(costs, sketch, lanes, tie):
            return NEVER
    sketch.over[0] = 0
    for number in range(count):
        rank = ranks[number]
        rank.limit_bytes = NEVER
        if costs.capacity[number] < NEVER:
            rank.limit_bytes = costs.capacity[number] - sketch.static[number]
        elif costs.in_flight[number] < NEVER:
            rank.limit_bytes = min(costs.in_flight[number] * sketch.waiting[number] + sketch.free[number], MAX_QUANTITY)
        elif costs.limit[number] < NEVER:
            rank.limit_bytes = costs.limit[number]
        if not joined and rank.limit_bytes < sketch.held[number] + sketch.free[number]:  # as `kernel.scheduler` has it
            for at in range(rank.first_lane, rank.end_lane):
                lanes[at].held_bytes = lanes[at].again_bytes = 0
            lanes[rank.first_lane].held_bytes = sketch.held[number] = sketch.need[number]
            sketch.free[number] = 0
        if rank.limit_bytes < NEVER:
            rank.limit_bytes -= sketch.free[number]
        sketch.over[0] += max(0, sketch.held[number] - rank.limit_bytes)
        for at in range(rank.first_lane, rank.end_lane):
            lanes[at].again_bytes -= sketch.free[number]
        reserve = scheduler.reserves[number]
        reserve.need_bytes, reserve.last_lane = sketch.held[number], rank.end_lane - 1
        for at in range(rank.first_lane, rank.end_lane):
            if lanes[at].gather_ns >= 0:
                lanes[at].first_gate_ns = links[rank.collectives].gathered_ns + lanes[at].gather_ns
        for at in range(rank.first_lane, rank.end_lane):
            if lanes[at].gather_ns >= 0:
                links[rank.collectives].gathered_ns += lanes[at].gather_ns
    if sketch.over[0] > 0:
        return NEVER
    bound_ns = 0
    for number in range(count):
        alone_ns = sketch.work_ns[number]
        if numbers[SPAN] == 0:
            first = lanes[ranks[number].first_lane].stage
            arrive_ns, after_ns = sketch.arrive_ns[first], sketch.after_ns[first]
            for at in range(ranks[number].first_lane + 1, ranks[number].end_lane if joined else 0):
                arrive_ns = min(arrive_ns, sketch.arrive_ns[lanes[at].stage])
                after_ns = min(after_ns, sketch.after_ns[lanes[at].stage])
            alone_ns += arrive_ns
            if is_split == 0:
                alone_ns += after_ns
        bound_ns = max(bound_ns, alone_ns)
    settings = scheduler.settings[0]
    settings.stages, settings.paths, settings.microbatches, settings.span = stages, 1, microbatches, numbers[SPAN]
    settings.width, settings.foresight, settings.alternate, settings.priority_step = 2, 1, 0, 0
    settings.slices, settings.most = 1 if joined else 0, NEVER
    return bound_ns


@kernel()
def keep_reserves(scheduler: Any, keep: int) -> bool:
    """Switch the reserves on (1) or off (0) of all ranks that need some, those with a limit and several lanes; are there any?"""
    found = False
    for number in range(len(scheduler.ranks)):
        rank = scheduler.ranks[number]
        if rank.limit_bytes < NEVER and rank.end_lane - rank.first_lane > 1:
            found = True
            rank.reserves = number if keep else -1
    return found


@kernel(inline=True)
def sum_of_tie(costs: LayoutCosts, sketch: Sketch, lanes: Any, tie: int) -> bool:
    """Add what summing a tied weight's gradient takes to both stages' collectives; returns False where nothing connects them."""
    one, other = 0, 0
    while sketch.cuts[one + 1] <= costs.tie_one[tie]:
        one += 1
    while sketch.cuts[other + 1] <= costs.tie_other[tie]:
        other += 1
    here, there = sketch.rank[one], sketch.rank[other]
    if here == there:
        return True
    cost, back = costs.cost[here][there], costs.cost[there][here]
    if cost < 0 or back < 0:
        return False
    took_ns = max(costs.tie_ns[cost][tie], costs.tie_ns[back][tie])
    for stage in (one, other):
        lane = lanes[sketch.lane[stage]]
        lane.scatter_ns = max(0, lane.scatter_ns) + took_ns
    return True


@kernel(inline=True)
def hold_bytes(costs: LayoutCosts, sketch: Sketch, lane: Any, stage: int, edges: int) -> None:
    """What a microbatch of the stage holds, and what the stage holds all the time (`schedc.lower.problem`)."""
    number, numbers, first, last = sketch.rank[stage], costs.numbers, sketch.cuts[stage], sketch.cuts[stage + 1]
    held = costs.activation[last] - costs.activation[first]
    kept = costs.after_input[last] - costs.after_input[first]
    if numbers[TORCH]:
        kept = held
    lane.again_bytes = 0
    if sketch.again[stage]:
        lane.again_bytes = held
        sketch.free[number] = max(sketch.free[number], held)
        held = costs.message[first - 1] if stage > 0 and edges == 0 else 0
        for edge in range(edges):
            held += sketch.forth[edge] if sketch.ends[edge] == stage else 0
    lane.held_bytes, lane.kept_bytes = held, kept
    sketch.held[number] += held
    sketch.need[number] = max(sketch.need[number], sketch.held[number] + lane.again_bytes)
    sketch.waiting[number] += max(held, kept) if numbers[SPLIT] else held
    own = costs.static[stage if len(costs.static) > 1 else 0]
    sketch.static[number] += own + costs.layer_static[last] - costs.layer_static[first]


@kernel(inline=True)
def connect(costs: LayoutCosts, sketch: Sketch, lane: Any, stage: int, stages: int) -> bool:
    """Write over which links the stage sends, and how long that takes; returns False where there is none."""
    number = sketch.rank[stage]
    lane.message_on = lane.gradient_on = -1
    lane.message_occupancy_ns = lane.message_latency_ns = lane.gradient_occupancy_ns = lane.gradient_latency_ns = 0
    if stage + 1 < stages and sketch.rank[stage + 1] != number:
        cost = costs.cost[number][sketch.rank[stage + 1]]
        if cost < 0:
            return False
        lane.message_on = costs.resource[number][sketch.rank[stage + 1]]
        lane.message_occupancy_ns = costs.occupancy_on[cost][sketch.cuts[stage + 1] - 1]
        lane.message_latency_ns = costs.latency[cost]
    if stage > 0 and sketch.rank[stage - 1] != number:
        cost = costs.cost[number][sketch.rank[stage - 1]]
        if cost < 0:
            return False
        lane.gradient_on = costs.resource[number][sketch.rank[stage - 1]]
        lane.gradient_occupancy_ns = costs.occupancy_back[cost][sketch.cuts[stage] - 1]
        lane.gradient_latency_ns = costs.latency[cost]
    return True


@kernel(inline=True)
def set_blocks(costs: LayoutCosts, sketch: Sketch, scheduler: Any, lane: Any, stage: int) -> tuple[Any, Any]:
    """Write the durations of the stage's blocks, and their sums; returns the shortest F and fused backward."""
    first, last, number, numbers = sketch.cuts[stage], sketch.cuts[stage + 1], sketch.rank[stage], costs.numbers
    numerator, denominator = costs.speed_numerator[number], costs.speed_denominator[number]
    microbatches, width = numbers[MICROBATCHES], len(costs.forward[0])
    least_f_ns, least_backward_ns = NEVER, NEVER
    sum_f_ns, sum_b_ns, sum_w_ns, sum_backward_ns, least_ns = 0, 0, 0, 0, 0
    f_ns, b_ns, w_ns, backward_ns = 0, 0, 0, 0
    for n in range(microbatches):
        if n < width:
            f_ns = costs.forward[last][n] - costs.forward[first][n]
            b_ns = costs.backward_input[last][n] - costs.backward_input[first][n]
            w_ns = costs.backward_weight[last][n] - costs.backward_weight[first][n]
            backward_ns = costs.backward[last][n] - costs.backward[first][n]
            if sketch.again[stage]:
                again_ns = costs.forward_again[last][n] - costs.forward_again[first][n]
                b_ns += again_ns
                backward_ns += again_ns
            if numerator != denominator:
                f_ns, b_ns = at_speed(f_ns, numerator, denominator), at_speed(b_ns, numerator, denominator)
                w_ns, backward_ns = at_speed(w_ns, numerator, denominator), at_speed(backward_ns, numerator, denominator)
            if numbers[TORCH] and stage == 0:
                b_ns, w_ns = 0, backward_ns
            least_f_ns, least_backward_ns = min(least_f_ns, f_ns), min(least_backward_ns, backward_ns)
        block = scheduler.blocks[lane.first + n]
        block.microbatch, block.forward_ns, block.backward_input_ns, block.weight_ns = n, f_ns, b_ns, w_ns
        block.backward_ns, block.fused = backward_ns, 1 - numbers[SPLIT]
        block.f_at_ns = 0  # another draft's is there
        sum_f_ns += f_ns
        sum_b_ns += b_ns
        sum_w_ns += w_ns
        sum_backward_ns += backward_ns
        least_ns += f_ns + (min(backward_ns, b_ns + w_ns) if numbers[SPLIT] else backward_ns)
    sketch.work_ns[number] += least_ns
    if numbers[SPLIT] == 0:
        sum_b_ns, sum_w_ns = sum_backward_ns, 0
    sketch.f_ns[stage], sketch.b_ns[stage] = sum_f_ns // microbatches, sum_b_ns // microbatches
    sketch.w_ns[stage] = sum_w_ns // microbatches
    sketch.period_ns[number] += sum_f_ns + sum_b_ns
    sketch.whole_ns[number] += sum_f_ns + sum_b_ns + sum_w_ns
    sketch.forward_ns[number] += sketch.f_ns[stage]
    return least_f_ns, least_backward_ns


@kernel(inline=True)
def at_speed(duration_ns: Any, numerator: Any, denominator: Any) -> Any:
    """The duration on a device of this speed, to the nearest nanosecond, ties to even."""
    scaled = duration_ns * denominator
    whole, rest = scaled // numerator, scaled % numerator
    if 2 * rest > numerator or (2 * rest == numerator and whole % 2 == 1):
        whole += 1
    return whole


@kernel(inline=True)
def measure(costs: LayoutCosts, sketch: Sketch, scheduler: Any) -> None:
    """How many microbatches each stage should have in flight (`schedc.solvers.heuristics.warm_up_counts`)."""
    busiest_ns, whole_ns, lanes = 1, 1, scheduler.lanes
    microbatches = costs.numbers[MICROBATCHES]
    for number in range(len(scheduler.ranks)):
        busiest_ns, whole_ns = max(busiest_ns, sketch.period_ns[number]), max(whole_ns, sketch.whole_ns[number])
    trip_ns, edges, joined = 0, sketch.edges[0], GRAPHS and len(costs.edge_source) > 0
    if joined:
        for stage in range(len(lanes)):
            sketch.trip_ns[stage] = sketch.depth[stage] = 0
    for behind in range(len(lanes)):
        stage = len(lanes) - 1 - behind
        lane = lanes[sketch.lane[stage]]
        if joined:
            trip_ns = round_trip_ns(costs, sketch, edges, stage)
        else:
            trip_ns += sketch.f_ns[stage] + sketch.b_ns[stage]
        if not joined and lane.message_on >= 0:
            back = lanes[sketch.lane[stage + 1]]
            trip_ns += lane.message_occupancy_ns + lane.message_latency_ns
            trip_ns += back.gradient_occupancy_ns + back.gradient_latency_ns
        sketch.trip[stage] = max(1, (trip_ns * microbatches + busiest_ns - 1) // busiest_ns)
        sketch.trip_whole[stage] = max(1, (trip_ns * microbatches + whole_ns - 1) // whole_ns)
        sketch.first_trip[stage] = max(1, (trip_ns - sketch.b_ns[stage]) // max(1, sketch.forward_ns[lane.rank]))


@kernel(inline=True)
def set_rule(costs: LayoutCosts, sketch: Sketch, scheduler: Any, rule: Any) -> None:
    """Write a rule of the table into the scheduler, fitted to the draft."""
    lanes, blocks = scheduler.lanes, scheduler.blocks
    stages, microbatches = len(lanes), costs.numbers[MICROBATCHES]
    apart, most_trip, longest_ns, deepest = 2 * stages + 100, 0, 0, 0
    joined = GRAPHS and len(costs.edge_source) > 0
    fused = 1 if rule[FUSED] or costs.numbers[SPLIT] == 0 else 0
    for stage in range(stages):
        most_trip = max(most_trip, sketch.trip[stage])
        if joined:
            deepest = max(deepest, sketch.depth[stage])
        longest_ns = max(longest_ns, sketch.f_ns[stage], sketch.b_ns[stage], sketch.w_ns[stage])
    scheduler.settings[0].look_ahead_ns = longest_ns * rule[LOOK_AHEAD] // 20
    for number in range(stages):
        lane = lanes[number]
        stage = lane.stage
        depth = deepest - sketch.depth[stage] if joined else stage
        lane.priority_f, lane.priority_b = rule[PLACE_F] * apart - depth, rule[PLACE_B] * apart + depth
        lane.priority_w, lane.lag, cap = rule[PLACE_W] * apart, 0, microbatches
        if rule[LAG]:
            lane.lag = most_trip - sketch.trip[stage]
        if rule[IN_FLIGHT] == 1:
            cap = sketch.trip[stage]
        elif rule[IN_FLIGHT] == 2:
            cap = sketch.trip_whole[stage]
        elif rule[IN_FLIGHT] == 3:
            cap = sketch.first_trip[stage]
        lane.cap = max(1, min(microbatches, cap + rule[MORE]))
        if blocks[lane.first].fused != fused:
            for position in range(lane.first, lane.last):
                blocks[position].fused = fused
