"""Orders for sharded weights: each method works with room kept for weights and gradients; then collectives are placed.

How many stages' weights a rank holds at once decides about the order of its ops, as it decides how many activations fit beside
them. So each number is tried: the methods see a problem of whole weights with that much less memory; each family of schedules that
they make has its collectives placed within the true limits (`schedc.lower.sharding`), and is taken by its true time.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.analysis.bounds.lower_bounds import simple_bound
from schedc.analysis.bounds.residency import rank_without_room
from schedc.errors import Infeasible, NoPlanFound
from schedc.ir import Problem, with_whole_weights
from schedc.lower.sharding import placed
from schedc.solvers.common.base import ignore
from schedc.solvers.common.incumbent import Candidate, Ended, Incumbent
from schedc.solvers.common.interruption import OutOfTime
from schedc.solvers.driver.portfolio import CONSTRUCTIVE_S, solve
from schedc.spelling import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir import BoundName, Schedule
    from schedc.solvers.common.base import SearchSettings


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
    tries = [(title, each) for title, each in levels_of(problem).items() if not rank_without_room(each)]
    for number, (title, level) in enumerate(tries):
        left, limits = len(tries) - number, settings.limits
        if incumbent.schedule is not None and limits.time_s is not None and incumbent.seconds > limits.time_s:
            incumbent.cut_short = True
            break
        if limits.time_s is not None:
            limits = replace(limits, time_s=max(0.0, limits.time_s - incumbent.seconds) / left)
        if limits.deterministic is not None:
            limits = replace(limits, deterministic=max(0.0, limits.deterministic - incumbent.work) / left)
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
            break
        incumbent.work += of_level.work
        incumbent.cut_short |= of_level.cut_short
        incumbent.failures += of_level.failures
        _take(incumbent, of_level, title)
        if incumbent.schedule is not None and (incumbent.gap <= limits.gap or of_level.ended is Ended.INTERRUPTED):
            break
    incumbent.end(Ended.OUT_OF_TIME if incumbent.cut_short else Ended.DONE, interrupted=False)
    return incumbent


def _take(incumbent: Incumbent, known: Incumbent, title: str) -> None:
    """Offer what was found with collectives in their places."""
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
    found: dict[str, Problem] = {}
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
