"""Evaluations run a plan's forwards alone: right losses and outputs, nothing left behind, no deadlock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from inputs.few_plans import PLANS, few_plan
from inputs.plans import plans
from runs import loss_runs
from suite.example_counts import examples

from schedc.ir.ops import Kind
from schedc.runtime.session.evaluation import forward_only
from schedc.verify.plan.channels import CHANNELS, needs_of
from schedc.verify.plan.rendezvous import RENDEZVOUS

if TYPE_CHECKING:
    from runs.processes import Ranks

    from schedc.ir.plan import Plan


@examples(40)
@given(made=plans())
def test_forwards_alone_do_not_deadlock(made: Plan) -> None:
    """By the verifier's own reading of what the forwards need: all of it crosses, nothing else, and no cycle is left."""
    forward = forward_only(made)
    assert [rank.compute for rank in forward.ranks] == [
        tuple(op for op in rank.compute if op.kind is Kind.F) for rank in made.ranks
    ]
    forward = replace(forward, problem=replace(forward.problem, data_parallel=None))  # whose collectives belong to steps
    needs = needs_of(forward)
    assert CHANNELS.broken(forward, needs) == ()
    assert RENDEZVOUS.broken(forward, needs) == ()


@pytest.mark.parametrize("name", PLANS)
def test_two_processes(two: Ranks, name: str) -> None:
    assert two.run(loss_runs.evaluated, few_plan(name)) == [{}] * 2


def test_stages_that_recompute(two: Ranks) -> None:
    assert two.run(loss_runs.evaluated, few_plan("zb-v"), True) == [{}] * 2


@pytest.mark.parametrize("zero", [None, 0, 1])
def test_several_pipelines(four: Ranks, zero: int | None) -> None:
    assert four.run(loss_runs.evaluated_over_pipelines, few_plan("zb-v", zero)) == [[True, True]] * 4


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_a_channel_that_fails(two: Ranks, name: str) -> None:
    assert two.run(loss_runs.evaluated_on_failing, few_plan(name)) == [{}] * 2


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("evaluates", [0, 1])
@pytest.mark.parametrize("name", ["1f1b", "bidirectional"])
def test_one_rank_evaluates_while_others_step(two: Ranks, name: str, evaluates: int, before: int) -> None:
    """In the first step and later: said on all ranks, without waiting for a limit."""
    given = [{"call": "evaluate"} if rank == evaluates else {} for rank in range(2)]
    calls = ["evaluation" if rank == evaluates else "step" for rank in range(2)]
    lines = [f"rank {one} is called for {calls[one]}, rank {1 - one} for {calls[1 - one]}; call all ranks" for one in range(2)]
    for said in two.run(loss_runs.call, few_plan(name), given, before=before, limit_s=45):
        assert said.startswith("InvalidInput: ") and any(line in said for line in lines), said
