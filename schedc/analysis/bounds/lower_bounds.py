"""Analytic lower bounds: no schedule of a problem ends earlier, whatever its order, fusing, cutting into parts or waiting.

Takes a problem; gives one bound per argument (cost model, "Lower bounds"), in nanoseconds of the problem's objective. All are exact
integers and hold for any placement, paths, costs, links, trunks and limits. They share no code with the simulator, the verifiers
or the solvers. Heads and tails are in `heads_and_tails`; for `stage-span` every rank's own span is bounded, and the largest counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import TimeUp, Until, check, never
from schedc.analysis.bounds.heads_and_tails import Frame, HeadsAndTails, frames_of
from schedc.analysis.bounds.idle_gaps import idle_gap_bound_of_rank
from schedc.analysis.bounds.idle_gaps_chunks import chunk_idle_gap_bound, chunk_idle_gap_bound_of_rank
from schedc.analysis.bounds.one_machine import Backward, Task, mixture_bound
from schedc.analysis.bounds.period import period_bounds
from schedc.analysis.bounds.residency import (
    beside_gathered,
    residency_bound_of_rank,
    slices_as_microbatches,
    without_recomputed_bytes,
)
from schedc.analysis.bounds.slices import waits_for_slices
from schedc.analysis.bounds.warm_up import wave_tasks
from schedc.ir import BoundName, Objective, Problem, Resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


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
    if problem.updates is not None and problem.updates.is_period:
        return tuple(Bound(name=name, value_ns=value_ns, detail=detail) for name, value_ns, detail in period_bounds(problem))
    frames, along = _frames(problem)
    return (*_simple(frames), _warm_up(along, until), _idle_gaps(along, until))


def cheap_bound_ns(problem: Problem, until: Until = never) -> int:
    """The largest of `lower_bounds` but for idle gaps, which take by far the longest where ranks hold several chunks.

    Warm-up, which takes all but a few milliseconds of the rest, counts as far as the time allows. Of a period: all of them.
    """
    if problem.updates is not None and problem.updates.is_period:
        return max(value_ns for _, value_ns, _ in period_bounds(problem))
    frames, along = _frames(problem)
    return max(bound.value_ns for bound in (*_simple(frames), _warm_up(along, until)))


def simple_bound(problem: Problem) -> Bound:
    """The largest of `lower_bounds` but for warm-up and idle gaps: the others take a millisecond or two."""
    return max(_simple(frames_of(without_recomputed_bytes(beside_gathered(problem)))), key=lambda bound: bound.value_ns)


def best_bound(problem: Problem) -> Bound:
    """The largest of `lower_bounds`; of equal ones, the first."""
    return max(lower_bounds(problem), key=lambda bound: bound.value_ns)


def _frames(problem: Problem) -> tuple[Sequence[Frame], Sequence[Frame]]:
    """The frames; and those for what counts microbatches, in which slices are some."""
    problem = without_recomputed_bytes(beside_gathered(problem))
    frames = frames_of(problem)
    return frames, frames_of(slices_as_microbatches(problem)) if problem.slices else frames


def _simple(frames: Sequence[Frame]) -> tuple[Bound, ...]:
    return (_work(frames), _link(frames), _residency(frames), _path(frames))


def _work(frames: Sequence[Frame]) -> Bound:
    """For each rank and set of its blocks: least head + total work + least tail.

    Proof: a rank runs one block at a time; see `one_machine_bound`. A backward counts as two tasks, its gradient part, which the
    path back must follow, and the rest, which nothing but the reduce-scatter need follow; fused or split, that much work of it
    is done by those times. What splitting costs, and that a fused one has no rest that could wait, is in `mixture_bound`. And for
    the makespan of slices, what a rank waits for a slice (`waits_for_slices`).
    """
    works = (candidate for frame in frames for candidate in _by_resource(_rank_tasks(frame)))
    waits = (wait for frame in frames if frame.observer is None for wait in waits_for_slices(frame.problem))
    return _largest(BoundName.WORK, chain(works, waits))


def _link(frames: Sequence[Frame]) -> Bound:
    """For each link, trunk and rank's collectives, and each set of its transfers: least ready + total occupancy + least tail.

    Proof: a link serves one transfer at a time; see `one_machine_bound`. A transfer is ready no earlier than the head and duration
    of its producer; its latency and its consumer with what follows that come after it.
    """
    tasks = (chain(_link_tasks(frame), _collective_tasks(frame)) for frame in frames)
    return _largest(BoundName.LINK, (candidate for each in tasks for candidate in _by_resource(each)), otherwise="no transfers")


def _residency(frames: Sequence[Frame]) -> Bound:
    """For each rank with a memory limit: activations stay for a round trip, and only this many fit (Little's law).

    Proof: `residency_bound_of_rank`. 0 where no rank has a limit.
    """
    limits = frames[0].problem.memory_limit_bytes
    candidates = (
        (residency_bound_of_rank(frame, rank), f"rank {rank}")
        for frame in frames
        for rank, limit in enumerate(limits)
        if limit is not None
    )
    return _largest(BoundName.RESIDENCY, candidates, otherwise="no memory limits")


def _idle_gaps(frames: Sequence[Frame], until: Until) -> Bound:
    """Per rank, or busy link, its work and the idle time that memory forces on it while microbatches are away.

    In the frame of an observer it is the only rank: no bound of another one holds there. Links count where ranks hold several
    chunks: the busiest ones and trunks, each under the memory limit of each rank; not of graphs.

    Proof: at `idle_gap_bound_of_rank` and in `idle_gaps_chunks`.
    """

    def candidates() -> Iterator[tuple[int, str]]:
        for frame in frames:
            problem = frame.problem
            if not frame.classes:
                continue
            for rank in range(problem.ranks) if frame.observer is None else (frame.observer,):
                yield idle_gap_bound_of_rank(frame, rank), f"rank {rank}"
                if problem.edges:
                    continue
                yield chunk_idle_gap_bound_of_rank(frame, rank, until), f"rank {rank}"
            if problem.edges or len(problem.stages) == problem.ranks:
                continue
            busy_ns: Counter[Resource] = Counter()
            for resource, task in _link_tasks(frame):
                busy_ns[resource] += task.duration_ns
            for resource, work_ns in busy_ns.most_common(BUSIEST_LINKS):
                for rank in range(problem.ranks) if work_ns else ():
                    yield chunk_idle_gap_bound(frame, resource, rank, until), resource.text

    return _largest(BoundName.IDLE_GAPS, candidates())


def _path(frames: Sequence[Frame]) -> Bound:
    """The path of one microbatch there and back, with its collectives.

    Proof: each block and transfer on it needs the one before it to have ended.
    """

    def longest_ns(each: HeadsAndTails) -> int:
        costs = each.microbatches.costs
        return max(each.forward_head_ns[at] + costs[at].forward_ns + each.forward_tail_ns[at] for at in each.positions())

    found = (each for frame in frames for each in frame.classes)
    candidates = ((longest_ns(each), f"microbatch {each.microbatches.microbatch}") for each in found)
    return _largest(BoundName.PATH, candidates)


def _warm_up(frames: Sequence[Frame], until: Until) -> Bound:
    """The work and link bounds, with heads and tails that know how many microbatches memory, stages and links let through before.

    Proof: `warm_up`. A rank whose limit holds c activations idles in the warm-up once c forwards are done, until a gradient
    has come back; and likewise for each wave of c microbatches, and in the cool-down.
    """
    problem = frames[0].problem
    if len(frames) * sum(len(problem.paths[path]) for path in problem.path_of) > WAVE_BLOCKS:
        frames = [max(frames, key=lambda frame: _work([frame]).value_ns)]

    def tasks(frame: Frame) -> Iterator[tuple[Resource, Task | Backward]]:
        for path in dict.fromkeys(each.microbatches.path for each in frame.classes):
            yield from wave_tasks(problem, [each for each in frame.classes if each.microbatches.path == path], until)

    return _largest(BoundName.WARM_UP, (candidate for frame in frames for candidate in _by_resource(tasks(frame), until)))


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


def _rank_tasks(frame: Frame) -> Iterator[tuple[Resource, Task | Backward]]:
    stages = frame.problem.stages
    for each in frame.classes:
        count = each.microbatches.count
        for at in each.positions():
            rank, costs = Resource.of_rank(stages[each.microbatches.path[at]].rank), each.microbatches.costs[at]
            yield rank, Task(each.forward_head_ns[at], count * costs.forward_ns, each.forward_tail_ns[at])
            backward = Backward(
                microbatches=count,
                gradient_ns=costs.gradient_ns,
                fused_ns=costs.fused_ns,
                split_ns=costs.total_split_ns,
                head_ns=each.gradient_head_ns[at],
                later_head_ns=each.gradient_head_ns[at] + costs.gradient_ns,
                gradient_tail_ns=each.gradient_tail_ns[at],
                sent_tail_ns=each.sent_tail_ns[at],
                after_ns=each.after_weight_ns[at] if each.counted[at] else None,
            )
            yield rank, backward


def _link_tasks(frame: Frame) -> Iterator[tuple[Resource, Task]]:
    for each in frame.classes:
        costs, count = each.microbatches.costs, each.microbatches.count
        for forward, sender, receivers, hop in each.microbatches.trip.messages:
            heads_ns, tails_ns = each.gradient_head_ns, each.gradient_tail_ns
            if forward:
                heads_ns, tails_ns = each.forward_head_ns, each.forward_tail_ns
            tail_ns = -1
            for at in receivers:
                if tails_ns[at] >= 0:
                    taken_ns = costs[at].forward_ns if forward else costs[at].gradient_ns
                    tail_ns = max(tail_ns, hop.latency_ns + taken_ns + tails_ns[at])
            if heads_ns[sender] >= 0 and tail_ns >= 0 and hop.resource is not None:
                sent_ns = costs[sender].forward_ns if forward else costs[sender].gradient_ns
                yield hop.resource, Task(heads_ns[sender] + sent_ns + hop.queued_ns, count * hop.occupancy_ns, tail_ns)


def _collective_tasks(frame: Frame) -> Iterator[tuple[Resource, Task]]:
    """All-gathers precede all forwards of their stage, reduce-scatters follow all its backwards. Only the makespan has them."""
    problem = frame.problem
    parallel = problem.data_parallel
    if parallel is None or problem.objective is not Objective.MAKESPAN:
        return
    places_of_stage: dict[int, list[tuple[HeadsAndTails, int]]] = {}
    for each in frame.classes:
        for at in each.positions():
            places_of_stage.setdefault(each.microbatches.path[at], []).append((each, at))
    for stage, places in places_of_stage.items():
        resource = Resource.of_collectives(parallel, problem.stages[stage].rank)
        costs = [(each.microbatches.count, each.microbatches.costs[at]) for each, at in places]
        if parallel.all_gather_ns:
            tail_ns = max(each.microbatches.costs[at].forward_ns + each.forward_tail_ns[at] for each, at in places)
            yield resource, Task(0, parallel.all_gather_ns[stage], tail_ns)
        work_ns = min(each.forward_head_ns[at] for each, at in places)
        work_ns += sum(count * (cost.forward_ns + cost.backward_ns) for count, cost in costs)
        alone_ns = max(each.gradient_head_ns[at] + each.microbatches.costs[at].backward_ns for each, at in places)
        yield resource, Task(max(work_ns, alone_ns), parallel.reduce_scatter_ns[stage], 0)
