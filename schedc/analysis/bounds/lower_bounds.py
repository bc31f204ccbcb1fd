"""Analytic lower bounds: no schedule of a problem ends earlier, whatever its order, fusing, cutting into parts or waiting.

Takes a problem; gives one bound per argument (cost model, "Lower bounds"), in nanoseconds of the problem's objective. All are exact
integers and hold for any placement, paths, costs, links, trunks and limits. They share no code with the simulator, the verifiers
or the solvers. Heads and tails are in `heads_and_tails`; for `stage-span` every rank's own span is bounded, and the largest counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import TimeUp, Until, check, never
from schedc.analysis.bounds.heads_and_tails import HeadsAndTails, frames_of, microbatch_classes
from schedc.analysis.bounds.idle_gaps import idle_gap_bound_of_rank
from schedc.analysis.bounds.idle_gaps_chunks import chunk_idle_gap_bound_of_link, chunk_idle_gap_bound_of_rank
from schedc.analysis.bounds.memory_states import RoundTrip, way_of
from schedc.analysis.bounds.mixtures import Backward, mixture_bound
from schedc.analysis.bounds.one_machine import Task
from schedc.analysis.bounds.recomputed import without_recomputed_bytes
from schedc.analysis.bounds.residency import residency_bound_of_rank
from schedc.analysis.bounds.warm_up import wave_tasks
from schedc.ir.plan import BoundName
from schedc.ir.problem import Objective, Problem
from schedc.ir.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


Frames = dict[int | None, list[HeadsAndTails]]
BUSIEST_LINKS = 8
"""For this many links and trunks the idle-gap bound is computed where ranks hold several chunks."""
WAVE_BLOCKS = 400_000
"""This many blocks are affordable; where all frames together have more, only the frame gets waves whose work binds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One lower bound."""

    name: BoundName
    value_ns: int
    """No schedule has a smaller objective."""
    detail: str
    """Where it binds: a rank, a link, a trunk, a microbatch."""


@lru_cache(maxsize=16)
def lower_bounds(problem: Problem) -> tuple[Bound, ...]:
    """All bounds on the problem's objective, each valid on its own; a problem that `schedc.verify.problem` accepts."""
    return bounds_in_time(problem, never)


def bounds_in_time(problem: Problem, until: Until) -> tuple[Bound, ...]:
    """`lower_bounds` as far as the time allows: all but warm-up and idle gaps, and these of as many machines as are looked at."""
    problem, frames = _framed(problem)
    return (*_simple(problem, frames), _warm_up(problem, frames, until), _idle_gaps(problem, frames, until))


def cheap_bound_ns(problem: Problem, until: Until = never) -> int:
    """The largest of `lower_bounds` but for idle gaps, which take by far the longest where ranks hold several chunks.

    Warm-up, which takes all but a few milliseconds of the rest, counts as far as the time allows.
    """
    problem, frames = _framed(problem)
    return max(bound.value_ns for bound in (*_simple(problem, frames), _warm_up(problem, frames, until)))


def simple_bound(problem: Problem) -> Bound:
    """The largest of `lower_bounds` but for warm-up and idle gaps: the others take a millisecond or two."""
    return max(_simple(*_framed(problem)), key=lambda bound: bound.value_ns)


def _framed(problem: Problem) -> tuple[Problem, Frames]:
    """The problem that bounds are computed of, and its frames."""
    problem = without_recomputed_bytes(problem)
    return problem, frames_of(problem, microbatch_classes(problem))


def _simple(problem: Problem, frames: Frames) -> tuple[Bound, ...]:
    return (_work(problem, frames), _link(problem, frames), _residency(problem, frames), _path(frames))


def best_bound(problem: Problem) -> Bound:
    """The largest of `lower_bounds`; of equal ones, the first."""
    return max(lower_bounds(problem), key=lambda bound: bound.value_ns)


def _work(problem: Problem, frames: Frames) -> Bound:
    """For each rank and set of its blocks: least head + total work + least tail.

    Proof: a rank runs one block at a time; see `one_machine_bound`. A backward counts as two tasks, its gradient part, which the
    path back must follow, and the rest, which nothing but the reduce-scatter need follow; fused or split, that much work of it
    is done by those times. What splitting costs, and that a fused one has no rest that could wait, is in `mixture_bound`.
    """
    return _largest(
        BoundName.WORK, (candidate for frame in frames.values() for candidate in _by_resource(_rank_tasks(problem, frame)))
    )


