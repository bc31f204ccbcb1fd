"""The portfolio behind `--method auto`: many cheap methods, each timed by the simulator, the best one kept.

A Problem goes in; every candidate comes out with what it reached or why it could not, in the order tried, the best one marked by
`best_of`. Only a time limit that is reached makes the result depend on the machine; it then says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.analysis.memory import peak_bytes
from schedc.analysis.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.index import tables_of
from schedc.solvers.registry import TEMPLATE_NAMES, constructive
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from schedc.ir.index import Tables
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.solvers.base import Limits

__all__ = ["OUT_OF_TIME", "Candidate", "best_of", "candidate_names", "try_methods"]

OUT_OF_TIME = "not tried, the time limit was reached"

LARGE_OPS = 50_000
"""From this many compute ops on, only the strongest variant of each heuristic is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What one method made of the problem: a schedule and its times, or the reason why not."""

    method: str
    seconds: float
    schedule: Schedule | None = None
    makespan_ns: int | None = None
    objective_ns: int | None = None
    why_not: str = ""


def candidate_names(problem: Problem) -> tuple[str, ...]:
    """The methods that `auto` tries, with their options."""
    large = 3 * sum(len(problem.path(microbatch)) for microbatch in range(problem.microbatches)) >= LARGE_OPS
    greedy = ("greedy",) if large else ("greedy", "greedy{n_sub=1}", "greedy{n_sub=2}", "greedy{n_sub=8}")
    return (*TEMPLATE_NAMES, *greedy, "pipemorph", "pipemorph{policy=initial}")


def try_methods(
    problem: Problem, methods: Iterable[str], *, limits: Limits, report: Callable[[Candidate], None]
) -> list[Candidate]:
    """Run each method on the problem until the time limit; `report` hears of each candidate at once.

    Raises:
        InvalidInput: a method's name or options are wrong.
    """
    tables = tables_of(problem)
    candidates = []
    first_begun = time.perf_counter()
    for method in methods:
        construct = constructive(method)
        begun = time.perf_counter()
        try:
            if limits.time_s is not None and begun - first_begun > limits.time_s:
                raise Unsupported(OUT_OF_TIME)
            schedule = construct(problem)
        except Unsupported as reason:
            candidate = Candidate(method=method, seconds=time.perf_counter() - begun, why_not=str(reason))
        else:
            candidate = _judge(problem, method, schedule, begun, tables)
        report(candidate)
        candidates.append(candidate)
    return candidates


def best_of(candidates: Iterable[Candidate]) -> Candidate | None:
    """The candidate with the smallest objective, the first of equals; None if none has a schedule."""
    solved = [candidate for candidate in candidates if candidate.schedule is not None]
    return min(solved, key=lambda candidate: candidate.objective_ns or 0, default=None)


def _judge(problem: Problem, method: str, schedule: Schedule, begun: float, tables: Tables) -> Candidate:
    """Time the schedule, or say where it exceeds the memory limit."""
    peaks = peak_bytes(problem, schedule)
    for rank, (peak, limit) in enumerate(zip(peaks, problem.memory_limit_bytes, strict=True)):
        if limit is not None and peak > limit:
            why_not = f"holds {format_bytes(peak)} of activations on rank {rank}, whose limit is {format_bytes(limit)}"
            return Candidate(method=method, seconds=time.perf_counter() - begun, why_not=why_not)
    timeline = simulate(problem, schedule, tables=tables)
    return Candidate(
        method=method,
        seconds=time.perf_counter() - begun,
        schedule=schedule,
        makespan_ns=timeline.makespan_ns,
        objective_ns=timeline.objective_ns(problem.objective),
    )
