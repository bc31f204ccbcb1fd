"""The methods at work on one problem: `solve` runs the method that was asked for, or all that help (`auto`), within limits.

A Problem goes in; an `Outcome` comes out: the best schedule and bound, how each constructive candidate did, and the history. Every
search starts from the best constructive candidate. `auto` runs the constructive methods, then local search over a list scheduler's
rule and over the orders, then CP-SAT, whole or relaxed, and ends at the gap, the limit, or a proof; an interruption ends it with
what is known then.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from schedc.errors import Unsupported
from schedc.ir.index import tables_of
from schedc.solvers.failure import Failure, failure_of
from schedc.solvers.incumbent import Incumbent
from schedc.solvers.registry import SEARCHES, TEMPLATE_NAMES, constructive, is_auto, search_of
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from schedc.ir.problem import Problem
    from schedc.solvers.base import Construct, Limits, Search
    from schedc.solvers.incumbent import Improvement

__all__ = ["OUT_OF_TIME", "Candidate", "Outcome", "solve", "try_methods"]

OUT_OF_TIME = "not tried, the time limit was reached"

LARGE_OPS = 50_000
"""From this many compute ops on, only the strongest variant of each heuristic is tried."""

CPSAT_OPS = 12_000
"""Up to this many compute ops `auto` hands the problem to CP-SAT as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What one constructive method made of the problem, or the reason why not."""

    method: str
    seconds: float
    makespan_ns: int | None = None
    objective_ns: int | None = None
    why_not: str = ""
    failure: Failure | None = None
    """Where the method ended with an exception of its own; what it had found before counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the methods found."""

    incumbent: Incumbent
    candidates: tuple[Candidate, ...]

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Of the methods that failed, in the order in which they were tried."""
        return tuple(candidate.failure for candidate in self.candidates if candidate.failure is not None)


def solve(
    problem: Problem,
    method: str,
    limits: Limits,
    *,
    bound_ns: int,
    bound_by: str,
    report: Callable[[Improvement], None],
) -> Outcome:
    """Run the method on the problem until the gap, the limit, a proof, or an interruption.

    Args:
        problem: a valid problem.
        method: `auto`, or a method's name with options in braces.
        limits: when to stop.
        bound_ns: the best analytic lower bound on the objective.
        bound_by: its name.
        report: hears of each improvement at once.

    Raises:
        InvalidInput: the method's name or options are wrong.
        Exception: of a method that failed, where no other found a schedule.
        KeyboardInterrupt: the run was interrupted before there was any schedule.
    """
    incumbent = Incumbent(problem=problem, tables=tables_of(problem), bound_ns=bound_ns, bound_by=bound_by, report=report)
    auto, name = is_auto(method), method.partition("{")[0]
    candidates: list[Candidate] = []
    try:
        if not auto and name not in SEARCHES:
            try_methods(incumbent, (method,), limits, candidates)
        else:
            searches = _auto_searches(problem) if auto else ((method, 1.0),)
            runs = [(search, search_of(search), share) for search, share in searches]  # a wrong option is told at once
            try_methods(incumbent, candidate_names(problem), limits, candidates)
            if incumbent.schedule is None or incumbent.gap > limits.gap:  # loads compiled code, which takes longer than the others
                try_methods(incumbent, ("rules",), limits, candidates)
            for search, run, share in runs:
                if incumbent.schedule is None or incumbent.gap <= limits.gap:
                    break
                left_s = None if limits.time_s is None else limits.time_s - incumbent.seconds
                if left_s is not None and left_s <= 0 and limits.deterministic is None:
                    incumbent.cut_short = True
                    break
                slice_s = None if left_s is None else share * left_s
                work = None if limits.deterministic is None else share * max(0.0, limits.deterministic - incumbent.work)
                given = replace(limits, time_s=slice_s, deterministic=work)
                candidates.append(_run(search, run, incumbent, given, told=not auto))
    except KeyboardInterrupt:
        if incumbent.schedule is None:
            raise
        incumbent.cut_short = True
    outcome = Outcome(incumbent=incumbent, candidates=tuple(candidates))
    if incumbent.schedule is None and outcome.failures:
        raise outcome.failures[0].exception
    return outcome


