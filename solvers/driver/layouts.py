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

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import Clock, never
from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.compiled.compiler import compile_ahead
from schedc.errors import NoPlanFound, Unsupported
from schedc.ir import BoundName, OpenLayout, Workload
from schedc.solvers.common.base import ignore
from schedc.solvers.common.incumbent import Candidate, Ended
from schedc.solvers.driver.layout_search import evaluated_by, run_layout_method, search_exactly, seek_layouts, try_baselines
from schedc.solvers.driver.layout_work import LayoutWork
from schedc.solvers.driver.portfolio import CONSTRUCTIVE_S, solve
from schedc.solvers.driver.registry import chooses_layout
from schedc.solvers.layout.layout_arrays import ScheduledLayout

if TYPE_CHECKING:
    from schedc.solvers.common.base import SearchSettings
    from schedc.solvers.driver.layout_work import LayoutOption

BOUND_SHARE = 0.2
"""Of the time, the bound over layouts gets this share."""
MOST_BARREN = 3
"""After this many searches in a row that find no layout that may be better, nothing is left to try."""
NAMED_SHARE = 0.35
"""Of the time or work left then, the method on named layouts gets this share."""
FIRST_ROUND = 0.5
"""Of the time of halving, the first round gets this share, as do later ones of what is left."""
HANDED_ON = ("balanced unidirectional", "balanced loop 2", "balanced wave 2", "balanced explicit")
"""The named layouts that are handed on before any are found, beside the one with the best baseline; where there are few: all."""


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
    bound = layout_bound(workload, open_layout, never if clock_s is None else Clock(BOUND_SHARE * clock_s))
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
    by_itself = work.is_constructive or (chooses_layout(work.method) and work.exhausted)
    ended = Ended.EXHAUSTED if work.exhausted else Ended.OUT_OF_TIME
    if by_itself or work.limits.deterministic is not None:
        ended = Ended.DONE if by_itself else Ended.OUT_OF_WORK
    work.end(ended, interrupted=work.interrupted)
    work.cut_short |= work.ended is Ended.INTERRUPTED
    return work


def _run(work: LayoutWork) -> None:
    """All steps."""
    compile_ahead(evaluated_by(work.workload, work.open_layout))
    try_baselines(work)
    if chooses_layout(work.method):
        run_layout_method(work)
        return
    if work.is_constructive:
        seek_layouts(work, 0)
        for option in work.hopeful():
            if work.best is None or not (work.interrupted or work.interruption.requested):
                _hand_on(work, option, work.left if work.is_timed else None)
        return
    search_exactly(work)
    if work.open_layout.slices is None:  # else the search over cuts knows better ones at once
        _hand_on_named(work)
    number = barren = 0
    while not (work.is_over or work.exhausted):
        before = len(work.options)
        seek_layouts(work, number)
        search_exactly(work)
        _halve(work)
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


def _hand_on_named(work: LayoutWork) -> None:
    """The method on some named layouts, for equal times."""
    options = work.hopeful()
    few = len(options) <= len(HANDED_ON)
    chosen = [each for number, each in enumerate(options) if few or number == 0 or each.title in HANDED_ON]
    left = work.left
    share = None if left is None else NAMED_SHARE * left
    if share is not None:
        chosen = chosen[: max(1, int(share / work.least))]
    for option in chosen:
        if not work.is_over:
            _hand_on(work, option, work.least if share is None else share / len(chosen))


def _halve(work: LayoutWork) -> None:
    """Hand the options to the method: all of them for a short time, then the better half, until one has the rest."""
    most = len(work.options)
    while not work.is_over:
        left, least = work.left, work.least
        options = work.hopeful()[:most]
        if left is not None:
            options = options[: max(1, int(FIRST_ROUND * left / least))]
            if left < 0.2 * least and work.best is not None:
                return
        if not options:
            return
        for option in options:
            if work.is_over:
                return
            slice_ = left
            if len(options) > 1:
                slice_ = least if left is None else FIRST_ROUND * left / len(options)
            _hand_on(work, option, slice_)
        most = len(options) // 2
        if len(options) == 1:
            return


def _hand_on(work: LayoutWork, option: LayoutOption, slice_: float | None) -> None:
    """Let the method work on an option for a slice of seconds or units of work; None: until it is done."""
    timed = work.limits.deterministic is None
    with work.region():
        option.tighten(slice_, work.until)
    if work.is_over or (work.best is not None and option.bound_ns >= work.best.objective_ns):
        return
    target_ns = work.bound_ns / (1 - work.limits.gap)
    limits = replace(
        work.limits,
        time_s=slice_ if timed else None,
        deterministic=None if timed or work.is_constructive else slice_,
        gap=max(0.0, 1 - option.bound_ns / target_ns) if target_ns else 0.0,
        seed=work.limits.seed + (option.row is not None),
    )
    title = f"{option.title} {work.method}"
    work.settings.on_method(title)
    begun = time.perf_counter()
    try:
        incumbent = solve(
            option.problem,
            replace(work.settings, limits=limits, report=lambda step: work.progress(step.objective_ns), on_method=ignore),
            bound_ns=option.bound_ns,
            bound_by=BoundName.WORK,  # a name for messages: no certificate rests on it
            known=[(schedule, found_by) for schedule, found_by, _ in option.best.values()],
            # With a plan at hand there is no need of more time than is left.
            least_s=CONSTRUCTIVE_S if work.best is None or not work.is_timed else min(CONSTRUCTIVE_S, work.left or 0.0),
        )
    except Unsupported as reason:
        option.settled = True
        work.unsupported.append(reason)
        work.tried(title, time.perf_counter() - begun, why_not=str(reason))
        return
    except KeyboardInterrupt:
        if work.best is None:
            raise
        work.interrupted = work.cut_short = True
        return
    option.seconds += time.perf_counter() - begun
    work.work += 0.0 if timed else slice_ or 0.0
    work.failures += incumbent.failures
    work.cut_short |= incumbent.cut_short
    option.settled = incumbent.ended in (Ended.PROVEN, Ended.EXHAUSTED, Ended.DONE)
    why_not = "; ".join(each.why_not for each in incumbent.candidates[:1]) or "found no schedule"
    row = Candidate(method=title, seconds=option.seconds, why_not=why_not)
    if incumbent.whole is not None:
        option.keep(incumbent.whole, incumbent.found_by, incumbent.whole_ns)
    if incumbent.schedule is not None:
        option.keep(incumbent.schedule, incumbent.found_by, incumbent.objective_ns)
        objective_ns, makespan_ns = incumbent.objective_ns, incumbent.makespan_ns
        row = Candidate(method=title, seconds=option.seconds, objective_ns=objective_ns, makespan_ns=makespan_ns)
        found = ScheduledLayout(
            name=title,
            layout=option.layout,
            problem=option.problem,
            schedule=incumbent.schedule,
            objective_ns=objective_ns,
            makespan_ns=makespan_ns,
        )
        work.offer(found, incumbent.found_by, title)
    if option.row is None:
        option.row = len(work.candidates)
        work.candidates.append(row)
    else:
        work.candidates[option.row] = row
