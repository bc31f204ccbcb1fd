"""What happens between replicas is behind hooks: they are called at the plan's places, and a job may bring its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import hook_runs

from schedc.ir.ops import Kind, token
from schedc.ir.problem import DataParallel
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from runs.processes import Ranks

    from schedc.ir.plan import Plan


def wave(zero: int | None = None) -> Plan:
    """Two ranks with two stages each, B and W apart."""
    problem = make_problem(2, 4, placement="wave", chunks=2)
    if zero is not None:
        times = (5,) * len(problem.stages)
        problem = replace(problem, data_parallel=DataParallel(size=2, zero_stage=zero, reduce_scatter_ns=times, all_gather_ns=()))
    return plan_of(problem, constructive("zb-v")(problem))


def test_hooks_are_called_at_the_plans_places(two: Ranks) -> None:
    plan = wave()
    for rank, (calls, total, mean) in enumerate(two.run(hook_runs.recorded, plan)):
        expected = ["begin"]
        ops = plan.ranks[rank].compute
        for at, op in enumerate(ops):
            if op.kind is Kind.F and op.stage not in {one.stage for one in ops[:at]}:
                expected.append(f"needed {op.stage}")
            if op.kind is not Kind.F and op.stage not in {one.stage for one in ops[at + 1 :]}:
                expected.append(f"complete {op.stage}")
            expected.append(token(op))
        step = [*expected, "end"]
        assert calls == [*step, *step, "close"]
        assert total == 2 * mean  # what the hooks made of it


@pytest.mark.parametrize("zero", [None, 0])
def test_a_jobs_own_sums_give_the_built_in_gradients(four: Ranks, zero: int | None) -> None:
    for result in four.run(hook_runs.same_sums, wave(zero)):
        assert result == {"loss": True, "weights": result["weights"], "gradients": True}
        assert result["weights"] > 0


def test_refusals(two: Ranks) -> None:
    both = two.run(hook_runs.refused, wave(), True)
    assert both == ["InvalidInput: load was given a data_parallel_group and replicas; give it one of them"] * 2
    problem = make_problem(2, 4, placement="bidirectional")
    for said in two.run(hook_runs.refused, plan_of(problem, constructive("chimera")(problem)), False):
        assert said.startswith("Unsupported: plan ")
        assert "has stages that are replicas of each other, and replicas were given" in said


def test_hooks_on_one_rank_only(two: Ranks) -> None:
    """Where they sum over pipelines, all ranks' must; where they do not agree on a step that runs again, no rank's step does."""
    for said in two.run(hook_runs.unlike, wave(), False):
        assert said.startswith("InvalidInput: rank 0 sums its gradients over 2 pipelines, rank 1 over 1; give all ranks the same")
    assert two.run(hook_runs.unlike, wave(), True) == ["retries: False"] * 2
