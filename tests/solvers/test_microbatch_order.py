"""The order in which microbatches enter: put on a problem and taken off a schedule again, searched for, and chosen by `auto`."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from inputs.differing_problems import differing_problem, scaled
from inputs.problems import make_problem, with_fused_backward
from oracles.brute_force import SearchTooLarge, optimum

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.ops import Kind
from schedc.solvers.common.base import Climbing, Limits, SearchSettings
from schedc.solvers.common.incumbent import Incumbent
from schedc.solvers.common.microbatch_order import entry_order, known_orders, order_is_open, permuted, renamed
from schedc.solvers.driver.portfolio import candidate_names, solve
from schedc.solvers.driver.registry import constructive
from schedc.solvers.heuristics.greedy import Greedy
from schedc.solvers.heuristics.rule_table import table_of_rules
from schedc.solvers.kernel.climb import Climber, climbing_scheduler
from schedc.solvers.kernel.draws import draw
from schedc.solvers.kernel.entry import entry_of, reorder
from schedc.solvers.search.local import Local, local_search
from schedc.solvers.search.polish import Polish
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

LONG_FIRST = scaled(make_problem(3, 6, costs_ns=(10, 12, 8), in_flight=3), [9, 1, 4, 1, 2, 6])
"""Its longest microbatch enters first."""


def objective_ns(problem: Problem, schedule: Schedule) -> int:
    return simulate(problem, schedule).objective_ns(problem.objective)


def found(problem: Problem, *, rounds: int = 2, evaluations: int = 60, seed: int = 0) -> Schedule:
    """The schedule of a search from known orders."""
    best = local_search(problem, Climbing(rounds=rounds, evaluations=evaluations, seed=seed))
    assert not best.cut_short
    return best.schedule


def incumbent_of(problem: Problem) -> Incumbent:
    incumbent = Incumbent(problem=problem)
    incumbent.offer(Greedy(n_sub=1)(problem), "greedy")
    return incumbent


@pytest.mark.parametrize("seed", range(30))
def test_a_schedule_of_the_permuted_problem_is_one_of_the_problem(seed: int) -> None:
    problem = differing_problem(seed, may_be_odd=True)
    shuffled = [[m for m, path in enumerate(problem.path_of) if path == number] for number in range(len(problem.paths))]
    for microbatches in shuffled:
        Random(seed).shuffle(microbatches)
    order = tuple(shuffled[path].pop() for path in problem.path_of)
    other = permuted(problem, order)
    schedule = Greedy()(other)
    named = renamed(schedule, order)
    assert verify_schedule(problem, named) == ()
    assert simulate(problem, named).makespan_ns == simulate(other, schedule).makespan_ns
    assert entry_order(problem, named) == order
    assert entry_order(other, schedule) == tuple(range(problem.microbatches))


def test_the_kernel_times_every_order_as_the_simulator_does() -> None:
    """As if it had been made for the permuted problem."""
    compared = 0
    for seed in range(12):
        problem = differing_problem(seed, may_be_odd=True)
        if any(link.trunk for link in problem.links):
            continue  # the kernel serves a shared trunk in another order
        scheduler = climbing_scheduler(problem, reserves=True)
        climber = Climber(scheduler, entry=entry_of(problem, scheduler))
        (rule, *_) = table_of_rules(problem, scheduler, 1)
        for order in known_orders(problem):
            value = climber.run(rule._replace(enter=np.array(order)))
            assert objective_ns(permuted(problem, order), climber.schedule()) == value
            assert Climber(climbing_scheduler(permuted(problem, order), reserves=True)).run(rule) == value
            compared += 1
    assert compared > 10


def test_the_order_is_open_where_it_says_something() -> None:
    assert order_is_open(LONG_FIRST)
    assert not order_is_open(replace(LONG_FIRST, in_order=True))
    assert not order_is_open(make_problem(2, 2))


def test_known_orders() -> None:
    """By work 1, 1, 2, 4, 6, 9, of which the microbatches 1, 3, 4, 2, 5, 0 have so much."""
    given, shortest, longest, mountain, valley, turns = known_orders(LONG_FIRST)
    assert given == (0, 1, 2, 3, 4, 5)
    assert (shortest, longest) == ((1, 3, 4, 2, 5, 0), (0, 5, 2, 4, 3, 1))
    assert mountain == (1, 4, 5, 0, 2, 3)
    assert valley == (0, 2, 3, 1, 4, 5)
    assert turns == (1, 0, 3, 5, 4, 2)
    both = scaled(make_problem(2, 4, placement="bidirectional"), [9, 1, 2, 3])
    assert list(known_orders(both))[1:3] == [(2, 1, 0, 3), (0, 3, 2, 1)]


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 60), marks=pytest.mark.slow)])
def test_it_is_never_below_the_optimum_and_often_reaches_it(seeds: range) -> None:
    compared = equal = 0
    for seed in seeds:
        problem = differing_problem(seed, most_ops=14, may_be_odd=True)
        schedule = found(problem)
        assert verify_schedule(problem, schedule) == ()
        value = objective_ns(problem, schedule)
        try:
            best_ns = optimum(problem, most_states=20_000)
        except SearchTooLarge:
            continue
        assert best_ns is not None and best_ns <= value
        compared += 1
        equal += best_ns == value
    assert equal > 0.5 * compared > 0.25 * len(seeds)


def test_it_finds_better_orders_than_the_given_one() -> None:
    best = found(LONG_FIRST)
    assert verify_schedule(LONG_FIRST, best) == ()
    assert best == found(LONG_FIRST)
    assert objective_ns(LONG_FIRST, best) < 0.8 * objective_ns(LONG_FIRST, Greedy()(LONG_FIRST))
    assert objective_ns(LONG_FIRST, best) >= best_bound(LONG_FIRST).value_ns
    assert entry_order(LONG_FIRST, best)[0] != 0


def test_it_keeps_memory_and_fuses_where_that_pays() -> None:
    """With two chunks on a rank and room for one microbatch, rules without reserves strand themselves."""
    problem = scaled(make_problem(2, 4, placement="wave", chunks=2, costs_ns=(3, 4, 5), in_flight=1), [4, 1, 2, 1])
    problem = with_fused_backward(problem, 7)
    best = found(problem)
    assert verify_schedule(problem, best) == ()
    assert Kind.BW in {op.kind for order in best.orders for op in order}


def test_other_searches_go_on_from_the_order_that_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    incumbent = incumbent_of(LONG_FIRST)
    Local(rounds=1, evaluations=40).improve(incumbent, Limits())
    assert incumbent.whole is not None
    order = entry_order(LONG_FIRST, incumbent.whole)
    assert order[0] != 0
    taken: list[tuple[int, ...]] = []
    monkeypatch.setattr(Incumbent, "offer_valid", lambda self, schedule, by: taken.append(entry_order(self.problem, schedule)))
    Polish(rounds=1, evaluations=10).improve(incumbent, Limits())
    assert taken == [order]


@pytest.mark.parametrize("placement", ["unidirectional", "bidirectional"])
def test_a_microbatch_keeps_a_position_of_its_path(placement: str) -> None:
    """And the move changes the order, unless what it moves is alike."""
    problem = scaled(make_problem(2, 8, placement=placement), [9, 1, 4, 1, 2, 6, 2, 2])
    entry, draws, changed = entry_of(problem, climbing_scheduler(problem)), draw(0, 4000), 0
    for _ in range(200):
        enter = np.arange(8)
        reorder(enter, entry, 2, 10, draws)
        assert sorted(enter) == list(range(8))
        assert [problem.path_of[microbatch] for microbatch in enter] == list(problem.path_of)
        changed += list(enter) != list(range(8))
    assert changed > 150


def test_greedy_with_sorted_microbatches() -> None:
    """Valid, and no worse than in the given order; refused where the order is not open."""
    for problem in (LONG_FIRST, *map(differing_problem, range(10))):
        schedule = constructive("sorted")(problem)
        assert verify_schedule(problem, schedule) == ()
        assert objective_ns(problem, schedule) <= objective_ns(problem, Greedy()(problem))
    assert objective_ns(LONG_FIRST, constructive("sorted")(LONG_FIRST)) < 0.8 * objective_ns(LONG_FIRST, Greedy()(LONG_FIRST))
    assert "sorted" in candidate_names(LONG_FIRST) and "sorted" not in candidate_names(make_problem(2, 2))
    with pytest.raises(Unsupported, match="sorted needs microbatches that differ"):
        constructive("sorted")(make_problem(2, 2))


def test_what_is_in_order_stays_so() -> None:
    problem = replace(LONG_FIRST, in_order=True)
    assert entry_order(problem, found(problem)) == tuple(range(6))


@pytest.mark.parametrize("method", ["cpsat", pytest.param("auto", marks=pytest.mark.slow)])
def test_the_best_order_of_a_small_problem_is_proven(method: str) -> None:
    problem = scaled(make_problem(2, 3, costs_ns=(3, 4, 2)), [5, 1, 2])
    values = []
    for each in (problem, replace(problem, in_order=True)):
        bound = best_bound(each)
        settings = SearchSettings(method=method, limits=Limits(deterministic=1, workers=1))
        known = solve(each, settings, bound_ns=bound.value_ns, bound_by=bound.name)
        assert known.gap == 0
        values.append(known.objective_ns)
    assert values == [optimum(problem), optimum(replace(problem, in_order=True))]
    assert values[0] < values[1]
