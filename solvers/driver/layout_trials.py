"""Steps in which the method that was asked for works on layouts that are known: the named ones, and the best by successive halving.

Each takes the `LayoutWork`; the schedules are kept with their options, and the best is offered.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.errors import Unsupported
from schedc.ir.plan import BoundName
from schedc.solvers.common.incumbent import Candidate, Ended, Incumbent
from schedc.solvers.common.search_settings import ignore
from schedc.solvers.driver.portfolio import CONSTRUCTIVE_S, solve
from schedc.solvers.layout.scheduled_layout import ScheduledLayout

if TYPE_CHECKING:
    from schedc.solvers.driver.layout_options import Option
    from schedc.solvers.driver.layout_work import LayoutWork

NAMED_SHARE = 0.35
"""Of the time or work left then, the method on named layouts gets this share."""
FIRST_ROUND = 0.5
"""Of the time of halving, the first round gets this share, as do later ones of what is left."""
HANDED_ON = ("balanced unidirectional", "balanced loop 2", "balanced wave 2", "balanced explicit")
"""The named layouts that are handed on before any are found, beside the one with the best baseline; where there are few: all."""


def hand_on_named(work: LayoutWork) -> None:
    """The method on some named layouts, for equal times."""
    options = work.hopeful()
    few = len(options) <= len(HANDED_ON)
    chosen = [each for number, each in enumerate(options) if few or number == 0 or each.title in HANDED_ON]
    left = work.left
    share = None if left is None else NAMED_SHARE * left
    if share is not None:
        chosen = chosen[: max(1, int(share / work.least()))]
    for option in chosen:
        if not work.is_over:
            hand_on(work, option, work.least() if share is None else share / len(chosen))


def halve(work: LayoutWork) -> None:
    """Hand the options to the method: all of them for a short time, then the better half, until one has the rest."""
    most = len(work.options)
    while not work.is_over:
        left, least = work.left, work.least()
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
            hand_on(work, option, slice_)
        most = len(options) // 2
        if len(options) == 1:
            return


def hand_on(work: LayoutWork, option: Option, slice_: float | None) -> None:
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
            known=option.known,
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
    _take(work, option, incumbent, title)


def _take(work: LayoutWork, option: Option, incumbent: Incumbent, title: str) -> None:
    """Keep what the method found."""
    work.failures += incumbent.failures
    work.cut_short |= incumbent.cut_short
    option.settled = incumbent.ended in (Ended.PROVEN, Ended.EXHAUSTED, Ended.DONE)
    why_not = "; ".join(each.why_not for each in incumbent.candidates[:1]) or "found no schedule"
    row = Candidate(method=title, seconds=option.seconds, why_not=why_not)
    if incumbent.whole is not None:
        option.keep(incumbent.whole, incumbent.found_by, incumbent.whole_ns)
    if incumbent.schedule is not None:
        option.keep(incumbent.schedule, incumbent.found_by, incumbent.objective_ns)
        found = ScheduledLayout(
            name=title,
            layout=option.layout,
            problem=option.problem,
            schedule=incumbent.schedule,
            objective_ns=incumbent.objective_ns,
            makespan_ns=incumbent.makespan_ns,
        )
        row = replace(row, makespan_ns=found.makespan_ns, objective_ns=found.objective_ns, why_not="")
        work.offer(found, incumbent.found_by, title)
    if option.row is None:
        option.row = len(work.candidates)
        work.candidates.append(row)
    else:
        work.candidates[option.row] = row
