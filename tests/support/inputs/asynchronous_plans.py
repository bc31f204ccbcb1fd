"""Periods of steps that overlap, by hand: PipeDream's 1F1B and its split and wave-placed kin, as plans."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

from inputs.periods import random_period
from inputs.plans import one_f_one_b
from schedc.compile.certify import certify
from schedc.ir import Kind, Link, MadeBy, Op, Plan, Problem, Schedule, Stage, Updates, Versions
from schedc.lower.run import run_of


def period_plan(
    ranks: int, count: int, mode: Versions, *, split: bool = False, wave: bool = False, recompute: bool = False, late: bool = False
) -> Plan:
    """A period of 1F1B without flushes.

    Args:
        ranks: how many; each has a stage, or, in a wave, two.
        count: the microbatches of a step.
        mode: which versions are read.
        split: B and W apart, W as late as the next B.
        wave: stages go to the last rank and back.
        recompute: stages run F again before their backwards.
        late: updates come after the first backward of the next step, which therefore adds to gradients of its own.
    """
    ranks_of = [*range(ranks), *(reversed(range(ranks)) if wave else ())]
    stages = tuple(
        Stage(
            rank=rank,
            forward_ns=(10,),
            backward_input_ns=(10,),
            backward_weight_ns=(10,),
            backward_ns=(20,),
            activation_bytes=3,
            activation_after_input_bytes=1,
            update_ns=3,
            version_bytes=5,
            recompute=recompute,
        )
        for rank in ranks_of
    )
    pairs = sorted({pair for a, b in pairwise(ranks_of) if a != b for pair in ((a, b), (b, a))})
    problem = Problem(
        name=f"{mode}-{ranks}-{count}",
        ranks=ranks,
        microbatches=count,
        stages=stages,
        paths=(tuple(range(len(stages))),),
        path_of=(0,) * count,
        links=tuple(Link(source=a, destination=b, latency_ns=2) for a, b in pairs),
        memory_limit_bytes=(None,) * ranks,
        updates=Updates(versions=mode, microbatches=count, is_period=True, most_delay=9 if mode is Versions.BOUNDED else None),
    )
    orders = tuple(
        tuple(
            op
            for microbatch in range(count)
            for stage in reversed(problem.stages_on(rank))
            for op in _turn(problem, stage, microbatch, behind=split or late, split=split)
        )
        for rank in range(ranks)
    )
    least = min(op.microbatch if op.kind is Kind.U else op.microbatch // count for order in orders for op in order)
    shifted = tuple(
        tuple(op._replace(microbatch=op.microbatch - least * (1 if op.kind is Kind.U else count)) for op in order)
        for order in orders
    )
    return certify(problem, Schedule(orders=shifted), MadeBy(schedc="0", method="by-hand"))


def _turn(problem: Problem, stage: int, microbatch: int, *, behind: bool, split: bool) -> list[Op]:
    """A forward and a backward of one stage; numbers below 0 are of the steps before. `behind`: U comes one backward later."""
    updates, count, last = problem.updates, problem.microbatches, len(problem.stages) - 1
    assert updates is not None
    most = count - behind if updates.versions is Versions.TWO_BUFFERED else last
    ops = [Op(Kind.F, stage, microbatch + min(last - stage, most)), Op(Kind.B if split else Kind.BW, stage, microbatch)]
    if split:
        ops.append(Op(Kind.W, stage, microbatch - 1))
    if behind and microbatch == 0:
        ops.append(Op(Kind.U, stage, -1))
    if not behind and microbatch == count - 1:
        ops.append(Op(Kind.U, stage, 0))
    return ops


def synchronous_plan(plan: Plan) -> Plan:
    """Fused 1F1B for the stages of a plan of a period with one stage on each rank, as many microbatches as there are ranks."""
    count = plan.problem.ranks
    problem = replace(plan.problem, name="synchronous", updates=None, microbatches=count, path_of=(0,) * count)
    return certify(problem, one_f_one_b(problem), MadeBy(schedc="0", method="1f1b"))


def one_by_one(plan: Plan) -> Plan:
    """A run of 12 steps for such stages, a microbatch each, that holds one microbatch and one version at a time."""
    orders = tuple(tuple(Op(kind, stage, 0) for kind in (Kind.F, Kind.BW, Kind.U)) for stage in range(plan.problem.ranks))
    return run_of(certify(plan.problem, Schedule(orders=orders), MadeBy(schedc="0", method="one-by-one")), 12)


def random_plan(seed: int, ranks: int, versions: Versions) -> Plan:
    """A period on this many ranks, in random order, several stages on some ranks, backwards fused and split."""
    random = Random(seed)
    while True:
        problem, schedule = random_period(random, versions=versions)
        if problem.ranks == ranks:
            return certify(problem, schedule, MadeBy(schedc="0", method="random"))
