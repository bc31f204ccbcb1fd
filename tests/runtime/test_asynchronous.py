"""Runs of steps that overlap have the weights of one process that applies the same delays; they drain, resume and refuse."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from inputs.asynchronous_plans import period_plan, synchronous_plan
from runs import asynchronous_runs
from runs.asynchronous_runs import OPTIMIZERS, Way

from schedc.ir import Versions

if TYPE_CHECKING:
    from runs.processes import Ranks

    from schedc.ir import Plan

EXACT = 1e-12
STASH, TWO_BUFFERED, BOUNDED = Versions
BY_MODE = pytest.mark.parametrize("mode", Versions)


def check(ranks: Ranks, plan: Plan, way: Way, *steps: int) -> None:
    for found in ranks.run(asynchronous_runs.errors, plan, way, steps):
        assert isinstance(found, list), (found, way)
        assert max(found) < EXACT, way


@BY_MODE
def test_four_ranks(four: Ranks, mode: Versions) -> None:
    assert period_plan(4, 1, STASH).certificate.delays == (3, 2, 1, 0)
    plan = period_plan(4, 1, mode) if mode is not TWO_BUFFERED else period_plan(4, 3, mode)
    check(four, plan, Way("momentum", predicts=True), 6)


@BY_MODE
def test_updates_that_come_late(two: Ranks, mode: Versions) -> None:
    """Gradients of two steps add up at a time; the norm of all stages comes while the next step runs."""
    way = Way("adamw", max_norm=0.02, per_stage=mode is not TWO_BUFFERED, recompute=True)
    check(two, period_plan(2, 3, mode, split=True), way, 4, 3)


@BY_MODE
def test_two_stages_on_each_rank(two: Ranks, mode: Versions) -> None:
    way = Way("nadam", max_norm=0.05, per_stage=mode is not TWO_BUFFERED, slow=3)
    check(two, period_plan(2, 3, mode, wave=True, late=mode is BOUNDED), way, 5)


@pytest.mark.slow
@BY_MODE
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_all_ways(two: Ranks, four: Ranks, mode: Versions, count: int, size: int, *, split: bool) -> None:
    ranks, plan = (two if size == 2 else four), period_plan(size, count, mode, split=split)
    for optimizer, recompute, max_norm in product(OPTIMIZERS, (False, True), (float("inf"), 0.03)):
        check(ranks, plan, Way(optimizer, max_norm, per_stage=mode is not TWO_BUFFERED, recompute=recompute), 4, 2)
    check(ranks, period_plan(size, count, mode, split=split, recompute=True), Way(predicts=True, slow=3), 5)


@BY_MODE
def test_versions_are_freed(four: Ranks, mode: Versions) -> None:
    plan = period_plan(4, 3, mode) if mode is TWO_BUFFERED else period_plan(4, 1, mode)
    found = four.run(asynchronous_runs.versions_held, plan, 12)
    assert [one[rank] for rank, one in enumerate(found)] == list(plan.certificate.versions)


@pytest.mark.parametrize(("mode", "per_stage"), [(TWO_BUFFERED, False), (STASH, True)])
def test_a_step_of_infinite_gradients_makes_no_update(two: Ranks, mode: Versions, *, per_stage: bool) -> None:
    for found in two.run(asynchronous_runs.skipping, period_plan(2, 3, mode), per_stage=per_stage):
        assert isinstance(found, list), found
        assert max(found) < EXACT


@pytest.mark.parametrize("mode", [STASH, pytest.param(TWO_BUFFERED, marks=pytest.mark.slow)])
def test_a_run_is_evaluated_saved_and_resumed(two: Ranks, tmp_path: Path, mode: Versions) -> None:
    for found in two.run(asynchronous_runs.resumed, period_plan(2, 3, mode), str(tmp_path / "saved")):
        assert isinstance(found, list), found
        assert max(found) < EXACT


def test_a_job_goes_to_a_synchronous_plan_and_back(two: Ranks) -> None:
    plan = period_plan(2, 1, STASH)
    for found in two.run(asynchronous_runs.switching, plan, synchronous_plan(plan)):
        assert isinstance(found, list), found
        assert max(found) < EXACT


def test_the_example_of_the_docs(two: Ranks) -> None:
    text = (Path(__file__).parents[2] / "docs" / "asynchronous.md").read_text(encoding="utf-8")
    example = text.partition("<!-- runs in tests/runtime/test_asynchronous.py -->\n```python\n")[2].partition("```")[0]
    first, second = two.run(asynchronous_runs.example, period_plan(2, 1, STASH), example)
    assert isinstance(first, list), first
    assert first == second
    assert len(first) == 101
    assert first[-1] < first[0]


def test_refusals(two: Ranks) -> None:
    plan = period_plan(2, 1, STASH)
    for lines in two.run(asynchronous_runs.refused, plan, synchronous_plan(plan)):
        assert isinstance(lines, list), lines
        for line, expected in zip(lines, EXPECTED, strict=True):
            assert expected in line
            assert "\n" not in line


EXPECTED = (
    "no optimizers were given; give load optimizers=, by stage",
    "has no updates, as its steps do not overlap; give load no optimizers",
    "is one period of steps that overlap; give load steps=, how many a run has",
    "the plan's steps do not overlap",
    "no optimizers were given",
    "lacks its weight '0.",
    "optimizers were given for stages []",
    "a norm of all stages would stall them",
    "kind=ChoosingPipe",
    "steps overlap in one pipeline only",
    "load with optimizers=",
    "takes no weights, divide_by or scale",
    "no optimizers were given",
)
