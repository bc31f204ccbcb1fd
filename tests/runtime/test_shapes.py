"""Shapes that change from step to step and between microbatches, last batches that are smaller, and mistakes that run nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.few_plans import PLANS, few_plan
from inputs.problems import make_problem
from runs import shape_runs
from torch import nn

from schedc.errors import InvalidInput
from schedc.runtime.session.layers import Layers
from schedc.runtime.stage.batches import Microbatches, cut, merged, samples_of
from schedc.runtime.stage.graph import StageCall
from schedc.runtime.stage.named import check_loss_kwargs, takes
from schedc.runtime.stage.slices import in_slices

if TYPE_CHECKING:
    from runs.processes import Ranks

LENGTHS: list[Any] = [(8, 3), (8, 5), (8, 3), (16, 3), [(2, 3), (2, 5), (1, 3), (2, 4)], (8, 5)]
"""Of batches, of which the last knows what is exchanged, as does the third."""
PARTIAL: list[Any] = [(8, 3), (7, 3), (3, 3), (1, 2), (8, 3)]


@pytest.mark.parametrize("name", PLANS)
def test_lengths_and_sizes(two: Ranks, name: str) -> None:
    """Of steps and of microbatches: losses and gradients are those of one process, and what is known is not said again."""
    for found in two.run(shape_runs.train, few_plan(name), [*LENGTHS, *PARTIAL]):
        errors, learnt = found
        assert max(errors) < 1e-12, found
        assert all(learnt[:2]) and not learnt[2] and all(learnt[3:5]) and not learnt[5], learnt
        assert learnt[9] and not learnt[6] and not learnt[10], learnt
        if name != "bidirectional":  # of microbatches of one and two samples it is known, on the way that they took
            assert not any(learnt[7:9]), learnt


@pytest.mark.parametrize("name", ["zb-v", "bidirectional"])
def test_receives_that_were_posted_for_other_shapes(two: Ranks, name: str) -> None:
    batches = [(8, 3), (8, 3), (8, 4), (8, 4), (8, 4), (8, 3), (7, 3), (8, 3)]
    for found in two.run(shape_runs.train, few_plan(name), batches, 1):
        assert max(found[0]) < 1e-12, found


def test_other_channels(two: Ranks) -> None:
    for found in two.run(shape_runs.train, few_plan("1f1b"), LENGTHS, 1, channels="delegate"):
        assert max(found[0]) < 1e-12, found


def test_a_smaller_last_batch_of_two_pipelines(four: Ranks) -> None:
    for found in four.run(shape_runs.train, few_plan("zb-v", 1), [(16, 3), (14, 3), (2, 3), (16, 5)]):
        assert max(found[0]) < 1e-12, found


def test_outputs_whose_shapes_do_not_follow_from_the_inputs(two: Ranks) -> None:
    for lines in two.run(shape_runs.vary, few_plan("1f1b"), True):
        assert max(lines) < 1e-12, lines
    first, second = two.run(shape_runs.vary, few_plan("1f1b"), False)
    assert first == [
        "InvalidInput: microbatch 1: stage 0's output is float64[2, 5, 6], expected float64[2, 4, 6] as before;"
        " give microbatches whose inputs are alike the same shape, or give load varying=True"
    ]
    assert second == [f"InvalidInput: rank 0: {first[0].partition(': ')[2]}"]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"inputs": 5}, "rank 0: the inputs are of type int, expected a tensor or a list of 4"),
        ({"targets": torch.zeros(6, 3).long()}, "rank 0: the targets have the shape [6, 3], and the inputs 8 samples; expected as"),
        ({"targets": {0: torch.zeros(8)}}, "rank 0: the targets are a dict, which is for stages that are a graph"),
        ({"weights": [1, 2, 3]}, "rank 0: 3 weights were given, the plan has 4 microbatches"),
        ({"weights": ["one"] * 4}, "rank 0: weights, divide_by or scale: could not convert string to float: 'one'; expected"),
        ({"outputs": []}, "rank 0: outputs is of type list, expected a dict, to get them by microbatch"),
        ({"kwargs": {9: {"a": 1}}}, "rank 0: kwargs: found stage 9, expected stages 0 to 1, or names"),
        (
            {"kwargs": {"x": 1}},
            "rank 0: kwargs: no stage of [0] takes 'x'; expected a name that its forward has and no input fills",
        ),
        ({"kwargs": {0: 5}}, "rank 0: kwargs of stage 0 are of type int, expected a dict by name"),
        ({"loss_kwargs": 5}, "rank 0: loss_kwargs are of type int, expected a dict by name"),
        ({"loss_kwargs": {"a": 1}}, "rank 0: loss_kwargs: loss_fn: got an unexpected keyword argument 'a'; expected what it takes"),
        ({"scale": 0}, "rank 0: scale is 0; expected a finite number above 0"),
    ],
)
def test_a_mistake_that_all_ranks_make(two: Ranks, given: dict[str, Any], line: str) -> None:
    """In a step after the first: nothing has run, and the pipe goes on."""
    for lines, same in two.run(shape_runs.mistake, few_plan("1f1b"), given):
        assert len(lines) == 1 and lines[0].startswith(f"BatchRefused: {line}"), lines
        assert same


@pytest.mark.parametrize("name", ["1f1b", "parts"])
def test_a_mistake_by_name_of_one_rank_without_inputs(two: Ranks, name: str) -> None:
    """In steps after the first: rank 0 does not begin before it has asked."""
    mistakes: list[dict[str, Any]] = [{"kwargs": {"fator": 2}}, {"kwargs": {"factor": [1.0] * 3}}, {"loss_kwargs": {"a": 1}}]
    for found in two.run(shape_runs.mistake_alone, few_plan(name), mistakes):
        first, unknown, short, loss, again, last = found
        assert max(first, again, last) < 1e-12, found
        assert unknown.startswith("BatchRefused: rank 1: kwargs: no stage of [1] takes 'fator'")
        assert short == "BatchRefused: rank 1: 3 microbatches of kwargs of stage 1, 'factor' were given, the plan has 4"
        assert loss.startswith("BatchRefused: rank 1: loss_kwargs: smoothed: got an unexpected keyword argument 'a'")


def test_batches_are_divided_as_evenly_as_possible() -> None:
    assert samples_of(torch.zeros(7, 2), 4) == [2, 2, 2, 1]
    assert samples_of([torch.zeros(2)] * 3, 3) == [-1] * 3
    few = torch.arange(2)
    assert samples_of(few, 4) == [1, 1, 0, 0]
    expected = [[0], [1], [1], [1]]
    for part, values in zip(cut(few, 4, "inputs", 0, even=False), expected, strict=True):
        assert isinstance(part, torch.Tensor) and part.tolist() == values
    expected = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13]]
    for part, values in zip(cut(torch.arange(14), 4, "targets", 0, [2, 2, 2, 1], even=False), expected, strict=True):
        assert isinstance(part, torch.Tensor) and part.tolist() == values


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_keyword_arguments_and_outputs(two: Ranks, name: str, recompute: bool) -> None:
    """By microbatch, for stages and the loss; outputs of steps and evaluations are those of one process."""
    for found in two.run(shape_runs.named, few_plan(name), [8, 8, 7, 2], recompute=recompute):
        *errors, unknown, short = found
        assert max(errors) < 1e-12, found
        assert unknown.startswith("BatchRefused: rank 0: kwargs: no stage of ") and "takes 'fator'; expected a name" in unknown
        assert short == "BatchRefused: rank 0: 3 microbatches of kwargs of stage 0, 'shift' were given, the plan has 4"


def test_which_arguments_losses_take() -> None:
    """A name of what is given by position, one that is unknown, one that is missing; of what has no signature nothing is known."""

    def masked(output: object, targets: object, *, mask: object) -> None:
        """A loss."""

    check_loss_kwargs({"mask": 1}, [masked], 1)
    check_loss_kwargs({"weight": 1}, [nn.functional.cross_entropy, torch.dist], 1)
    for loss_fn, named, line in (
        (nn.functional.cross_entropy, {"input": 1}, "cross_entropy: multiple values for argument 'input'"),
        (nn.CrossEntropyLoss(), {"weight": 1}, r"CrossEntropyLoss\.forward: got an unexpected keyword argument 'weight'"),
        (masked, {"smoothing": 1}, "masked: missing a required"),
    ):
        with pytest.raises(InvalidInput, match=f"rank 1: loss_kwargs: .*{line}.*; expected what it takes besides output and"):
            check_loss_kwargs(named, [loss_fn], 1)


def test_which_arguments_layers_take() -> None:
    """Those of `build_stages` get what their forwards name."""

    class Biased(nn.Linear):
        def forward(self, x: torch.Tensor, bias: float = 0.0) -> torch.Tensor:
            return super().forward(x) + bias

    torch.manual_seed(0)
    layers = Layers(Biased(2, 2), nn.Linear(2, 2), Biased(2, 2))
    x = torch.ones(1, 2)

    class All(Biased):
        def forward(self, *bias: Any, **_: Any) -> torch.Tensor:
            return super().forward(*bias)

    assert takes(All(2, 2), "scale") and not takes(Biased(2, 2), "scale")  # of methods of one class each has its own
    assert not takes(Biased(2, 2), "x") and not takes(Biased(2, 2), "bias", 2)  # an input has them
    assert takes(layers, "bias") and not takes(layers, "scale") and not takes(nn.Sequential(*layers), "bias")
    first, middle, last = layers
    assert torch.equal(layers(x, bias=2.0), last(middle(first(x, 2.0)), 2.0))


def test_outputs_are_merged() -> None:
    given = {at: {"y": torch.full((2, 3), float(at)), "loss": torch.tensor(float(at))} for at in (1, 0)}
    whole = merged(given)
    assert (whole["y"][:, 0].tolist(), whole["loss"].tolist()) == ([0.0, 0.0, 1.0, 1.0], [0.0, 1.0])
    slices = merged({at: torch.full((2, 3), float(at)) for at in range(4)}, slices=2)
    assert slices.tolist() == [[0.0] * 3 + [1.0] * 3] * 2 + [[2.0] * 3 + [3.0] * 3] * 2
    assert merged({}) is None


def test_keyword_arguments_in_slices() -> None:
    """What has a sequence is cut along it, and the rest is for all slices."""
    named = {"mask": torch.arange(8).reshape(1, 8), "shift": torch.ones(1), "scale": 2.0}
    found = in_slices(Microbatches([torch.zeros(1, 8)], (), {}, {}, {0: [named]}, [named]), (5, 3), 1, 0)
    for given in (found.kwargs[0], found.loss_kwargs):
        assert [one["mask"].tolist() for one in given] == [[[0, 1, 2, 3, 4]], [[5, 6, 7]]]
        assert all(one["shift"].tolist() == [1.0] and one["scale"] == 2.0 for one in given)


def test_keyword_arguments_of_a_graph() -> None:
    problem = make_problem(1, 1, placement=[0, 0])
    call = StageCall(problem, 1, lambda x, *, scale=1.0: x * scale, [1])
    ends, _ = call([[torch.ones(2)]], {}, {}, {"scale": 3.0})
    assert ends[1].tolist() == [3.0, 3.0]
