"""Plans of two ranks and four microbatches, one of each kind that the runtime treats in its own way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inputs.plans import plan_of
from inputs.problems import make_problem
from schedc.ir.problem import DataParallel
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from schedc.ir.plan import Plan

PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "1f1b": ("1f1b", {}),
    "interleaved": ("interleaved", {"placement": "loop", "chunks": 2}),
    "zb-v": ("zb-v", {"placement": "wave", "chunks": 2}),
    "bidirectional": ("chimera", {"placement": "bidirectional"}),
    "parts": ("greedy{n_sub=3}", {"links": {(0, 1): (25, 10), (1, 0): (25, 10)}, "in_flight": 6}),
}


def few_plan(name: str, zero: int | None = None) -> Plan:
    """The plan of this name, alone or with one like it, under this stage of ZeRO."""
    method, options = PLANS[name]
    problem = make_problem(2, 4, costs_ns=(10, 12, 9), **options)
    if zero is not None:
        times = (5,) * len(problem.stages)
        parallel = DataParallel(size=2, zero_stage=zero, reduce_scatter_ns=times, all_gather_ns=times if zero else ())
        problem = replace(problem, data_parallel=parallel)
    return plan_of(problem, constructive(method)(problem))
