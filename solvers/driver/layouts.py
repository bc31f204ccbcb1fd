"""The methods at work on one workload whose layout is open: which layouts, and which schedule in them.

A Workload and an OpenLayout go in; the best layout with its schedule comes out, and a bound over all layouts.

1. The baselines (`schedc.solvers.layout.baselines`).
2. With `auto`, where there are few layouts, of few ops: the exact search for a small share of the time.
3. The method that was asked for, on the balanced partitions in the known placements.
4. Annealing over layouts (`LayoutClimb`), begun again from other seeds; where 2 was possible, the exact search once more.
5. The method on the best layouts by successive halving: all of them for a short time, then the better half, until one has the rest.

While time is left, 4 and 5 are repeated with other seeds. A constructive method alone makes the schedule of the plan, on all named
layouts and on those found; with any other method, better schedules of the steps before are kept. It ends at the gap, the limit, or
a proof; an interruption ends it with what is known then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import Clock, never
from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.compiled.compiler import compile_ahead
from schedc.errors import Infeasible, NoPlanFound
from schedc.solvers.common.interruption import Interruption
from schedc.solvers.driver.best_layout import BestLayout, LayoutsProgress
from schedc.solvers.driver.layout_options import LayoutOptions
from schedc.solvers.driver.layout_search import run_layout_method, search_exactly, seek_layouts, try_baselines
from schedc.solvers.driver.layout_trials import halve, hand_on, hand_on_named
from schedc.solvers.driver.layout_work import Work
from schedc.solvers.driver.portfolio import Candidate, Ended
from schedc.solvers.driver.registry import LAYOUT_METHODS
from schedc.solvers.layout.evaluation.kernel import evaluate

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.layout import OpenLayout
    from schedc.ir.workload import Workload
    from schedc.solvers.common.base import Limits
    from schedc.solvers.common.failure import Failure
    from schedc.solvers.common.incumbent import Improvement
    from schedc.solvers.layout.scheduled_layout import ScheduledLayout

MOST_BARREN = 3
"""After this many searches in a row that find no layout that may be better, nothing is left to try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutsOutcome:
    """What the methods found."""

    best: ScheduledLayout
    known: BestLayout
    candidates: tuple[Candidate, ...]
    """The baselines, the searches over layouts, and what became of each layout that a method worked on."""
    failures: tuple[Failure, ...]
    """Of methods that ended with an exception of their own."""
    ended: Ended


def solve_layouts(
    workload: Workload,
    open_layout: OpenLayout,
    method: str,
    limits: Limits,
    *,
    report: Callable[[Improvement], None] = lambda _: None,
    on_method: Callable[[str], None] = lambda _: None,
    on_layouts: Callable[[LayoutsProgress], None] = lambda _: None,
    interruption: Interruption | None = None,
) -> LayoutsOutcome:
    """Choose a layout and a schedule until the gap, the limit, a proof, or an interruption.

    Under a deterministic limit, and with a constructive method that no time limit cuts short, the result depends on the seed alone.

    Args:
        workload: what `schedc.verify.workload` accepts.
        open_layout: what may be chosen.
        method: `auto`, or a method's name with options in braces.
        limits: when to stop.
        report: is called with each better schedule or bound at once.
        on_method: is called with the name of what begins.
        on_layouts: is called now and then while layouts are evaluated.
        interruption: what listens to signals, if something does; one that comes before there is any schedule waits for the first.

    Raises:
        Infeasible: no layout has room on its ranks.
        NoPlanFound: no method found a schedule within the memory limits.
        InvalidInput: the method's name or options are wrong.
        Unsupported: the search that is asked for by name works in none of the layouts.
    """
    until = never if limits.time_s is None or limits.deterministic is not None else Clock(limits.time_s)
    bound = layout_bound(workload, open_layout)
    if bound.value_ns is None:
        raise Infeasible(f"{workload.name}: {bound.detail}")
    work = Work(
        workload=workload,
        open_layout=open_layout,
        method=method,
        limits=limits,
        known=BestLayout(bound_ns=bound.value_ns, report=report, interruption=interruption or Interruption()),
        options=LayoutOptions(workload, until),
        on_method=on_method,
        on_layouts=on_layouts,
    )
    _run(work)
    return _outcome(work)


def _run(work: Work) -> None:
    """All steps."""
    compile_ahead(evaluate)
    try_baselines(work)
    if work.method in LAYOUT_METHODS:
        run_layout_method(work)
        return
    if work.is_constructive:
        seek_layouts(work, 0)
        for option in work.options.hopeful(None):
            if work.known.best is None or not (work.interrupted or work.known.interruption.requested):
                hand_on(work, option, work.left if work.is_timed else None)
        return
    search_exactly(work)
    hand_on_named(work)
    number = barren = 0
    while not (work.is_over or work.exhausted):
        before = len(work.options)
        seek_layouts(work, number)
        search_exactly(work)
        halve(work)
        number += 1
        barren = barren + 1 if len(work.options) == before and not work.hopeful() else 0
        work.exhausted = not work.is_timed or (barren == MOST_BARREN and work.left != 0)


def _outcome(work: Work) -> LayoutsOutcome:
    """What was found.

    Raises:
        NoPlanFound: nothing.
        Unsupported: the search asked for works in no layout.
    """
    best = work.known.best
    tried = [each for each in work.candidates if each.method.endswith(f" {work.method}") and each.objective_ns is not None]
    if work.unsupported and not tried:
        raise work.unsupported[0]
    if best is None:
        failed = [each for each in work.candidates if each.why_not]
        reasons = "; ".join(f"{each.method}: {each.why_not}" for each in failed[-3:])
        in_time = " in the time given" if work.left == 0 and not work.is_constructive else ""
        raise NoPlanFound(f"{work.workload.name}: no layout with a schedule found{in_time}: {reasons or 'none has room'}")
    ended = _ended(work)
    work.known.cut_short |= ended is Ended.INTERRUPTED
    return LayoutsOutcome(
        best=best,
        known=work.known,
        candidates=tuple(work.candidates),
        failures=tuple(work.failures),
        ended=ended,
    )


def _ended(work: Work) -> Ended:
    """Why the work ended."""
    if work.known.gap == 0:
        return Ended.PROVEN
    if work.known.gap <= work.limits.gap:
        return Ended.WITHIN_GAP
    if work.interrupted or work.known.interruption.requested:
        return Ended.INTERRUPTED
    if work.is_constructive or (work.method in LAYOUT_METHODS and work.exhausted):
        return Ended.DONE
    if work.limits.deterministic is not None:
        return Ended.OUT_OF_WORK
    return Ended.EXHAUSTED if work.exhausted else Ended.OUT_OF_TIME
