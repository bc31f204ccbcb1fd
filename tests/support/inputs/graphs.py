"""Random sound problems whose stages are a graph, whose microbatches are in slices, or both; and random orders of any problem.

From a seed, as `tiny_problems`, whose `random_parts` suit them, too. Two or more ranks with one or more stages each; skip edges,
equal values, ids without a gradient, several sources and losses; trunks, memory limits, recomputation, durations of each
microbatch; fused and split backwards.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from inputs.odd_numbers import odd
from inputs.plans import plan_of
from inputs.tiny_problems import random_parts
from schedc.ir.graph import Edge
from schedc.ir.network import Link
from schedc.ir.ops import WHOLE, Kind, Op
from schedc.ir.problem import DataParallel, Objective, Problem, Stage
from schedc.ir.schedule import Parts, Schedule
from schedc.verify.workload import verify_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan
    from schedc.ir.workload import Workload


def graph_problem(
    random: Random,
    *,
    most_ranks: int = 3,
    most_stages: int = 6,
    most_microbatches: int = 3,
    most_ops: int = 60,
    least_ns: int = 1,
    edges: bool | None = None,
    slices: bool | None = None,
    memory: bool = True,
    collectives: bool = False,
    may_be_odd: bool = False,
) -> Problem:
    """A sound problem.

    Args:
        random: decides all.
        most_ranks: at least 2.
        most_stages: at least as many.
        most_microbatches: of whole ones; slices are up to as many in all.
        most_ops: of a schedule that splits what it may.
        least_ns: no block takes less.
        edges: whether stages are a graph; None: most often.
        slices: whether microbatches are in slices; None: sometimes, and always where stages are no graph.
        memory: whether ranks may have limits; a limit has room for one microbatch at least, but values that wait may need more.
        collectives: whether there may be some.
        may_be_odd: every other problem is in odd nanoseconds of seconds and odd bytes of GiB.
    """
    with_edges = random.random() < 0.8 if edges is None else edges
    with_slices = not with_edges or random.random() < 0.35 if slices is None else slices
    while True:
        ranks = random.randint(2, most_ranks)
        stages = random.randint(max(ranks, 3 if with_edges and most_stages > 2 else ranks), most_stages)
        count, split = random.randint(1, most_microbatches), random.random() < 0.6
        if stages * count * (3 if split else 2) <= most_ops and (not with_slices or count > 1):
            break
    lengths = _lengths(random, count) if with_slices else ()
    rank_of = [*range(ranks), *(random.randrange(ranks) for _ in range(stages - ranks))]
    random.shuffle(rank_of)
    each = random.random() < (0.8 if with_slices else 0.3)
    made = tuple(_stage(random, rank, count if each else 1, least_ns, sliced=with_slices) for rank in rank_of)
    graph = _edges(random, stages) if with_edges else ()
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    shared = random.random() < 0.5
    links = tuple(
        Link(
            source=a,
            destination=b,
            latency_ns=random.choice([0, random.randint(0, 9)]),
            trunk=random.choice(["east", "west", None]) if shared else None,
            **({"transfer_ns": random.choice([0, random.randint(0, 6)])} if random.random() < 0.5 else {"bytes_per_second": 10**9}),
        )
        for a, b in pairs
    )
    trunks = sorted({link.trunk for link in links if link.trunk})
    parallel = None
    if collectives and random.random() < 0.5:
        scatter, gather = (tuple(random.randint(0, 9) for _ in made) for _ in range(2))
        parallel = DataParallel(
            size=2, zero_stage=1, reduce_scatter_ns=scatter, all_gather_ns=gather, trunk=random.choice([None, *trunks])
        )
    problem = Problem(
        name="graph",
        ranks=ranks,
        microbatches=count,
        stages=made,
        paths=(tuple(range(stages)),),
        path_of=(0,) * count,
        edges=graph,
        slices=lengths,
        links=links,
        memory_limit_bytes=(None,) * ranks,
        split_backward=split,
        in_order=random.random() < 0.4,
        data_parallel=parallel,
        objective=random.choice([Objective.MAKESPAN, Objective.MAKESPAN, Objective.STAGE_SPAN]),
    )
    if memory and random.random() < 0.6:
        problem = replace(problem, memory_limit_bytes=tuple(_limit(random, problem, rank) for rank in range(ranks)))
    return odd_graph(problem, random) if may_be_odd and random.random() < 0.5 else problem


def graph_cases(*, trunks: bool = True, collectives: bool = True, **options: Any) -> st.SearchStrategy[tuple[Problem, Schedule]]:
    """Problems with random orders of them that look at no memory limit; `options` are those of `graph_problem`."""

    def of(seed: int) -> tuple[Problem, Schedule]:
        random = Random(seed)
        problem = graph_problem(random, collectives=collectives, **options)
        if not trunks:
            problem = replace(problem, links=tuple(replace(link, trunk=None) for link in problem.links))
            parallel = problem.data_parallel
            problem = replace(problem, data_parallel=replace(parallel, trunk=None) if parallel else None)
        schedule = random_order(random, problem, random_parts(random, problem), limited=False)
        assert schedule is not None
        return problem, schedule

    return st.integers(0, 2**32).map(of)


def graph_of_layers(random: Random, workload: Workload) -> Workload:
    """The workload with layers that are a random graph; sound, if it is without edges."""
    while True:
        graph = replace(workload, edges=_edges(random, len(workload.layers)))
        if graph.edges and not verify_workload(graph):
            return graph


def odd_graph(problem: Problem, random: Random) -> Problem:
    """The problem with times and sizes some 10^7 and 10^9 times as large, each with an odd rest; limits have room for the rests."""
    made = odd(replace(problem, links=tuple(replace(link, bytes_per_second=None) for link in problem.links)), random).problem
    unit = random.randrange(2**29 + 1, 2**31, 2)

    def size(value: int, seed: int) -> int:
        return value * unit + (seed % 997 + 1 if value else 0)

    edges = tuple(
        replace(
            edge,
            message_bytes=size(edge.message_bytes, edge.source + 7 * edge.value),
            gradient_message_bytes=None if edge.gradient_message_bytes is None else size(edge.gradient_message_bytes, at),
        )
        for at, edge in enumerate(problem.edges)
    )
    stages = tuple(
        replace(
            stage,
            message_bytes=size(stage.message_bytes, at),
            gradient_message_bytes=size(stage.gradient_message_bytes, at),
            state_gradient_bytes=size(stage.state_gradient_bytes, at),
        )
        for at, stage in enumerate(made.stages)
    )
    links = tuple(
        link
        if before.transfer_ns is not None
        else replace(link, transfer_ns=None, bytes_per_second=random.randrange(1, 2**7) * unit)
        for link, before in zip(made.links, problem.links, strict=True)
    )
    odds = replace(made, edges=edges, stages=stages, links=links)
    rests = 1_000 * problem.microbatches * (2 * len(edges) + 2 * len(stages))
    limits = (
        None if limit is None else (own or 0) + limit * unit + rests
        for limit, own in zip(problem.memory_limit_bytes, made.memory_limit_bytes, strict=True)
    )
    return replace(odds, memory_limit_bytes=tuple(limits))


def plan_in_any_order(random: Random, problem: Problem) -> Plan:
    """A plan in an order that keeps all needs, and nothing else; where it may, some backwards are fused. Limits do not count."""
    schedule = random_order(random, problem, limited=False)
    assert schedule is not None
    return plan_of(problem, schedule)


def random_order(random: Random, problem: Problem, parts: Sequence[Parts] = (), *, limited: bool = True) -> Schedule | None:
    """A random schedule that keeps all needs, of any problem without steps that overlap: no deadlock, and nothing that is refused.

    Args:
        random: decides all.
        problem: sound.
        parts: how blocks are cut; all of these are.
        limited: keep the memory limits, values that wait left out; if it runs into one, there is None.
    """
    counts = {(each.kind, each.stage): len(each.shares) for each in parts}
    inputs: dict[tuple[bool, int, int], list[tuple[int, int]]] = {}
    for microbatch in range(problem.microbatches):
        for stage in problem.path(microbatch):
            inputs[False, stage, microbatch], inputs[True, stage, microbatch] = [], []
        for edge in problem.edges_of(problem.path_of[microbatch]):
            inputs[False, edge.destination, microbatch].append((edge.source, microbatch))
            if edge.has_gradient:
                inputs[True, edge.source, microbatch].append((edge.destination, microbatch))
    for backward, stage, microbatch in inputs if problem.slices else ():
        neighbour = microbatch + (1 if backward else -1)
        if 0 <= neighbour < problem.microbatches and neighbour // len(problem.slices) == microbatch // len(problem.slices):
            inputs[backward, stage, microbatch].append((stage, neighbour))
    sources = {stage for path in range(len(problem.paths)) for stage in problem.paths[path]}
    sources -= {edge.destination for path in range(len(problem.paths)) for edge in problem.edges_of(path)}
    left = [(backward, stage, microbatch) for backward, stage, microbatch in inputs]
    weights: list[tuple[int, int]] = []
    done: set[tuple[bool, int, int]] = set()
    orders: list[list[Op]] = [[] for _ in range(problem.ranks)]
    held = [0] * problem.ranks

    def run(kind: Kind, stage: int, microbatch: int) -> None:
        rank, count = problem.stages[stage].rank, counts.get((kind, stage), 0)
        orders[rank] += [Op(kind, stage, microbatch, part) for part in (range(count) if count else (WHOLE,))]
        held[rank] += problem.taken_bytes(kind, stage, microbatch) - problem.released_bytes(kind, stage, microbatch)

    def may(backward: bool, stage: int, microbatch: int) -> bool:
        if not done.issuperset((backward, *each) for each in inputs[backward, stage, microbatch]):
            return False
        if backward and (False, stage, microbatch) not in done:
            return False
        if not backward and problem.in_order and stage in sources:
            first = min(m for b, s, m in left if not b and s == stage and problem.path_of[m] == problem.path_of[microbatch])
            if microbatch != first:
                return False
        rank = problem.stages[stage].rank
        limit = problem.memory_limit_bytes[rank] if limited else None
        return limit is None or held[rank] + problem.taken_bytes(Kind.BW if backward else Kind.F, stage, microbatch) <= limit

    while left or weights:
        able: list[Any] = [each for each in left if may(*each)] + weights
        if not able:
            return None
        chosen = random.choice(able)
        if len(chosen) == 2:
            weights.remove(chosen)
            run(Kind.W, *chosen)
            continue
        backward, stage, microbatch = chosen
        left.remove(chosen)
        done.add(chosen)
        splits = backward and problem.split_backward and random.random() < 0.7
        run(Kind.B if splits else Kind.BW if backward else Kind.F, stage, microbatch)
        weights += [(stage, microbatch)] * splits
    return Schedule(orders=tuple(map(tuple, orders)), parts=tuple(parts))


def _lengths(random: Random, count: int) -> tuple[int, ...]:
    """The lengths of two or more slices whose number divides the count, alike or not."""
    slices = random.choice([each for each in range(2, count + 1) if count % each == 0])
    return (4096,) * slices if random.random() < 0.4 else tuple(random.randint(1, 9) for _ in range(slices))


def _stage(random: Random, rank: int, count: int, least_ns: int, *, sliced: bool) -> Stage:
    times: dict[str, Any] = {
        name: tuple(random.randint(least_ns, 6) for _ in range(count))
        for name in ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns")
    }
    if random.random() < 0.6:
        halves = zip(times["backward_input_ns"], times["backward_weight_ns"], strict=True)
        times["backward_ns"] = tuple(b + w for b, w in halves)
    again = random.randint(1, 9) if random.random() < 0.25 else 0
    held = random.randint(0, 9)
    return Stage(
        rank=rank,
        **times,
        activation_bytes=held,
        activation_after_input_bytes=random.randint(0, held + again),
        recompute=again > 0,
        recomputed_bytes=again,
        message_bytes=random.randint(0, 7),
        gradient_message_bytes=random.randint(0, 7),
        state_gradient_bytes=random.choice([0, random.randint(0, 9)]) if sliced else 0,
    )


def _edges(random: Random, stages: int) -> tuple[Edge, ...]:
    """A graph of all stages: each but the first takes from those before it, more often from the one before; in any order."""
    found: list[Edge] = []
    values: dict[int, list[tuple[int, int]]] = {}
    for stage in range(1, stages):
        if random.random() < 0.15 and stage + 1 < stages:
            continue  # one more source
        before = {stage - 1 if random.random() < 0.7 else random.randrange(stage)}
        before |= {each for each in range(stage) if random.random() < 0.25}
        for source in sorted(before):
            known = values.setdefault(source, [])
            if known and random.random() < 0.5:
                value, size = random.choice(known)
            else:
                value, size = len(known), random.randint(0, 9)
                known.append((value, size))
            gradient = None if random.random() < 0.2 else random.randint(0, 9)
            edge = Edge(source=source, destination=stage, message_bytes=size, gradient_message_bytes=gradient, value=value)
            found.append(edge)
    if random.random() < 0.5:
        random.shuffle(found)
    return tuple(found)


def _limit(random: Random, problem: Problem, rank: int) -> int | None:
    """None, or room for each microbatch by itself with what may wait for it, and for some more."""
    if random.random() < 0.3:
        return None
    mine = problem.stages_on(rank)
    whole = sum(stage.most_bytes + stage.state_gradient_bytes for stage in (problem.stages[each] for each in mine))
    waiting = sum(
        (edge.message_bytes if edge.destination in mine else 0) + (edge.gradient_message_bytes or 0 if edge.source in mine else 0)
        for edge in problem.edges
    )
    groups = random.choice([1, 1, 2, 3])
    return max(1, groups * whole + random.choice([0, waiting // 2, waiting, 2 * waiting])) + 2 * len(problem.slices) * len(mine)