def _link(problem: Problem, frames: Frames) -> Bound:
    """For each link, trunk and rank's collectives, and each set of its transfers: least ready + total occupancy + least tail.

    Proof: a link serves one transfer at a time; see `one_machine_bound`. A transfer is ready no earlier than the head and duration
    of its producer; its latency and its consumer with what follows that come after it.
    """
    tasks = (chain(_link_tasks(frame), _collective_tasks(problem, frame)) for frame in frames.values())
    return _largest(
        BoundName.LINK, (candidate for of_frame in tasks for candidate in _by_resource(of_frame)), otherwise="no transfers"
    )


def _residency(problem: Problem, frames: Frames) -> Bound:
    """For each rank with a memory limit: activations stay for a round trip, and only this many fit (Little's law).

    Proof: `residency_bound_of_rank`. 0 where no rank has a limit.
    """
    candidates = (
        (residency_bound_of_rank(problem, frame, rank), f"rank {rank}")
        for frame in frames.values()
        for rank in range(problem.ranks)
        if problem.memory_limit_bytes[rank] is not None
    )
    return _largest(BoundName.RESIDENCY, candidates, otherwise="no memory limits")


def _idle_gaps(problem: Problem, frames: Frames, until: Until) -> Bound:
    """Per rank, or busy link, its work and the idle time that memory forces on it while microbatches are away.

    Links count where ranks hold several chunks.

    Proof: at `idle_gap_bound_of_rank` and in `idle_gaps_chunks`.
    """
    ways = [(of_frame, way_of(problem, of_frame)) for of_frame in frames.values() if of_frame]
    candidates = (
        candidate
        for frame, way in ways
        for candidate in chain(_rank_idle_gaps(problem, frame, way, until), _link_idle_gaps(problem, frame, way, until))
    )
    return _largest(BoundName.IDLE_GAPS, candidates, otherwise="several paths")


def _rank_idle_gaps(problem: Problem, frame: Sequence[HeadsAndTails], way: RoundTrip, until: Until) -> Iterator[tuple[int, str]]:
    """Every rank, or in the frame of an observer it alone: no bound of another rank holds there."""
    observer = frame[0].observer
    for rank in range(problem.ranks) if observer is None else (observer,):
        yield idle_gap_bound_of_rank(problem, frame, way, rank), f"rank {rank}"
        yield chunk_idle_gap_bound_of_rank(problem, frame, way, rank, until), f"rank {rank}"


def _link_idle_gaps(problem: Problem, frame: Sequence[HeadsAndTails], way: RoundTrip, until: Until) -> Iterator[tuple[int, str]]:
    """Where ranks hold several chunks: the busiest links and trunks, each under the memory limit of each rank."""
    if len(problem.stages) == problem.ranks:
        return
    busy_ns: dict[Resource, int] = {}
    for resource, task in _link_tasks(frame):
        busy_ns[resource] = busy_ns.get(resource, 0) + task.duration_ns
    for resource in sorted(busy_ns, key=lambda resource: -busy_ns[resource])[:BUSIEST_LINKS]:
        if busy_ns[resource]:
            for rank in range(problem.ranks):
                yield chunk_idle_gap_bound_of_link(problem, frame, way, resource, rank, until), resource.text


def _path(frames: Frames) -> Bound:
    """The path of one microbatch there and back, with its collectives.

    Proof: each block and transfer on it needs the one before it to have ended.
    """
    return _largest(
        BoundName.PATH,
        (
            (_longest_path(frame), f"microbatch {frame.microbatches.microbatch}")
            for of_frame in frames.values()
            for frame in of_frame
        ),
    )


def _warm_up(problem: Problem, frames: Frames, until: Until) -> Bound:
    """The work and link bounds, with heads and tails that know how many microbatches memory, stages and links let through before.

    Proof: `warm_up`. A rank whose limit holds c activations idles in the warm-up once c forwards are done, until a gradient
    has come back; and likewise for each wave of c microbatches, and in the cool-down.
    """
    blocks = sum(alike.count * len(alike.path) for alike in microbatch_classes(problem))
    if len(frames) * blocks > WAVE_BLOCKS:
        binding = max(frames, key=lambda observer: _work(problem, {observer: frames[observer]}).value_ns)
        frames = {binding: frames[binding]}
    return _largest(
        BoundName.WARM_UP,
        (candidate for frame in frames.values() for candidate in _by_resource(_wave_tasks(problem, frame, until), until)),
    )


def _largest(name: BoundName, candidates: Iterable[tuple[int, str]], otherwise: str = "no microbatches") -> Bound:
    """The largest of those for which there was time; of equal ones, the first."""
    best: tuple[int, str] | None = None
    try:
        for candidate in candidates:
            if best is None or candidate[0] > best[0]:
                best = candidate
    except TimeUp:
        otherwise = "out of time"
    value_ns, detail = best or (0, otherwise)
    return Bound(name=name, value_ns=value_ns, detail=detail)


