"""How many microbatches a stage should have in flight: for no gaps on the slowest rank, or none on the way of the first one back.

Takes a Problem; gives one count per stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir import Kind, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir import Edge, Link


def round_trip_in_flight(problem: Problem, *, whole_period: bool) -> tuple[int, ...]:
    """Per stage, its round trip in periods, rounded up.

    The round trip is the time from the start of the stage's F to the end of its B if nothing queues: all F, B and transfers from it
    to the end of its path and back. The period is the busiest rank's time per microbatch of the path. For equal stages and free
    links this is 1F1B's p - i; a slow link adds what PipeMorph's slackness adds (its section 4.2). Durations that differ by
    microbatch are averaged. Of slices the last one goes backward first, so one less than a microbatch has comes to it: for equal
    stages this is the warm-up of Seq1F1B (Sun et al., 2024, section 3.2). It holds for any placement, a graph, too. `whole_period`:
    whether the period has W in it.
    """
    backward = _backward(problem)
    kinds = (Kind.F, Kind.B, Kind.W) if whole_period and problem.split_backward else (Kind.F, backward)
    visits = [problem.path_of.count(number) for number in range(len(problem.paths))]
    work_ns = [0] * problem.ranks
    for path, count in zip(problem.paths, visits, strict=True):
        for index in path:
            stage = problem.stages[index]
            work_ns[stage.rank] += sum(count * _mean_ns(stage.durations_ns(kind)) for kind in kinds)
    busiest_ns = max(1, *work_ns)
    trips = [1] * len(problem.stages)
    for number, index, trip_ns in round_trips_ns(problem):
        trips[index] = max(trips[index], -(-trip_ns * visits[number] // busiest_ns))
    return tuple(trip + max(0, len(problem.slices) - 1) for trip in trips)


def in_flight_before_first_backward(problem: Problem) -> tuple[int, ...]:
    """Per stage, how many F it can run before its first B, so that no rank makes the first microbatch wait on its way back.

    One more would be running when the first B could start, and put it off, at every rank on the way. So Zero Bubble fills its
    warm-up (Qi et al., 2023, section 3.1, where a bubble before the first B is allowed). On a rank with several stages of a path
    their F take turns. It holds for any placement, a graph, too.
    """
    backward = _backward(problem)
    counts = [1] * len(problem.stages)
    for number, index, trip_ns in round_trips_ns(problem):
        stage = problem.stages[index]
        neighbours = [problem.stages[other] for other in problem.paths[number] if problem.stages[other].rank == stage.rank]
        turn_ns = max(1, sum(_mean_ns(neighbour.forward_ns) for neighbour in neighbours))
        counts[index] = max(counts[index], (trip_ns - _mean_ns(stage.durations_ns(backward))) // turn_ns)
    return tuple(count + max(0, len(problem.slices) - 1) for count in counts)


def round_trips_ns(problem: Problem) -> Iterator[tuple[int, int, int]]:
    """Of each path and each of its stages: the time from the start of the stage's F to the end of its B if nothing queues."""
    backward = _backward(problem)
    links = {(link.source, link.destination): link for link in problem.links}
    if not problem.is_chain:
        yield from ((0, index, trip_ns) for index, trip_ns in enumerate(_graph_trips_ns(problem, links)))
        return
    per = len(problem.slices) or 1
    for number, path in enumerate(problem.paths):
        trip_ns, next_rank = 0, None
        for index in reversed(path):
            stage = problem.stages[index]
            trip_ns += _mean_ns(stage.forward_ns) + _mean_ns(stage.durations_ns(backward))
            if next_rank is not None and next_rank != stage.rank:
                onward, back = links[stage.rank, next_rank], links[next_rank, stage.rank]
                trip_ns += onward.latency_ns + onward.occupancy_ns(stage.message_bytes // per)
                trip_ns += back.latency_ns + back.occupancy_ns(stage.gradient_message_bytes // per)
            next_rank = stage.rank
            yield number, index, trip_ns


def _graph_trips_ns(problem: Problem, links: dict[tuple[int, int], Link]) -> list[int]:
    """By stage, the longest way there and back over edges that have a gradient; other values are there when they are needed."""
    backward, lengths = _backward(problem), range(len(problem.slices) or 1)

    def crossing_ns(source: int, destination: int, size_bytes: int) -> int:
        if source == destination:
            return 0
        link = links[source, destination]
        shares_ns = [link.occupancy_ns(problem.share_bytes(size_bytes, at)) for at in lengths]
        return link.latency_ns + sum(shares_ns) // len(shares_ns)

    beyond_ns = [0] * len(problem.stages)
    trips_ns = [0] * len(problem.stages)
    into: dict[int, list[Edge]] = {}
    for edge in problem.edges:
        if edge.has_gradient:
            into.setdefault(edge.destination, []).append(edge)
    for index in reversed(problem.paths[0]):
        stage = problem.stages[index]
        trips_ns[index] = beyond_ns[index] + _mean_ns(stage.forward_ns) + _mean_ns(stage.durations_ns(backward))
        for edge in into.get(index, ()):
            rank = problem.stages[edge.source].rank
            way_ns = trips_ns[index] + crossing_ns(rank, stage.rank, edge.message_bytes)
            way_ns += crossing_ns(stage.rank, rank, edge.gradient_message_bytes or 0)
            beyond_ns[edge.source] = max(beyond_ns[edge.source], way_ns)
    return trips_ns


def _backward(problem: Problem) -> Kind:
    return Kind.B if problem.split_backward else Kind.BW


def _mean_ns(durations_ns: tuple[int, ...]) -> int:
    return sum(durations_ns) // len(durations_ns)
