"""Random tiny problems whose fused backward takes less than B and W, or more: the best schedule often fuses some of them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from inputs.odd_numbers import odd
from inputs.problems import make_problem
from inputs.tiny_problems import tiny_problem
from schedc.ir.problem import DataParallel, Objective

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


def with_fused(problem: Problem, *fused_ns: int) -> Problem:
    """The problem with these fused backwards, one for all stages or one for each."""
    each = fused_ns * len(problem.stages) if len(fused_ns) == 1 else fused_ns
    return replace(problem, stages=tuple(replace(s, backward_ns=(ns,)) for s, ns in zip(problem.stages, each, strict=True)))


def fused_problem(seed: int, *, even_weights: bool = False, may_be_odd: bool = False) -> Problem:
    """The problem of this number: 1 to 3 ranks, 2 where they have two stages, and 1 to 4 microbatches; BW takes more than B or W.

    Slow links, memory limits, bytes kept between B and W from none to all, collectives, both objectives. With `even_weights` every
    W can be cut in half. With `may_be_odd` every other problem is in odd nanoseconds of seconds and odd bytes of GiB.
    """
    random = Random(seed)
    placement = random.choice(["unidirectional"] * 3 + ["loop", "wave", "bidirectional"])
    chunks = 2 if placement in ("loop", "wave") else 1
    ranks = random.randint(1, 3 if placement == "unidirectional" else 2)
    count = ranks * (1 if placement == "unidirectional" else 2)
    pairs = [(x, y) for x in range(ranks) for y in range(ranks) if x != y]
    wholes = [random.randint(1, 5) for _ in range(count)]
    weights = [random.choice([2, 4, 6]) if even_weights else random.randint(2, 6) for _ in range(count)]
    costs = [(random.randint(1, 6), random.randint(2, 6), weight) for weight in weights]
    problem = make_problem(
        ranks,
        random.randint(1, 4 if count <= 2 else 3),
        placement=placement,
        chunks=chunks,
        costs_ns=costs,
        activation=[(whole, random.randint(0, whole)) for whole in wholes],
        in_flight=random.choice([None, 1, 1.5, 2, 2.5, 3]),
        links={pair: (random.randint(0, 8), random.choice([0, 0, random.randint(0, 5)])) for pair in pairs},
    )
    parallel = None
    if placement == "unidirectional" and random.random() < 0.3:
        gathers = tuple(random.randint(0, 12) for _ in range(count)) if random.random() < 0.5 else ()
        scatters = tuple(random.randint(0, 12) for _ in range(count))
        parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=scatters, all_gather_ns=gathers)
    objective = random.choice([Objective.MAKESPAN, Objective.MAKESPAN, Objective.STAGE_SPAN])
    fused = [random.randint(max(b, w) + 1, b + w - 1) for _, b, w in costs]
    problem = replace(with_fused(problem, *fused), data_parallel=parallel, objective=objective)
    return odd(problem, random).problem if may_be_odd and seed % 2 else problem


def mixed_problem(random: Random, *, most_ops: int, data_parallel: bool = False) -> Problem:
    """A tiny problem whose BW is from below max(B, W) to above B + W, which mostly may be split, with limits in bytes.

    Each activation keeps any share of it between B and W. Durations are multiples of 5, so that BW can be a bit less than B + W.
    """
    problem = tiny_problem(random, most_ops=most_ops, data_parallel=data_parallel)
    least, most = random.choice([(0.8, 0.95), (0.8, 0.95), (0.3, 0.8), (1, 1.3), (0.3, 1.3)])
    stages = []
    for stage in problem.stages:
        b, w = (tuple(5 * each for each in values) for values in (stage.backward_input_ns, stage.backward_weight_ns))
        activation = random.randint(0, 4)
        stages.append(
            replace(
                stage,
                forward_ns=tuple(5 * each for each in stage.forward_ns),
                backward_input_ns=b,
                backward_weight_ns=w,
                backward_ns=tuple(round(random.uniform(least, most) * sum(pair)) for pair in zip(b, w, strict=True)),
                activation_bytes=activation,
                activation_after_input_bytes=random.randint(0, activation),
            )
        )
    problem = replace(problem, stages=tuple(stages), split_backward=random.random() < 0.9)
    needed = [
        max(sum(stages[stage].activation_bytes for stage in path if stages[stage].rank == rank) for path in problem.paths)
        for rank in range(problem.ranks)
    ]
    limits = tuple(random.choice([None, least, int(1.5 * least), 2 * least]) for least in needed)
    return replace(problem, memory_limit_bytes=limits)


def with_zeros(random: Random, problem: Problem, factor: int) -> tuple[Problem, Problem]:
    """The problem with some durations 0, and the same with all times `factor` times as long and 1 ns instead of 0."""
    zero, one = [], []
    for stage in problem.stages:
        times = {name: getattr(stage, name) for name in ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns")}
        none = [name for name in times if random.random() < 0.3]
        zero.append(replace(stage, **(times | dict.fromkeys(none, (0,)))))
        longer: dict[str, Any] = {name: tuple(factor * each for each in values) for name, values in times.items()}
        one.append(replace(stage, **(longer | dict.fromkeys(none, (1,)))))
    links = tuple(
        replace(link, latency_ns=factor * link.latency_ns, transfer_ns=factor * (link.transfer_ns or 0)) for link in problem.links
    )
    return replace(problem, stages=tuple(zero)), replace(problem, stages=tuple(one), links=links)
