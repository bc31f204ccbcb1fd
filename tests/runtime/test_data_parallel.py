"""Several pipelines that train together: they give the model that one process would have trained on all their batches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.few_plans import W_IN_PARTS, made_by
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import replicated_runs

from schedc.errors import InvalidInput
from schedc.ir.problem import DataParallel
from schedc.runtime.replicas.pipelines import check_same_collectives, queue_of
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from runs.processes import Ranks


PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "1f1b": ("1f1b", {}),
    "zb-h1": ("zb-h1", {}),
    "zb-v": ("zb-v", {"placement": "wave", "chunks": 2}),
    "greedy with W in parts": W_IN_PARTS,
}


def assert_trains(results: list[Any], zero: int | None) -> None:
    for result in results:
        assert isinstance(result, dict), result
        assert result["gradients"] < 1e-9
        assert result["weights"] < 1e-9
        assert result["microbatches"] < 1e-9
        assert result["losses"] == pytest.approx(result["expected"], rel=1e-12)
        assert result["losses"] == results[0]["losses"]
    for rank in range(2):
        whole, owned = results[rank]["all"], [results[number]["owned"] for number in (rank, rank + 2)]
        assert sum(owned) == whole * (1 if zero else 2)
        assert max(owned) < whole if zero else owned == [whole, whole]


@pytest.mark.parametrize("zero", [None, 0, 1])
@pytest.mark.parametrize("name", PLANS)
def test_two_pipelines_of_two_ranks(four: Ranks, name: str, zero: int | None) -> None:
    """None: the plan has no collectives, but there is a group of replicas."""
    method, options = PLANS[name]
    assert_trains(four.run(replicated_runs.train_replicated, made_by(method, zero=zero, **options)), zero)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1])
def test_adamw(four: Ranks, zero: int) -> None:
    assert_trains(
        four.run(replicated_runs.train_replicated, made_by("zb-v", zero=zero, placement="wave", chunks=2), adamw=True), zero
    )


@pytest.mark.parametrize("zero", [0, 1])
def test_a_weight_of_two_stages(four: Ranks, zero: int) -> None:
    """On one rank of a wave the last stage uses the embedding of the first: one sum of it, whole when either needs it."""
    results = four.run(replicated_runs.train_replicated, made_by("zb-v", zero=zero, placement="wave", chunks=2), tied=True)
    assert_trains(results, zero)


@pytest.mark.parametrize("zero", [0, 1])
def test_gradients_accumulate_over_steps(four: Ranks, zero: int) -> None:
    """What stood in `.grad` before a step is summed already."""
    assert_trains(four.run(replicated_runs.train_replicated, made_by("zb-h1", zero=zero), each=2), zero)


def test_four_pipelines_of_one_rank(four: Ranks) -> None:
    problem = replace(
        make_problem(1, 3), data_parallel=DataParallel(size=4, zero_stage=1, reduce_scatter_ns=(1,), all_gather_ns=(1,))
    )
    results = four.run(replicated_runs.train_replicated, plan_of(problem, constructive("greedy")(problem)))
    for result in results:
        assert isinstance(result, dict), result
        assert max(result["gradients"], result["weights"]) < 1e-9
    assert sum(result["owned"] for result in results) == results[0]["all"]


def test_shards_in_float32_of_weights_in_bf16(four: Ranks) -> None:
    """They keep what bf16 has no digits for; the modules get them rounded, all replicas the same."""
    results = four.run(replicated_runs.masters, made_by("zb-h1", zero=1))
    for result in results:
        assert isinstance(result, dict), result
        assert result["dtypes"] == {"torch.float32"}
        assert result["equal"]
        assert result["moved"]
    for rank in range(2):
        pairs = zip(results[rank]["whole"], results[rank + 2]["whole"], strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1])
def test_steps_leave_nothing_behind(four: Ranks, zero: int) -> None:
    """What a step leaves is there after all that follow; gloo may hold a message that it has sent for a moment longer."""
    for counts in four.run(replicated_runs.live_tensors, made_by("zb-h1", zero=zero)):
        assert min(counts[1:]) <= counts[0]


def test_a_loss_that_is_not_finite(four: Ranks) -> None:
    """All processes get the error, and can go on."""
    said = four.run(replicated_runs.not_finite, made_by("1f1b", zero=0))
    for rank in (0, 1):
        assert said[rank][0].startswith("NonFiniteLoss: step 0: the loss of microbatch 1, computed on rank 1, is nan")
    for rank in (2, 3):
        assert said[rank][0].startswith("NonFiniteLoss: step 0: the loss of another pipeline makes the mean over all pipelines nan")
    assert [one[1] for one in said] == ["stepped"] * 4


def test_moving_to_another_plan() -> None:
    """Replicas may move at different steps, so what they do together must stay."""
    old = made_by("zb-h1", zero=0)
    check_same_collectives(old, made_by("1f1b", zero=0))
    with pytest.raises(InvalidInput, match="plan 'test' has 6 microbatches, the one that runs 4"):
        check_same_collectives(old, made_by("1f1b", zero=0, microbatches=6))
    with pytest.raises(InvalidInput, match="plan 'test' has the collectives AG0 RS0 on rank 0, the one that runs RS0"):
        check_same_collectives(old, made_by("1f1b", zero=1))


def test_the_queue() -> None:
    """All-gathers by first F, sums by last W; made up where the plan leaves them out."""
    made = made_by("zb-v", zero=1, placement="wave", chunks=2)
    tokens = [collective.token for collective in queue_of(made, 0)]
    assert tokens == [collective.token for collective in made.ranks[0].collectives]
    assert tokens[:2] == ["AG0", "AG3"]
    assert sorted(tokens[2:]) == ["RS0", "RS3"]
    without = made_by("zb-v", zero=1, gathers=False, placement="wave", chunks=2)
    assert len(without.ranks[0].collectives) == 2
    assert [collective.token for collective in queue_of(without, 0)] == tokens
    assert [collective.token for collective in queue_of(made_by("zb-v", zero=None, placement="wave", chunks=2), 0)] == tokens[2:]


def test_refusals(four: Ranks) -> None:
    """Everybody refuses, and says whose fault it is."""
    fitting, larger, other = made_by("1f1b", zero=0), made_by("1f1b", zero=0, size=3), made_by("1f1b", zero=0, microbatches=6)
    for said in four.run(replicated_runs.refuse_replicated, [larger] * 4, 2):
        assert said == (
            "InvalidInput: plan 'test' is for 3 replicas, the data_parallel_group has 2 processes;"
            " start as many pipelines, or compile for as many"
        )
    said = four.run(replicated_runs.refuse_replicated, [fitting, fitting, other, other], 2)
    different = "CheckFailed: pipelines 0 and 1 have different plans; give all the same file"
    assert said == [different] * 4
    said = four.run(replicated_runs.refuse_replicated, [fitting] * 4, 2, (0, 1, 0, 2))
    weights = "pipelines 0 and 1 have different weights of stage 1; build both from the same seed or checkpoint"
    assert [said[1], said[3]] == [f"CheckFailed: {weights}"] * 2
    assert [said[0], said[2]] == [f"CheckFailed: rank 1 has refused the plan: {weights}"] * 2
    bidirectional = made_by("chimera", zero=None, placement="bidirectional")
    for one in four.run(replicated_runs.refuse_replicated, [bidirectional] * 4, 2):
        assert one.startswith("Unsupported: plan 'test' has stages that are replicas of each other, and a data_parallel_group")
    assert four.run(replicated_runs.refuse_replicated, [fitting] * 4, 2) == ["accepted"] * 4


def test_replicas_that_are_not(four: Ranks) -> None:
    for said in four.run(replicated_runs.refuse_mixed_up, made_by("1f1b", zero=0)):
        assert "the data_parallel_group has rank 0 of pipeline 0 and rank 1 of pipeline 1" in said or "has rank 1 of" in said


def test_a_plan_with_collectives_needs_a_group(four: Ranks) -> None:
    for said in four.run(replicated_runs.refuse_replicated, [made_by("1f1b", zero=1)] * 4, 2, data_parallel_group=None):
        assert said == (
            "InvalidInput: plan 'test' has the collectives of 2 replicas; give load a data_parallel_group of as many processes,"
            " or compile the job without [data_parallel]"
        )


@pytest.mark.parametrize("zero", [0, 1])
def test_a_failure_reaches_all_pipelines(four: Ranks, zero: int) -> None:
    said = four.run(replicated_runs.fail_replicated, made_by("1f1b", zero=zero), 1)
    assert said[1] == "ValueError: this stage cannot go on"
    for other in (0, 2, 3):
        assert said[other].startswith("TransferFailed: "), said
        assert "the connection is lost" in said[other]
