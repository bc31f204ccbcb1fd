"""Tiny problems whose microbatches differ, from a seed: longer ones everywhere alike, or each block by itself; some are twins."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from tiny_problems import tiny_problem

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

__all__ = ["differing_problem", "scaled"]

KINDS = ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns")


def differing_problem(seed: int, *, most_ops: int = 14) -> Problem:
    """The problem of this number: as `tiny_problem`, with two or three microbatches that differ; they may enter in any order."""
    random = Random(seed)
    while True:
        problem = tiny_problem(random, most_ops=most_ops, data_parallel=seed % 4 == 0)
        count = problem.microbatches
        if count < 2:
            continue
        if random.random() < 0.5:
            made = scaled(problem, [random.choice([1, 2, 5]) for _ in range(count)])
        else:
            stages = tuple(
                replace(stage, **{kind: tuple(random.choice([random.randint(1, 6), 3]) for _ in range(count)) for kind in KINDS})
                for stage in problem.stages
            )
            made = replace(problem, stages=stages)
        if not made.alike:
            return made


def scaled(problem: Problem, scales: list[int]) -> Problem:
    """The problem with the durations of its first microbatch times these, one for each microbatch."""
    stages = tuple(
        replace(stage, **{kind: tuple(getattr(stage, kind)[0] * scale for scale in scales) for kind in KINDS})
        for stage in problem.stages
    )
    return replace(problem, stages=stages)
