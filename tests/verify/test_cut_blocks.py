"""A problem whose blocks stay whole: no schedule of it has parts, and the formulations make none."""

from __future__ import annotations

from dataclasses import replace

from inputs.few_plans import W_IN_PARTS
from inputs.problems import make_problem

from schedc.ir.ops import Kind
from schedc.ir.schedule import Parts
from schedc.models.blocks import TimeGrid, blocks_of
from schedc.solvers.driver.registry import constructive
from schedc.verify.schedule.checks import verify_schedule

METHOD, OPTIONS = W_IN_PARTS
CUT = make_problem(4, 8, costs_ns=(10, 12, 9), links=OPTIONS["links"], in_flight=6)
WHOLE = replace(CUT, cut_blocks=False)


def test_parts_are_refused() -> None:
    schedule = constructive(METHOD)(CUT)
    assert schedule.parts and verify_schedule(CUT, schedule) == ()
    found = verify_schedule(WHOLE, schedule)
    assert {violation.rule for violation in found} == {"parts"}
    assert "the problem does not allow parts" in str(found[0])


def test_parts_that_no_op_uses_are_refused_too() -> None:
    schedule = replace(constructive("1f1b")(CUT), parts=(Parts(kind=Kind.W, stage=0, shares=(1, 1)),))
    assert verify_schedule(CUT, schedule) == ()
    assert [violation.place for violation in verify_schedule(WHOLE, schedule)] == ["parts[0]"]


def test_methods_make_none() -> None:
    schedule = constructive(METHOD)(WHOLE)
    assert schedule.parts == () and verify_schedule(WHOLE, schedule) == ()


def test_formulations_make_none() -> None:
    grid = TimeGrid(tick_ns=1, exact=True)
    assert blocks_of(CUT, grid, 3).parts and not blocks_of(WHOLE, grid, 3).parts


def test_a_backward_that_runs_the_forward_again_is_not_cut() -> None:
    again = replace(CUT, stages=(replace(CUT.stages[0], recompute=True), *CUT.stages[1:]))
    for kind, rules in ((Kind.F, []), (Kind.B, ["parts"]), (Kind.W, []), (Kind.BW, ["parts"])):
        schedule = replace(constructive("1f1b")(again), parts=(Parts(kind=kind, stage=0, shares=(1, 1)),))
        assert [violation.rule for violation in verify_schedule(again, schedule)] == rules
