"""The exact search over layouts: in the order of their lower bounds, each with CP-SAT, until none can be better.

Takes a workload and what is open; gives the best layout with its schedule, and a lower bound over all of them. It is for small
problems, whose layouts can be listed. It may end at any time, with what is known then.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.gap import check_bound, relative_gap
from schedc.errors import Infeasible, NoPlanFound, Unsupported
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.heuristics.greedy import GreedyOptions, greedy
from schedc.solvers.layout.enumerate import open_layouts
from schedc.solvers.layout.order import Queue, QueuedLayout
from schedc.solvers.layout.scheduled_layout import ScheduledLayout, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schedc.ir.layout import Layout, OpenLayout
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.ir.workload import Workload
    from schedc.solvers.common.base import Limits, Solved
    from schedc.solvers.layout.layout_arrays import LayoutArrays

MOST_LAYOUTS = 500_000
"""Of more layouts the exact search makes no list, which takes some 20 µs for each."""
FIRST_SHARE = 1 / 8
"""Of what a limit leaves, the first try of a layout gets this share, each later one twice as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutProgress:
    """What is known at some moment."""

    seconds: float
    evaluated: int
    """How many layouts were handed to CP-SAT."""
    objective_ns: int | None
    """Of the best schedule; None: there is none yet."""
    lower_bound_ns: int
    """Over all layouts."""
    best: ScheduledLayout | None
    """None: there is none yet."""
    log: tuple[str, ...]
    """What the bound rests on: see `LayoutOutcome`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOutcome:
    """The best layout, with its schedule of whole blocks."""

    layout: Layout
    problem: Problem
    schedule: Schedule
    objective_ns: int
    lower_bound_ns: int
    """No layout has a schedule of whole blocks with a smaller objective; part of it is CP-SAT's word."""
    layouts: int
    """How many there are, but for symmetric ones and those that a quick look refutes."""
    evaluated: int
    """How many of them were handed to CP-SAT."""
    seconds: float
    interrupted: bool
    complete: bool
    """Whether every layout was solved, or its bound says that it is no better."""
    log: tuple[str, ...]
    """What the bound rests on: that these layouts are all, and CP-SAT's logs, one layout after another. Never empty, as the least
    of the layouts' analytic bounds may be better than the one over all of them before CP-SAT was given any."""

    @property
    def is_proven(self) -> bool:
        """Whether no layout has a better schedule of whole blocks."""
        return self.lower_bound_ns == self.objective_ns


@dataclass(slots=True, kw_only=True)
class _Known:
    """What is known so far."""

    begun: float = field(default_factory=time.perf_counter)
    over_all_ns: int
    """The analytic bound over all layouts."""
    closed_ns: int | None = None
    """The least bound of a layout that is done with."""
    best: tuple[Layout, Problem, Schedule] | None = None
    objective_ns: int | None = None
    evaluated: int = 0
    log: list[str] = field(default_factory=list)
    work: float = 0.0
    """What CP-SAT spent, in the units of a deterministic limit."""

    def bound_ns(self, queue: Queue) -> int:
        """Over all layouts: the least bound of any that is left or done with, or the analytic one."""
        known = [each for each in (queue.least_ns, self.closed_ns, self.objective_ns) if each is not None]
        return max(self.over_all_ns, min(known, default=0))

    def left(self, limits: Limits) -> float | None:
        """What the limits leave, in seconds or units of work; None: all."""
        if limits.deterministic is not None:
            return limits.deterministic - self.work
        return None if limits.time_s is None else limits.time_s - (time.perf_counter() - self.begun)

    def is_over(self, limits: Limits) -> bool:
        """Whether the limits leave nothing."""
        left = self.left(limits)
        return left is not None and left <= 0


