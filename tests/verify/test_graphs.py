"""Graphs and slices: the random problems are sound, and the verifiers accept what keeps all rules and refuse what breaks one."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.graphs import graph_problem, random_order
from inputs.tiny_problems import random_parts

from schedc.ir.ops import WHOLE, Kind, Op, sent_to
from schedc.verify.problem import verify_problem
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_problems_are_sound(first: int) -> None:
    kinds = set()
    for seed in range(first, first + 50):
        random = Random(seed)
        problem = graph_problem(random, may_be_odd=True, collectives=True)
        assert verify_problem(problem) == ()
        kinds.add((bool(problem.edges), bool(problem.slices)))
        schedule = random_order(random, problem, random_parts(random, problem), limited=False)
        assert schedule is not None
    assert kinds == {(True, False), (True, True), (False, True)}


def sound(seed: int, **options: object) -> tuple[Problem, Schedule]:
    """A random problem with a random schedule that keeps all rules."""
    random = Random(seed)
    while True:
        problem = graph_problem(random, **options)  # type: ignore[arg-type]
        schedule = random_order(random, problem, random_parts(random, problem))
        if schedule is not None:
            return problem, schedule


def test_random_schedules_are_accepted() -> None:
    for seed in range(150):
        assert verify_schedule(*sound(seed, may_be_odd=True)) == ()


def op_before(problem: Problem, schedule: Schedule, late: Op, early: Op) -> Schedule:
    """The schedule with the one op moved directly before the other, on their rank."""
    rank = problem.rank_of(late)
    order = [op for op in schedule.orders[rank] if op != late]
    order.insert(order.index(early), late)
    return replace(schedule, orders=tuple(tuple(order) if at == rank else each for at, each in enumerate(schedule.orders)))


@pytest.mark.parametrize("slices", [False, True])
def test_an_op_before_what_it_needs_is_refused(slices: bool) -> None:
    seen = set()
    for seed in range(120):
        problem, schedule = sound(seed, slices=slices, edges=not slices or None)
        position = {op: (rank, index) for rank, order in enumerate(schedule.orders) for index, op in enumerate(order)}
        whole = {op for op in position if op.part == WHOLE}
        needs = [(a, b) for a in whole for b in whole if needed(problem, a, b) and position[a][0] == position[b][0]]
        for before, after in needs[:3]:
            moved = op_before(problem, schedule, after, before)
            places = {violation.rule for violation in verify_schedule(problem, moved)}
            assert "need-order" in places
            seen.add((before.kind, after.kind, before.stage == after.stage))
    assert {(Kind.F, Kind.F, False), (Kind.BW, Kind.BW, False)} <= seen or {
        (Kind.F, Kind.F, True),
        (Kind.BW, Kind.BW, True),
    } <= seen


def needed(problem: Problem, before: Op, after: Op) -> bool:
    """Whether the one needs the other over an edge, or along slices."""
    forward = {before.kind, after.kind} == {Kind.F}
    if not forward and not {before.kind, after.kind} <= {Kind.B, Kind.BW}:
        return False
    if before.microbatch == after.microbatch:
        ends = (before.stage, after.stage) if forward else (after.stage, before.stage)
        return any((edge.source, edge.destination) == ends and (forward or edge.has_gradient) for edge in problem.edges)
    step = after.microbatch - before.microbatch
    count = len(problem.slices)
    same = count and before.stage == after.stage and before.microbatch // count == after.microbatch // count
    return bool(same) and step == (1 if forward else -1)


def test_each_stage_without_edges_in_takes_microbatches_in_order() -> None:
    found = 0
    for seed in range(60):
        random = Random(seed)
        problem = replace(graph_problem(random, slices=False, edges=True, memory=False, most_microbatches=3), in_order=True)
        schedule = random_order(random, problem)
        assert schedule is not None
        assert verify_schedule(problem, schedule) == ()
        entries = set(range(len(problem.stages))) - {edge.destination for edge in problem.edges}
        for stage in entries if problem.microbatches > 1 else ():
            moved = op_before(problem, schedule, Op(Kind.F, stage, 1), Op(Kind.F, stage, 0))
            places = [violation for violation in verify_schedule(problem, moved) if violation.rule == "microbatch-order"]
            assert f"F{stage}.0 is after F{stage}.1" in places[0].message
            found += stage > 0
    assert found > 5


def test_a_transfer_among_the_ops_is_refused() -> None:
    problem, schedule = sound(1, edges=True)
    orders = ((sent_to(Op(Kind.F, 0, 0), 2), *schedule.orders[0]), *schedule.orders[1:])
    found = [violation for violation in verify_schedule(problem, replace(schedule, orders=orders)) if violation.rule == "op-fields"]
    assert "as of the transfer F0.0>2" in found[0].message
