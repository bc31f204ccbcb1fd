"""Random tiny problems and random valid schedules, from a seed, for comparisons with the brute force."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inputs.problems import make_problem
from schedc.ir.ops import BLOCKS, WHOLE, Kind, Op
from schedc.ir.problem import DataParallel, Objective
from schedc.ir.schedule import Parts, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from schedc.ir.problem import Problem, Stage

FAR = 1 << 60


def tiny_problem(random: Random, *, most_ops: int, data_parallel: bool = False) -> Problem:
    """Up to 3 ranks and 3 microbatches, with at most `most_ops` ops: any placement, unequal costs and links, fused or split."""
    while True:
        ranks, microbatches, split = random.randint(1, 3), random.randint(1, 3), random.random() < 0.5
        placement = random.choice(["unidirectional", "loop", "wave", "bidirectional"])
        chunks = 2 if placement in ("loop", "wave") else 1
        if microbatches * ranks * chunks * (3 if split else 2) <= most_ops:
            break
    count = ranks if placement == "unidirectional" else 2 * ranks
    pairs = [(x, y) for x in range(ranks) for y in range(ranks) if x != y]
    trunks = {pair: trunk for pair in pairs if (trunk := random.choice(["east", "west", "", ""]))}
    problem = make_problem(
        ranks,
        microbatches,
        placement=placement,
        chunks=chunks,
        costs_ns=[(random.randint(1, 6), random.randint(1, 6), random.randint(1, 6)) for _ in range(count)],
        activation=[(random.randint(1, 4), random.randint(0, 1)) for _ in range(count)],
        in_flight=random.choice([None, 1, 1, 1.5, 2, 3]),
        links={pair: (random.randint(0, 12), random.randint(0, 8)) for pair in pairs},
        trunks=trunks,
        split_backward=split,
    )
    stages = problem.stages
    limits = problem.memory_limit_bytes
    if random.random() < 0.3:  # some recompute
        stages = tuple(_recomputing(random, stage) if random.random() < 0.7 else stage for stage in stages)
        more = [max(stage.recomputed_bytes for stage in stages if stage.rank == rank) for rank in range(ranks)]
        limits = tuple(None if limit is None else limit + each for limit, each in zip(limits, more, strict=True))
    if random.random() < 0.4:  # fused measured apart from B and W
        stages = tuple(
            replace(s, backward_ns=(random.randint(1, s.backward_input_ns[0] + s.backward_weight_ns[0]),)) for s in stages
        )
    if random.random() < 0.3:  # each microbatch its own durations
        stages = tuple(
            replace(
                s,
                forward_ns=_each(random, microbatches),
                backward_input_ns=_each(random, microbatches),
                backward_weight_ns=_each(random, microbatches),
                backward_ns=_each(random, microbatches),
            )
            for s in stages
        )
    parallel = None
    if data_parallel:
        parallel = DataParallel(
            size=2,
            zero_stage=1,
            reduce_scatter_ns=tuple(random.randint(0, 15) for _ in stages),
            all_gather_ns=tuple(random.randint(0, 15) for _ in stages) if random.random() < 0.7 else (),
            trunk=random.choice([None, *sorted({link.trunk for link in problem.links if link.trunk})]),
        )
    objective = random.choice([Objective.MAKESPAN, Objective.MAKESPAN, Objective.STAGE_SPAN])
    return replace(problem, stages=stages, memory_limit_bytes=limits, data_parallel=parallel, objective=objective)


def random_parts(random: Random, problem: Problem) -> tuple[Parts, ...]:
    """Some kinds of blocks cut in two or three, where they may be and every part then takes 1 ns or more."""
    found = []
    for stage, costs in enumerate(problem.stages):
        for kind in BLOCKS:
            parts = Parts(kind=kind, stage=stage, shares=random.choice([(1, 1), (1, 2), (1, 1, 1)]))
            if costs.recompute and kind in (Kind.B, Kind.BW):
                continue
            if random.random() < 0.3 and all(min(parts.durations_ns(block)) > 0 for block in costs.durations_ns(kind)):
                found.append(parts)
    return tuple(found)


def random_schedule(random: Random, problem: Problem, parts: Sequence[Parts] = ()) -> Schedule | None:
    """A valid schedule: ops in a random order that respects all needs and memory; None if it ran into a memory limit.

    Where microbatches must enter in order, they do.
    """
    counts = {(each.kind, each.stage): len(each.shares) for each in parts}
    orders: list[list[Op]] = [[] for _ in range(problem.ranks)]
    held = [0] * problem.ranks
    chains: list[list[Op]] = []
    for microbatch in range(problem.microbatches):
        path = problem.path(microbatch)
        fused = {stage: not problem.split_backward or random.random() < 0.3 for stage in path}
        backwards = [(Kind.BW if fused[stage] else Kind.B, stage) for stage in reversed(path)]
        blocks = [(Kind.F, stage) for stage in path] + backwards
        chains.append([op for kind, stage in blocks for op in _pieces(random, kind, stage, microbatch, counts)])
    outside = [{m for m, path in enumerate(problem.path_of) if path == number} for number in range(len(problem.paths))]
    while any(chains):
        able: list[list[Op]] = []
        for waiting in chains:
            if waiting:
                op, rank = waiting[0], problem.rank_of(waiting[0])
                limit = problem.memory_limit_bytes[rank]
                if (
                    op.kind == Kind.F
                    and problem.in_order
                    and op.microbatch > min(outside[problem.path_of[op.microbatch]], default=FAR)
                ):
                    continue
                if limit is None or held[rank] + taken(problem.stages[op.stage], op) <= limit:
                    able.append(waiting)
        if not able:
            return None
        chain = random.choice(able)
        op = chain.pop(0)
        stage, rank = problem.stages[op.stage], problem.rank_of(op)
        orders[rank].append(op)
        outside[problem.path_of[op.microbatch]].discard(op.microbatch)
        held[rank] += taken(stage, op)
        if op.kind != Kind.F and (op.part == WHOLE or op.part == counts[op.kind, op.stage] - 1):
            whole, after = stage.activation_bytes + stage.recomputed_bytes, stage.activation_after_input_bytes
            held[rank] -= {Kind.B: whole - after, Kind.W: after, Kind.BW: whole}[op.kind]
            if op.kind == Kind.B:
                chains.append(_pieces(random, Kind.W, op.stage, op.microbatch, counts))
    return Schedule(orders=tuple(map(tuple, orders)), parts=tuple(parts))


def _recomputing(random: Random, stage: Stage) -> Stage:
    """The stage, recomputing: what W needs may be more or less than its input."""
    of_input, again = random.randint(0, stage.activation_bytes), random.randint(1, 4)
    after_input = random.randint(0, again)
    return replace(
        stage, recompute=True, activation_bytes=of_input, activation_after_input_bytes=after_input, recomputed_bytes=again
    )


def taken(stage: Stage, op: Op) -> int:
    """What the op takes of its rank's memory when it starts."""
    if op.part > 0 or op.kind == Kind.W:
        return 0
    return stage.activation_bytes if op.kind == Kind.F else stage.recomputed_bytes


def _each(random: Random, microbatches: int) -> tuple[int, ...]:
    return tuple(random.randint(1, 6) for _ in range(microbatches))


def _pieces(random: Random, kind: Kind, stage: int, microbatch: int, counts: dict[tuple[Kind, int], int]) -> list[Op]:
    count = counts.get((kind, stage), 0)
    if not count or random.random() < 0.3:
        return [Op(kind, stage, microbatch)]
    return [Op(kind, stage, microbatch, part) for part in range(count)]
