"""Averaging by tokens instead of by microbatch: the gradients are those of the model without a pipeline on the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.few_plans import few_plan
from runs import loss_runs
from runs.processes import without_teller

from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.stage.losses import Seeds
from schedc.runtime.stage.weighing import weigh

if TYPE_CHECKING:
    from runs.processes import Ranks

WAYS = ("weights", "sums", "later")


def assert_right(results: list[Any]) -> None:
    for result in results:
        assert isinstance(result, dict), result
        assert max(result.values()) < 1e-9, result


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "bidirectional"])
def test_one_pipeline(two: Ranks, name: str) -> None:
    for way in WAYS:
        assert_right(two.run(loss_runs.averaged, few_plan(name), way, 1024.0))


@pytest.mark.parametrize("zero", [None, 0, 1])
def test_two_pipelines(four: Ranks, zero: int | None) -> None:
    for way in WAYS:
        assert_right(four.run(loss_runs.averaged, few_plan("zb-v", zero), way))


def test_refusals(two: Ranks) -> None:
    said = two.run(loss_runs.call, few_plan("1f1b"), [{"weights": [1.0] * 3}] * 2)
    assert said[1] == "BatchRefused: rank 0: 3 weights were given, the plan has 4 microbatches"
    assert said[0] == said[1]
    said = two.run(loss_runs.call, few_plan("1f1b"), [{"weights": [1.0, -1.0, 1.0, 1.0]}] * 2)
    assert said[1] == "BatchRefused: rank 0: a microbatch has the weight -1; expected a finite number, 0 or more"
    said = two.run(loss_runs.call, few_plan("1f1b"), [{"weights": [0.0] * 4}] * 2)
    assert said[1].startswith("InvalidInput: rank 1: the weights of all microbatches are 0; expected")
    said = two.run(loss_runs.call, few_plan("1f1b"), [{"divide_by": 0.0}] * 2)
    assert said[1].startswith("BatchRefused: rank 0: divide_by is 0; expected")


def test_what_is_not_the_same_in_all_pipelines(four: Ranks) -> None:
    """Each pipeline's own number of tokens, in place of all: refused on all ranks before any of them can step its optimizer."""
    other = "give step the same divide_by and scale in all, and weights in all or in none"
    for given, differ in (
        ([{"divide_by": 30}, {"divide_by": 10}], "divide the loss by 30 and 10"),
        ([{"divide_by": 9}, {}], "divide the loss by 9 and 8"),
        ([{"scale": 2}, {}], "scale the gradients by 2 and 1"),
    ):
        said = four.run(loss_runs.call, few_plan("1f1b", 0), given)
        assert said == [f"InvalidInput: two pipelines {differ}; {other}"] * 4
    said = four.run(loss_runs.call, few_plan("1f1b", 0), [{"divide_by": 30}, {"divide_by": 10}], "evaluate")
    assert all("divide the loss by" in one for one in said), said


def test_pipelines_that_are_called_for_something_else(four: Ranks) -> None:
    """gloo would end the processes where messages of other sizes meet: one line on every rank, at once."""
    for given, calls in (
        ([{}, {"call": "evaluate"}], ("step", "evaluation")),
        ([{"weights": [1.0] * 4}, {}], ("step with weights", "step")),
        ([{"call": "gather"}, {}], ("gather", "step")),
        ([{"call": "clip"}, {}], ("sum", "step")),
    ):
        said = four.run(loss_runs.call, few_plan("1f1b", 0), given)
        refused = f"InvalidInput: pipelines 0 and 1 are called for {' and '.join(calls)}; call all of them for the same"
        assert all(without_teller(one) == refused for one in said), said


def test_what_is_not_the_same_on_both_ends(two: Ranks) -> None:
    """A bidirectional placement computes losses on two ranks."""
    said = two.run(loss_runs.call, few_plan("bidirectional"), [{"divide_by": 30}, {"divide_by": 10}])
    refused = "InvalidInput: two ranks that compute losses divide the loss by 30 and 10;"
    assert all(without_teller(one).startswith(refused) for one in said), said


def test_a_microbatch_without_tokens(two: Ranks) -> None:
    """Its mean loss is 0/0, which all ranks say, whatever its weight is."""
    for raised, losses, sound in two.run(loss_runs.without_tokens, few_plan("zb-v")):
        assert raised.startswith("step 0: the loss of microbatch 1, computed on rank 0, is nan; zero the gradients")
        assert losses == str([False, True, False, False])
        assert sound == str([False] * 4)


def test_shares() -> None:
    hooks = ReplicaHooks()
    shares = weigh([1, 0, 3], None, 8.0, 0, 3, hooks)
    assert shares.losses == (0.25, 0.0, 0.75)
    assert shares.gradients == (2.0, 0.0, 6.0)
    hooks.pipelines = 2  # hooks of a job's own, which cannot sum
    assert weigh(None, 12, 1.0, 0, 3, hooks).losses == (2 / 12,) * 3
    assert weigh(None, None, 1.0, 0, 3, hooks).gradients == (1 / 6,) * 3


@pytest.mark.parametrize("share", [0.0, 1 / 12, 0.7, 3.0, 4096.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_any_share_of_a_loss(share: float, dtype: torch.dtype) -> None:
    """In half precision it is applied to the gradients of the output, each of which is rounded by itself."""
    output = torch.linspace(-1, 1, 5, dtype=dtype, requires_grad=True)
    seeds = Seeds(share, "the share")
    loss, start = seeds.loss(lambda y, _: (y * 3).sum(), output, None)
    torch.autograd.backward(loss, seeds.seed(loss, start))
    assert output.grad is not None
    assert torch.equal(output.grad, torch.full_like(output, 3 * share))
