"""Runs of steps that overlap have the weights of one process that applies the same delays; they drain, resume and refuse."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.asynchronous_plans import one_by_one, period_plan, random_plan, synchronous_plan
from inputs.plans import plan_of
from runs import asynchronous_change_runs, asynchronous_memory_runs, asynchronous_runs
from runs.asynchronous_runs import OPTIMIZERS, Way

from schedc.errors import Unsupported
from schedc.formats.trace_file import read_trace
from schedc.ir import Schedule, Updates, Versions, token
from schedc.ir.ops import parse_op
from schedc.lower.run import run_of
from schedc.runtime.asynchronous.norms import check_slack, square_of
from schedc.runtime.emulation.emulate import emulate, emulate_adapting
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Each plan with each optimizer, and the four plans of a size and mode with all ways of each."""
    ranks, plan = (two if size == 2 else four), period_plan(size, count, mode, split=split)
    for number, optimizer in enumerate(OPTIMIZERS):
        recompute, clips = divmod((number + 2 * split + (count == 3)) % 4, 2)
        max_norm = 0.03 if clips else float("inf")
        check(ranks, plan, Way(optimizer, max_norm, per_stage=mode is not TWO_BUFFERED, recompute=bool(recompute)), 4)
    check(ranks, period_plan(size, count, mode, split=split, recompute=True), Way(predicts=True, slow=3), 5)


@BY_MODE
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_random_orders(two: Ranks, mode: Versions, seed: int) -> None:
    way = Way("adamw", 0.03, per_stage=mode is not TWO_BUFFERED) if seed % 2 else Way("momentum", recompute=seed % 4 == 2)
    check(two, random_plan(seed, 2, mode), way, 5)


@BY_MODE
def test_versions_are_freed(four: Ranks, mode: Versions) -> None:
    plan = period_plan(4, 3, mode) if mode is TWO_BUFFERED else period_plan(4, 1, mode)
    found = four.run(asynchronous_memory_runs.versions_held, plan, 12)
    assert [one[rank] for rank, one in enumerate(found)] == list(plan.certificate.versions)


def check_cached(ranks: Ranks, plan: Plan, way: Way, versions: int, most: int) -> list[tuple[int, int, int]]:
    """With room for `versions`, there are `most` at a time: per rank as `cached`, but the errors and the peak."""
    given = []
    for found in ranks.run(asynchronous_memory_runs.cached, plan, way, 9, versions):
        assert isinstance(found, tuple), (found, way)
        errors, (free, peak, evicted, waited_for) = found
        assert max(errors) < EXACT, way
        assert peak == min(free, most)
        assert (evicted > 0) == (free > max(versions, 1))
        given.append((free, evicted, waited_for))
    return given


def test_versions_in_the_memory_of_the_host(four: Ranks) -> None:
    """Their storages are empty meanwhile: weights are those of a run that has all of them on the device, whatever the order."""
    found = check_cached(four, period_plan(4, 1, STASH), Way("adamw"), 3, 3)
    assert [free for free, *_ in found] == [4, 3, 2, 1]
    assert not any(waited_for for *_, waited_for in found), "each has come back while the op before its reader ran"
    assert any(waited_for for *_, waited_for in check_cached(four, period_plan(4, 1, STASH), Way("adamw"), 2, 2))


@pytest.mark.parametrize(
    ("mode", "way", "most"),
    [
        (STASH, Way("momentum", recompute=True), 2),
        (STASH, Way("nadam", max_norm=0.05, per_stage=True), 2),
        (STASH, Way("momentum", predicts=True), 3),
        (TWO_BUFFERED, Way("adamw", max_norm=0.02), 2),
        (BOUNDED, Way("momentum"), 1),
    ],
)
def test_the_host_keeps_what_no_op_reads(two: Ranks, mode: Versions, way: Way, most: int) -> None:
    for split in (False, True):
        check_cached(two, period_plan(2, 2, mode, split=split), way, 0, most)


def test_memory_that_is_taken_away(four: Ranks) -> None:
    """The rank that warns sends versions to the host at its next op; all ranks go on with the plan made before."""
    plan = period_plan(4, 1, STASH)
    given = four.run(asynchronous_memory_runs.pressed, plan, synchronous_plan(plan))
    check_pressed(given)
    (event,) = given[0][1]
    assert event.plan == synchronous_plan(plan).name
    assert event.lacking_bytes == -event.free_bytes > 0
    assert str(event).startswith("rank 0 has -")


@pytest.mark.parametrize("tight", [synchronous_plan, one_by_one])
def test_a_watch_in_its_thread(four: Ranks, tight: Callable[[Plan], Plan]) -> None:
    """The move is offered in the middle of a run, while the optimizers have its own parameters."""
    plan = period_plan(4, 1, STASH)
    given = four.run(asynchronous_memory_runs.pressed, plan, tight(plan), threaded=True)
    for rank, found in enumerate(given):
        assert isinstance(found, tuple), found
        errors, events, above, _ = found
        assert max(errors) < EXACT
        assert above <= 0
        assert (rank == 0) == bool(events)


