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

from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import Clock, never
from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.bounds.lower_bounds import Bound
from schedc.compiled.compiler import compile_ahead
from schedc.errors import Infeasible, NoPlanFound
from schedc.ir.plan import BoundName
from schedc.solvers.common.incumbent import Ended
from schedc.solvers.driver.layout_search import run_layout_method, search_exactly, seek_layouts, try_baselines
from schedc.solvers.driver.layout_trials import halve, hand_on, hand_on_named
from schedc.solvers.driver.layout_work import LayoutWork
from schedc.solvers.driver.registry import LAYOUT_METHODS
from schedc.solvers.layout.evaluation.kernel import evaluate

if TYPE_CHECKING:
    from schedc.ir.layout import OpenLayout
    from schedc.ir.workload import Workload
    from schedc.solvers.common.search_settings import SearchSettings

MOST_BARREN = 3
"""After this many searches in a row that find no layout that may be better, nothing is left to try."""


def solve_layouts(workload: Workload, open_layout: OpenLayout, settings: SearchSettings) -> LayoutWork:
    """Choose a layout and a schedule until the gap, the limit, a proof, or an interruption.

    Under a deterministic limit, and with a constructive method that no time limit cuts short, the result depends on the seed alone.

    Args:
        workload: what `schedc.verify.workload` accepts.
        open_layout: what may be chosen.
        settings: the method, and when to stop.

    Returns:
        What is known then: the best layout with its schedule, and as candidates the baselines, the searches over layouts, and
        what became of each layout that a method worked on.

    Raises:
        Infeasible: no layout has room on its ranks.
        NoPlanFound: no method found a schedule within the memory limits.
        InvalidInput: the method's name or options are wrong.
        Unsupported: the search that is asked for by name works in none of the layouts.
    """
    clock_s = settings.limits.clock_s
    until = never if clock_s is None else Clock(clock_s)
    bound = bound_over_layouts(workload, open_layout)
    work = LayoutWork(
        workload=workload,
        open_layout=open_layout,
        settings=settings,
        bound_ns=bound.value_ns,
        bound_by=bound.name,
        until=until,
    )
    _run(work)
    _check_found(work)
    work.end(_ended(work), interrupted=work.interrupted)
    work.cut_short |= work.ended is Ended.INTERRUPTED
    return work


def bound_over_layouts(workload: Workload, open_layout: OpenLayout) -> Bound:
    """The lower bound over all layouts that are open.

    Raises:
        Infeasible: no layout has room on its ranks.
    """
    bound = layout_bound(workload, open_layout)
    if bound.value_ns is None:
        raise Infeasible(f"{workload.name}: {bound.detail}")
    return Bound(name=BoundName.LAYOUTS, value_ns=bound.value_ns, detail=bound.detail)


def _run(work: LayoutWork) -> None:
    """All steps."""
    compile_ahead(evaluate)
    try_baselines(work)
    if work.method in LAYOUT_METHODS:
        run_layout_method(work)
        return
    if work.is_constructive:
        seek_layouts(work, 0)
        for option in work.hopeful():
            if work.best is None or not (work.interrupted or work.interruption.requested):
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


def _check_found(work: LayoutWork) -> None:
    """Refuse to have found nothing.

    Raises:
        NoPlanFound: there is no schedule.
        Unsupported: the search asked for works in no layout.
    """
    tried = [each for each in work.candidates if each.method.endswith(f" {work.method}") and each.objective_ns is not None]
    if work.unsupported and not tried:
        raise work.unsupported[0]
    if work.best is None:
        failed = [each for each in work.candidates if each.why_not]
        reasons = "; ".join(f"{each.method}: {each.why_not}" for each in failed[-3:])
        in_time = " in the time given" if work.left == 0 and not work.is_constructive else ""
        raise NoPlanFound(f"{work.workload.name}: no layout with a schedule found{in_time}: {reasons or 'none has room'}")


def _ended(work: LayoutWork) -> Ended:
    """Which limit ended the work, or that it ended by itself."""
    if work.is_constructive or (work.method in LAYOUT_METHODS and work.exhausted):
        return Ended.DONE
    if work.limits.deterministic is not None:
        return Ended.OUT_OF_WORK
    return Ended.EXHAUSTED if work.exhausted else Ended.OUT_OF_TIME
