"""The exact search over layouts: beside brute force over all of them, its bound at any time, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.all_layouts import all_layouts, best_of_all, tiny_workload
from oracles.brute_force import optimum

from schedc.analysis.bounds.layouts.pieces import rank_kinds
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Infeasible, NoPlanFound, Unsupported
from schedc.ir.layout import OpenLayout
from schedc.ir.problem import Objective
from schedc.ir.workload import Device
from schedc.lower.placement import place
from schedc.lower.problem import problem_of
from schedc.solvers.common.base import Limits, SolverStatus
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.heuristics.greedy import Greedy
from schedc.solvers.layout import exact
from schedc.solvers.layout.exact import LayoutsKnown, has_room, search_layouts
from schedc.solvers.layout.layout_arrays import LayoutArrays, ScheduledLayout, lay_out, timed
from schedc.solvers.layout.listed import QuickBound, open_layouts
from schedc.verify.layout import verify_layout
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.ir.workload import Workload

ONE = Limits(workers=1)


def tiny(seed: int, *, layers: int, ranks: int = 2, microbatches: int = 2) -> Workload:
    workload = tiny_workload(Random(seed), layers=layers, ranks=ranks, microbatches=microbatches)
    return replace(workload, objective=Objective.MAKESPAN)


def is_best(workload: Workload, open_layout: OpenLayout, best: int | None) -> bool:
    """Whether the search finds what is known to be the best, and proves it."""
    if best is None:
        with pytest.raises(Infeasible):
            search_layouts(workload, open_layout, ONE)
        return True
    known = search_layouts(workload, open_layout, ONE)
    found = best_of(known)
    assert verify_layout(workload, found.layout) == ()
    assert found.problem == problem_of(workload, found.layout)
    assert verify_schedule(found.problem, found.schedule) == ()
    assert simulate(found.problem, found.schedule).makespan_ns == found.objective_ns
    assert known.lower_bound_ns <= best <= found.objective_ns
    return known.lower_bound_ns == found.objective_ns == best


def best_of(known: LayoutsKnown) -> ScheduledLayout:
    assert known.best is not None
    return known.best


def optimum_by_cpsat(problem: Problem) -> int | None:
    """The optimum of one layout; None without room."""
    held = [0] * problem.ranks
    for stage in problem.stages:
        held[stage.rank] += stage.activation_bytes
    if any(limit is not None and size > limit for size, limit in zip(held, problem.memory_limit_bytes, strict=True)):
        return None
    found = solve_cpsat(problem, Greedy(n_sub=1)(problem), limits=ONE)
    assert found.lower_bound_ns == found.objective_ns
    return found.objective_ns


@pytest.mark.parametrize("seed", range(16))
def test_search_finds_the_best_of_all_layouts(seed: int) -> None:
    workload, open_layout = tiny(seed, layers=2 + seed % 2), OpenLayout(chunks=1 + seed % 2)
    assert is_best(workload, open_layout, best_of_all(workload, open_layout, optimum))


@pytest.mark.parametrize("seed", range(8))
def test_a_search_that_begins_with_the_best_of_a_layout_ends_with_the_same(seed: int) -> None:
    """Begun with a poor layout it finds the optimum, begun with the optimum nothing; the bound is the optimum both times."""
    workload, open_layout = tiny(seed, layers=2 + seed % 2), OpenLayout(chunks=1 + seed % 2)
    if best_of_all(workload, open_layout, optimum) is None:
        pytest.skip("no layout has room")
    alone = best_of(search_layouts(workload, open_layout, ONE))
    optimal = timed("optimal", alone.layout, alone.problem, alone.schedule)
    layouts = [draft.layout() for draft in open_layouts(workload, open_layout)]
    roomy = [each for each in layouts if has_room(workload, each, problem_of(workload, each))]
    starts = [optimal, *(lay_out(workload, each, greedy_of, "greedy") for each in roomy[-2:])]
    for start in starts:
        known = search_layouts(workload, open_layout, ONE, start=start)
        found = best_of(known)
        assert known.complete
        assert found.objective_ns == known.lower_bound_ns == alone.objective_ns
        assert simulate(found.problem, found.schedule).makespan_ns == found.objective_ns
        assert found.problem == problem_of(workload, found.layout)
        assert known.log, "a certificate with this bound names the log, also where CP-SAT was given no layout"
        if start.objective_ns == alone.objective_ns:
            assert (found.layout, found.schedule) == (start.layout, start.schedule)


def greedy_of(problem: Problem) -> Schedule:
    """The list scheduler's schedule."""
    return Greedy(n_sub=1)(problem)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 105))
def test_search_finds_the_best_of_all_larger_layouts(seed: int) -> None:
    workload, open_layout = tiny(seed, layers=4, ranks=2 + seed % 2, microbatches=3), OpenLayout(chunks=2 - seed % 2)
    assert is_best(workload, open_layout, best_of_all(workload, open_layout, optimum_by_cpsat))


