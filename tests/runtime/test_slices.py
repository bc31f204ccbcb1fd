"""Microbatches in slices: losses and gradients are those of one process on whole sequences, in float64."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.graphs import plan_in_any_order
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import slice_runs
from runs.harness import assert_exact
from torch import nn

from schedc.errors import InvalidInput
from schedc.runtime import HeadPart, build_stages
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from runs.processes import Ranks

    from schedc.ir.problem import Problem

LENGTHS = {"two": (4, 4), "four": (2, 2, 2, 2), "unequal": (5, 1, 3), "of one token": (1, 1)}


def sliced(ranks: int, lengths: tuple[int, ...], microbatches: int = 2, **options: Any) -> Problem:
    """A chain in slices of some lengths."""
    return replace(make_problem(ranks, microbatches * len(lengths), **options), slices=lengths)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_two_ranks(two: Ranks, lengths: tuple[int, ...], split: bool, recompute: bool) -> None:
    """Two stages on each rank; the plan is swapped for another order."""
    problem = sliced(2, lengths, placement="loop", chunks=2, split_backward=split)
    plans = [plan_in_any_order(Random(seed), problem) for seed in (1, 2)]
    assert_exact(two.run(slice_runs.errors_of, plans, recompute=recompute, times=3 if len({*lengths}) == 1 else 1))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_a_smaller_batch(two: Ranks, lengths: tuple[int, ...]) -> None:
    """Each token counts the same."""
    assert_exact(two.run(slice_runs.errors_of, [plan_in_any_order(Random(0), sliced(2, lengths))], left_out=1))


@pytest.mark.parametrize("seed", range(4))
def test_four_ranks(four: Ranks, seed: int) -> None:
    """Any order; W in parts."""
    problem = sliced(4, ((3, 3, 3), (4, 1, 2, 2), (1, 6), (2, 2))[seed], split_backward=seed != 3)
    assert_exact(four.run(slice_runs.errors_of, [plan_in_any_order(Random(seed), problem)], recompute={seed}))


@pytest.mark.parametrize("method", ["greedy", "gpipe", "sequential", "rule-table"])
def test_methods(two: Ranks, method: str) -> None:
    """What the compiler plans."""
    problem = sliced(2, (5, 3), microbatches=3, links={(0, 1): (20, 5), (1, 0): (20, 5)})
    assert_exact(two.run(slice_runs.errors_of, [plan_of(problem, constructive(method)(problem))]))


@pytest.mark.parametrize("lengths", [(4, 4), (5, 3)], ids=str)
def test_two_pipelines(four: Ranks, lengths: tuple[int, ...]) -> None:
    """Replicas sum the gradients of the mean over all of their tokens."""
    assert_exact(four.run(slice_runs.errors_of_pipelines, plan_in_any_order(Random(0), sliced(2, lengths))))


def test_refusals(two: Ranks) -> None:
    """Each in one line, on all ranks."""
    plan = plan_in_any_order(Random(0), sliced(2, (5, 3)))
    for lines in two.run(slice_runs.refusals, plan, plan_in_any_order(Random(0), sliced(2, (4, 4)))):
        assert isinstance(lines, list), lines
        assert len(lines) == len(REFUSALS)
        for line, expected in zip(lines, REFUSALS, strict=True):
            assert expected in line


REFUSALS = (
    "stage 1 is a Sequential, whose forward takes no state, and microbatches are in slices; expected forward(x, state)",
    "load was given sequence_dim=0; expected 1 or more, as dimension 0 has the samples",
    "its microbatches are in slices, which ranks that choose inside a step does not support; expected a chain of whole ones",
    "BatchRefused: rank 0: inputs, microbatch 0: found the shape [2, 7], expected 8 tokens, in slices of [5, 3], along dimension 1",
    "BatchRefused: rank 1: targets, microbatch 0: found the shape [2, 7, 2], expected 8 tokens, in slices of [5, 3], along",
    "BatchRefused: rank 0: the inputs have the shape [0, 8]; dimension 0 must be 1 or more",
    "BatchRefused: rank 0: 2 weights were given, the plan has 4 microbatches",
    "it has the slices [4, 4], expected [5, 3]; a swap leaves every stage where it is",
    "stage 0 gives a Tensor; expected (y, state), as microbatches are in slices: what the next stage gets, and what the next slice",
)


def test_layers_that_cannot_be_in_slices() -> None:
    """`build_stages` says which layer it is."""
    problem = sliced(1, (2, 2))
    stages = tuple(replace(stage, layers=(0, 2)) for stage in problem.stages)
    plan = plan_in_any_order(Random(0), replace(problem, stages=stages))
    part = HeadPart(torch.ones(2, 2), first=0, vocabulary=2)
    with pytest.raises(InvalidInput, match="layer 1 is a ReLU, whose forward takes no state, and microbatches are in slices"):
        build_stages([nn.Linear(2, 2), nn.ReLU()], plan, 0)
    with pytest.raises(InvalidInput, match="layer 1 takes the targets, and layer 0 is before it in its stage; partition before it"):
        build_stages([nn.Linear(2, 2), part], plan, 0)
    (stage,) = build_stages([nn.Linear(2, 2), nn.LayerNorm(2)], plan, 0).values()
    assert stage(torch.ones(1, 2)).shape == (1, 2)  # no layer has a state, so the stage has none