def search_layouts(
    workload: Workload,
    open_layout: OpenLayout,
    limits: Limits,
    report: Callable[[LayoutProgress], None] = lambda _: None,
    start: ScheduledLayout | None = None,
) -> LayoutOutcome:
    """The best layout and schedule of whole blocks, and the bound over all layouts.

    Proof that it is a bound: every layout is in the queue with a bound of its own, or symmetric to one that is (`rank_kinds`), or
    without room, or done with, with the bound that CP-SAT proved of it: its optimum, or an objective that is known already. The
    least of these is one over all.

    Args:
        workload: what `schedc.verify.workload` accepts.
        open_layout: what may be chosen.
        limits: when to stop, the seed, and CP-SAT's workers.
        report: is called with each better objective or bound at once.
        start: the best that is known, with a schedule of whole blocks; only better ones are sought.

    Raises:
        Infeasible: no layout has room on its ranks.
        Unsupported: there are too many layouts to list, or recomputation is open.
        NoPlanFound: the limits ended the search before there was a schedule.
    """
    if open_layout.recompute_is_open:
        raise Unsupported("the exact search takes recomputation as it is given, and here it is open")
    bound = layout_bound(workload, open_layout)
    if bound.value_ns is None:
        raise Infeasible(f"{workload.name}: {bound.detail}")
    known = _Known(over_all_ns=bound.value_ns)
    if start is not None:
        known.best, known.objective_ns = (start.layout, start.problem, start.schedule), start.objective_ns
    name = open_layout.placement_name
    queue = Queue(workload, open_layout, _listed(workload, open_layout))
    known.log.append(f"{queue.layouts} layouts listed, each with its analytic bound; one over all of them is {bound.value_ns} ns")
    interrupted = False
    reported: tuple[int | None, int] = (None, -1)
    while not interrupted:
        if known.objective_ns is not None and _is_enough(known, queue, limits):
            break
        entry = queue.pop(known.objective_ns, lambda: known.is_over(limits))
        if entry is None or entry.problem is None:
            break
        left = known.left(limits)
        share = None if left is None else max(0.0, left) * min(1.0, FIRST_SHARE * 2**entry.tries)
        start_order = greedy(entry.problem, GreedyOptions(n_sub=1))
        solved = solve_cpsat(
            entry.problem,
            start_order,
            limits=_given(limits, share),
            known_bound_ns=entry.bound_ns,
            below_ns=known.objective_ns,
        )
        interrupted = solved.ended_by is not None
        _take(known, queue, entry, solved, name)
        if reported != (known.objective_ns, known.bound_ns(queue)):
            reported = known.objective_ns, known.bound_ns(queue)
            report(_progress(known, queue))
        if interrupted and known.best is None and solved.ended_by is not None:
            raise solved.ended_by
    if known.best is None or known.objective_ns is None:
        if queue.least_ns is None:
            raise Infeasible(f"{workload.name}: no layout has room for its stages and one microbatch on its ranks")
        raise NoPlanFound(f"{workload.name}: no plan found in the limits given; none of {queue.layouts} layouts was settled")
    layout, problem, schedule = known.best
    lower_bound_ns = known.bound_ns(queue)
    check_bound(lower_bound_ns, known.objective_ns, "over all layouts")
    return LayoutOutcome(
        layout=layout,
        problem=problem,
        schedule=schedule,
        objective_ns=known.objective_ns,
        lower_bound_ns=lower_bound_ns,
        layouts=queue.layouts,
        evaluated=known.evaluated,
        seconds=time.perf_counter() - known.begun,
        interrupted=interrupted,
        complete=queue.least_ns is None or queue.least_ns >= known.objective_ns,
        log=tuple(known.log),
    )


def _listed(workload: Workload, open_layout: OpenLayout) -> Iterator[LayoutArrays]:
    for number, draft in enumerate(open_layouts(workload, open_layout)):
        if number >= MOST_LAYOUTS:
            raise Unsupported(f"the exact search lists up to {MOST_LAYOUTS} layouts, and there are more")
        yield draft


def _is_enough(known: _Known, queue: Queue, limits: Limits) -> bool:
    """Whether the best is as good as was asked for."""
    assert known.objective_ns is not None
    return relative_gap(known.objective_ns, known.bound_ns(queue), "over all layouts") <= limits.gap


def _given(limits: Limits, share: float | None) -> Limits:
    """The limits of one layout."""
    if limits.deterministic is not None:
        return replace(limits, deterministic=share, gap=0.0)
    return replace(limits, time_s=share, gap=0.0)


def _take(known: _Known, queue: Queue, entry: QueuedLayout, solved: Solved, name: str | None) -> None:
    """Keep what was found of a layout, and put it back if it is not settled."""
    known.evaluated += entry.tries == 0
    known.work += solved.work
    known.log += [f"layout {entry.number}: stages begin at {entry.draft.cuts} on ranks {entry.draft.ranks}", *solved.log]
    if known.objective_ns is None or solved.objective_ns < known.objective_ns:
        assert entry.problem is not None
        known.best = entry.draft.layout(name), entry.problem, solved.schedule
        known.objective_ns = solved.objective_ns
    bound_ns = max(entry.bound_ns, solved.lower_bound_ns)
    if solved.status.is_final:
        known.closed_ns = bound_ns if known.closed_ns is None else min(known.closed_ns, bound_ns)
    else:
        queue.push(replace(entry, bound_ns=bound_ns, tries=entry.tries + 1))


def _progress(known: _Known, queue: Queue) -> LayoutProgress:
    best = None if known.best is None else timed("layouts one by one", *known.best)
    return LayoutProgress(
        seconds=time.perf_counter() - known.begun,
        evaluated=known.evaluated,
        objective_ns=known.objective_ns,
        lower_bound_ns=known.bound_ns(queue),
        best=best,
        log=tuple(known.log),
    )
