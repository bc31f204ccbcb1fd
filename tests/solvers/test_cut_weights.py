"""Schedules that cut W: their bound is the optimum that brute force finds with W in parts of 1 ns, and plans may claim it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from inputs.claim_problems import long_weights, weights_in_units
from oracles.brute_force import SearchTooLarge, best_schedule, optimum

from schedc.compile.certify import certify, check_plan
from schedc.errors import Defect
from schedc.ir import BoundName, Kind, MadeBy, Parts
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.common.incumbent import Incumbent
from schedc.solvers.driver.portfolio import solve
from schedc.solvers.exact.cpsat import bound_cut_weights, may_cut_weights
from schedc.solvers.exact.refute import refute
from schedc.solvers.heuristics.greedy import Greedy
from schedc.study.bench.pipelines import pipeline
from schedc.verify.plan.checks import verify_plan
from schedc.verify.schedule.checks import verify_schedule

LIMITS = Limits(workers=1, deterministic=5)
HELPS = (0, 41)
"""There, cutting makes the optimum less, as W is long beside F and B; in the first of them some backwards fuse."""
QUICK = (*HELPS, 1, 2, 4, 5, 14, 15, 20, 23, 30, 33, 34, 37)
"""Those that brute force settles soon."""


def check(seed: int) -> tuple[bool, bool]:
    """Whether the problem was compared, and whether cutting helps."""
    problem = long_weights(seed)
    known = Greedy(n_sub=1)(problem)
    if verify_schedule(problem, known):
        return False, False
    try:
        least_ns, whole_ns = (optimum(problem, cut, most_states=8_000) for cut in (weights_in_units(problem), ()))
    except SearchTooLarge:
        return False, False
    assert least_ns is not None and whole_ns is not None
    solved = bound_cut_weights(problem, known, limits=LIMITS)
    assert solved.lower_bound_ns == least_ns, seed
    refuted = refute(problem, bound_ns=0, objective_ns=solved.objective_ns, limits=replace(LIMITS, deterministic=0.5))
    assert refuted.lower_bound_ns <= least_ns, seed
    return True, least_ns < whole_ns


def test_equals_brute_force_over_parts_of_1_ns() -> None:
    assert [check(seed) for seed in QUICK] == [(True, seed in HELPS) for seed in QUICK]


@pytest.mark.slow
def test_equals_brute_force_on_more_problems() -> None:
    assert sum(check(seed)[0] for seed in range(60, 85)) >= 13


def test_many_pairs_have_no_model_of_cut_weights() -> None:
    few, many = (pipeline("many", 8, count, (10, 10, 10), in_flight=8, placement="loop") for count in (16, 64))
    assert may_cut_weights(few)
    assert not may_cut_weights(many)


def test_a_plan_that_cuts_weights_is_proven_optimal() -> None:
    problem = long_weights(HELPS[0])
    _, best = best_schedule(problem, weights_in_units(problem))
    assert best is not None
    known = [(Greedy(n_sub=1)(problem), "greedy"), (best, "brute force")]
    settings = SearchSettings(method="cpsat", limits=LIMITS)
    found = solve(problem, settings, bound_ns=1, bound_by=BoundName.WORK, known=known)
    assert (found.found_by, found.bound_by, found.gap) == ("brute force", BoundName.CPSAT_CUT, 0.0)
    plan = certify(problem, best, MadeBy(schedc="", method="brute force"), proven=found)
    assert plan.certificate.bound is BoundName.CPSAT_CUT and plan.parts and not check_plan(plan)
    says = replace(plan.certificate, bound=BoundName.CPSAT)
    (violation,) = verify_plan(replace(plan, certificate=says))
    assert str(violation) == "certificate.bound: bound-source: the bound cpsat holds for whole W, but the plan cuts some"


def test_a_bound_for_cut_weights_is_kept_where_a_schedule_cuts_some_and_only_them() -> None:
    problem = long_weights(HELPS[0])
    _, best = best_schedule(problem, weights_in_units(problem))
    assert best is not None
    incumbent = Incumbent(problem=problem)
    incumbent.offer(Greedy(n_sub=1)(problem), "greedy")
    incumbent.raise_bound(44, BoundName.CPSAT_CUT, ("a log",))
    incumbent.offer(best, "cut")
    assert (incumbent.bound_ns, incumbent.bound_by) == (44, BoundName.CPSAT_CUT)
    with pytest.raises(Defect, match="cpsat-cut: the lower bound of 46 ns"):
        incumbent.raise_bound(46, BoundName.CPSAT_CUT, ("a log",))
    assert not BoundName.CPSAT_CUT.speaks_of((Parts(kind=Kind.F, stage=0, shares=(1, 1)),))
