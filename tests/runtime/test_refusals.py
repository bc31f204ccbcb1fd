"""Plans, stages and batches that do not fit are refused, on every rank and in one line, before anything runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pipeline_runs
import pytest
import torch
from plans import one_f_one_b, plan_of
from problems import make_problem

from schedc.ir.problem import DataParallel
from schedc.solvers.driver.registry import constructive
from schedc.text.plan.plan_to_file import plan_json, write_plan

if TYPE_CHECKING:
    from pathlib import Path

    from rank_processes import Ranks

    from schedc.ir.plan import Plan

STAGES = ([0], [1])


def sound(ranks: int = 2, microbatches: int = 4) -> Plan:
    problem = make_problem(ranks, microbatches, links={(0, 1): (5, 5)})
    return plan_of(problem, one_f_one_b(problem))


def swapped(plan: Plan, rank: int, name: str) -> Plan:
    """The plan with the first two transfers of one end of one channel swapped."""
    own = plan.ranks[rank]
    channels = tuple(
        replace(channel, transfers=(channel.transfers[1], channel.transfers[0], *channel.transfers[2:]))
        if channel.name == name
        else channel
        for channel in own.channels
    )
    ranks = list(plan.ranks)
    ranks[rank] = replace(own, channels=channels)
    return replace(plan, ranks=tuple(ranks))


def test_a_sound_plan_is_accepted(two: Ranks, tmp_path: Path) -> None:
    write_plan(sound(), tmp_path / "plan.json")
    assert two.run(pipeline_runs.refuse, [sound(), tmp_path / "plan.json"], STAGES) == ["accepted"] * 2


@pytest.mark.parametrize(("rank", "name"), [(0, "send_next"), (1, "recv_prev"), (1, "send_prev"), (0, "recv_next")])
def test_swapped_transfers(two: Ranks, tmp_path: Path, rank: int, name: str) -> None:
    """PyTorch's own pipeline trains on wrong data without a word when two receives are swapped."""
    write_plan(swapped(sound(), rank, name), path := tmp_path / "plan.json")
    first, second = two.run(pipeline_runs.refuse, [path, path], STAGES)
    assert first.startswith("CheckFailed: plan 'test' breaks a rule: ranks[")
    assert second == f"CheckFailed: rank 0 has refused the plan: {first.partition(': ')[2]}"
    assert "\n" not in first


def test_swapped_transfers_on_one_rank_alone(two: Ranks) -> None:
    """Rank 0 verifies its own plan alone: that the other's is not the same is why both refuse."""
    for said in two.run(pipeline_runs.refuse, [sound(), swapped(sound(), 1, "recv_prev")], STAGES):
        assert said.startswith("CheckFailed: ranks 0 and 1 have different plans (digests ")


def test_different_plans(two: Ranks) -> None:
    problem = make_problem(2, 4)
    other = plan_of(problem, constructive("gpipe")(problem))
    for said in two.run(pipeline_runs.refuse, [sound(), other], STAGES):
        assert said.startswith("CheckFailed: ranks 0 and 1 have different plans (digests ")


def test_number_of_ranks(two: Ranks) -> None:
    said = two.run(pipeline_runs.refuse, [sound(3)] * 2, STAGES)
    assert said == ["InvalidInput: plan 'test' is for 3 ranks, this job has 2; start as many, or compile for as many"] * 2


def test_stages(two: Ranks) -> None:
    said = two.run(pipeline_runs.refuse, [sound()] * 2, ([0], [0, 1]))
    assert said[1] == "InvalidInput: rank 1 was given stages [0, 1], plan 'test' puts stages [1] there"
    assert said[0] == f"CheckFailed: rank 1 has refused the plan: {said[1].partition(': ')[2]}"


def test_loss_function(two: Ranks) -> None:
    said = two.run(pipeline_runs.refuse_without_loss, [sound()] * 2, STAGES)
    assert said[1] == "InvalidInput: rank 1 has the last stage 1, but was given no loss_fn"


def test_version_and_format(two: Ranks, tmp_path: Path) -> None:
    text = plan_json(sound()).decode()
    for number, (old, new, word) in enumerate(
        [('"version": 1', '"version": 2', "version"), ("schedc.plan", "other.plan", "format")]
    ):
        path = tmp_path / f"{number}.json"
        assert old in text
        path.write_text(text.replace(old, new, 1))
        for said in two.run(pipeline_runs.refuse, [path, path], STAGES):
            assert said.startswith("InvalidInput: ")
            assert word in said
            assert str(path) in said


def test_no_file(two: Ranks, tmp_path: Path) -> None:
    said = two.run(pipeline_runs.refuse, [sound(), tmp_path / "none.json"], STAGES)
    assert said[0].startswith("CheckFailed: rank 1 has refused the plan: ")
    assert said[1].startswith("InvalidInput: ")


def test_data_parallel_collectives(two: Ranks) -> None:
    parallel = DataParallel(size=2, zero_stage=0, reduce_scatter_ns=(1, 1))
    problem = replace(make_problem(2, 4), data_parallel=parallel)
    for said in two.run(pipeline_runs.refuse, [plan_of(problem, one_f_one_b(problem))] * 2, STAGES):
        assert said.startswith(
            "InvalidInput: plan 'test' has the collectives of 2 replicas; give load a data_parallel_group of as many"
        )


def test_replicas_with_other_weights(two: Ranks) -> None:
    problem = make_problem(2, 4, placement="bidirectional")
    plan = plan_of(problem, constructive("gpipe")(problem))
    stages = ([0, 3], [1, 2])
    assert two.run(pipeline_runs.refuse, [plan] * 2, stages, [0, 0])[0].startswith(
        "CheckFailed: stages 0 and 2 are replicas, but their"
    )
    assert two.run(pipeline_runs.refuse_mirrored, [plan] * 2, stages) == ["accepted"] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(3, 2), ()])
def test_boundaries_of_any_type(two: Ranks, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    first, last = two.run(pipeline_runs.boundary, sound(), dtype, shape)
    assert first == [True, True], first
    assert last == [(dtype, shape, True)] * 4 + [True, True], last


def test_a_shape_that_changes(two: Ranks) -> None:
    first, last = two.run(pipeline_runs.boundary, sound(), torch.float64, (3, 2), True)
    assert first == (
        "schedc.errors.InvalidInput: microbatch 2: stage 0's output is float64[1, 2], expected float64[3, 2] as before;"
        " give all microbatches the same shape\nin F0.2 on rank 0"
    )
    # F1.2 at the latest, earlier if rank 1 is behind
    assert last.startswith("schedc.runtime.common.failure.TransferFailed: rank 1")


def test_batches(two: Ranks) -> None:
    said = two.run(pipeline_runs.wrong_batches, sound())
    assert said[0] == [
        "InvalidInput: rank 0: step needs the inputs on this rank; pass the batch, or a list of 4 microbatches",
        "InvalidInput: rank 0: 3 microbatches of inputs were given, the plan has 4",
        "InvalidInput: rank 0: the inputs have the shape [6, 2]; dimension 0 must be a multiple of the plan's 4 microbatches",
        "InvalidInput: the pipe is closed, by close() or by a failed step; load the plan again",
    ]
    assert all(one.startswith("TransferFailed: ") for one in said[1][:3])
