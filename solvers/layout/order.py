"""Layouts in the order of their lower bounds: a quick bound first, and the best of all bounds for those whose turn comes.

Takes a workload and what is open; gives a queue.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from schedc.analysis.bounds.lower_bounds import bounds_in_time, cheap_bound_ns
from schedc.analysis.bounds.residency import rank_without_room
from schedc.lower.problem import problem_of, static_bytes
from schedc.solvers.layout.quick_bound import QuickBound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from schedc.ir.layout import Layout, OpenLayout
    from schedc.ir.problem import Problem
    from schedc.ir.workload import Workload
    from schedc.solvers.layout.layout_arrays import LayoutArrays


@dataclass(order=True, slots=True)
class QueuedLayout:
    """A layout in the queue."""

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


class Queue:
    """The layouts that are not settled, by their bounds."""

    def __init__(self, workload: Workload, open_layout: OpenLayout, drafts: Iterable[LayoutArrays]) -> None:
        """Bound all of them quickly; those that a quick look refutes are dropped."""
        self._workload, self._name = workload, open_layout.placement_name
        quick = QuickBound(workload, open_layout)
        bounds = ((number, draft, quick.of(draft)) for number, draft in enumerate(drafts))
        self._entries = [QueuedLayout(bound_ns, number, draft) for number, draft, bound_ns in bounds if bound_ns is not None]
        heapq.heapify(self._entries)
        self.layouts = len(self._entries)
        """How many there were."""

    @property
    def least_ns(self) -> int | None:
        """No layout that is left has a smaller objective; None: none is left."""
        return self._entries[0].bound_ns if self._entries else None

    def pop(self, below_ns: int | None, until: Callable[[], bool]) -> QueuedLayout | None:
        """The layout with the least bound, now the best of all bounds, which is below `below_ns`; None: there is none in time.

        Args:
            below_ns: None: no objective is known, so that the first layout with room is taken at once.
            until: whether the time is up.
        """
        while self._entries and (below_ns is None or self._entries[0].bound_ns < below_ns) and not until():
            entry = heapq.heappop(self._entries)
            if entry.is_bounded:
                return entry
            better = self._bounded(entry, until, at_once=below_ns is None)
            if better is not None and below_ns is None:
                return better
            if better is not None:
                self.push(better)
        return None

    def _bounded(self, entry: QueuedLayout, until: Callable[[], bool], *, at_once: bool) -> QueuedLayout | None:
        """The entry with a better bound: without idle gaps the first time, unless `at_once`; None: a rank has no room."""
        problem, is_bounded = entry.problem, entry.problem is not None or at_once
        if problem is None:
            layout = entry.draft.layout(self._name)
            problem = problem_of(self._workload, layout)
            if not has_room(self._workload, layout, problem):
                return None
        bound_ns = max(each.value_ns for each in bounds_in_time(problem, until)) if is_bounded else cheap_bound_ns(problem, until)
        return replace(entry, bound_ns=max(entry.bound_ns, bound_ns), problem=problem, is_bounded=is_bounded)

    def push(self, entry: QueuedLayout) -> None:
        """Put a layout back, perhaps with a better bound."""
        heapq.heappush(self._entries, entry)


def has_room(workload: Workload, layout: Layout, problem: Problem) -> bool:
    """Whether every rank has room for what its stages hold all the time, and for one microbatch."""
    for device, held in zip(workload.devices, static_bytes(workload, layout), strict=True):
        if device.capacity_bytes is not None and held > device.capacity_bytes:
            return False
    return rank_without_room(problem) is None
