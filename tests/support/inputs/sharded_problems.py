"""Random tiny problems whose weights are sharded, with room for some of their ranks' stages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inputs.few_plans import made_by
from inputs.plans import plan_of
from inputs.tiny_problems import random_schedule, tiny_problem
from schedc.ir.problem import DataParallel, with_whole_weights
from schedc.lower.sharding import placed

if TYPE_CHECKING:
    from random import Random

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


def sharded_problem(random: Random, *, most_ops: int = 24) -> Problem:
    """A tiny problem with several stages on a rank, unequal gathers and reductions; a limit has room for one stage or more."""
    problem = tiny_problem(random, most_ops=most_ops)
    while len(problem.stages) == problem.ranks:
        problem = tiny_problem(random, most_ops=most_ops)
    links = tuple(replace(link, trunk=None) for link in problem.links)
    parallel = DataParallel(
        size=random.randint(2, 4),
        zero_stage=3,
        reduce_scatter_ns=tuple(random.randint(0, 7) for _ in problem.stages),
        all_gather_ns=tuple(random.randint(0, 7) for _ in problem.stages),
        gathered_bytes=tuple(random.randint(1, 5) for _ in problem.stages),
        gradient_bytes=tuple(random.randint(0, 4) for _ in problem.stages),
    )
    limits: list[int | None] = []
    for rank in range(problem.ranks):
        sizes = [parallel.gathered_bytes[stage] + parallel.gradient_bytes[stage] for stage in problem.stages_on(rank)]
        held = [problem.stages[stage].most_bytes for stage in problem.stages_on(rank)]
        least = max(sizes) + sum(held)
        limits.append(random.choice([None, least, least, random.randint(least, sum(sizes) + problem.microbatches * sum(held))]))
    return replace(problem, links=links, data_parallel=parallel, memory_limit_bytes=tuple(limits))


def plan_that_gathers_again(*, split: bool = False) -> Plan:
    """Three stages on each of two ranks, one of which has room for the weights of one at a time; backwards fused or `split`."""
    plan = made_by("greedy{n_sub=1}" if split else "interleaved", 2, 4, placement="loop", chunks=3)
    parallel = DataParallel(
        size=2,
        zero_stage=3,
        reduce_scatter_ns=(5, 3, 4, 6, 2, 7),
        all_gather_ns=(7, 1, 3, 2, 5, 4),
        gathered_bytes=(5, 3, 4, 4, 3, 5),
        gradient_bytes=(1, 2, 1, 2, 1, 2),
    )
    peaks = plan.certificate.peak_activation_bytes
    problem = replace(plan.problem, data_parallel=parallel, memory_limit_bytes=(peaks[0] + 8, peaks[1] + 14))
    schedule = placed(problem, plan.schedule())
    assert schedule is not None
    return plan_of(problem, schedule)


def sharded_orders(random: Random, problem: Problem) -> Schedule | None:
    """Orders of it, without collectives, that leave room for the largest of each rank's weights and all of its gradients."""
    parallel = problem.data_parallel
    assert parallel is not None
    limits = []
    for rank, limit in enumerate(problem.memory_limit_bytes):
        own = problem.stages_on(rank)
        besides = max(parallel.gathered_bytes[stage] for stage in own) + sum(parallel.gradient_bytes[stage] for stage in own)
        limits.append(None if limit is None else max(0, limit - besides))
    return random_schedule(random, replace(with_whole_weights(problem), memory_limit_bytes=tuple(limits)))
