"""Robust plans: the least mean or percentile over all orders of tiny problems, by brute force and another simulator."""

from __future__ import annotations

from functools import partial
from itertools import permutations, product
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from inputs.problems import make_problem
from inputs.tiny_problems import random_schedule, tiny_problem
from oracles.brute_force import timing

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.memory import peak_bytes
from schedc.compile.certify import check_plan
from schedc.formats.plan.plan_file import plan_json
from schedc.ir.conditions import Conditions, LinkState
from schedc.ir.ops import Kind, Op
from schedc.ir.schedule import Schedule
from schedc.lower.problem import problem_under
from schedc.solvers.common.base import Climbing, SearchSettings
from schedc.solvers.driver.registry import constructive
from schedc.solvers.search.polish import polish_sampled_schedules
from schedc.study.robust.robust import SEARCHED, compile_robust, ends_of
from schedc.study.robust.scenarios import MEAN, Criterion, Scenarios, shifted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir.problem import Problem


def random_states(problem: Problem, random: Random, count: int) -> Scenarios:
    """Latencies of all links, each state with a weight."""
    links = [(link.source, link.destination) for link in problem.links]
    states = [Conditions(links={ends: LinkState(latency_ns=random.randint(0, 40)) for ends in links}) for _ in range(count)]
    return Scenarios(tuple(states), tuple(float(random.randint(1, 3)) for _ in states))


def all_orders(problem: Problem) -> Iterator[Schedule]:
    """Every schedule of two microbatches on ranks of one stage each with fused backwards, but for those that cannot run."""
    orders = []
    for rank in range(problem.ranks):
        ops = [Op(kind, rank, microbatch) for kind in (Kind.F, Kind.BW) for microbatch in (0, 1)]
        fits = [each for each in permutations(ops) if all(each.index(ops[m]) < each.index(ops[2 + m]) for m in (0, 1))]
        orders.append(fits)
    for each in product(*orders):
        yield Schedule(orders=each)


def runs(problem: Problem, schedule: Schedule) -> bool:
    limits = problem.memory_limit_bytes
    peaks = peak_bytes(problem, schedule)
    return all(limit is None or peak <= limit for peak, limit in zip(peaks, limits, strict=True))


@pytest.mark.slow
def test_no_order_is_better_and_the_bound_is_below_all() -> None:
    random = Random(5)
    for in_flight in (2, 1):
        costs = [(random.randint(5, 20), random.randint(5, 20), random.randint(5, 20)) for _ in range(3)]
        problem = make_problem(3, 2, costs_ns=costs, in_flight=in_flight, split_backward=False)
        states = random_states(problem, random, 3)
        problems = [problem_under(problem, each) for each in states.conditions]
        ends_ns = []
        for schedule in filter(partial(runs, problem), all_orders(problem)):
            try:
                ends_ns.append([timing(each, schedule)[0] for each in problems])
            except ValueError:  # the ranks wait for each other
                continue
        for aim in (MEAN, Criterion(60)):
            least_ns = min(aim.of(each, states.weights) for each in ends_ns)
            found = compile_robust(problem, states, aim, SearchSettings(method="greedy"), rounds=2, evaluations=600)
            assert found.value_ns == pytest.approx(least_ns)
            assert found.bound_ns <= least_ns
            plan = found.compiled.plan.schedule()
            assert found.value_ns == aim.of([timing(each, plan)[0] for each in problems], states.weights)


@pytest.mark.parametrize("percentile", [0.0, 0.5, 0.9, 1.0])
def test_the_kernel_times_orders_as_the_simulator_does(percentile: float) -> None:
    random, count = Random(7), 0
    while count < 25:
        problem = tiny_problem(random, most_ops=18)
        schedule = random_schedule(random, problem)
        if schedule is None:
            continue
        count += 1
        states = random_states(problem, random, 4)
        slower = [Conditions(links=each.links, slowdown={(0, Kind.F): random.choice([1.0, 2.0])}) for each in states.conditions]
        problems = [problem_under(problem, each) for each in slower]
        ends_ns = ends_of(problems, schedule)
        least_ns = [best_bound(each).value_ns for each in problems]
        polished = partial(polish_sampled_schedules, problems, states.weights, [schedule], percentile=percentile, least_ns=least_ns)
        timed = polished(Climbing(evaluations=60, rounds=0))
        aim = Criterion(100 * percentile) if percentile else MEAN
        assert timed.end_ns == pytest.approx(aim.of(ends_ns, states.weights))
        assert timed.schedule == schedule
        found = polished(Climbing(evaluations=60, rounds=2))
        assert found.end_ns == pytest.approx(aim.of(ends_of(problems, found.schedule), states.weights))
        assert found.end_ns <= timed.end_ns
        assert runs(problem, found.schedule)


def test_a_schedule_that_cuts_blocks_is_taken_where_it_is_the_best() -> None:
    """W's are long, so a wait is best filled with a part of one, in most states."""
    cut = 0
    for seed in range(4):
        random = Random(seed)
        problem = make_problem(
            2, 4, costs_ns=(10, 10, 100), activation=(4, 4), in_flight=2, links={(0, 1): (20, 2), (1, 0): (20, 2)}
        )
        states = random_states(problem, random, 3)
        found = compile_robust(problem, states, settings=SearchSettings(method="greedy{n_sub=8}"), rounds=2, evaluations=400)
        assert found.value_ns <= min(value_ns for _, value_ns in found.candidates)
        problems = [problem_under(problem, each) for each in states.conditions]
        plan = found.compiled.plan
        assert found.value_ns == MEAN.of(ends_of(problems, plan.schedule()), states.weights)
        cut += bool(plan.parts)
        for deviations in SEARCHED:
            under = problem_under(problem, shifted(problem, states, deviations))
            schedule = constructive("greedy{n_sub=8}")(under)
            assert found.value_ns <= MEAN.of(ends_of(problems, schedule), states.weights)
    assert cut


def test_the_same_seed_gives_the_same_plan_and_it_is_sound() -> None:
    problem = make_problem(4, 6, costs_ns=(18, 19, 11), in_flight=4)
    states = random_states(problem, Random(8), 5)
    found, again = (
        compile_robust(problem, states, settings=SearchSettings(method="greedy"), rounds=2, evaluations=600) for _ in range(2)
    )
    plan = found.compiled.plan
    assert plan_json(plan) == plan_json(again.compiled.plan)
    assert (plan.made_by.method, plan.made_by.reproducible) == ("robust", True)
    assert check_plan(plan) == ()
    assert plan.problem == problem_under(problem, shifted(problem, states, 0.0))
    assert plan.certificate.makespan_ns == found.robust.mean_ns
    assert found.value_ns <= MEAN.of(found.for_mean.ends_ns, states.weights)
    assert found.bound_ns <= found.value_ns == pytest.approx(np.average(found.robust.ends_ns, weights=states.weights))
