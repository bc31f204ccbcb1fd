"""The difference of two plans: empty for equal ones alone, mirrored the other way around, and orders by brute force."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from itertools import combinations, pairwise, permutations
from typing import TYPE_CHECKING, Any

from hypothesis import given, strategies as st
from inputs.plans import one_f_one_b, plan_of, plans, small_plan
from inputs.problems import make_problem, problems
from inputs.random_schedules import random_schedules
from suite.example_counts import examples

import schedc
from schedc.analysis.difference.orders import RankOrder, compare_queues
from schedc.ir.ops import Kind, Op
from schedc.ir.plan import RankPlan
from schedc.ir.problem import Updates, Versions
from schedc.ir.schedule import Parts
from schedc.view.document import plain
from schedc.view.terminal.difference import MOST_LINES, difference_json, difference_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.analysis.difference.plans import FactChange, PlanDifference
    from schedc.ir.plan import Plan

SECTIONS = 7


@st.composite
def two_orders(draw: st.DrawFn) -> tuple[Plan, Plan]:
    """Two plans of one problem."""
    problem = draw(problems(memory=False, max_microbatches=4))
    first, second = (plan_of(problem, draw(random_schedules(problem))) for _ in range(2))
    return first, second


pairs = st.one_of(two_orders(), st.tuples(plans(), plans()))


@examples(60)
@given(pair=pairs)
def test_it_is_empty_for_equal_plans_alone(pair: tuple[Plan, Plan]) -> None:
    first, second = pair
    assert schedc.diff_plans(first, first).is_empty
    assert schedc.diff_plans(first, second).is_empty == (first == second)


@examples(60)
@given(pair=pairs)
def test_the_other_way_around_it_is_mirrored(pair: tuple[Plan, Plan]) -> None:
    assert mirrored(schedc.diff_plans(*pair)) == schedc.diff_plans(*reversed(pair))


def mirrored(difference: PlanDifference) -> PlanDifference:
    def swapped(changes: Sequence[FactChange]) -> tuple[FactChange, ...]:
        return tuple(replace(change, before=change.after, after=change.before) for change in changes)

    orders = (replace(o, first_places=-o.first_places, fused=o.split, split=o.fused) for o in difference.orders)
    return replace(
        difference,
        layout=swapped(difference.layout),
        orders=tuple(orders),
        cuts=swapped(difference.cuts),
        certificate=swapped(difference.certificate),
        memory=swapped(difference.memory),
        costs=swapped(difference.costs),
        made_by=swapped(difference.made_by),
    )


@examples(60)
@given(pair=pairs)
def test_the_text_is_short_and_says_no_change_that_is_none(pair: tuple[Plan, Plan]) -> None:
    difference = schedc.diff_plans(*pair)
    lines = difference_lines(difference, "test")
    assert len(lines) <= 1 + SECTIONS * (MOST_LINES + 2) and max(map(len, lines)) < 200
    for line in lines:
        before, arrow, after = line.partition(": ")[2].partition(" → ")
        assert not arrow or before != after
    assert json.loads(json.dumps(plain(difference_json(difference))))["equal"] == difference.is_empty


def changed_once(value: Any) -> Iterator[Any]:
    """The value with one thing in it changed, in every way that its type allows."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            for other in changed_once(getattr(value, field.name)):
                try:
                    yield replace(value, **{field.name: other})
                except ValueError:
                    continue
    elif isinstance(value, Enum):
        yield from (other for other in type(value) if other is not value and not isinstance(value, int))
    elif isinstance(value, Op):
        yield value._replace(microbatch=value.microbatch + 1)
    elif isinstance(value, tuple):
        if value:
            yield value[:-1]
            yield value[::-1] if value[::-1] != value else (*value, value[0])
        for index, entry in enumerate(value):
            yield from ((*value[:index], other, *value[index + 1 :]) for other in changed_once(entry))
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, str):
        yield f"{value}x"
    else:
        yield 1 if value is None else value + 1


def test_every_field_counts() -> None:
    """Each field of a plan and of all that is in it, changed alone, is a difference, with words for it."""
    plan = small_plan()
    plan = replace(plan, parts=(Parts(kind=Kind.W, stage=0, shares=(1, 2)),))
    plan = replace(plan, problem=replace(plan.problem, updates=Updates(versions=Versions.STASH, microbatches=1, is_period=False)))
    count = 0
    for other in changed_once(plan):
        if other == plan:
            continue
        difference = schedc.diff_plans(plan, other)
        assert not difference.is_empty
        assert len(difference_lines(difference, "test")) > 2
        count += 1
    assert count > 150


def queue(order: Sequence[int]) -> RankPlan:
    return RankPlan(rank=0, compute=tuple(Op(Kind.F, 0, microbatch) for microbatch in order))


def longest_common(first: Sequence[int], second: Sequence[int]) -> int:
    place = {entry: index for index, entry in enumerate(second)}
    for length in range(len(first), 0, -1):
        for kept in combinations(first, length):
            if all(place[a] < place[b] for a, b in pairwise(kept)):
                return length
    return 0


def test_as_few_ops_moved_as_possible() -> None:
    for order in permutations(range(6)):
        found = compare_queues(queue(range(6)), queue(order))
        moved = 6 - longest_common(range(6), order)
        if not moved:
            assert found is None
            continue
        assert found is not None
        assert (found.moved, found.ops) == (moved, 6)
        assert found.first is not None
        assert 0 < abs(found.first_places) <= found.most_places < 6


def test_an_op_that_is_put_elsewhere_is_the_one_that_moved() -> None:
    whole = list(range(9))
    for op in whole:
        rest = [other for other in whole if other != op]
        for to in range(9):
            if abs(to - op) < 2:
                continue  # of two neighbours that change places, either moved
            found = compare_queues(queue(whole), queue([*rest[:to], op, *rest[to:]]))
            places = to - op
            expected = RankOrder(rank=0, ops=9, moved=1, first=Op(Kind.F, 0, op), first_places=places, most_places=abs(places))
            assert found == expected


def test_fused_backwards_are_not_moved_ops() -> None:
    fused = small_plan(split_backward=True)
    queues = [
        tuple(
            half
            for op in rank.compute
            for half in ((op._replace(kind=Kind.B), op._replace(kind=Kind.W)) if op.kind is Kind.BW else (op,))
        )
        for rank in fused.ranks
    ]
    split = plan_of(fused.problem, replace(fused.schedule(), orders=tuple(queues)))
    difference = schedc.diff_plans(fused, split)
    assert [(order.split, order.fused, order.moved, order.recut) for order in difference.orders] == [(4, 0, 0, 0)] * 3
    assert "  ranks 0-2: backwards: 4 split" in difference_lines(difference, "test")


def test_plans_of_other_shapes_have_a_short_answer() -> None:
    def made(ranks: int, microbatches: int) -> Plan:
        problem = make_problem(ranks, microbatches)
        return plan_of(problem, one_f_one_b(problem))

    lines = difference_lines(schedc.diff_plans(made(3, 4), made(24, 48)), "test")
    assert lines == [
        "test: the plans differ",
        "layout:",
        "  ranks: 3 → 24",
        "  microbatches: 4 → 48",
        "  stages: 3 → 24",
        "orders:",
        "  not compared: the numbers of ranks differ",
        "certificate:",
        "  makespan: 180 ns → 2.13 us (+1083.33%)",
        "  stage span: 180 ns → 2.13 us (+1083.33%)",
        "  lower bound: 90 ns → 1.065 us (+1083.33%)",
        "memory:",
        "  highest peak: 6 B → 48 B",
    ]
