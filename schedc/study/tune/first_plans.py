"""The first plans of a candidate: of the methods that make a schedule at once, the best one's, certified.

Takes a problem. Of a step that ends, the shortest; of steps that overlap, the one that reaches the loss first, as plans differ in
their delays, too.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from schedc import __version__
from schedc.analysis.simulation.versions import versions_of
from schedc.compile.certify import certify
from schedc.compile.driver import compile_problem, defects_named
from schedc.errors import NoPlanFound
from schedc.ir import MadeBy, Plan, Problem
from schedc.solvers.common.base import SearchSettings
from schedc.solvers.common.incumbent import Incumbent
from schedc.solvers.common.interruption import OutOfTime
from schedc.solvers.common.method import fusing_frees, fusing_saves_time
from schedc.solvers.driver.portfolio import candidate_names, try_methods
from schedc.solvers.templates import TEMPLATES

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.solvers.common.incumbent import Failure
    from schedc.study.loss.time_to_loss import LossRow

FEW_PERIOD_OPS, PERIOD_S = 400, 2.0
"""Of more compute ops, each method that makes a period at once has this many seconds; templates take milliseconds."""
GREEDY, GREEDY_FUSED = "greedy{n_sub=1}", "greedy{fused=all,n_sub=1}"
"""Blocks stay whole: the cut variants are rarely better by more than a thousandth, and take several times as long."""


def rated(reached: LossRow | None, step_ns: int) -> tuple[float, int]:
    """The time to the loss, where there is one, then the step: less is better."""
    return (inf if reached is None or reached.time_ns is None else reached.time_ns), step_ns


def best_period_of(
    problem: Problem,
    settings: SearchSettings,
    failures: list[Failure],
    reached: Callable[[int, tuple[int, ...]], LossRow],
) -> Plan:
    """As `baseline_of` where steps overlap: the plan, of those of the methods that make one at once, that reaches the loss first.

    Raises:
        NoPlanFound: there is no schedule.
        Defect: a schedule breaks a rule.
    """
    best: tuple[tuple[float, int], Incumbent] | None = None
    why_not = ""
    for method in candidate_names(problem):
        incumbent = Incumbent(problem=problem, settings=SearchSettings(interruption=settings.interruption))
        with defects_named(problem.name, method):
            try:
                with incumbent.alarm(None if problem.num_ops <= FEW_PERIOD_OPS else PERIOD_S):
                    try_methods(incumbent, (method,))
            except OutOfTime:
                pass  # the incumbent says so
            except KeyboardInterrupt:
                if best is None:
                    raise
                break
        failures += incumbent.failures
        if incumbent.schedule is None:
            why_not = why_not or "; ".join(f"{each.method}: {each.why_not}" for each in incumbent.candidates)
            continue
        period_ns = incumbent.objective_ns
        found = rated(reached(period_ns, versions_of(problem, incumbent.schedule).delays), period_ns)
        if best is None or found < best[0]:
            best = found, incumbent
    if best is None or best[1].schedule is None:
        raise NoPlanFound(why_not)
    made_by = MadeBy(schedc=__version__, method=best[1].found_by, seed=settings.limits.seed)
    return certify(problem, best[1].schedule, made_by, limits=settings.limits)


def baseline_of(problem: Problem, settings: SearchSettings, failures: list[Failure]) -> Plan:
    """A first plan: the best of the known schedules and of a list scheduler's, whatever the settings' method, within their limits.

    An interruption, or the end of the time that all is within, ends the work once there is a schedule. `failures` gets those of
    methods.

    Raises:
        NoPlanFound: there is no schedule.
        Defect: a schedule breaks a rule.
    """
    if problem.is_sharded:
        made = compile_problem(problem, SearchSettings(method=GREEDY, limits=settings.limits, interruption=settings.interruption))
        failures += made.failures
        return made.plan
    incumbent = Incumbent(problem=problem, settings=SearchSettings(interruption=settings.interruption))
    saves_time = fusing_saves_time(problem)
    fused = (GREEDY_FUSED,) if saves_time or fusing_frees(problem) else ()
    with defects_named(problem.name, "the baselines"):
        try:
            # Of equal steps the first stays, so that which holds all microbatches goes last.
            methods = (*sorted(TEMPLATES, key=lambda name: name == "gpipe"), GREEDY, *fused)
            try:
                with incumbent.alarm(None):
                    try_methods(incumbent, (*methods, "rule-table") if saves_time else methods)  # it mixes fused and split
            except OutOfTime:
                if incumbent.schedule is None:
                    incumbent.candidates.clear()
                    try_methods(incumbent, methods)
            if incumbent.schedule is None:
                try_methods(incumbent, ("sequential",))
        except KeyboardInterrupt:
            if incumbent.schedule is None:
                raise
    failures += incumbent.failures
    if incumbent.schedule is None:
        greedy = next(each for each in incumbent.candidates if each.method == GREEDY)
        raise NoPlanFound(f"{GREEDY}: {greedy.why_not}")
    made_by = MadeBy(schedc=__version__, method=incumbent.found_by, seed=settings.limits.seed)
    return certify(problem, incumbent.schedule, made_by, limits=settings.limits)