@pytest.mark.parametrize("left", [2, 3])
def test_a_limit_stays_between_runs(four: Ranks, left: int) -> None:
    """Nothing is counted there, and little at the beginning of the next, so that there seems to be room."""
    check_pressed(four.run(asynchronous_memory_runs.pressed, period_plan(4, 1, STASH), None, left=left))


def check_pressed(given: list[Any]) -> None:
    for rank, found in enumerate(given):
        assert isinstance(found, tuple), found
        errors, events, above, evicted = found
        assert max(errors) < EXACT
        assert [event.rank for event in events] == [0] * (rank == 0)
        assert (evicted > 0) == (rank == 0)
        assert above <= 0


@pytest.mark.parametrize(("mode", "per_stage"), [(TWO_BUFFERED, False), (STASH, True)])
def test_a_step_of_infinite_gradients_makes_no_update(two: Ranks, mode: Versions, *, per_stage: bool) -> None:
    for found in two.run(asynchronous_change_runs.skipping, period_plan(2, 3, mode), per_stage=per_stage):
        assert isinstance(found, list), found
        assert max(found) < EXACT
    for said in two.run(asynchronous_change_runs.skipping, period_plan(2, 3, mode), per_stage=per_stage, skips=False):
        assert said.startswith("NonFiniteLoss: run 0: the loss of microbatch 6"), said
        assert said.endswith("load the last checkpoint, or give StageOptimizers skip_nonfinite=True")


@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_update_that_is_not_made_shares_its_version(four: Ranks, step: int) -> None:
    """The version before is read until the end of the drain, where updates follow each other without an F between them."""
    for found in four.run(asynchronous_change_runs.skipping, period_plan(4, 1, STASH), per_stage=True, step=step):
        assert isinstance(found, list), found
        assert max(found) < EXACT


def test_a_schedule_of_learning_rates(two: Ranks) -> None:
    for found in two.run(asynchronous_change_runs.scheduled, period_plan(2, 1, STASH)):
        assert isinstance(found, list), found
        assert max(found) < EXACT


@BY_MODE
def test_a_stage_without_anything_to_train(two: Ranks, tmp_path: Path, mode: Versions) -> None:
    for found in two.run(asynchronous_change_runs.partly_frozen, period_plan(2, 3, mode), str(tmp_path / "saved")):
        assert isinstance(found, list), found
        assert max(found) < EXACT


@pytest.mark.parametrize("change", ["frozen", "unfrozen"])
def test_frozen_weights_of_an_optimizer(two: Ranks, change: str) -> None:
    """They stay as they are, as torch's optimizers leave them; a stage may be frozen or unfrozen between two runs."""
    for found in two.run(asynchronous_change_runs.changing, period_plan(2, 3, TWO_BUFFERED), change):
        assert isinstance(found, list), found
        assert max(found) < EXACT


def test_a_weight_that_is_replaced_between_two_runs(two: Ranks) -> None:
    first, second = two.run(asynchronous_change_runs.changing, period_plan(2, 3, STASH), "replaced")
    expected = "the optimizer of stage 1 lacks its weight '0.norm.bias'; give it all weights of the stage that require grad"
    assert second == f"InvalidInput: {expected}"
    assert first == f"InvalidInput: rank 1: {expected}"


def test_several_optimizers_of_a_stage(two: Ranks, tmp_path: Path) -> None:
    """Muon for matrices beside AdamW: schedules of both, clipping, corrections; a checkpoint of both."""
    way = Way("muon and adamw", max_norm=0.02, slow=3, predicts=True)
    check(two, period_plan(2, 3, TWO_BUFFERED), way, 4)
    for found in two.run(asynchronous_change_runs.resumed, period_plan(2, 3, STASH), str(tmp_path / "saved"), way.optimizer):
        assert isinstance(found, list), found
        assert max(found) < EXACT


@pytest.mark.parametrize("mode", [STASH, pytest.param(TWO_BUFFERED, marks=pytest.mark.slow)])
def test_a_run_is_evaluated_saved_and_resumed(two: Ranks, tmp_path: Path, mode: Versions) -> None:
    for found in two.run(asynchronous_change_runs.resumed, period_plan(2, 3, mode, wave=mode is STASH), str(tmp_path / "saved")):
        assert isinstance(found, list), found
        assert max(found) < EXACT


def test_a_job_goes_to_a_synchronous_plan_and_back(two: Ranks) -> None:
    plan = period_plan(2, 1, STASH)
    for found in two.run(asynchronous_change_runs.switching, plan, synchronous_plan(plan)):
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


