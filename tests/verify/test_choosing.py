"""For which plans ranks may choose their next op by what has come."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plans import one_f_one_b, plan_of, small_plan
from problems import make_problem

from schedc.ir.ops import Kind
from schedc.ir.schedule import Parts
from schedc.solvers.driver.registry import constructive
from schedc.verify.plan.choosing import verify_choosing


@pytest.mark.parametrize(
    ("placement", "ranks", "chunks", "allowed"),
    [
        ("unidirectional", 4, 1, True),
        ("unidirectional", 2, 1, True),
        ("loop", 3, 2, True),
        ("loop", 2, 2, False),
        ("wave", 4, 2, False),
        ("bidirectional", 4, 1, False),
    ],
)
def test_it_depends_on_what_channels_carry(placement: str, ranks: int, chunks: int, allowed: bool) -> None:
    problem = make_problem(ranks, 4, placement=placement, chunks=chunks)
    violations = verify_choosing(plan_of(problem, constructive("greedy")(problem)))
    assert (violations == ()) is allowed
    if not allowed:
        assert str(violations[0]).startswith("ranks[0].channels[send_next]: choosing-channels: it carries activations (F0.")


def test_a_backward_that_recomputes_is_whole() -> None:
    problem = make_problem(2, 2)
    stages = tuple(replace(stage, recompute=True) for stage in problem.stages)
    plan = plan_of(replace(problem, stages=stages), one_f_one_b(problem))
    assert verify_choosing(plan) == ()
    violations = verify_choosing(replace(plan, parts=(Parts(kind=Kind.BW, stage=1, shares=(1, 1)),)))
    assert [str(violation) for violation in violations] == [
        "parts[BW1]: recomputed-parts: stage 1 recomputes, and its BW is cut into parts; expected it whole"
    ]


def test_collectives_change_nothing() -> None:
    assert verify_choosing(small_plan()) == ()
