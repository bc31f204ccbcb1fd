"""Each rule of a schedule: a schedule that breaks only it, and where; valid ones break none, and simulate."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.problems import make_problem, problems
from inputs.tiny_problems import random_parts, random_schedule

import schedc.verify.schedule.checks as rules
import schedc.verify.schedule.sharding as sharding
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import CheckFailed
from schedc.ir.ops import Kind, Op, parse_op
from schedc.ir.schedule import Collective, Parts, Schedule
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

TWO = make_problem(2, 2)
FUSED = make_problem(2, 2, split_backward=False)
WAVE = make_problem(1, 1, placement=[0, 0])
BOTH = replace(make_problem(2, 2, placement="bidirectional"), in_order=True)
"""Microbatch 0 takes stages 0 and 1, microbatch 1 stages 2 and 3."""
CUT = Parts(kind=Kind.W, stage=0, shares=(1, 1))
FORWARD = Parts(kind=Kind.F, stage=0, shares=(1, 1))


def _schedule(*orders: str, parts: tuple[Parts, ...] = ()) -> Schedule:
    return Schedule(orders=tuple(tuple(map(parse_op, order.split())) for order in orders), parts=parts)


FIRST, SECOND = "F0.0 F0.1 B0.0 W0.0 BW0.1", "F1.0 BW1.0 F1.1 BW1.1"
VALID = [
    (TWO, _schedule(FIRST, SECOND)),
    (TWO, _schedule("F0.1 F0.0 BW0.1 B0.0 W0.0", "F1.1 F1.0 B1.1 B1.0 W1.0 W1.1")),
    (FUSED, _schedule("F0.0 F0.1 BW0.0 BW0.1", SECOND)),
    (TWO, _schedule("F0.0 F0.1 B0.0 W0.0/0 B0.1 W0.0/1 W0.1", SECOND, parts=(CUT,))),
    (WAVE, _schedule("F0.0 F1.0 B1.0 B0.0 W0.0 W1.0")),
    (make_problem(2, 2, memory_limit_bytes=[3, 2]), _schedule("F0.0 B0.0 F0.1 W0.0 BW0.1", SECOND)),
    (replace(TWO, in_order=True), _schedule("F0.0/0 F0.1 F0.0/1 BW0.1 BW0.0", "F1.1 F1.0 BW1.1 BW1.0", parts=(FORWARD,))),
    (BOTH, _schedule("F3.1 BW3.1 F0.0 BW0.0", "F2.1 F1.0 BW1.0 BW2.1")),
]

BROKEN = [
    ("rank-count", "ranks", TWO, _schedule(FIRST, SECOND, ""), "each of the 2 ranks, found 3"),
    ("op-fields", "ranks[1].compute[4]", TWO, _schedule(FIRST, f"{SECOND} F1.2"), "F1.2: the microbatches are 0 to 1"),
    ("op-fields", "ranks[1].compute[4]", TWO, _schedule(FIRST, f"{SECOND} F2.1"), "F2.1: the stages are 0 to 1"),
    (
        "op-fields",
        "ranks[0].compute[0]",
        make_problem(1, 1, placement="bidirectional"),
        _schedule("F1.0 F0.0 BW0.0"),
        "F1.0: microbatch 0 does not visit stage 1",
    ),
    (
        "op-rank",
        "ranks[0].compute[4]",
        TWO,
        _schedule("F0.0 F0.1 B0.0 W0.0 BW1.1 BW0.1", "F1.0 BW1.0 F1.1"),
        "BW1.1 belongs on rank 1, found on 0",
    ),
    ("split-backward", "ranks[0].compute[2]", FUSED, _schedule(FIRST, SECOND), "B0.0: the problem does not split the backward"),
    ("parts", "ranks[0].compute[3]", TWO, _schedule("F0.0 F0.1 B0.0 W0.0/0 W0.0 BW0.1", SECOND), "W0.0/0: no parts are declared"),
    (
        "parts",
        "ranks[0].compute[5]",
        TWO,
        _schedule("F0.0 F0.1 B0.0 W0.0/0 W0.0/1 W0.0/2 BW0.1", SECOND, parts=(CUT,)),
        "W0.0/2: 2 parts are declared for W of stage 0",
    ),
    ("parts", "parts[1]", TWO, _schedule(FIRST, SECOND, parts=(CUT, CUT)), "W of stage 0 is cut by an entry before this one"),
    ("parts", "parts[0]", TWO, _schedule(FIRST, SECOND, parts=(replace(CUT, stage=4),)), "stage 4 does not exist"),
    (
        "part-order",
        "ranks[0].compute[4]",
        TWO,
        _schedule("F0.0 F0.1 B0.0 W0.0/1 W0.0/0 BW0.1", SECOND, parts=(CUT,)),
        "W0.0/0 is after W0.0/1",
    ),
    (
        "coverage",
        "ranks[0].compute[3]",
        TWO,
        _schedule("F0.0 F0.1 B0.0 F0.1 W0.0 BW0.1", SECOND),
        "duplicate, first at ranks[0].compute[1]",
    ),
    ("coverage", "ranks[1].compute", TWO, _schedule(FIRST, "F1.0 BW1.0 BW1.1"), "F1.1 is missing"),
    ("coverage", "ranks[0].compute", TWO, _schedule("F0.0 F0.1 B0.0 BW0.1", SECOND), "W0.0 is missing"),
    ("coverage", "ranks[0].compute", TWO, _schedule("F0.0 F0.1 W0.0 BW0.1", SECOND), "B0.0 is missing"),
    ("coverage", "ranks[0].compute", TWO, _schedule("F0.0 F0.1 BW0.1", SECOND), "BW0.0 is missing, or B0.0 and W0.0"),
    ("coverage", "ranks[0].compute", TWO, _schedule(f"{FIRST} W0.1", SECOND), "W0.1 is beside BW0.1, which contains it"),
    (
        "coverage",
        "ranks[0].compute",
        TWO,
        _schedule("F0.0 F0.1 B0.0 W0.0/0 BW0.1", SECOND, parts=(CUT,)),
        "W0.0/1 is missing, but other parts are there",
    ),
    (
        "coverage",
        "ranks[0].compute",
        TWO,
        _schedule("F0.0 F0.1 B0.0 W0.0 W0.0/0 W0.0/1 BW0.1", SECOND, parts=(CUT,)),
        "W0.0 is whole and in parts; expected one of the two",
    ),
    (
        "sharding",
        "collectives",
        TWO,
        replace(_schedule(FIRST, SECOND), collectives=((Collective("AG", 0, 0, 5),), ())),
        "found places of collectives, expected none, as weights are not sharded",
    ),
    (
        "need-order",
        "ranks[1].compute[0]",
        TWO,
        _schedule(FIRST, "BW1.0 F1.0 F1.1 BW1.1"),
        "BW1.0 is before F1.0, which it needs",
    ),
    ("need-order", "ranks[0].compute[2]", TWO, _schedule("F0.0 F0.1 W0.0 B0.0 BW0.1", SECOND), "W0.0 is before B0.0"),
    (
        "need-order",
        "ranks[0].compute[2]",
        TWO,
        _schedule("F0.0 F0.1 W0.0/0 B0.0 W0.0/1 BW0.1", SECOND, parts=(CUT,)),
        "W0.0/0 is before B0.0",
    ),
    ("need-order", "ranks[0].compute[0]", WAVE, _schedule("F1.0 F0.0 BW1.0 BW0.0"), "F1.0 is before F0.0"),
    ("need-order", "ranks[0].compute[2]", WAVE, _schedule("F0.0 F1.0 BW0.0 B1.0 W1.0"), "BW0.0 is before B1.0"),
    (
        "deadlock",
        "ranks[0].compute[1]",
        FUSED,
        _schedule("F0.0 BW0.0 F0.1 BW0.1", "F1.1 BW1.1 F1.0 BW1.0"),
        "BW0.0 -> F0.1 -> F1.1 -> BW1.0 -> BW0.0",
    ),
    (
        "microbatch-order",
        "ranks[0].compute[1]",
        replace(TWO, in_order=True),
        _schedule("F0.1 F0.0 BW0.1 B0.0 W0.0", "F1.1 F1.0 B1.1 B1.0 W1.0 W1.1"),
        "F0.0 is after F0.1; microbatches enter in the order of their numbers",
    ),
    (
        "memory-limit",
        "ranks[0].compute[1]",
        make_problem(2, 3, memory_limit_bytes=[3, None]),
        _schedule("F0.0 F0.1 F0.2 BW0.0 BW0.1 BW0.2", "F1.0 F1.1 F1.2 BW1.0 BW1.1 BW1.2"),
        "F0.1 makes the rank hold 4 bytes, its limit is 3 bytes, its peak 6 bytes",
    ),
    (
        "memory-limit",
        "ranks[0].compute[3]",
        make_problem(2, 2, memory_limit_bytes=[2, None]),
        _schedule("F0.0 B0.0 W0.0/0 F0.1 W0.0/1 BW0.1", SECOND, parts=(CUT,)),
        "F0.1 makes the rank hold 3 bytes",
    ),
]


@pytest.mark.parametrize(("problem", "schedule"), VALID)
def test_valid_schedules_are_accepted(problem: Problem, schedule: Schedule) -> None:
    assert verify_schedule(problem, schedule) == ()


@pytest.mark.parametrize(
    ("rule", "place", "problem", "schedule", "message"), BROKEN, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_broken_rule_is_found_at_its_place(rule: str, place: str, problem: Problem, schedule: Schedule, message: str) -> None:
    found = verify_schedule(problem, schedule)
    assert {violation.rule for violation in found} == {rule}
    assert any(violation.place == place and message in violation.message for violation in found), found


@pytest.mark.parametrize(("fields", "message"), [((0, 1, 0, -2), "part -2 cannot be"), ((5, 1, 0, -1), "kind 5 does not exist")])
def test_fields_that_no_token_has(fields: tuple[int, ...], message: str) -> None:
    valid = _schedule(FIRST, SECOND)
    broken = replace(valid, orders=(valid.orders[0], (*valid.orders[1], Op._make(fields))))
    found = [violation for violation in verify_schedule(TWO, broken) if violation.rule == "op-fields"]
    assert [violation.place for violation in found] == ["ranks[1].compute[4]"]
    assert message in found[0].message


def test_every_violation_is_returned() -> None:
    problem = make_problem(2, 2, memory_limit_bytes=[2, 2])
    found = verify_schedule(problem, _schedule("F0.0 F0.1 BW0.0 F9.9", "BW1.0 F1.0 F1.1 BW1.1 W0.1"))
    assert [(violation.rule, violation.place) for violation in found] == [
        ("op-fields", "ranks[0].compute[3]"),
        ("op-rank", "ranks[1].compute[4]"),
        ("coverage", "ranks[0].compute"),
        ("need-order", "ranks[1].compute[0]"),
        ("memory-limit", "ranks[0].compute[1]"),
    ]


def test_the_peak_is_the_rank_s_own_at_its_limit() -> None:
    orders = ("F0.0 F0.1 BW0.0 BW0.1", "F1.0 F1.1 BW1.0 BW1.1")
    assert verify_schedule(make_problem(2, 2, memory_limit_bytes=[4, 4]), _schedule(*orders)) == ()
    found = verify_schedule(make_problem(2, 2, memory_limit_bytes=[3, 4]), _schedule(*orders))
    assert [violation.place for violation in found] == ["ranks[0].compute[1]"]


@given(problem=problems(), seed=st.integers(0, 999))
def test_random_valid_schedules_are_accepted_and_run(problem: Problem, seed: int) -> None:
    random = Random(seed)
    schedule = random_schedule(random, problem, random_parts(random, problem))
    if schedule is not None:
        assert verify_schedule(problem, schedule) == ()
        assert simulate(problem, schedule).makespan_ns > 0


@given(problem=problems(memory=False), seed=st.integers(0, 999))
def test_a_schedule_runs_exactly_if_no_deadlock_is_found(problem: Problem, seed: int) -> None:
    random = Random(seed)
    schedule = random_schedule(random, problem)
    assert schedule is not None
    orders = [list(order) for order in schedule.orders]
    for _ in range(4):
        order = random.choice(orders)
        i = random.randrange(len(order))
        order.insert(random.randrange(len(order)), order.pop(i))
    shuffled = Schedule(orders=tuple(map(tuple, orders)))
    rules_broken = {violation.rule for violation in verify_schedule(problem, shuffled)}
    assert rules_broken <= {"need-order", "deadlock"}
    if "deadlock" in rules_broken:
        with pytest.raises(CheckFailed):
            simulate(problem, shuffled)
    elif not rules_broken:
        assert simulate(problem, shuffled).makespan_ns > 0


def test_shortest_deadlock_of_a_large_schedule() -> None:
    ranks, count = 16, 200
    problem = make_problem(ranks, count, split_backward=False)
    orders = []
    for rank in range(ranks):
        ahead = ranks - rank
        order = [Op(Kind.F, rank, m) for m in range(ahead)]
        for m in range(count):
            order.append(Op(Kind.BW, rank, m))
            order += [Op(Kind.F, rank, m + ahead)] * (m + ahead < count)
        orders.append(order)
    valid = Schedule(orders=tuple(map(tuple, orders)))
    assert verify_schedule(problem, valid) == ()
    orders[5].remove(Op(Kind.F, 5, 100))
    orders[5].insert(orders[5].index(Op(Kind.BW, 5, 100)), Op(Kind.F, 5, 100))
    found = verify_schedule(problem, Schedule(orders=tuple(map(tuple, orders))))
    assert [violation.rule for violation in found] == ["deadlock"]
    cycle = found[0].message.rpartition(": ")[2].split(" -> ")
    assert len(cycle) == 5
    assert cycle[0] == cycle[-1]
    assert {parse_op(text).stage for text in cycle} == {5, 6}


def test_every_check_is_run_and_is_tested() -> None:
    text = Path(rules.__file__).read_text() + Path(sharding.__file__).read_text()
    defined = {name.replace("_", "-") for name in re.findall(r"def check_(\w+)", text)}
    assert set(rules.CHECKS.rules) == defined == {case[0] for case in BROKEN}
