"""Shapes that change from step to step and between microbatches, last batches that are smaller, and mistakes that run nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.few_plans import PLANS, few_plan
from runs import shape_runs

from schedc.runtime.stage.batches import cut, samples_of

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


@pytest.mark.parametrize("channels", ["delegate"])
def test_other_channels(two: Ranks, channels: Any) -> None:
    for found in two.run(shape_runs.train, few_plan("1f1b"), LENGTHS, 1, channels=channels):
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
        ({"scale": 0}, "rank 0: scale is 0; expected a finite number above 0"),
    ],
)
def test_a_mistake_that_all_ranks_make(two: Ranks, given: dict[str, Any], line: str) -> None:
    """In a step after the first: nothing has run, and the pipe goes on."""
    for lines, same in two.run(shape_runs.mistake, few_plan("1f1b"), given):
        assert len(lines) == 1 and lines[0].startswith(f"BatchRefused: {line}"), lines
        assert same


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
