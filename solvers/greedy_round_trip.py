"""How many microbatches a stage must have in flight so that the slowest rank has no gaps. Takes a Problem; one count per stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

__all__ = ["round_trip_in_flight"]


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
    backward = Kind.B if problem.split_backward else Kind.BW
    kinds = (Kind.F, Kind.B, Kind.W) if whole_period and problem.split_backward else (Kind.F, backward)
    work_ns = [0] * problem.ranks
    visits = [problem.path_of.count(number) for number in range(len(problem.paths))]
    for path, count in zip(problem.paths, visits, strict=True):
        for index in path:
            stage = problem.stages[index]
            work_ns[stage.rank] += sum(count * _mean_ns(stage.durations_ns(kind)) for kind in kinds)
    busiest_ns = max(1, *work_ns)
    links = {(link.source, link.destination): link for link in problem.links}
    trips = [1] * len(problem.stages)
    for path, count in zip(problem.paths, visits, strict=True):
        trip_ns, next_rank = 0, None
        for index in reversed(path):
            stage = problem.stages[index]
            trip_ns += _mean_ns(stage.forward_ns) + _mean_ns(stage.durations_ns(backward))
            if next_rank is not None and next_rank != stage.rank:
                onward, back = links[stage.rank, next_rank], links[next_rank, stage.rank]
                trip_ns += onward.latency_ns + onward.occupancy_ns(stage.message_bytes)
                trip_ns += back.latency_ns + back.occupancy_ns(stage.gradient_message_bytes)
            next_rank = stage.rank
            trips[index] = max(trips[index], -(-trip_ns * count // busiest_ns))
    return tuple(trips)


def _mean_ns(durations_ns: tuple[int, ...]) -> int:
    return sum(durations_ns) // len(durations_ns)
