"""A layout while it is searched for: three tuples, quick to change. And what a search gives: a layout with a schedule, timed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir import Layout, Problem, Schedule, Workload
from schedc.lower.placement import placement_name
from schedc.lower.problem import problem_of
from schedc.verify.layout import verify_layout

if TYPE_CHECKING:
    from schedc.solvers.common.base import Construct


class LayoutArrays(NamedTuple):
    """Stages along one path: where they begin, on which rank they are, and which recompute."""

    cuts: tuple[int, ...]
    """The first layer of each stage, and at last how many layers there are."""
    ranks: tuple[int, ...]
    again: tuple[bool, ...]
    """Whether the stage recomputes."""

    def with_stages(
        self, first: int, last: int, cuts: tuple[int, ...], ranks: tuple[int, ...], again: tuple[bool, ...]
    ) -> LayoutArrays:
        """These stages in place of the stages [first, last) with the same layers; `cuts`: where all but the first of them begin."""
        return LayoutArrays(
            self.cuts[: first + 1] + cuts + self.cuts[last:],
            self.ranks[:first] + ranks + self.ranks[last:],
            self.again[:first] + again + self.again[last:],
        )

    def layout(self, placement: str | None = None) -> Layout:
        """The same as a `Layout`; `placement` says what its placement is called; None: by the name of one with these ranks."""
        return Layout(
            rank_of_stage=self.ranks,
            paths=(tuple(range(len(self.ranks))),),
            layers_of_stage=tuple(pairwise(self.cuts)),
            recomputed=frozenset(stage for stage, again in enumerate(self.again) if again),
            placement=placement_name(self.ranks, len(set(self.ranks))) if placement is None else placement,
        )


class KeptArrays(NamedTuple):
    """A layout that was found, with the rule that is best for it."""

    value_ns: int
    draft: LayoutArrays
    rule: int
    """Of the evaluator's table."""


def layout_arrays_of(layout: Layout) -> LayoutArrays:
    """The layout as a draft.

    Raises:
        ValueError: it has two paths, or its stages are not numbered along the path.
    """
    stages = len(layout.rank_of_stage)
    if layout.paths != (tuple(range(stages)),):
        raise ValueError(f"expected one path, of the stages 0 to {stages - 1} in order; found {layout.paths}")
    return LayoutArrays(
        cuts=(*(first for first, _ in layout.layers_of_stage), layout.layers_of_stage[-1][1]),
        ranks=layout.rank_of_stage,
        again=tuple(stage in layout.recomputed for stage in range(stages)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledLayout:
    """A layout and a schedule of the problem that it makes, timed by the simulator and within memory."""

    name: str
    """What made it, for people."""
    layout: Layout
    problem: Problem
    """The workload in this layout."""
    schedule: Schedule
    objective_ns: int
    """By the simulator, as is `makespan_ns`."""
    makespan_ns: int


def scheduled_layout(workload: Workload, layout: Layout, construct: Construct, name: str) -> ScheduledLayout | None:
    """The schedule that a method makes in this layout; None: the layout is unsound, or there is none, or none within memory."""
    try:
        return lay_out(workload, layout, construct, name)
    except Unsupported:
        return None


def lay_out(workload: Workload, layout: Layout, construct: Construct, name: str) -> ScheduledLayout:
    """The schedule that a method makes in this layout.

    Raises:
        Unsupported: the layout is unsound, or there is none, or none within memory.
    """
    violations = verify_layout(workload, layout)
    if violations:
        raise Unsupported(f"{violations[0].place}: {violations[0].message}")
    problem = problem_of(workload, layout)
    schedule = construct(problem)
    exceeded = exceeded_limit(problem, schedule)
    if exceeded is not None:
        raise Unsupported(f"exceeds the memory of rank {exceeded[0]}")
    return timed(name, layout, problem, schedule)


def timed(name: str, layout: Layout, problem: Problem, schedule: Schedule) -> ScheduledLayout:
    """A layout with its problem and a schedule within memory, timed by the simulator."""
    timeline = simulate(problem, schedule)
    return ScheduledLayout(
        name=name,
        layout=layout,
        problem=problem,
        schedule=schedule,
        objective_ns=timeline.objective_ns(problem.objective),
        makespan_ns=timeline.makespan_ns,
    )