def test_bounded_versions_refuse_what_is_made_of_weights(two: Ranks) -> None:
    """An operator that saves something made of a weight would read it as F has; one that runs again reads the newest."""
    plan = period_plan(2, 1, BOUNDED)
    own, other = two.run(asynchronous_runs.with_copies, plan, recompute=False)[::-1]
    expected = "stage 1 keeps for its backward what add has made of its weights"
    assert own.startswith(f"Unsupported: {expected}")
    assert other.startswith(f"Unsupported: rank 1: {expected}")
    assert two.run(asynchronous_runs.with_copies, plan, recompute=False, first=1)[1] == own
    for kind, again in ((BOUNDED, True), (STASH, False)):
        for losses in two.run(asynchronous_runs.with_copies, period_plan(2, 1, kind), recompute=again):
            assert isinstance(losses, list), losses


@pytest.mark.slow
@BY_MODE
def test_compiled_stages(two: Ranks, mode: Versions) -> None:
    for found in two.run(asynchronous_runs.compiled, period_plan(2, 1, mode), Way("adamw")):
        assert isinstance(found, list), found
        assert max(found) < EXACT


@pytest.mark.parametrize("mode", [STASH, TWO_BUFFERED])
def test_autocast(two: Ranks, mode: Versions) -> None:
    for found in two.run(asynchronous_runs.cast, period_plan(2, 3, mode)):
        assert isinstance(found, list), found
        assert max(found) < 1e-5


def test_updates_are_observed(two: Ranks, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    first, second = two.run(asynchronous_runs.recorded, period_plan(2, 1, STASH), str(path))
    assert (first[-1], second[-1]) == ("U0.3", "U1.3"), first
    trace = read_trace(path)
    assert [[token(op) for op in rank.compute] for rank in trace.ranks] == [first, second]
    assert all(len(rank.steps) == 2 for rank in trace.ranks)


def test_a_stage_fails_in_a_run(two: Ranks) -> None:
    first, second = two.run(asynchronous_runs.failing, period_plan(2, 1, STASH))
    assert second == "ValueError: this stage cannot go on"
    assert "the connection is lost; rank 1 has ended or failed" in first


def test_a_norm_of_all_stages_that_would_wait_for_itself() -> None:
    """Two stages of one rank: F0.2 reads the update of step 0, whose norm needs W1.0, which comes later."""
    problem = replace(
        period_plan(1, 1, TWO_BUFFERED, wave=True).problem,
        microbatches=3,
        path_of=(0,) * 3,
        updates=Updates(versions=TWO_BUFFERED, microbatches=1, is_period=False),
    )
    late = "F0.0 F1.0 B1.0 B0.0 W0.0 U0.0 F0.1 F1.1 B1.1 B0.1 W0.1 U0.1 F0.2 W1.0 U1.0 F1.2 W1.1 U1.1 B1.2 B0.2 W0.2 U0.2 W1.2 U1.2"
    early = late.replace("F0.2 W1.0 U1.0", "W1.0 U1.0 F0.2")
    for order, waits in ((late, True), (early, False)):
        schedule = Schedule(orders=(tuple(map(parse_op, order.split())),))
        plan = plan_of(problem, schedule)
        assert verify_schedule(problem, schedule) == ()
        with pytest.raises(Unsupported, match=r"F0\.2 on rank 0 would wait for a norm") if waits else nullcontext():
            check_slack(plan)


def test_the_norm_of_sparse_gradients() -> None:
    """As embeddings with sparse=True have them: two entries for one row."""
    rows, values = torch.tensor([[1, 1, 3]]), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    sparse = torch.sparse_coo_tensor(rows, values, (4, 2), check_invariants=True)
    assert square_of([sparse, None]).item() == pytest.approx(16 + 36 + 25 + 36)


def test_refusals(two: Ranks) -> None:
    plan = period_plan(2, 1, STASH)
    for lines in two.run(asynchronous_runs.refused, plan, synchronous_plan(plan)):
        assert isinstance(lines, list), lines
        for line, expected in zip(lines, EXPECTED, strict=True):
            assert expected in line
            assert "\n" not in line


def test_ranks_that_choose_or_adapt_are_not_emulated() -> None:
    run = run_of(period_plan(2, 1, STASH), 3)
    for emulation in (partial(emulate, choose=True), emulate_adapting):
        with pytest.raises(Unsupported, match="what ops read follows from their order"):
            emulation(run, scale=1e6)


EXPECTED = (
    "no optimizers were given; give load optimizers=, by stage",
    "has no updates, as its steps do not overlap; give load no optimizers",
    "is one period of steps that overlap; give load steps=, how many a run has",
    "found 2.5 steps, expected 1 to",
    "the plan's steps do not overlap",
    "no optimizers were given",
    "lacks its weight '0.",
    "optimizers were given for stages []",
    "LBFGS, whose step runs the model again (closure)",
    "found a LBFGS for the optimizers, expected one for each stage",
    "have the same weight; give each weight to one of them",
    "found a Parameter for an optimizer",
    "a norm of all stages would stall them",
    "kind=ChoosingPipe",
    "which know no steps that overlap; give data_parallel_group=",
    "load with optimizers=",
    "ranks do not adapt where steps overlap",
    "in one memory, which versions would take apart",
    "found ReducedRate(0), expected a number of updates",
    "takes no weights, divide_by or scale",
    "no optimizers were given",
)
