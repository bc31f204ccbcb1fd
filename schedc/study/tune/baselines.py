"""A first plan of a candidate: the best of the known schedules and of one list scheduler, checked and certified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc import __version__
from schedc.compile.certify import certify
from schedc.compile.driver import defects_named
from schedc.ir.plan import MadeBy, Plan
from schedc.solvers.common.fusing import fusing_frees, fusing_saves_time
from schedc.solvers.common.incumbent import Incumbent
from schedc.solvers.common.search_settings import SearchSettings
from schedc.solvers.driver.portfolio import try_methods
from schedc.solvers.driver.registry import TEMPLATE_NAMES

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.solvers.common.failure import Failure

GREEDY, GREEDY_FUSED = "greedy{n_sub=1}", "greedy{fused=all,n_sub=1}"
"""Blocks stay whole: the cut variants are rarely better by more than a thousandth, and take several times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the constructive methods made."""

    plan: Plan | None
    why_not: str
    """Where there is no plan."""
    failures: tuple[Failure, ...]
    """Of methods that ended with an exception of their own, which are defects of schedc; the plan does not rest on them."""


def baseline_of(problem: Problem, settings: SearchSettings) -> Baseline:
    """The best of the baselines on a problem, whatever the settings' method, bounded within their limits.

    An interruption ends the work once there is a schedule.

    Raises:
        Defect: a schedule breaks a rule.
    """
    incumbent = Incumbent(problem=problem, settings=SearchSettings(interruption=settings.interruption))
    fused = (GREEDY_FUSED,) if fusing_saves_time(problem) or fusing_frees(problem) else ()
    with defects_named(problem.name, "the baselines"):
        try:
            try_methods(incumbent, (*TEMPLATE_NAMES, GREEDY, *fused), mix=fusing_saves_time(problem))
            if incumbent.schedule is None:
                try_methods(incumbent, ("sequential",))
        except KeyboardInterrupt:
            if incumbent.schedule is None:
                raise
    failures = tuple(incumbent.failures)
    if incumbent.schedule is None:
        greedy = next(each for each in incumbent.candidates if each.method == GREEDY)
        return Baseline(plan=None, why_not=f"{GREEDY}: {greedy.why_not}", failures=failures)
    made_by = MadeBy(schedc=__version__, method=incumbent.found_by, seed=settings.limits.seed)
    return Baseline(plan=certify(problem, incumbent.schedule, made_by, limits=settings.limits), why_not="", failures=failures)
