"""The exact search over layouts: in the order of their lower bounds, each with CP-SAT, until none can be better.

Takes a workload and what is open; gives the best layout with its schedule, and a lower bound over all of them. It is for small
problems, whose layouts can be listed. It may end at any time, with what is known then. A quick bound comes first, and the best of
all bounds for those layouts whose turn comes.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.bounds.lower_bounds import bounds_in_time, cheap_bound_ns
from schedc.analysis.bounds.residency import rank_without_room
from schedc.analysis.gap import check_bound, relative_gap
from schedc.errors import Infeasible, NoPlanFound, Unsupported
from schedc.ir import Layout, OpenLayout, Problem, Workload
from schedc.lower.problem import problem_of, static_bytes
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.heuristics.greedy import Greedy
from schedc.solvers.layout.layout_arrays import ScheduledLayout, timed
from schedc.solvers.layout.listed import QuickBound, open_layouts

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.solvers.common.base import Limits, Solved
    from schedc.solvers.layout.layout_arrays import LayoutArrays

MOST_LAYOUTS = 500_000
"""Of more layouts the exact search makes no list, which takes some 20 µs for each."""
FIRST_SHARE = 1 / 8
"""Of what a limit leaves, the first try of a layout gets this share, each later one twice as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutsKnown:
    """What is known of all layouts at some moment."""

    best: ScheduledLayout | None
    """The best one, with its schedule of whole blocks; None: there is none yet."""
    lower_bound_ns: int
    """No layout has a schedule of whole blocks with a smaller objective; part of it is CP-SAT's word."""
    layouts: int
    """How many there are, but for symmetric ones and those that a quick look refutes."""
    evaluated: int
    """How many of them were handed to CP-SAT."""
    seconds: float
    interrupted: bool
    complete: bool
    """Whether every layout was solved, or its bound or the one over all says that it is no better."""
    log: tuple[str, ...]
    """What the bound rests on: that these layouts are all, and CP-SAT's logs, one layout after another. Never empty, as the least
    of the layouts' analytic bounds may be better than the one over all of them before CP-SAT was given any."""


@dataclass(order=True, slots=True)
class _Entry:
    """A layout that is not settled."""

    bound_ns: int
    number: int
    """In the order of the enumeration; of equal bounds the first comes first."""
    draft: LayoutArrays = field(compare=False)
    problem: Problem | None = field(default=None, compare=False)
    """Once its turn has come, with a better bound."""
    is_bounded: bool = field(default=False, compare=False)
    """Whether the bound is the best of all."""
    tries: int = field(default=0, compare=False)
    """How often a solver's limit ended before it was settled."""


def search_layouts(
    workload: Workload,
    open_layout: OpenLayout,
    limits: Limits,
    report: Callable[[LayoutsKnown], None] = lambda _: None,
    start: ScheduledLayout | None = None,
) -> LayoutsKnown:
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
    search = _Search(workload, open_layout, limits, start)
    reported: tuple[int | None, int] = (None, -1)
    while not search.interrupted:
        best = search.best
        if best is not None and relative_gap(best.objective_ns, search.bound_ns, "over all layouts") <= limits.gap:
            break
        entry = search.pop()
        if entry is None or entry.problem is None:
            break
        solved = search.solved(entry, entry.problem)
        now = None if search.best is None else search.best.objective_ns, search.bound_ns
        if reported != now:
            reported = now
            report(search.known())
        if search.best is None and solved.ended_by is not None:
            raise solved.ended_by
    if search.best is None:
        if not search.queue:
            raise Infeasible(f"{workload.name}: no layout has room for its stages and one microbatch on its ranks")
        raise NoPlanFound(f"{workload.name}: no plan found in the limits given; none of {search.layouts} layouts was settled")
    check_bound(search.bound_ns, search.best.objective_ns, "over all layouts")
    return search.known()


