"""Random periods of steps that overlap: a Problem and a Schedule that the verifier accepts, in odd nanoseconds and bytes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.period import steady_state
from schedc.analysis.simulation.versions import versions_of
from schedc.ir import (
    BoundName,
    Certificate,
    Kind,
    Link,
    MadeBy,
    Op,
    Plan,
    Problem,
    RankPlan,
    Schedule,
    Stage,
    Updates,
    Versions,
)

if TYPE_CHECKING:
    from random import Random


def random_period(random: Random, *, largest: int = 50, versions: Versions | None = None) -> tuple[Problem, Schedule]:
    """A problem and one of its periods; durations and bytes up to `largest`, several stages on some ranks."""
    ranks, count = random.randint(1, 4), random.randint(1, 3)
    chunks = random.choice((1, 1, 2)) if ranks > 1 else 1
    placement = [rank for chunk in range(chunks) for rank in (range(ranks) if random.random() < 0.5 else reversed(range(ranks)))]
    mode = versions or random.choice(list(Versions))
    stages = tuple(_stage(random, rank, count, largest) for rank in placement)
    inbound = random.random() < 0.3
    pairs = sorted({pair for a, b in pairwise(placement) if a != b for pair in ((a, b), (b, a))})
    problem = Problem(
        name="random",
        ranks=ranks,
        microbatches=count,
        stages=stages,
        paths=(tuple(range(len(stages))),),
        path_of=(0,) * count,
        links=tuple(_link(random, a, b, largest, f">rank{b}" if inbound else None) for a, b in pairs),
        memory_limit_bytes=(None,) * ranks,
        updates=Updates(versions=mode, microbatches=count, is_period=True, most_delay=99 if mode is Versions.BOUNDED else None),
    )
    return problem, any_period(random, problem)


def _stage(random: Random, rank: int, count: int, largest: int) -> Stage:
    def times() -> tuple[int, ...]:
        return tuple(random.randint(0, largest) for _ in range(random.choice((1, count))))

    whole = random.randint(0, largest)
    return Stage(
        rank=rank,
        forward_ns=times(),
        backward_input_ns=times(),
        backward_weight_ns=times(),
        backward_ns=times(),
        activation_bytes=whole,
        activation_after_input_bytes=random.randint(0, whole),
        message_bytes=random.randint(0, largest),
        gradient_message_bytes=random.randint(0, largest),
        update_ns=random.randint(0, largest),
        version_bytes=random.randint(0, largest),
    )


def _link(random: Random, source: int, destination: int, largest: int, trunk: str | None) -> Link:
    return Link(
        source=source,
        destination=destination,
        latency_ns=random.randint(0, largest),
        bytes_per_second=random.choice((None, 10**9, 7 * 10**8)),
        setup_ns=random.choice((0, random.randint(0, largest))),
        trunk=trunk,
    )


def any_period(random: Random, problem: Problem) -> Schedule:
    """Ops of each rank in random order; steps such that each is after what it needs, and one step later on another rank."""
    count, two_buffered = problem.microbatches, problem.updates is not None and problem.updates.versions is Versions.TWO_BUFFERED
    split = {block: random.random() < 0.5 for block in problem.blocks()}
    ops: list[list[tuple[Kind, int, int]]] = [[] for _ in range(problem.ranks)]
    for stage, microbatch in problem.blocks():
        kinds = (Kind.F, Kind.B, Kind.W) if split[stage, microbatch] else (Kind.F, Kind.BW)
        ops[problem.stages[stage].rank] += [(kind, stage, microbatch) for kind in kinds]
    for stage, costs in enumerate(problem.stages):
        ops[costs.rank].append((Kind.U, stage, 0))
    place: dict[tuple[Kind, int, int], int] = {}
    for order in ops:
        random.shuffle(order)
        place |= {op: index for index, op in enumerate(order)}
    behind: dict[tuple[Kind, int, int], int] = {}

    def after(op: tuple[Kind, int, int], *needed: tuple[Kind, int, int]) -> None:
        """How many periods later than its step's first op it is: enough for all that it needs."""
        behind[op] = max(
            (
                behind[each] + (1 if problem.stages[each[1]].rank != problem.stages[op[1]].rank else int(place[each] > place[op]))
                for each in needed
            ),
            default=0,
        ) + (random.random() < 0.1)

    for microbatch in range(count):
        path = problem.path(microbatch)
        for position, stage in enumerate(path):
            after((Kind.F, stage, microbatch), *[(Kind.F, before, microbatch) for before in path[:position][-1:]])
        gradient: list[tuple[Kind, int, int]] = []
        for stage in reversed(path):
            back = (Kind.B if split[stage, microbatch] else Kind.BW, stage, microbatch)
            after(back, (Kind.F, stage, microbatch), *gradient)
            if back[0] is Kind.B:
                after((Kind.W, stage, microbatch), back)
            gradient = [back]
    for stage in range(len(problem.stages)):
        last = Kind.W, Kind.BW
        after((Kind.U, stage, 0), *[op for op in behind if op[1] == stage and op[0] in last])
    if two_buffered:  # the period is as many steps' as one reaches over, so that no more than two updates are missing
        return _in_turn(problem, ops)
    latest = max(behind.values())
    return Schedule(
        orders=tuple(
            tuple(
                Op(kind, stage, latest - behind[kind, stage, microbatch])
                if kind is Kind.U
                else Op(kind, stage, microbatch + count * (latest - behind[kind, stage, microbatch]))
                for kind, stage, microbatch in order
            )
            for order in ops
        )
    )


def _in_turn(problem: Problem, ops: list[list[tuple[Kind, int, int]]]) -> Schedule:
    """One step after the other: forwards, backwards, updates of the same step, which every mode allows."""
    rank_of_kind = {Kind.F: 0, Kind.B: 1, Kind.BW: 1, Kind.W: 2, Kind.U: 3}
    key = {
        (kind, stage, microbatch): (rank_of_kind[kind], stage if kind is Kind.F else -stage, microbatch)
        for order in ops
        for kind, stage, microbatch in order
    }
    return Schedule(orders=tuple(tuple(Op(*op) for op in sorted(order, key=key.__getitem__)) for order in ops))


def period_plan(problem: Problem, schedule: Schedule) -> Plan:
    """The plan of a period, with what the simulator says of it."""
    period_ns, held = steady_state(problem, schedule).period_ns, versions_of(problem, schedule)
    busy_ns = sum(schedule.duration_ns(problem, op) for order in schedule.orders for op in order)
    return Plan(
        problem=problem,
        ranks=tuple(RankPlan(rank=rank, compute=order) for rank, order in enumerate(schedule.orders)),
        certificate=Certificate(
            makespan_ns=period_ns,
            lower_bound_ns=0,
            gap=1.0 if period_ns else 0.0,
            bound=BoundName.WORK,
            bubble_ratio=1 - busy_ns / (problem.ranks * period_ns) if period_ns else 0.0,
            peak_activation_bytes=peak_bytes(problem, schedule),
            stage_span_ns=period_ns,
            delays=held.delays,
            versions=held.versions,
        ),
        made_by=MadeBy(schedc="0", method="random"),
    )
