"""When everything of a schedule happens, and what ranks hold, found slowly from the text of the pages: of chains, graphs, slices.

It knows ops by their names and looks for what can happen next among all that can; the simulator moves along arrays. Nothing is
shared but the representations. A moment is (nanosecond, delta), as in the cost model, "Moments".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from schedc.ir.ops import WHOLE, Kind, Op, sent_to

if TYPE_CHECKING:
    from schedc.ir.graph import Edge
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

Moment = tuple[int, int]
Block = tuple[bool, int, int]
"""Whether it is a backward, the stage, the microbatch."""


class Sent(NamedTuple):
    """A transfer: its ranks, and its nanoseconds."""

    source: int
    destination: int
    ready_ns: int
    start_ns: int
    left_ns: int
    arrival_ns: int


class Found(NamedTuple):
    """What happens; times are nanoseconds."""

    spans: dict[Op, tuple[int, int]]
    transfers: dict[Op, Sent]
    collectives: dict[tuple[str, int], tuple[int, int]]
    peaks: list[int]


def slow_simulation(problem: Problem, schedule: Schedule) -> Found | None:
    """What happens; None: the ranks wait for each other."""
    rank_of = [stage.rank for stage in problem.stages]
    links = {(link.source, link.destination): link for link in problem.links}
    shares = {(each.kind, each.stage): each.shares for each in schedule.parts}
    spans: dict[Op, tuple[Moment, Moment]] = {}
    arrived: dict[tuple[Block, int], Moment] = {}
    """By the block that sends and the stage that takes."""
    free: dict[str, Moment] = {}
    transfers: dict[Op, Sent] = {}
    parallel = problem.data_parallel
    collectives: dict[tuple[str, int], tuple[int, int]] = {}
    gathered: dict[int, Moment] = {}

    def later(start: Moment, duration_ns: int) -> Moment:
        return (start[0] + duration_ns, 0) if duration_ns else (start[0], start[1] + 1)

    def serve(lane: str, ready: Moment, duration_ns: int) -> tuple[Moment, Moment]:
        start = max(ready, free.get(lane, (0, 0)))
        free[lane] = later(start, duration_ns)
        return start, free[lane]

    def lane_of_collectives(rank: int) -> str:
        assert parallel is not None
        return f"trunk {parallel.trunk}" if parallel.trunk else f"collectives of {rank}"

    for rank, order in enumerate(schedule.orders):
        for stage in dict.fromkeys(op.stage for op in order if op.kind is Kind.F) if parallel and parallel.all_gather_ns else ():
            assert parallel is not None
            start, gathered[stage] = serve(lane_of_collectives(rank), (0, 0), parallel.all_gather_ns[stage])
            collectives["AG", stage] = start[0], gathered[stage][0]

    last_weight = {op.stage: op for order in schedule.orders for op in order if op.kind in (Kind.W, Kind.BW)}
    at = [0] * problem.ranks
    free_from: list[Moment] = [(0, 0)] * problem.ranks
    while True:
        able = []
        for rank, order in enumerate(schedule.orders):
            if at[rank] == len(order):
                continue
            op = order[at[rank]]
            needs = [(*need, op.stage) for need in needed(problem, op) if rank_of[need[0][1]] != rank] if op.part <= 0 else []
            if all((block, to) in arrived for block, _, to in needs):
                start = max([free_from[rank], gathered.get(op.stage, (0, 0)) if op.kind is Kind.F else (0, 0)])
                start = max([start, *(arrived[block, to] for block, _, to in needs)])
                duration_ns = problem.duration_ns(op.kind, op.stage, op.microbatch)
                if op.part != WHOLE:
                    cut = shares[op.kind, op.stage]
                    until, since = (duration_ns * sum(cut[: op.part + more]) // sum(cut) for more in (1, 0))
                    duration_ns = until - since
                able.append((later(start, duration_ns), rank, start, op))
        if not able:
            break
        end, rank, start, op = min(able)  # all that cannot begin yet ends later
        spans[op] = start, end
        free_from[rank] = end
        at[rank] += 1
        if op.part == WHOLE or op.part == len(shares[op.kind, op.stage]) - 1:
            brought: dict[tuple[int, int], Moment] = {}
            for edge in problem.edges_of(problem.path_of[op.microbatch]):
                backward = op.kind in (Kind.B, Kind.BW)
                source, to = (edge.destination, edge.source) if backward else (edge.source, edge.destination)
                size_bytes = edge.gradient_message_bytes if backward else edge.message_bytes
                if op.kind in (Kind.W, Kind.U) or source != op.stage or size_bytes is None or rank_of[to] == rank:
                    continue
                once = (rank_of[to], edge.value)
                if backward or once not in brought:
                    link = links[rank, rank_of[to]]
                    lane = f"trunk {link.trunk}" if link.trunk else f"{rank}>{rank_of[to]}"
                    began, left = serve(lane, end, link.occupancy_ns(share(problem, size_bytes, op.microbatch)))
                    brought[once] = later(left, link.latency_ns) if link.latency_ns else left
                    name = sent_to(op, to) if problem.edges else op._replace(part=WHOLE)
                    transfers[name] = Sent(rank, rank_of[to], end[0], began[0], left[0], brought[once][0])
                arrived[(backward, op.stage, op.microbatch), to] = brought[once]
        if parallel is not None and last_weight.get(op.stage) == op:
            start, done = serve(lane_of_collectives(rank), end, parallel.reduce_scatter_ns[op.stage])
            collectives["RS", op.stage] = start[0], done[0]
    if len(spans) < sum(map(len, schedule.orders)):
        return None
    spans_ns = {op: (start[0], end[0]) for op, (start, end) in spans.items()}
    came_ns = {need: moment[0] for need, moment in arrived.items()}
    peaks = [_peak(problem, schedule, rank, spans_ns, came_ns) for rank in range(problem.ranks)]
    return Found(spans_ns, transfers, collectives, peaks)


def needed(problem: Problem, op: Op) -> list[tuple[Block, Edge]]:
    """The blocks whose values an op needs over edges, with the edge."""
    if op.kind in (Kind.W, Kind.U):
        return []
    backward = op.kind is not Kind.F
    return [
        ((backward, edge.destination if backward else edge.source, op.microbatch), edge)
        for edge in problem.edges_of(problem.path_of[op.microbatch])
        if (edge.source if backward else edge.destination) == op.stage and (edge.has_gradient or not backward)
    ]


def share(problem: Problem, size_bytes: int, microbatch: int) -> int:
    """Of a whole microbatch's size, what this one has, rounded up."""
    lengths = problem.slices or (1,)
    return -(-size_bytes * lengths[microbatch % len(lengths)] // sum(lengths))


def _peak(
    problem: Problem,
    schedule: Schedule,
    rank: int,
    spans_ns: dict[Op, tuple[int, int]],
    came_ns: dict[tuple[Block, int], int],
) -> int:
    """The most that a rank holds in any nanosecond."""
    order = schedule.orders[rank]
    ended = {(op.kind is not Kind.F, op.stage, op.microbatch): spans_ns[op][1] for op in spans_ns if op.kind is not Kind.W}
    values = []
    for op in order:
        needs = needed(problem, op) if op.part <= 0 and not problem.is_chain else []
        for block, edge in needs if len(needs) > 1 else ():
            size_bytes = (edge.message_bytes if op.kind is Kind.F else edge.gradient_message_bytes) or 0
            here = problem.stages[block[1]].rank == rank
            since_ns = ended[block] if here else came_ns[block, op.stage]
            values.append((since_ns, spans_ns[op][0], share(problem, size_bytes, op.microbatch)))

    def most_with(held: int, begin_ns: int, until_ns: int) -> int:
        waits = (sum(size for since, until, size in values if since <= now < until) for now in range(begin_ns, until_ns))
        return held + max(waits, default=-held)

    counts = {(each.kind, each.stage): len(each.shares) for each in schedule.parts}
    held, most, free_ns, slices = 0, 0, 0, len(problem.slices) or 1
    for op in order:
        stage, (start_ns, end_ns), backward = problem.stages[op.stage], spans_ns[op], op.kind in (Kind.B, Kind.BW)
        sizes = stage.activation_bytes, stage.activation_after_input_bytes, stage.recomputed_bytes
        whole, kept, again = (share(problem, size, op.microbatch) for size in sizes)
        states = [share(problem, stage.state_gradient_bytes, at) for at in range(slices - 1)]
        last = op.microbatch % slices == slices - 1
        most = max(most, most_with(held, free_ns, start_ns))
        if op.part <= 0:
            held += whole if op.kind is Kind.F else again + last * sum(states) if backward else 0
        most = max(most, most_with(held, start_ns, max(end_ns, start_ns + 1)))
        if op.part == WHOLE or op.part == counts[op.kind, op.stage] - 1:
            held -= kept if op.kind is Kind.W else 0
            held -= whole + again - kept * (op.kind is Kind.B) + (0 if last else states[op.microbatch % slices]) if backward else 0
        free_ns = end_ns
    return most
