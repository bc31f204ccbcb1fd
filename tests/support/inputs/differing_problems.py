"""Tiny problems whose microbatches differ, from a seed: longer ones everywhere alike, or each block by itself; some are twins."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from inputs.odd_numbers import odd
from inputs.plans import plan_of
from inputs.problems import make_problem
from inputs.tiny_problems import tiny_problem
from schedc.ir.alike import are_alike
from schedc.solvers.common.microbatch_order import by_position, permuted, renamed
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from typing import Any

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem, Stage


def differing_problem(seed: int, *, most_ops: int = 14, may_be_odd: bool = False) -> Problem:
    """The problem of this number: as `tiny_problem`, with two or three microbatches that differ; they may enter in any order.

    With `may_be_odd` every other one is in odd nanoseconds of seconds and odd bytes of GiB.
    """
    random = Random(seed)
    while True:
        problem = tiny_problem(random, most_ops=most_ops, data_parallel=seed % 4 == 0)
        count = problem.microbatches
        if count < 2:
            continue
        if random.random() < 0.5:
            made = scaled(problem, [random.choice([1, 2, 5]) for _ in range(count)])
        else:
            made = replace(problem, stages=tuple(_drawn(stage, random, count) for stage in problem.stages))
        if not are_alike(made):
            return odd(made, random).problem if may_be_odd and seed % 2 else made


def longest_first(ranks: int, method: str, **options: Any) -> Plan:
    """The plan of a method, for six microbatches that differ and enter in the order 3, 0, 5, 2, 1, 4, the longest first.

    With two paths: 4, 3, 0, 1, 2, 5, as each takes the positions of its path.
    """
    lengths = [5, 2, 3, 6, 1, 4] if options.get("placement") != "bidirectional" else [3, 3, 2, 5, 6, 1]
    problem = scaled(make_problem(ranks, 6, **{"costs_ns": (10, 12, 9), **options}), lengths)
    of_paths = [[m for m, path in enumerate(problem.path_of) if path == number] for number in range(len(problem.paths))]
    order = by_position(problem, [sorted(each, key=lambda m: -lengths[m]) for each in of_paths])
    return plan_of(problem, renamed(constructive(method)(permuted(problem, order)), order))


def scaled(problem: Problem, scales: list[int]) -> Problem:
    """The problem with the durations of its first microbatch times these, one for each microbatch."""

    def grown(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[0] * scale for scale in scales)

    stages = tuple(
        replace(
            stage,
            forward_ns=grown(stage.forward_ns),
            backward_input_ns=grown(stage.backward_input_ns),
            backward_weight_ns=grown(stage.backward_weight_ns),
            backward_ns=grown(stage.backward_ns),
        )
        for stage in problem.stages
    )
    return replace(problem, stages=stages)


def _drawn(stage: Stage, random: Random, count: int) -> Stage:
    """The stage with durations of their own for each microbatch, of which many are 3."""
    f, b, w, bw = (tuple(random.choice([random.randint(1, 6), 3]) for _ in range(count)) for _ in range(4))
    return replace(stage, forward_ns=f, backward_input_ns=b, backward_weight_ns=w, backward_ns=bw)
