"""Changes of orders: each leaves every block once, keeps what it says it keeps, can be taken back; other ranks follow."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from inputs.fused_problems import mixed_problem
from inputs.problems import make_problem
from inputs.tiny_problems import random_schedule

from schedc.analysis.simulation.memory import exceeded_limit
from schedc.ir import are_alike
from schedc.ir.ops import Kind, Op
from schedc.ir.schedule import Schedule
from schedc.solvers.kernel.critical_path import critical_of
from schedc.solvers.kernel.draws import draw
from schedc.solvers.kernel.numbering import number_anew, numbering_of
from schedc.solvers.kernel.order_changes import change_at_random, exchange_some, follow, move_op, save, saved_of, take_back
from schedc.solvers.kernel.order_evaluator import problem_arrays_of, time_orders, workspace_of
from schedc.solvers.kernel.tables import KINDS, NEVER as STRANDED
from schedc.solvers.search.polish import durations_ns_of, packed_orders, unpacked_schedule
from schedc.verify.schedule.checks import verify_schedule


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 600), marks=pytest.mark.slow)])
def test_a_change_leaves_every_block_once_and_can_be_taken_back(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        random = Random(seed)
        problem = mixed_problem(random, most_ops=40)
        schedule = random_schedule(random, problem)
        if schedule is None or not are_alike(problem):
            continue
        facts, numbering = problem_arrays_of(problem), numbering_of(problem)
        orders = packed_orders(problem, facts, schedule, exchanges=True)
        for rank in range(problem.ranks):
            number_anew(facts, orders, rank, numbering)
        again, saved, before = len(problem.stages) * KINDS, saved_of(orders), unpacked_schedule(problem, orders)
        draws, path, ranges = draw(seed, 400), critical_of(orders), (2, 5, 4 if problem.split_backward else 0, 1)
        for _ in range(20):
            may_run = change_at_random(facts, orders, saved, path, numbering, ranges, draws, again)
            changed = unpacked_schedule(problem, orders)
            if may_run:
                seen["several ranks"] += saved.count[0] > 1
                seen["mixture"] += Counter(map(len, changed.orders)) != Counter(map(len, before.orders))
                runs = time_orders(facts, durations_ns_of(problem), orders, workspace_of(facts)) < STRANDED
                assert runs == (not verify_schedule(problem, changed)) and exceeded_limit(problem, changed) is None, seed
                seen["runs" if runs else "deadlock"] += 1
            take_back(orders, saved)
            assert unpacked_schedule(problem, orders) == before, seed
    assert min(seen.values()) > 5 and len(seen) == 4


@pytest.mark.parametrize("side", [0, 1])
def test_several_backwards_of_a_stage_are_split_and_fused_again(side: int) -> None:
    """Three of the second chunk's eight on rank 2, from its third; the first chunk's stay as they are, and the orders run."""
    problem = make_problem(4, 8, placement="loop", chunks=2)
    kinds = (Kind.F, 0), (Kind.F, 4), (Kind.BW, 4), (Kind.BW, 0)
    start = Schedule(
        orders=tuple(tuple(Op(kind, chunk + rank, each) for kind, chunk in kinds for each in range(8)) for rank in range(4))
    )
    facts, numbering = problem_arrays_of(problem), numbering_of(problem)
    orders = packed_orders(problem, facts, start, exchanges=True)
    for kind, splits in ((Kind.BW, {2, 3, 4}), (Kind.B, set[int]())):
        at = unpacked_schedule(problem, orders).orders[2].index(Op(kind, 6, 2))
        assert exchange_some(orders, 2, at, 8, 3, side, 2 - 2 * side, 8 * KINDS) and number_anew(facts, orders, 2, numbering)
        made = unpacked_schedule(problem, orders)
        assert {(op.stage, op.microbatch) for op in made.orders[2] if op.kind is Kind.B} == {(6, each) for each in splits}
        assert not verify_schedule(problem, made)


@pytest.mark.parametrize("sooner", [True, False])
def test_the_ranks_ahead_and_before_do_as_one_has_done(sooner: bool) -> None:
    """A loop of two chunks: the first chunk's last forward and the second's first change places on rank 2, then on all others."""
    problem = make_problem(4, 8, placement="loop", chunks=2)
    kinds = (Kind.F, 0), (Kind.F, 4), (Kind.BW, 4), (Kind.BW, 0)
    start = [tuple(Op(kind, chunk + rank, each) for kind, chunk in kinds for each in range(8)) for rank in range(4)]
    late, early = (0, 7), (4, 0)  # first stage of the chunk, and microbatch
    orders = tuple(_put_before(order, *((early, late) if sooner else (late, early))) for order in start)
    facts, numbering = problem_arrays_of(problem), numbering_of(problem)
    packed = packed_orders(problem, facts, Schedule(orders=orders), exchanges=False)
    row = unpacked_schedule(problem, packed).orders[2]
    first, second = (_at(row, chunk, microbatch) for chunk, microbatch in (late, early))
    saved = saved_of(packed)
    save(packed, saved, 2)
    move_op(packed.codes, 2, first, second)
    assert number_anew(facts, packed, 2, numbering)
    expected = [not sooner] * 2 + [sooner] * 2
    for ahead in (True, False):
        assert follow(facts, packed, saved, numbering, 2, second, sooner, ahead)
        made = unpacked_schedule(problem, packed).orders
        assert [_at(order, *late) < _at(order, *early) for order in made] == (expected if ahead else [sooner] * 4)
    take_back(packed, saved)
    assert unpacked_schedule(problem, packed).orders == orders
    assert np.array_equal(np.sort(saved.ranks), range(4))


def _at(order: tuple[Op, ...], chunk: int, microbatch: int) -> int:
    wanted = Kind.F, microbatch, chunk // 4
    return next(at for at, op in enumerate(order) if (op.kind, op.microbatch, op.stage // 4) == wanted)


def _put_before(order: tuple[Op, ...], one: tuple[int, int], other: tuple[int, int]) -> tuple[Op, ...]:
    """The order, in which F of one chunk and microbatch comes right before that of another."""
    moved = order[_at(order, *one)]
    rest = tuple(op for op in order if op != moved)
    at = _at(rest, *other)
    return (*rest[:at], moved, *rest[at:])
