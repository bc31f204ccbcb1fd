"""Pipelines of steps that overlap, side by side, and weights that two ranks have.

The weights are those of one process that applies the same delays, to the batches of all pipelines.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from inputs.asynchronous_plans import period_plan, random_plan, synchronous_plan
from runs import asynchronous_replica_runs
from runs.asynchronous_runs import OPTIMIZERS, Way

from schedc.ir import Versions

if TYPE_CHECKING:
    from runs.processes import Ranks

    from schedc.ir import Plan

EXACT = 1e-12
STASH, TWO_BUFFERED, BOUNDED = Versions
BY_MODE = pytest.mark.parametrize("mode", Versions)


def check(ranks: Ranks, plan: Plan, way: Way, *steps: int, size: int = 2, slow_s: float = 0, infinite: int | None = None) -> None:
    for found in ranks.run(asynchronous_replica_runs.replicated, plan, way, steps, size, slow_s, infinite):
        assert isinstance(found, list), (found, way)
        assert max(found) < EXACT, way


@BY_MODE
def test_two_pipelines_of_two_ranks(four: Ranks, mode: Versions) -> None:
    """Each clips to the norm of what both have."""
    way = Way("adamw", max_norm=0.02, per_stage=mode is not TWO_BUFFERED, recompute=mode is BOUNDED)
    check(four, period_plan(2, 3, mode, split=True), way, 4, 3)


@BY_MODE
@pytest.mark.parametrize("optimizer", ["momentum", "muon and adamw"])
def test_a_replica_that_is_slow(four: Ranks, mode: Versions, optimizer: str) -> None:
    """Under 2bw the others are a step ahead of it, and then wait; with a norm of all ranks, its thread does."""
    max_norm = 0.02 if optimizer != "momentum" and mode is TWO_BUFFERED else float("inf")
    check(four, period_plan(2, 1, mode), Way(optimizer, max_norm, predicts=True), 6, slow_s=0.01)


@BY_MODE
def test_four_replicas_of_one_rank(four: Ranks, mode: Versions) -> None:
    check(four, period_plan(1, 2, mode, wave=True, late=True), Way("nadam", slow=3), 3, size=1)


@BY_MODE
def test_an_infinite_loss_of_one_pipeline_is_skipped_by_all(four: Ranks, mode: Versions) -> None:
    check(four, period_plan(2, 3, mode), Way(per_stage=mode is not TWO_BUFFERED), 4, infinite=2)


@pytest.mark.slow
@BY_MODE
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("size", [1, 2])
def test_all_ways(four: Ranks, mode: Versions, count: int, size: int) -> None:
    """The two plans of a size and mode together with all ways of each optimizer."""
    plan = period_plan(size, count, mode, split=count == 3, wave=size == 1)
    for number, (optimizer, recompute) in enumerate(product(OPTIMIZERS, (False, True))):
        max_norm = 0.03 if (number + number // 2 + (count == 3)) % 2 else float("inf")
        check(four, plan, Way(optimizer, max_norm, per_stage=mode is not TWO_BUFFERED, recompute=recompute), 4, size=size)


@pytest.mark.slow
@BY_MODE
@pytest.mark.parametrize("seed", range(4))
def test_random_orders(four: Ranks, mode: Versions, seed: int) -> None:
    way = Way("adamw", 0.03, per_stage=mode is not TWO_BUFFERED) if seed % 2 else Way(recompute=seed % 4 == 2)
    check(four, random_plan(seed, 2, mode), way, 5, slow_s=0.003)


@pytest.mark.parametrize("size", [2, 4])
def test_an_embedding_that_is_the_head_as_well(four: Ranks, size: int) -> None:
    """Its gradients are summed over the first rank and the last, after the replicas' sums, and count once in the norm."""
    for way in (Way("adamw", max_norm=0.02, predicts=True), Way("momentum")):
        for found in four.run(asynchronous_replica_runs.tied, period_plan(size, 3, TWO_BUFFERED, split=True), way, size):
            assert isinstance(found, list), found
            assert max(found) < EXACT, way


def test_tied_weights_that_would_differ(two: Ranks, four: Ranks) -> None:
    said = four.run(asynchronous_replica_runs.tied, period_plan(4, 1, STASH), Way(), 4)
    assert said[0].startswith("Unsupported: stage 0 shares the weight ") and "under stash ranks have different versions" in said[0]
    for plan, per_stage, expected in (
        (period_plan(2, 1, BOUNDED), False, "ranks share a tied weight; under bounded ranks have different versions of it"),
        (period_plan(2, 3, TWO_BUFFERED), True, "ranks share a tied weight; clipped by the norm of each stage"),
    ):
        for line in two.run(asynchronous_replica_runs.tied_later, plan, per_stage):
            assert expected in line


def test_pipelines_that_do_not_fit(four: Ranks) -> None:
    plan = period_plan(2, 1, STASH)
    other = period_plan(2, 1, TWO_BUFFERED)
    for lines in four.run(asynchronous_replica_runs.refused_with_replicas, plan, synchronous_plan(plan), other):
        assert isinstance(lines, list), lines
        for line, expected in zip(lines, ("different plans", "load with optimizers=", "load it"), strict=True):
            assert expected in line
            assert "\n" not in line


@BY_MODE
def test_a_replica_fails_in_a_run(four: Ranks, mode: Versions) -> None:
    *others, own = four.run(asynchronous_replica_runs.stopped, period_plan(2, 1, mode))
    assert own == "ValueError: this stage cannot go on"
    assert all(line.startswith("TransferFailed") and "has ended or failed" in line for line in others), others
