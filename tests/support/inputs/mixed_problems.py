"""Random tiny problems whose fused backward is cheaper, or dearer, than B and W: the optimum often fuses some and splits others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inputs.tiny_problems import tiny_problem

if TYPE_CHECKING:
    from random import Random

    from schedc.ir.problem import Problem


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
