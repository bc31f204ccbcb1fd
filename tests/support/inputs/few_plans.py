"""Plans that need no search; of two ranks and four microbatches one of each kind that the runtime treats in its own way."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from inputs.plans import plan_of
from inputs.problems import make_problem
from schedc.ir.problem import DataParallel
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan

W_IN_PARTS: tuple[str, dict[str, Any]] = (
    "greedy{n_sub=3,weights_first=0}",
    {"links": {(0, 1): (7, 5), (1, 0): (7, 5)}, "in_flight": 3},
)
"""Cuts W on 2 ranks with 4 or 8 microbatches, and on 4 with 4, 6 or 8."""

PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "1f1b": ("1f1b", {}),
    "interleaved": ("interleaved", {"placement": "loop", "chunks": 2}),
    "zb-v": ("zb-v", {"placement": "wave", "chunks": 2}),
    "bidirectional": ("chimera", {"placement": "bidirectional"}),
    "parts": W_IN_PARTS,
}


def made_by(
    method: str,
    ranks: int = 2,
    microbatches: int = 4,
    *,
    counts: Sequence[int] | None = None,
    zero: int | None = None,
    size: int = 2,
    gathers: bool = True,
    **options: Any,
) -> Plan:
    """The plan of a method that needs no search.

    Args:
        method: with its options.
        ranks: of one pipeline.
        microbatches: of a step.
        counts: how many layers each stage of a path has; None: the plan does not say.
        zero: the stage of ZeRO; None: replicas, if there are any, have no collectives.
        size: how many replicas.
        gathers: whether ZeRO 1 has gathers in the plan.
        options: of `make_problem`.
    """
    problem = make_problem(ranks, microbatches, **{"costs_ns": (10, 12, 9), **options})
    if counts is not None:
        bounds = list(pairwise([0, *accumulate(counts)]))
        piece = {stage: place for path in problem.paths for place, stage in enumerate(path)}
        stages = tuple(replace(stage, layers=bounds[piece[index]]) for index, stage in enumerate(problem.stages))
        problem = replace(problem, stages=stages)
    if zero is not None:
        times = (5,) * len(problem.stages)
        parallel = DataParallel(
            size=size, zero_stage=zero, reduce_scatter_ns=times, all_gather_ns=times if zero and gathers else ()
        )
        problem = replace(problem, data_parallel=parallel)
    return plan_of(problem, constructive(method)(problem))


def few_plan(name: str, zero: int | None = None, counts: Sequence[int] | None = None) -> Plan:
    """The plan of this name, alone or with one like it, under this stage of ZeRO."""
    method, options = PLANS[name]
    return made_by(method, counts=counts, zero=zero, **options)
