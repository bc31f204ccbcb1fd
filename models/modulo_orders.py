"""What ops of one step need of each other, and a period's orders from when its ops start: for modulo schedules of any maker."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import Kind, Op, Problem, Resource, Schedule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence


class ModuloNeed(NamedTuple):
    """A block starts after another of its microbatch, by way of a link or trunk (None: by way of neither, or of ops left out)."""

    producer: Op
    consumer: Op
    resource: Resource | None
    occupancy_ns: int
    latency_ns: int


def may_fuse(problem: Problem, stage: int, microbatch: int) -> bool:
    """Whether a backward may be split, and takes less time fused; else one of the two does all that the other does."""
    b_ns, w_ns, bw_ns = (problem.duration_ns(kind, stage, microbatch) for kind in (Kind.B, Kind.W, Kind.BW))
    return problem.split_backward and bw_ns < b_ns + w_ns


def needs_of(problem: Problem) -> Iterator[ModuloNeed]:
    """Along the path of each microbatch of a step, and back; B stands for the whole backward unless the problem fuses all."""
    backward = Kind.B if problem.split_backward else Kind.BW
    for microbatch in range(problem.microbatches):
        path = problem.path(microbatch)
        yield ModuloNeed(Op(Kind.F, path[-1], microbatch), Op(backward, path[-1], microbatch), None, 0, 0)
        for before, after in pairwise(path):
            for kind, source, destination in ((Kind.F, before, after), (backward, after, before)):
                producer, consumer = Op(kind, source, microbatch), Op(kind, destination, microbatch)
                ranks = problem.rank_of(producer), problem.rank_of(consumer)
                if ranks[0] == ranks[1]:
                    yield ModuloNeed(producer, consumer, None, 0, 0)
                else:
                    link = problem.link(*ranks)
                    occupancy_ns = link.occupancy_ns(problem.message_bytes(producer))
                    yield ModuloNeed(producer, consumer, Resource.of_link(link), occupancy_ns, link.latency_ns)


def needs_between(problem: Problem, ranks: Collection[int]) -> Iterator[ModuloNeed]:
    """Those of these ranks' ops, as if the others were never busy: what is done there, and on the way, is latency."""
    after = {need.producer: need for need in needs_of(problem)}
    for need in after.values():
        if problem.rank_of(need.producer) not in ranks:
            continue
        latency_ns, last = 0, need
        while problem.rank_of(last.consumer) not in ranks and last.consumer in after:
            op, latency_ns = last.consumer, latency_ns + last.occupancy_ns + last.latency_ns
            ways = [op.kind, Kind.BW] if may_fuse(problem, op.stage, op.microbatch) and op.kind is Kind.B else [op.kind]
            latency_ns += min(problem.duration_ns(kind, op.stage, op.microbatch) for kind in ways)
            last = after[op]
        if problem.rank_of(last.consumer) not in ranks:
            continue
        if last is need:
            yield need
        else:
            yield ModuloNeed(need.producer, last.consumer, None, 0, latency_ns + last.occupancy_ns + last.latency_ns)


def schedule_of_starts(problem: Problem, starts: Mapping[Op, int], period_ns: int) -> Schedule:
    """The period that a timetable repeats: each rank's ops by residue, with the steps that they are of.

    What starts together (something of it takes no time) is in the order in which a microbatch does it. A rank's period begins where
    its ops are of the fewest steps. `starts` has when each op of step 0 starts.
    """
    orders = []
    place = {(path, stage): at for path, stages in enumerate(problem.paths) for at, stage in enumerate(stages)}

    def depth(op: Op) -> int:
        if op.kind is Kind.U:
            return 4 * len(problem.stages)
        at = place[problem.path_of[op.microbatch], op.stage]
        return at if op.kind is Kind.F else 3 * len(problem.stages) - at if op.kind is Kind.W else 2 * len(problem.stages) - at

    for rank in range(problem.ranks):
        own = [op for op in starts if problem.rank_of(op) == rank]
        length_ns = {op: problem.duration_ns(op.kind, op.stage, op.microbatch) for op in own}
        own.sort(key=lambda op: (starts[op] % period_ns, length_ns[op] > 0, depth(op)))
        orders.append(turned(problem, [(-(starts[op] // period_ns), op) for op in own]))
    return Schedule(orders=tuple(orders))


def turned(problem: Problem, own: Sequence[tuple[int, Op]]) -> tuple[Op, ...]:
    """A rank's period of these steps and ops, begun where its ops are of the fewest steps; the least step is 0."""
    steps = [step for step, _ in own]
    # Of the ops from each place on, and of those before it, which are a step later if the period begins there.
    most_from, least_from = ([*accumulate(reversed(steps), which)][::-1] for which in (max, min))
    most_before, least_before = ([*accumulate(steps, which)] for which in (max, min))
    ways = [(most_from[0] - least_from[0], own[0][1].kind is not Kind.F, 0, least_from[0])]
    for first in range(1, len(own)):
        least = min(least_from[first], least_before[first - 1] + 1)
        most = max(most_from[first], most_before[first - 1] + 1)
        ways.append((most - least, own[first][1].kind is not Kind.F, first, least))
    _, _, first, least = min(ways)
    now = [*own[first:], *((step + 1, op) for step, op in own[:first])]
    n = problem.microbatches
    return tuple(op._replace(microbatch=op.microbatch + (step - least) * (1 if op.kind is Kind.U else n)) for step, op in now)
