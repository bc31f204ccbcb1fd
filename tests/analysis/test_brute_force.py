"""The brute force that judges the bounds, itself checked: against the simulator, and against plain enumeration of all orders."""

from __future__ import annotations

from itertools import permutations, product
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.problems import make_problem
from inputs.tiny_problems import random_parts, random_schedule, tiny_problem
from oracles.brute_force import best_schedule, optimum, timing

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import CheckFailed
from schedc.ir.ops import Kind, Op
from schedc.ir.problem import Objective
from schedc.ir.schedule import Schedule
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


@pytest.mark.parametrize("seed", range(200))
def test_timing_equals_the_simulator_on_random_schedules(seed: int) -> None:
    random = Random(seed)
    problem = tiny_problem(random, most_ops=40, data_parallel=seed % 4 == 0)
    parts = random_parts(random, problem) if seed % 2 else ()
    schedule = next(found for _ in range(1000) if (found := random_schedule(random, problem, parts)) is not None)
    assert verify_schedule(problem, schedule) == ()
    timeline = simulate(problem, schedule)
    assert timing(problem, schedule) == (timeline.makespan_ns, timeline.stage_span_ns)


@pytest.mark.parametrize("seed", range(60))
def test_search_finds_a_valid_schedule_that_takes_what_it_says(seed: int) -> None:
    random = Random(seed)
    problem = tiny_problem(random, most_ops=12, data_parallel=seed % 5 == 0)
    best, schedule = best_schedule(problem)
    assert schedule is not None
    assert verify_schedule(problem, schedule) == ()
    assert timing(problem, schedule)[problem.objective is Objective.STAGE_SPAN] == best


@pytest.mark.parametrize("seed", range(25))
def test_search_equals_the_enumeration_of_all_orders(seed: int) -> None:
    problem = tiny_problem(Random(1000 + seed), most_ops=8)
    assert optimum(problem) == _enumerated(problem)


@pytest.mark.parametrize("seed", range(40))
def test_the_order_of_equal_microbatches_does_not_matter(seed: int) -> None:
    problem = tiny_problem(Random(2000 + seed), most_ops=12)
    assert optimum(problem) == optimum(problem, symmetry=False)


def test_no_schedule_where_memory_is_too_small() -> None:
    assert optimum(make_problem(2, 2, placement="wave", chunks=2, memory_limit_bytes=[3, None])) is None


def _enumerated(problem: Problem) -> int | None:
    """The least objective over all permutations of each rank's ops, fused and split."""
    best = None
    visits = list(problem.blocks())
    for fused in product([True, False] if problem.split_backward else [True], repeat=len(visits)):
        blocks: list[list[Op]] = [[] for _ in range(problem.ranks)]
        for (stage, microbatch), alike in zip(visits, fused, strict=True):
            kinds = (Kind.F, Kind.BW) if alike else (Kind.F, Kind.B, Kind.W)
            blocks[problem.stages[stage].rank] += [Op(kind, stage, microbatch) for kind in kinds]
        for orders in product(*(_own_orders(ops) for ops in blocks)):
            schedule = Schedule(orders=orders)
            if verify_schedule(problem, schedule):
                continue
            timeline = simulate(problem, schedule)
            objective = timeline.makespan_ns if problem.objective is Objective.MAKESPAN else timeline.stage_span_ns
            best = objective if best is None else min(best, objective)
    return best


def _own_orders(ops: list[Op]) -> list[tuple[Op, ...]]:
    """The orders of one rank's ops with F before B before W of each visit."""
    return [
        order
        for order in permutations(ops)
        if all(a.kind < b.kind for i, a in enumerate(order) for b in order[i + 1 :] if a[1:3] == b[1:3])
    ]


def test_a_deadlock_is_an_error_of_both_timings() -> None:
    problem = make_problem(2, 2, split_backward=False)
    f, bw = Kind.F, Kind.BW
    first = (Op(f, 0, 0), Op(bw, 0, 0), Op(f, 0, 1), Op(bw, 0, 1))
    second = (Op(f, 1, 1), Op(bw, 1, 1), Op(f, 1, 0), Op(bw, 1, 0))
    schedule = Schedule(orders=(first, second))
    with pytest.raises(CheckFailed):
        simulate(problem, schedule)
    with pytest.raises(ValueError, match="deadlocks"):
        timing(problem, schedule)
