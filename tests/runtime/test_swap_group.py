"""Two pipelines whose stages have collectives with each other move to another plan with the same step, or neither does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import swap_runs
from runs.processes import Ranks, rank_processes, without_teller

from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan


def made(method: str) -> Plan:
    problem = make_problem(2, 4)
    return plan_of(problem, constructive(method)(problem))


PLANS = [made("1f1b"), made("zb-h1"), made("gpipe")]


def test_pipelines_move_with_the_same_step(four: Ranks) -> None:
    """The first pipeline is offered the plan at once, the second later, its ranks at different steps; and then another."""
    calls = [{0: 1, 5: 2}, {1: 1, 6: 2}, {2: 1, 8: 2}, {1: 1, 5: 2}]
    results: list[Any] = four.run(swap_runs.swap_with_peers, PLANS, calls, 11, True)
    for result in results:
        assert not isinstance(result, str), result
        swaps, heard = result
        assert [state for state, *_ in swaps] == ["done", "done"]
        assert [step for _, step, _ in swaps] == [step for _, step, _ in results[0][0]]
        assert heard == []
    assert [step in (3, 4, 9, 10) for _, step, _ in results[0][0]] == [True, True]


@pytest.mark.slow
def test_experts(four: Ranks, tmp_path: Path) -> None:
    """One model has one norm, one scale and one checkpoint, though its processes have other weights."""
    clip = (
        "Unsupported: processes of the swap_group have different gradients of weights that are not DTensors; give clip_grad_norm_"
        " local=, the weights of which each process has its own"
    )
    for result in four.run(swap_runs.experts, PLANS[0], str(tmp_path / "checkpoint")):
        assert isinstance(result, dict), result
        unclipped, unsaved = result["said"]
        assert unclipped == clip
        assert unsaved.startswith(("InvalidInput: ", "CheckFailed: rank "))
        assert unsaved.endswith(
            "is not the same in all processes of the swap_group, and would be saved once; give model=, with a name of its own for"
            " each"
        )
        assert max(result["errors"]) < 1e-5
        assert result["scale"] == (2.0, True)
        assert result["loaded"]


def test_steps_that_differ_are_refused(four: Ranks) -> None:
    """Peers that divide by other numbers: their gradients would be summed, or be slices of another loss's."""
    said = four.run(swap_runs.differing, PLANS[0])
    refused = "InvalidInput: two pipelines of a swap_group divide the loss by 30 and 10;"
    assert all(without_teller(one).startswith(refused) for one in said), said


def test_one_process_refuses_and_all_stay(four: Ranks) -> None:
    calls = [{0: 1}, {0: 1}, {0: 1}, {1: 2}]
    results: list[Any] = four.run(swap_runs.swap_with_peers, PLANS, calls, 4, True)
    for result in results:
        assert not isinstance(result, str), result
        (((state, step, reason),), (heard,)) = result
        assert (state, step) == ("refused", results[0][0][0][1])
        assert reason.startswith("rank 0 of pipeline 0 and rank 1 of pipeline 1 have different plans (digests ")
        assert heard == f"step {step} goes on with plan 'test': {reason}"


@pytest.mark.parametrize("plans", [[PLANS[0], PLANS[1]]])
def test_pipelines_that_begin_with_different_plans(four: Ranks, plans: list[Plan]) -> None:
    results = four.run(swap_runs.load_with_peers, plans)
    assert all(
        result.startswith("CheckFailed: pipelines 0 and 1 have different plans; give all the same file") for result in results
    )


def test_without_a_swap_group_they_meet_in_different_plans(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the tests above rest on: their stages find it out."""
    with rank_processes(4, tmp_path_factory.mktemp("apart")) as ranks:
        results = ranks.run(swap_runs.swap_with_peers, PLANS, [{0: 1}, {0: 1}, {4: 1}, {4: 1}], 8, False)
    assert any(str(result).startswith("AssertionError: peers are in steps, of plans: ") for result in results), results
