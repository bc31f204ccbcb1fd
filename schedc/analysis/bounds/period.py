"""Analytic lower bounds on the period, where steps overlap: no schedule repeats sooner, whatever its orders and steps.

Takes a problem that is one step of a run without end (`Updates.is_period`); gives bounds in whole nanoseconds, each with its name
and where it binds. They hold for any placement, paths, links, memory limits, and blocks that are fused or split.

Assumes: the schedule repeats every step, runs each block whole, and keeps its mode's rule and the memory limits at every moment. A
bound over the period as a real number is rounded up, as periods are whole nanoseconds.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from schedc.analysis.bounds.period_chains import chains_of
from schedc.analysis.bounds.period_states import states_bound_ns
from schedc.ir import BoundName, Kind, Problem, Resource, Versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.analysis.bounds.period_chains import RoundTrips


class Portion(NamedTuple):
    """Work on one resource, between two moments: at least `head` after the first and at least `tail` before the second."""

    head_ns: int
    work_ns: int
    tail_ns: int


def period_bounds(problem: Problem) -> tuple[tuple[BoundName, int, str], ...]:
    """The largest bound of each kind, with where it binds: work, links, memory, and the chain of a step."""
    chains = chains_of(problem)
    kinds = {
        BoundName.WORK: _work(problem, chains),
        BoundName.LINK: _links(chains),
        BoundName.RESIDENCY: _memory(problem, chains),
        BoundName.PATH: _steps(problem, chains),
    }
    return tuple((name, *max(each, default=(0, "nothing"), key=lambda pair: pair[0])) for name, each in kinds.items())


def _work(problem: Problem, chains: Sequence[RoundTrips]) -> Iterator[tuple[int, str]]:
    """Per rank, what one step takes there.

    Proof: each period holds every block of one step and one update of each stage, and a rank runs one op at a time.
    """
    work_ns = [0] * problem.ranks
    for chain in chains:
        for stage, forward_ns, whole_ns in zip(chain.path, chain.forward_ns, chain.whole_ns, strict=True):
            work_ns[problem.stages[stage].rank] += chain.count * (forward_ns + whole_ns)
    for each in problem.stages:
        work_ns[each.rank] += each.update_ns
    return ((value_ns, f"rank {rank}") for rank, value_ns in enumerate(work_ns))


def _links(chains: Sequence[RoundTrips]) -> Iterator[tuple[int, str]]:
    """Per link or trunk, how long the messages of one step occupy it. Proof: as of work."""
    busy_ns: dict[Resource, int] = defaultdict(int)
    for chain in chains:
        for hop in (*chain.there, *chain.back):
            if hop is not None:
                busy_ns[hop[0]] += chain.count * hop[1]
    return ((value_ns, resource.text) for resource, value_ns in busy_ns.items())


def _memory(problem: Problem, chains: Sequence[RoundTrips]) -> Iterator[tuple[int, str]]:
    """Per rank with a limit, what it holds on average (Little's law).

    Proof: over one period, bytes times the time for which they are held is at most the limit times the period. A microbatch holds
    its activation at least from the start of F until its gradient is sent, and what W needs until its whole backward has ended; a
    recomputation adds to that. Under 2BW one version beside the newest is held all the time. Under stash a version is held from the
    start of its U until the last backward that reads it has ended, and for one period of that it is the newest, which is not
    counted. In a period a stage has one U and its step's forwards, so that many microbatches read each version; their forwards run
    one after another once U has ended, and after the last of them come its return and its backward. So where activations take E
    bytes times nanoseconds, and versions of v bytes live for l at least, E + sum of v (l - T) <= limit T, the sum over any stages.
    All that is counted is a multiple of the sizes' common divisor, so the limit is rounded down to one. For the activations alone,
    until the gradients are sent, that divisor may be larger. In whole microbatches: `period_states`.
    """
    updates = problem.updates
    mode = Versions.BOUNDED if updates is None else updates.versions
    places: dict[int, list[tuple[RoundTrips, int]]] = defaultdict(list)
    for chain in chains:
        for place, stage in enumerate(chain.path):
            places[stage].append((chain, place))
    for rank, limit_bytes in enumerate(problem.memory_limit_bytes):
        stages = [stage for stage in problem.stages_on(rank) if stage in places]
        if limit_bytes is None or not stages:
            continue
        costs = [problem.stages[stage] for stage in stages]
        lives = []
        for stage, each in zip(stages, costs, strict=True):
            first = each.update_ns + sum(chain.count * chain.forward_ns[place] for chain, place in places[stage])
            last = min(chain.return_ns(place) + chain.whole_ns[place] for chain, place in places[stage])
            lives.append((first + last, each.version_bytes))
        lives = sorted(life for life in lives if life[1])[::-1] if mode is Versions.STASH else []
        room = limit_bytes - sum(each.version_bytes for each in costs) * (mode is Versions.TWO_BUFFERED)
        for whole in (True, False):
            sizes = {each.activation_bytes for each in costs}
            if whole:
                sizes |= {size for each in costs for size in (each.activation_after_input_bytes, each.recomputed_bytes)}
            energy = sum(chain.count * _held(problem, chain, at, whole=whole) for stage in stages for chain, at in places[stage])
            for some in (lives[:count] for count in range(len(lives) + 1)):
                unit = max(1, gcd(*sizes, *(size for _, size in some)))
                total = energy + sum(life_ns * size for life_ns, size in some)
                held = room // unit * unit + sum(size for _, size in some)
                if total and held > 0:
                    yield -(-total // held), f"rank {rank}"
        yield states_bound_ns(problem, rank, chains), f"rank {rank}"


def _steps(problem: Problem, chains: Sequence[RoundTrips]) -> Iterator[tuple[int, str]]:
    """Per stage, where the mode bounds how far steps overlap: what a step takes there, in that many periods.

    Proof: bounded: with at most D updates of a stage between a microbatch's F and its last backward, take two updates of it that
    follow each other, i and i + 1. Between them each of the step's microbatches, of one step or another, runs its F once; all of
    these end their backwards before update i + D + 1 starts. So from the end of one update to the start of another, D + 1 periods
    later, these forwards and backwards run, with all that lies between: (D + 1) T is at least the update and their span. 2BW: the
    forwards of step k + 2 start after the U of step k has ended, and that after all backwards of step k; so from the first F of
    step k to the end of its U are at most two periods: the same with D = 1. The span, from the first start of these F to the last
    end of their backwards, is for each rank or link, and each set of the work on it, at least the least head, the work, the least
    tail.
    """
    updates = problem.updates
    if updates is None or updates.versions is Versions.STASH:
        return
    periods = 2 if updates.versions is Versions.TWO_BUFFERED else 1 + (updates.most_delay or 0)
    for stage, costs in enumerate(problem.stages):
        tasks: dict[Resource, list[Portion]] = defaultdict(list)
        for chain in chains:
            if stage not in chain.path:
                continue
            parts = chain.parts(chain.path.index(stage))
            head_ns, total_ns = 0, sum(part_ns for _, part_ns, _ in parts)
            for link, part_ns, place in parts:
                resource = link if place < 0 else Resource.of_rank(problem.stages[chain.path[place]].rank)
                if resource is not None:
                    tasks[resource].append(Portion(head_ns, chain.count * part_ns, total_ns - head_ns - part_ns))
                head_ns += part_ns
        for resource, each in tasks.items():
            yield -(-(costs.update_ns + _one_machine_ns(each)) // periods), f"stage {stage}'s step, by {resource.text}"


def _one_machine_ns(tasks: list[Portion]) -> int:
    """The largest, over sets of tasks with at least some head and some tail, of least head + work + least tail."""
    best_ns = 0
    for tail_ns in {task.tail_ns for task in tasks}:
        rest = sorted((task for task in tasks if task.tail_ns >= tail_ns), reverse=True)
        for task, work_ns in zip(rest, accumulate(task.work_ns for task in rest), strict=True):
            best_ns = max(best_ns, task.head_ns + work_ns + tail_ns)
    return best_ns


def _held(problem: Problem, chain: RoundTrips, at: int, *, whole: bool) -> int:
    """Bytes times nanoseconds of a microbatch on a stage, at least; without `whole` of its F's activation until B ends, alone."""
    stage, microbatch = chain.path[at], chain.microbatch
    costs = problem.stages[stage]
    before = costs.activation_bytes * (chain.forward_ns[at] + chain.return_ns(at))
    if not whole:
        return before + costs.activation_bytes * chain.gradient_ns[at]
    ways = [costs.most_bytes * problem.duration_ns(Kind.BW, stage, microbatch)]
    if problem.split_backward:
        input_ns, weights_ns = (problem.duration_ns(kind, stage, microbatch) for kind in (Kind.B, Kind.W))
        ways.append(costs.most_bytes * input_ns + costs.activation_after_input_bytes * weights_ns)
    return before + min(ways)