def _by_resource(tasks: Iterable[tuple[Resource, Task | Backward]], until: Until = never) -> Iterator[tuple[int, str]]:
    grouped: dict[Resource, list[Task | Backward]] = {}
    for resource, task in tasks:
        grouped.setdefault(resource, []).append(task)
    for resource, together in grouped.items():
        check(until)
        yield mixture_bound(together), resource.text


def _longest_path(frame: HeadsAndTails) -> int:
    return max(
        frame.forward_head_ns[at] + frame.microbatches.costs[at].forward_ns + frame.forward_tail_ns[at] for at in frame.positions()
    )


def _rank_tasks(problem: Problem, frames: Sequence[HeadsAndTails]) -> Iterator[tuple[Resource, Task | Backward]]:
    for frame in frames:
        count = frame.microbatches.count
        for at in frame.positions():
            rank, costs = Resource.of_rank(problem.stages[frame.microbatches.path[at]].rank), frame.microbatches.costs[at]
            yield rank, Task(frame.forward_head_ns[at], count * costs.forward_ns, frame.forward_tail_ns[at])
            backward = Backward(
                microbatches=count,
                gradient_ns=costs.gradient_ns,
                fused_ns=costs.fused_ns,
                split_ns=costs.total_split_ns,
                head_ns=frame.gradient_head_ns[at],
                later_head_ns=frame.gradient_head_ns[at] + costs.gradient_ns,
                gradient_tail_ns=frame.gradient_tail_ns[at],
                sent_tail_ns=frame.sent_tail_ns[at],
                after_ns=frame.after_weight_ns[at] if frame.counted[at] else None,
            )
            yield rank, backward


def _link_tasks(frames: Sequence[HeadsAndTails]) -> Iterator[tuple[Resource, Task]]:
    for frame in frames:
        microbatches, costs = frame.microbatches, frame.microbatches.costs
        for at in frame.positions()[:-1]:
            forward_hop, gradient_hop = microbatches.forward[at], microbatches.backward[at]
            if forward_hop.resource is not None:
                head_ns = frame.forward_head_ns[at] + costs[at].forward_ns
                tail_ns = forward_hop.latency_ns + costs[at + 1].forward_ns + frame.forward_tail_ns[at + 1]
                yield forward_hop.resource, Task(head_ns, microbatches.count * forward_hop.occupancy_ns, tail_ns)
            if gradient_hop.resource is not None:
                head_ns = frame.gradient_head_ns[at + 1] + costs[at + 1].gradient_ns
                tail_ns = gradient_hop.latency_ns + costs[at].gradient_ns + frame.gradient_tail_ns[at]
                yield gradient_hop.resource, Task(head_ns, microbatches.count * gradient_hop.occupancy_ns, tail_ns)


def _collective_tasks(problem: Problem, frames: Sequence[HeadsAndTails]) -> Iterator[tuple[Resource, Task]]:
    """All-gathers precede all forwards of their stage, reduce-scatters follow all its backwards. Only the makespan has them."""
    parallel = problem.data_parallel
    if parallel is None or problem.objective is not Objective.MAKESPAN:
        return
    places_of_stage: dict[int, list[tuple[HeadsAndTails, int]]] = {}
    for frame in frames:
        for at in frame.positions():
            places_of_stage.setdefault(frame.microbatches.path[at], []).append((frame, at))
    for stage, places in places_of_stage.items():
        resource = Resource.of_collectives(parallel, problem.stages[stage].rank)
        costs = [(frame.microbatches.count, frame.microbatches.costs[at]) for frame, at in places]
        if parallel.all_gather_ns:
            tail_ns = max(frame.microbatches.costs[at].forward_ns + frame.forward_tail_ns[at] for frame, at in places)
            yield resource, Task(0, parallel.all_gather_ns[stage], tail_ns)
        work_ns = min(frame.forward_head_ns[at] for frame, at in places)
        work_ns += sum(count * (cost.forward_ns + cost.backward_ns) for count, cost in costs)
        alone_ns = max(frame.gradient_head_ns[at] + frame.microbatches.costs[at].backward_ns for frame, at in places)
        yield resource, Task(max(work_ns, alone_ns), parallel.reduce_scatter_ns[stage], 0)


def _wave_tasks(problem: Problem, frames: Sequence[HeadsAndTails], until: Until) -> Iterator[tuple[Resource, Task | Backward]]:
    by_path: Mapping[tuple[int, ...], list[HeadsAndTails]] = {frame.microbatches.path: [] for frame in frames}
    for frame in frames:
        by_path[frame.microbatches.path].append(frame)
    for of_path in by_path.values():
        yield from wave_tasks(problem, of_path, until)