@pytest.mark.parametrize("seed", range(24))
def test_the_enumeration_leaves_out_symmetric_layouts_alone(seed: int) -> None:
    random = Random(seed)
    workload = tiny_workload(random, layers=4, ranks=3, microbatches=1)
    network = replace(workload.network, links=random.choice([(), workload.network.links[:1]]))
    workload = replace(workload, network=network, devices=(Device(),) * 3)
    open_layout = OpenLayout(chunks=random.choice([1, 2]))
    kinds = rank_kinds(workload)

    def representative(ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The ranks of a kind renamed in the order in which they come first."""
        renamed: dict[int, int] = {}
        for rank in ranks:
            (kind,) = (kind for kind in kinds if rank in kind)
            if rank not in renamed:
                renamed[rank] = kind[sum(other in kind for other in renamed)]
        return tuple(renamed[rank] for rank in ranks)

    listed = [draft.layout() for draft in open_layouts(workload, open_layout)]
    expected = {(layout.layers_of_stage, representative(layout.rank_of_stage)) for layout in all_layouts(workload, open_layout)}
    assert sorted((layout.layers_of_stage, layout.rank_of_stage) for layout in listed) == sorted(expected)


def test_the_enumeration_keeps_what_is_given() -> None:
    workload = tiny(3, layers=4, ranks=2)
    given = OpenLayout(placement=place("wave", 2, 2))
    assert list(open_layouts(workload, given)) == [((0, 1, 2, 3, 4), (0, 1, 1, 0), (False,) * 4)]
    cuts = {draft.cuts for draft in open_layouts(workload, OpenLayout(chunks=1, layers_of_stage=((0, 3), (3, 4))))}
    assert cuts == {(0, 3, 4)}


@pytest.mark.parametrize("seed", range(30))
def test_the_quick_bound_is_not_above_the_optimum(seed: int) -> None:
    random = Random(seed)
    workload = tiny_workload(random, layers=3, ranks=2, microbatches=2 - seed % 2, differ=True)
    open_layout = OpenLayout(chunks=2, recompute=(random.random() < 0.3,))
    quick = QuickBound(workload, open_layout)
    for draft in random.sample(listed := list(open_layouts(workload, open_layout)), min(3, len(listed))):
        layout = draft.layout()
        problem = problem_of(workload, layout)
        bound_ns, best = quick.of(draft), optimum(problem) if has_room(workload, layout, problem) else None
        assert best is None or (bound_ns is not None and bound_ns <= best)


def test_a_search_that_ends_early_has_a_valid_bound() -> None:
    workload, open_layout = tiny(4, layers=5, ranks=3, microbatches=4), OpenLayout(chunks=2)
    reports: list[LayoutsKnown] = []
    known = search_layouts(workload, open_layout, ONE, reports.append)
    best = best_of(known)
    assert known.lower_bound_ns == best.objective_ns == best_of(reports[-1]).objective_ns
    assert all(report.lower_bound_ns <= best.objective_ns for report in reports)
    short = search_layouts(workload, open_layout, replace(ONE, deterministic=1e-9))
    assert short.lower_bound_ns <= best.objective_ns <= best_of(short).objective_ns
    near = search_layouts(workload, open_layout, replace(ONE, gap=0.9))
    assert near.evaluated == 1 and near.lower_bound_ns <= best.objective_ns <= best_of(near).objective_ns
    with pytest.raises(NoPlanFound):
        search_layouts(workload, open_layout, replace(ONE, time_s=0.0))


def test_open_recomputation_is_refused() -> None:
    with pytest.raises(Unsupported, match="takes recomputation as it is given"):
        search_layouts(tiny(1, layers=5), OpenLayout(chunks=1, recompute_is_open=True), ONE)


def test_too_many_layouts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "MOST_LAYOUTS", 3)
    with pytest.raises(Unsupported, match="lists up to 3 layouts"):
        search_layouts(tiny(1, layers=5), OpenLayout(chunks=2), ONE)


def test_cpsat_proves_that_nothing_is_below_an_objective() -> None:
    problem = problem_of(tiny(2, layers=2), LayoutArrays((0, 1, 2), (0, 1), (False, False)).layout())
    start = Greedy(n_sub=1)(problem)
    best = solve_cpsat(problem, start, limits=ONE)
    none = solve_cpsat(problem, start, limits=ONE, below_ns=best.objective_ns)
    assert none.status is SolverStatus.INFEASIBLE and none.lower_bound_ns == best.objective_ns
    one = solve_cpsat(problem, start, limits=ONE, below_ns=best.objective_ns + 1)
    assert one.objective_ns == best.objective_ns
