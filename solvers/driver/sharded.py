"""Orders for sharded weights: each method works with room kept for weights and gradients; then collectives are placed.

How many stages' weights a rank holds at once decides about the order of its ops, as it decides how many activations fit beside
them. So each number is tried: the methods see a problem of whole weights with that much less memory; each family of schedules that
they make has its collectives placed within the true limits (`schedc.lower.sharding`), and is taken by its true time.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.analysis.bounds.lower_bounds import simple_bound
from schedc.analysis.bounds.residency import beside_gathered, rank_without_room
from schedc.errors import Infeasible, NoPlanFound, Unsupported
from schedc.ir import Objective, Problem, with_whole_weights
from schedc.lower.sharding import placed
from schedc.solvers.common.base import ignore
from schedc.solvers.common.incumbent import Candidate, Ended, Incumbent
from schedc.solvers.common.interruption import OutOfTime
from schedc.solvers.driver.portfolio import CONSTRUCTIVE_S, solve
from schedc.solvers.driver.registry import is_auto
from schedc.solvers.exact.cpsat import CpSat
from schedc.solvers.heuristics.greedy import ONE_RULE
from schedc.spelling import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir import BoundName, Schedule
    from schedc.solvers.common.base import Limits, SearchSettings

LEVELS_SHARE = 0.6
"""Of the limits, for orders without gathers; CP-SAT has the rest, which decides on both together."""
MOST_OPS = 1_000
"""Up to this many compute ops CP-SAT gets the problem with its gathers: it has a Boolean for each op and stay."""


def solve_sharded(
    problem: Problem,
    settings: SearchSettings,
    *,
    bound_ns: int,
    bound_by: BoundName,
    known: Sequence[tuple[Schedule, str]] = (),
) -> Incumbent:
    """As `schedc.solvers.driver.portfolio.solve`, of a problem whose weights are sharded."""
    incumbent = Incumbent(problem=problem, bound_ns=bound_ns, bound_by=bound_by, settings=settings)
    for schedule, found_by in known:
        incumbent.offer_valid(schedule, found_by)
    if incumbent.schedule is not None and incumbent.gap <= settings.limits.gap:
        return incumbent
    by_cpsat = settings.method.partition("{")[0] == CpSat.name
    if by_cpsat and not _for_cpsat(problem):
        raise Unsupported(f"{problem.name}: cpsat is for the makespan of sharded weights in up to {MOST_OPS} compute ops; use auto")
    for method in (ONE_RULE, "sequential") if by_cpsat else (settings.method,):
        if incumbent.whole is None:
            _by_levels(incumbent, replace(settings, method=method))
    limits = _left(incumbent, 1.0)
    is_over = incumbent.ended is Ended.INTERRUPTED or limits.time_s == 0 or limits.deterministic == 0
    if incumbent.whole is not None and not is_over and (by_cpsat or (is_auto(settings.method) and _for_cpsat(problem))):
        settings.on_method(CpSat.name)
        with incumbent.alarm(settings.limits.clock_s), suppress(OutOfTime):
            incumbent.fails(CpSat.name, lambda: CpSat().improve(incumbent, limits))
    incumbent.end(Ended.OUT_OF_TIME if incumbent.cut_short else Ended.DONE, interrupted=incumbent.ended is Ended.INTERRUPTED)
    return incumbent


def _for_cpsat(problem: Problem) -> bool:
    """Whether CP-SAT gets the problem with its gathers."""
    return problem.num_ops <= MOST_OPS and problem.objective is Objective.MAKESPAN


def _left(incumbent: Incumbent, share: float) -> Limits:
    """The limits of what is left, or of this share of it."""
    return incumbent.limits.left(incumbent.begun, incumbent.work).part(share)


def _by_levels(incumbent: Incumbent, settings: SearchSettings) -> None:
    """Let the method work with each amount of room that is kept, all together in their share of the limits."""
    tries = [(title, each) for title, each in levels_of(incumbent.problem).items() if not rank_without_room(each)]
    together = LEVELS_SHARE if is_auto(settings.method) and _for_cpsat(incumbent.problem) else 1.0
    for number, (title, level) in enumerate(tries):
        if incumbent.schedule is not None and incumbent.limits.clock_s is not None and incumbent.seconds > incumbent.limits.clock_s:
            incumbent.cut_short = True
            return
        limits = _left(incumbent, together / (1 + together * (len(tries) - number - 1)))
        bound = simple_bound(level)
        try:
            of_level = solve(
                level,
                replace(settings, limits=limits, report=ignore),
                bound_ns=bound.value_ns,
                bound_by=bound.name,
                least_s=CONSTRUCTIVE_S / len(tries),
            )
        except (Infeasible, NoPlanFound) as why_not:
            incumbent.candidates.append(Candidate(method=f"with room for {title}", seconds=0.0, why_not=str(why_not)))
            continue
        except OutOfTime:
            incumbent.cut_short = True
            if incumbent.schedule is None:
                raise
            return
        incumbent.work += of_level.work
        incumbent.cut_short |= of_level.cut_short
        incumbent.failures += of_level.failures
        _take(incumbent, of_level, title)
        if of_level.ended is Ended.INTERRUPTED:
            incumbent.ended = Ended.INTERRUPTED
            return
        if incumbent.schedule is not None and incumbent.gap <= settings.limits.gap:
            return


def _take(incumbent: Incumbent, known: Incumbent, title: str) -> None:
    """Offer what was found with collectives in their places."""
    if known.schedule is None:
        incumbent.candidates += [replace(each, method=f"{each.method}, {title}") for each in known.candidates]
    found = {schedule: name for (name, _), (_, schedule) in known.families.items()}
    if known.schedule is not None:
        found[known.schedule] = known.found_by
    for schedule, name in found.items():
        begun, method = time.perf_counter(), f"{name}, {title}"
        made, why_not = placed(incumbent.problem, schedule), "leaves no room for the weights of a stage"
        makespan_ns, objective_ns = (None, None) if made is None else incumbent.offer(made, name)
        incumbent.candidates.append(
            Candidate(
                method=method,
                seconds=time.perf_counter() - begun,
                makespan_ns=makespan_ns,
                objective_ns=objective_ns,
                why_not=why_not if made is None else "",
            )
        )


def levels_of(problem: Problem) -> dict[str, Problem]:
    """The problems of whole weights that the methods see, by what each keeps room for; those that are alike once."""
    parallel = problem.data_parallel
    assert parallel is not None
    own = [problem.stages_on(rank) for rank in range(problem.ranks)]
    found: dict[str, Problem] = {"the smallest stage": beside_gathered(problem)}
    for gradients in (True, False):
        for count in range(1, max(map(len, own)) + 1):
            title = f"{counted(count, 'stage')} a rank{' and gradients' if gradients else ''}"
            limits: list[int | None] = []
            for stages, limit in zip(own, problem.memory_limit_bytes, strict=True):
                kept = sum(sorted((parallel.gathered_bytes[stage] for stage in stages), reverse=True)[:count])
                kept += sum(parallel.gradient_bytes[stage] for stage in stages) if gradients else 0
                limits.append(None if limit is None else max(0, limit - kept))
            level = replace(with_whole_weights(problem), memory_limit_bytes=tuple(limits))
            if level not in found.values():
                found[title] = level
    return found
