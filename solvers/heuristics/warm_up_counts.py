"""How many microbatches a stage should have in flight: for no gaps on the slowest rank, or none on the way of the first one back.

Takes a Problem; gives one count per stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir import Kind, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator


def round_trip_in_flight(problem: Problem, *, whole_period: bool) -> tuple[int, ...]:
    """Per stage, its round trip in periods, rounded up.

    The round trip is the time from the start of the stage's F to the end of its B if nothing queues: all F, B and transfers from it
    to the end of its path and back. The period is the busiest rank's time per microbatch of the path. For equal stages and free
    links this is 1F1B's p - i; a slow link adds what PipeMorph's slackness adds (its section 4.2). Durations that differ by
    microbatch are averaged.

    Args:
        problem: any placement.
        whole_period: whether the period has W in it.
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
    for number, index, trip_ns in _round_trips(problem):
        trips[index] = max(trips[index], -(-trip_ns * visits[number] // busiest_ns))
    return tuple(trips)


def in_flight_before_first_backward(problem: Problem) -> tuple[int, ...]:
    """Per stage, how many F it can run before its first B, so that no rank makes the first microbatch wait on its way back.

    One more would be running when the first B could start, and put it off, at every rank on the way. So Zero Bubble fills its
    warm-up (Qi et al., 2023, section 3.1, where a bubble before the first B is allowed). On a rank with several stages of a path
    their F take turns.

    Args:
        problem: any placement.
    """
    backward = _backward(problem)
    counts = [1] * len(problem.stages)
    for number, index, trip_ns in _round_trips(problem):
        stage = problem.stages[index]
        neighbours = [problem.stages[other] for other in problem.paths[number] if problem.stages[other].rank == stage.rank]
        turn_ns = max(1, sum(_mean_ns(neighbour.forward_ns) for neighbour in neighbours))
        counts[index] = max(counts[index], (trip_ns - _mean_ns(stage.durations_ns(backward))) // turn_ns)
    return tuple(counts)


def _round_trips(problem: Problem) -> Iterator[tuple[int, int, int]]:
    """Of each path and each of its stages: the time from the start of the stage's F to the end of its B if nothing queues."""
    backward = _backward(problem)
    links = {(link.source, link.destination): link for link in problem.links}
    for number, path in enumerate(problem.paths):
        trip_ns, next_rank = 0, None
        for index in reversed(path):
            stage = problem.stages[index]
            trip_ns += _mean_ns(stage.forward_ns) + _mean_ns(stage.durations_ns(backward))
            if next_rank is not None and next_rank != stage.rank:
                onward, back = links[stage.rank, next_rank], links[next_rank, stage.rank]
                trip_ns += onward.latency_ns + onward.occupancy_ns(stage.message_bytes)
                trip_ns += back.latency_ns + back.occupancy_ns(stage.gradient_message_bytes)
            next_rank = stage.rank
            yield number, index, trip_ns


def _backward(problem: Problem) -> Kind:
    return Kind.B if problem.split_backward else Kind.BW


def _mean_ns(durations_ns: tuple[int, ...]) -> int:
    return sum(durations_ns) // len(durations_ns)