def _run(search: str, run: Search, incumbent: Incumbent, limits: Limits, *, told: bool) -> Candidate:
    """Run one search. One that does not exist for the problem is an error only where it was asked for by name."""
    begun, before_ns = time.perf_counter(), incumbent.objective_ns
    why_not, failure = "found nothing better", None
    try:
        failure = failure_of(search, incumbent, lambda: run(incumbent, limits))
    except Unsupported as reason:
        if told:
            raise
        why_not = str(reason)
    seconds = time.perf_counter() - begun
    if incumbent.objective_ns == before_ns:
        return Candidate(method=search, seconds=seconds, why_not="failed" if failure else why_not, failure=failure)
    makespan_ns, objective_ns = incumbent.makespan_ns, incumbent.objective_ns
    return Candidate(method=search, seconds=seconds, makespan_ns=makespan_ns, objective_ns=objective_ns, failure=failure)


def candidate_names(problem: Problem) -> tuple[str, ...]:
    """The constructive methods that every search starts from, with their options; `rules` comes after them."""
    greedy = ("greedy",) if _num_ops(problem) >= LARGE_OPS else ("greedy", "greedy{n_sub=1}", "greedy{n_sub=2}", "greedy{n_sub=8}")
    return (*TEMPLATE_NAMES, *greedy, "paced", "paced{n_sub=1}", "pipemorph", "pipemorph{policy=initial}")


def try_methods(incumbent: Incumbent, methods: Iterable[str], limits: Limits, candidates: list[Candidate]) -> None:
    """Offer each method's schedule to the incumbent, and append what became of it to the candidates.

    Raises:
        InvalidInput: a method's name or options are wrong.
    """
    for method in methods:
        construct = constructive(method)
        candidates.append(_construct(incumbent, method, construct, limits))


def _construct(incumbent: Incumbent, method: str, construct: Construct, limits: Limits) -> Candidate:
    """Offer one method's schedule to the incumbent."""
    begun = time.perf_counter()
    reached: list[tuple[int, int]] = []

    def work() -> None:
        late = limits.time_s is not None and incumbent.seconds > limits.time_s
        if late and incumbent.schedule is not None and _num_ops(incumbent.problem) >= LARGE_OPS:
            incumbent.cut_short = True
            raise Unsupported(OUT_OF_TIME)
        schedule = construct(incumbent.problem)
        excess = incumbent.exceeds_memory(schedule)
        if excess is not None:
            rank, peak, limit = excess
            raise Unsupported(f"holds {format_bytes(peak)} of activations on rank {rank}, whose limit is {format_bytes(limit)}")
        reached.append(incumbent.offer(schedule, method))

    why_not, failure = "failed", None
    try:
        failure = failure_of(method, incumbent, work)
    except Unsupported as reason:
        why_not = str(reason)
    seconds = time.perf_counter() - begun
    if not reached:
        return Candidate(method=method, seconds=seconds, why_not=why_not, failure=failure)
    ((makespan_ns, objective_ns),) = reached
    return Candidate(method=method, seconds=seconds, makespan_ns=makespan_ns, objective_ns=objective_ns, failure=failure)


def _auto_searches(problem: Problem) -> tuple[tuple[str, float], ...]:
    """What `auto` runs after the constructive methods, each with the share of the time or work left that it may take."""
    if _num_ops(problem) > CPSAT_OPS:
        return (("local{rounds=4}", 0.4), ("polish{rounds=4}", 0.3), ("periodic", 1.0))
    if len(problem.stages) == problem.ranks:
        return (("local{rounds=3}", 0.3), ("polish{rounds=2}", 0.2), ("cpsat", 1.0))
    # With several chunks on a rank, bounds are weaker and good rules rarer: easy ones are proven soon, the others need the search.
    return (
        ("local{rounds=4}", 0.3),
        ("polish{rounds=4}", 0.2),
        ("cpsat", 0.15),
        ("local{rounds=60}", 0.4),
        ("polish{rounds=60}", 0.35),
        ("relaxed", 0.95),
        ("cpsat", 1.0),
    )


def _num_ops(problem: Problem) -> int:
    return 3 * sum(len(problem.path(microbatch)) for microbatch in range(problem.microbatches))
