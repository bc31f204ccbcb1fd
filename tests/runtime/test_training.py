"""Clipping, loss scaling and tied weights over all ranks: as on the model without a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from inputs.few_plans import few_plan, made_by
from runs import training_runs

if TYPE_CHECKING:
    from runs.processes import Ranks


def assert_small(results: list[Any]) -> None:
    for errors in results:
        assert isinstance(errors, list), errors
        assert max(errors) < 1e-9, errors


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "bidirectional"])
def test_clipping(two: Ranks, name: str) -> None:
    assert_small(two.run(training_runs.clipped, few_plan(name)))


@pytest.mark.parametrize("name", ["zb-v", "bidirectional"])
def test_clipping_counts_weights_of_two_stages_once(two: Ranks, name: str) -> None:
    assert_small(two.run(training_runs.clipped, few_plan(name), True))


@pytest.mark.parametrize("zero", [0, 1])
def test_clipping_over_pipelines(four: Ranks, zero: int) -> None:
    assert_small(four.run(training_runs.clipped, few_plan("zb-v", zero)))


def test_clipping_what_is_not_finite(two: Ranks) -> None:
    """All ranks know."""
    for norm, largest, said in two.run(training_runs.clipped_not_finite, few_plan("1f1b")):
        assert (norm, largest) == ("nan", "inf")
        assert said == "the norm of the gradients of all ranks is nan; zero them before going on"


@pytest.mark.parametrize("zero", [None, 0, 1])
def test_loss_scaling(two: Ranks, four: Ranks, zero: int | None) -> None:
    """All skip the step in which one rank has an infinite gradient; the others are as without scaling."""
    ranks = two if zero is None else four
    for result in ranks.run(training_runs.scaled, few_plan("zb-v", zero)):
        assert isinstance(result, dict), result
        assert result["moved"] == [True, False, True, True]
        assert result["scales"] == [1024.0, 512.0, 512.0, 1024.0]
        assert result["error"] < 1e-6  # the scaler divides in float32


def test_tied_weights(two: Ranks) -> None:
    for name in ("1f1b", "interleaved"):
        assert_small(two.run(training_runs.tied, few_plan(name)))
    assert_small(two.run(training_runs.tied, few_plan("1f1b"), 2))
    planned = made_by("1f1b", zero=0, size=1)  # `[[tied]]` in its job
    assert_small(two.run(training_runs.tied, planned))


def test_tied_weights_over_pipelines(four: Ranks) -> None:
    for each in (1, 2):
        assert_small(four.run(training_runs.tied, few_plan("1f1b", 0), each))


def test_refused_ties(two: Ranks, four: Ranks) -> None:
    plan = few_plan("1f1b")
    alone = "InvalidInput: only rank 0 has a weight 'bias'; give it on every rank that has a copy"
    assert two.run(training_runs.refused_ties, plan, "alone") == [alone] * 2
    foreign = "the weight 'bias' is not a parameter of a stage of rank 1"
    found = two.run(training_runs.refused_ties, plan, "foreign")
    assert found == [f"CheckFailed: rank 1 has refused to tie its weights: {foreign}", f"InvalidInput: {foreign}"]
    differs = "CheckFailed: the weight 'bias' differs between ranks 0 and 1; build both from the same seed or checkpoint"
    assert two.run(training_runs.refused_ties, plan, "differs") == [differs] * 2
    for said in two.run(training_runs.refused_ties, plan, "shape"):
        assert said.startswith(
            "CheckFailed: the weight 'bias' differs between ranks 0 and 1: torch.float64 [6] requires_grad=True and"
        )
    for said in two.run(training_runs.refused_ties, few_plan("bidirectional"), "same"):
        assert said.startswith("Unsupported: plan 'test' has stages that are replicas of each other; share the weight on each rank")
    for said in four.run(training_runs.refused_ties, few_plan("1f1b", 1), "same"):
        assert said.startswith(
            "Unsupported: weights that are sharded over replicas (ZeRO 1) cannot be tied; compile with zero_stage = 0"
        )
    for way in ("same", "one rank"):
        assert two.run(training_runs.refused_ties, plan, way) == ["accepted"] * 2


@pytest.mark.parametrize(
    ("name", "counts"), [("1f1b", [2, 4]), ("interleaved", [1, 1, 2, 2]), ("zb-v", [1, 2, 2, 1]), ("bidirectional", [3, 3])]
)
def test_stages_as_built_tie_their_weights(two: Ranks, name: str, counts: list[int]) -> None:
    """Of layers on several ranks, by themselves; those on one rank share them. The layers take and give tuples."""
    assert_small(two.run(training_runs.tied_as_built, few_plan(name, counts=counts)))


def test_stages_as_built_tie_weights_with_a_parametrization(two: Ranks) -> None:
    assert_small(two.run(training_runs.tied_as_built, few_plan("1f1b", counts=[2, 4]), "before"))
    said = two.run(training_runs.tied_as_built, few_plan("1f1b", counts=[2, 4]), "after")
    why = "'0.inner.weight', which several ranks have, is no parameter any more; change it before build_stages"
    assert said == [f"InvalidInput: {why}", f"CheckFailed: rank 0 has refused to tie its weights: {why}"]


def test_stages_as_built_tie_their_weights_in_two_pipelines(four: Ranks) -> None:
    assert_small(four.run(training_runs.tied_as_built, few_plan("1f1b", 0, [2, 4])))
    for said in four.run(training_runs.tied_as_built, few_plan("1f1b", 1, [2, 4])):
        assert said.startswith("Unsupported: weights that are sharded over replicas (ZeRO 1) cannot be tied; compile with"), said


def test_a_loss_without_a_graph_is_refused(two: Ranks) -> None:
    first, last = two.run(training_runs.loss_without_a_graph, few_plan("1f1b"))
    assert last.startswith("InvalidInput: stage 1: found a loss without a graph, from which no weight gets a gradient; expected")
    assert first == f"InvalidInput: rank 1: {last.partition(': ')[2]}"