class _Search:
    """What is known so far, and the layouts that are not settled, by their bounds."""

    def __init__(self, workload: Workload, open_layout: OpenLayout, limits: Limits, start: ScheduledLayout | None) -> None:
        """Bound all layouts quickly; those that a quick look refutes are dropped."""
        bound = layout_bound(workload, open_layout)
        self._workload, self._name, self._limits, self._over_all_ns = workload, open_layout.placement_name, limits, bound.value_ns
        self._begun, self._work, self._evaluated = time.perf_counter(), 0.0, 0
        self.best, self.interrupted = start, False
        self._closed_ns: int | None = None
        """The least bound of a layout that is done with."""
        self.queue: list[_Entry] = []
        quick = QuickBound(workload, open_layout)
        for number, draft in enumerate(open_layouts(workload, open_layout)):
            if number >= MOST_LAYOUTS:
                raise Unsupported(f"the exact search lists up to {MOST_LAYOUTS} layouts, and there are more")
            bound_ns = quick.of(draft)
            if bound_ns is not None:
                self.queue.append(_Entry(bound_ns, number, draft))
        heapq.heapify(self.queue)
        self.layouts = len(self.queue)
        self._log = [f"{self.layouts} layouts listed, each with its analytic bound; one over all of them is {bound.value_ns} ns"]

    @property
    def bound_ns(self) -> int:
        """Over all layouts: the least bound of any that is left or done with, or the analytic one."""
        known = [self.queue[0].bound_ns] if self.queue else []
        known += [] if self._closed_ns is None else [self._closed_ns]
        known += [] if self.best is None else [self.best.objective_ns]
        return max(self._over_all_ns, min(known, default=0))

    @property
    def left(self) -> float | None:
        """What the limits leave, in seconds or units of work; None: all."""
        if self._limits.deterministic is not None:
            return self._limits.deterministic - self._work
        return None if self._limits.time_s is None else self._limits.time_s - (time.perf_counter() - self._begun)

    def is_over(self) -> bool:
        """Whether the limits leave nothing."""
        left = self.left
        return left is not None and left <= 0

    def pop(self) -> _Entry | None:
        """The layout with the least bound, now the best of all bounds, which is below what is known; None: there is none in time.

        Where no objective is known, the first layout with room is taken at once. A bound without idle gaps comes first otherwise.
        """
        at_once = self.best is None
        while self.queue and (self.best is None or self.queue[0].bound_ns < self.best.objective_ns) and not self.is_over():
            entry = heapq.heappop(self.queue)
            if entry.is_bounded:
                return entry
            problem, is_bounded = entry.problem, entry.problem is not None or at_once
            if problem is None:
                layout = entry.draft.layout(self._name)
                problem = problem_of(self._workload, layout)
                if not has_room(self._workload, layout, problem):
                    continue
            if is_bounded:
                bound_ns = max(each.value_ns for each in bounds_in_time(problem, self.is_over))
            else:
                bound_ns = cheap_bound_ns(problem, self.is_over)
            better = replace(entry, bound_ns=max(entry.bound_ns, bound_ns), problem=problem, is_bounded=is_bounded)
            if at_once:
                return better
            heapq.heappush(self.queue, better)
        return None

    def solved(self, entry: _Entry, problem: Problem) -> Solved:
        """What CP-SAT finds of a layout, which is kept; it is put back if it is not settled."""
        limits, left = self._limits, self.left
        share = None if left is None else max(0.0, left) * min(1.0, FIRST_SHARE * 2**entry.tries)
        given = replace(limits, gap=0.0, deterministic=None if limits.deterministic is None else share)
        found = solve_cpsat(
            problem,
            Greedy(n_sub=1)(problem),
            limits=given if limits.deterministic is not None else replace(given, time_s=share),
            known_bound_ns=entry.bound_ns,
            below_ns=None if self.best is None else self.best.objective_ns,
        )
        self.interrupted = found.ended_by is not None
        self._evaluated += entry.tries == 0
        self._work += found.work
        self._log += [f"layout {entry.number}: stages begin at {entry.draft.cuts} on ranks {entry.draft.ranks}", *found.log]
        if self.best is None or found.objective_ns < self.best.objective_ns:
            self.best = timed("layouts one by one", entry.draft.layout(self._name), problem, found.schedule)
        bound_ns = max(entry.bound_ns, found.lower_bound_ns)
        if found.status.is_final:
            self._closed_ns = bound_ns if self._closed_ns is None else min(self._closed_ns, bound_ns)
        else:
            heapq.heappush(self.queue, replace(entry, bound_ns=bound_ns, tries=entry.tries + 1))
        return found

    def known(self) -> LayoutsKnown:
        """What is known now."""
        best_ns = None if self.best is None else self.best.objective_ns
        return LayoutsKnown(
            best=self.best,
            lower_bound_ns=self.bound_ns,
            layouts=self.layouts,
            evaluated=self._evaluated,
            seconds=time.perf_counter() - self._begun,
            interrupted=self.interrupted,
            complete=not self.queue or (best_ns is not None and max(self._over_all_ns, self.queue[0].bound_ns) >= best_ns),
            log=tuple(self._log),
        )


def has_room(workload: Workload, layout: Layout, problem: Problem) -> bool:
    """Whether every rank has room for what its stages hold all the time, and for one microbatch."""
    for device, held in zip(workload.devices, static_bytes(workload, layout), strict=True):
        if device.capacity_bytes is not None and held > device.capacity_bytes:
            return False
    return rank_without_room(problem) is None
