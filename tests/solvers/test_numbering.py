"""Numbers of alike microbatches: a renumbered schedule is valid, whatever the numbers were, and what cannot run is found out."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.fused_problems import mixed_problem
from inputs.tiny_problems import random_schedule, taken

from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.simulate import simulate
from schedc.ir import are_alike
from schedc.ir.ops import Kind, Op
from schedc.ir.schedule import Schedule
from schedc.solvers.kernel.numbering import number_anew, numbering_of
from schedc.solvers.kernel.order_evaluator import problem_arrays_of
from schedc.solvers.search.polish import packed_orders, unpacked_schedule
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


@pytest.mark.parametrize("seeds", [range(300), pytest.param(range(300, 5000), marks=pytest.mark.slow)])
def test_numbered_in_turn_it_is_valid_and_has_the_same_blocks_in_the_same_places(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        random = Random(seed)
        problem = mixed_problem(random, most_ops=40, data_parallel=seed % 3 == 0)
        schedule = random_schedule(random, problem)
        if schedule is None or not are_alike(problem):
            continue
        may_run, made = numbered(problem, schedule)
        assert may_run == [True] * problem.ranks, seed
        assert words(made) == words(schedule), seed
        assert not verify_schedule(problem, made) and exceeded_limit(problem, made) is None, seed
        for stage in range(len(problem.stages)):
            for kinds in ({Kind.F}, {Kind.B, Kind.BW}, {Kind.W}):
                turn = [op.microbatch for order in made.orders for op in order if op.stage == stage and op.kind in kinds]
                assert turn == sorted(turn), seed
        named = renamed(random, problem, schedule)
        assert numbered(problem, named) == (may_run, made), seed
        if len(problem.stages) == problem.ranks and problem.data_parallel is None:  # no two stages' messages wait for each other
            assert simulate(problem, made).makespan_ns <= simulate(problem, schedule).makespan_ns, seed
            seen["never later"] += made != schedule
        seen["paths"] += len(problem.paths) > 1
    assert seen["never later"] > 10 and seen["paths"] > 10


def test_an_order_that_can_never_run_is_found_out() -> None:
    seen: Counter[bool] = Counter()
    for seed in range(300):
        random = Random(seed)
        problem = mixed_problem(random, most_ops=24)
        schedule = random_schedule(random, problem)
        if schedule is None or not are_alike(problem):
            continue
        orders = [list(order) for order in schedule.orders]
        for order in orders:
            at = random.randrange(len(order) or 1)
            order[at : at + 4] = random.sample(order[at : at + 4], len(order[at : at + 4]))
        changed = Schedule(orders=tuple(map(tuple, orders)))
        expected = [can_run(problem, rank, order) for rank, order in enumerate(changed.orders)]
        assert numbered(problem, changed)[0] == expected, seed
        seen.update(expected)
    assert min(seen[True], seen[False]) > 50


def numbered(problem: Problem, schedule: Schedule) -> tuple[list[bool], Schedule]:
    facts, numbering = problem_arrays_of(problem), numbering_of(problem)
    orders = packed_orders(problem, facts, schedule, exchanges=False)
    may_run = [number_anew(facts, orders, rank, numbering) for rank in range(problem.ranks)]
    return may_run, unpacked_schedule(problem, orders)


def words(schedule: Schedule) -> list[list[tuple[Kind, int]]]:
    return [[(op.kind, op.stage) for op in order] for order in schedule.orders]


def renamed(random: Random, problem: Problem, schedule: Schedule) -> Schedule:
    """The same, with other numbers of the microbatches of each path."""
    name: dict[int, int] = {}
    for path in range(len(problem.paths)):
        own = [microbatch for microbatch, on in enumerate(problem.path_of) if on == path]
        name |= dict(zip(own, random.sample(own, len(own)), strict=True))
    return Schedule(orders=tuple(tuple(op._replace(microbatch=name[op.microbatch]) for op in order) for order in schedule.orders))


def can_run(problem: Problem, rank: int, order: tuple[Op, ...]) -> bool:
    """Whether, up to each op, there is at least one F for each backward, one B for each W, and no more memory than there is."""
    had, held = Counter[tuple[Kind, int]](), 0
    limit_bytes = problem.memory_limit_bytes[rank]
    for op in order:
        had[op.kind, op.stage] += 1
        stage = problem.stages[op.stage]
        held += taken(stage, op)
        backwards = had[Kind.B, op.stage] + had[Kind.BW, op.stage]
        if backwards > had[Kind.F, op.stage] or had[Kind.W, op.stage] > had[Kind.B, op.stage]:
            return False
        if limit_bytes is not None and held > limit_bytes:
            return False
        held -= stage.released_bytes(op.kind)
    return True
