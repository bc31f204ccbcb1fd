"""Plans, stages and batches that do not fit are refused, on every rank and in one line, before anything runs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from inputs.few_plans import few_plan, made_by
from inputs.plans import one_f_one_b, plan_of
from inputs.problems import make_problem
from runs import feature_runs, hook_runs, pipeline_runs, replicated_runs

from schedc.formats.plan.plan_file import plan_json, write_plan
from schedc.ir.problem import DataParallel
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from pathlib import Path

    from runs.processes import Ranks

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


def test_a_plan_that_cannot_even_be_looked_at(two: Ranks) -> None:
    """Rank 0 says what is wrong with it; the other, which does not verify it, says that."""
    whole = sound()
    paths, ranks = replace(whole.problem, paths=((0, 7),)), replace(whole, ranks=whole.ranks[:1])
    for plan in (replace(whole, problem=paths), replace(whole, problem=replace(whole.problem, paths=((),))), ranks):
        first, second = two.run(pipeline_runs.refuse, [plan] * 2, STAGES)
        assert first.startswith("CheckFailed: plan 'test' breaks a rule: ")
        assert second == f"CheckFailed: rank 0 has refused the plan: {first.partition(': ')[2]}"


def test_all_is_said_at_once(two: Ranks) -> None:
    """Besides, no rank goes on before all have connected."""
    assert two.run(pipeline_runs.said_at_load, sound()) == [["Agreement", "NoneType"]] * 2


def test_stages(two: Ranks) -> None:
    said = two.run(pipeline_runs.refuse, [sound()] * 2, ([0], [0, 1]))
    assert said[1] == "InvalidInput: rank 1 was given stages [0, 1], plan 'test' puts stages [1] there"
    assert said[0] == f"CheckFailed: rank 1 has refused the plan: {said[1].partition(': ')[2]}"


def test_layers_in_another_order_on_one_rank(two: Ranks) -> None:
    """What ranks have in place of layers of others says nothing, nor do layers that are alike."""
    plan = sound()
    stages = tuple(replace(stage, layers=(2 * index, 2 * index + 2)) for index, stage in enumerate(plan.problem.stages))
    plan = replace(plan, problem=replace(plan.problem, stages=stages))
    for sizes in ([1, 2, 3, 4], [1, 2, 3, 4]), ([1, 2, 0, 0], [0, 0, 3, 4]), ([1, 1, 0, 0], [0, 0, 1, 1]):
        assert two.run(pipeline_runs.refuse_built, [plan] * 2, sizes) == ["accepted"] * 2
    for said in two.run(pipeline_runs.refuse_built, [plan] * 2, ([1, 2, 3, 4], [1, 2, 4, 3])):
        assert re.fullmatch(
            r"InvalidInput: layer 2 of the model is Linear \w{6} on rank 0, and Linear \w{6} on rank 1, which trains it;"
            r" give build_stages the same layers in the same order on all ranks",
            said,
        )
    for said in two.run(pipeline_runs.refuse_built, [plan] * 2, ([1, 2, 3, 4], [1, 3, 2, 4])):  # over both ranks' parts
        assert re.match(r"InvalidInput: layer 1 of the model is Linear \w{6} on rank 1, and Linear \w{6} on rank 0; give", said)


def test_stages_in_another_order_on_one_rank(two: Ranks) -> None:
    """Known by how many parameters the plan has for them; other numbers say nothing."""
    problem = make_problem(2, 2, placement="wave", chunks=2)
    for counts, says in (((9, 0, 0, 6), "accepted"), ((6, 0, 0, 9), "refused"), ((6, 0, 0, 8), "accepted")):
        stages = tuple(replace(stage, parameters=count) for stage, count in zip(problem.stages, counts, strict=True))
        plan = plan_of(replace(problem, stages=stages), constructive("zb-v")(problem))
        said = two.run(pipeline_runs.refuse_wide, [plan] * 2, ([0, 3], [1, 2]))
        if says == "accepted":
            assert said == ["accepted"] * 2
        else:
            why = "rank 0 was given the stages [0, 3] with [9, 6] parameters, expected [6, 9], as plan 'test' has them: the same"
            assert said[0] == f"InvalidInput: {why} in another order"


def test_loss_function(two: Ranks) -> None:
    said = two.run(pipeline_runs.refuse, [sound()] * 2, STAGES, loss_fn=None)
    assert said[1] == "InvalidInput: rank 1 has the last stage 1, but was given no loss_fn"


def test_options_that_differ(two: Ranks) -> None:
    """Refused on both ranks, where one alone would raise, or choose its own order of what both take part in."""
    said = two.run(pipeline_runs.refuse, [sound()] * 2, STAGES, each=[{"check_loss": True}, {"check_loss": False}])
    assert said == ["InvalidInput: ranks 0 and 1 load with check_loss=True and check_loss=False; give all ranks the same"] * 2
    said = two.run(pipeline_runs.refuse, [sound()] * 2, STAGES, each=[{"grad_dtype": torch.float64}, {}])
    assert (
        said == ["InvalidInput: ranks 0 and 1 load with grad_dtype=torch.float64 and grad_dtype=None; give all ranks the same"] * 2
    )
    said = two.run(pipeline_runs.refuse_monitored, [sound()] * 2, STAGES)
    assert (
        said == ["InvalidInput: ranks 0 and 1 load with observe=Monitor and observe=none that agrees; give all ranks the same"] * 2
    )
    said = two.run(pipeline_runs.refuse_sharing, [sound()] * 2, STAGES)
    why = (
        "a swap_group was given, so stages have collectives with those of other processes, which may choose another order;"
        " load without kind=ChoosingPipe"
    )
    assert said == [f"CheckFailed: rank 1 has refused the plan: {why}", f"Unsupported: {why}"]


def test_version_and_format(two: Ranks, tmp_path: Path) -> None:
    text = plan_json(sound()).decode()
    for number, (old, new, word) in enumerate(
        [('"version": 2', '"version": 3', "version"), ("schedc.plan", "other.plan", "format")]
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
    first, last = two.run(feature_runs.boundary, sound(), dtype, shape)
    assert first == [True, True], first
    assert last == [(dtype, shape, True)] * 4 + [True, True], last


def test_a_shape_that_changes(two: Ranks) -> None:
    first, last = two.run(feature_runs.boundary, sound(), torch.float64, (3, 2), True)
    assert first == (
        "InvalidInput: microbatch 2: stage 0's output is float64[1, 2], expected float64[3, 2] as before;"
        " give microbatches whose inputs are alike the same shape, or give load varying=True"
    )
    assert first.notes == ["in F0.2 on rank 0"]
    assert last.startswith(f"InvalidInput: rank 0: {first.partition(': ')[2]}")


@pytest.mark.parametrize(
    ("name", "zero", "chooses"),
    [("1f1b", None, True), ("bidirectional", None, False), ("interleaved", 1, False)],
)
def test_batches_that_do_not_fit(two: Ranks, four: Ranks, name: str, zero: int | None, chooses: bool) -> None:
    """One that is empty, or cannot be cut: the same line on all ranks, and the pipe trains on as if it had not been."""
    ranks = two if zero is None else four
    results = ranks.run(replicated_runs.refuse_batches, few_plan(name, zero), chooses)
    short = [
        "rank 0: the inputs have the shape []; dimension 0 must be 1 or more",
        "rank 0: 3 microbatches of inputs were given, the plan has 4",
        "rank 0: step needs the inputs on this rank; pass the batch, or a list of 4 microbatches",
    ]
    none = "rank 0: a microbatch of inputs must be a tensor or a tuple of tensors; found str"
    for said, same in results:
        assert said == [none, none, "rank 0: the inputs have the shape [0, 3]; dimension 0 must be 1 or more", *short, *short]
        assert same


@pytest.mark.parametrize(
    ("name", "zero", "culprit", "group", "between"),
    [
        ("1f1b", None, 1, "", False),  # targets, which the rank that begins does not see
        ("bidirectional", None, 1, "", False),
        ("zb-v", 0, 2, "data_parallel_group", True),
        ("interleaved", 1, 3, "data_parallel_group", False),
        ("1f1b", 0, 1, "data_parallel_group", False),
        ("1f1b", None, 2, "swap_group", True),
    ],
)
def test_one_process_alone_has_a_batch_that_does_not_fit(
    two: Ranks, four: Ranks, name: str, zero: int | None, culprit: int, group: str, between: bool
) -> None:
    """Targets, one end of a bidirectional pipeline, one of several pipelines: all processes raise its line, and train on."""
    ranks = two if not group else four
    results = ranks.run(replicated_runs.refuse_batches, few_plan(name, zero), False, culprit, group, between)
    for said, same in results:
        assert said == results[0][0]
        assert len(said) == (9 if between else 4)
        assert all(line.startswith(f"rank {culprit % 2}: ") for line in said)
        assert same


@pytest.mark.parametrize("name", ["1f1b", "bidirectional"])
def test_one_rank_alone_has_what_does_not_fit_in_a_later_step(two: Ranks, name: str) -> None:
    """With inputs or without: no rank has begun, all raise its line, and the pipe trains on."""
    said = two.run(pipeline_runs.refuse_later, few_plan(name))
    what = "targets" if name == "1f1b" else "inputs"
    assert said[0] == [
        f"BatchRefused: rank 1: the {what} have the shape [0, 3]; dimension 0 must be 1 or more",
        "BatchRefused: rank 1: the targets have the shape []; dimension 0 must be 1 or more",
        "BatchRefused: rank 1: the targets have the shape [7, 3], and the inputs 8 samples; expected as many, or a multiple, along"
        " dimension 0",
        "BatchRefused: rank 1: 1 weights were given, the plan has 4 microbatches",
    ]
    assert said[1] == said[0]


def test_targets_and_weights_of_a_rank_in_between_are_not_used_and_close_no_pipe(four: Ranks) -> None:
    assert four.run(pipeline_runs.refuse_later, made_by("1f1b", 4)) == [[]] * 4


def test_another_pipeline_may_have_begun(four: Ranks) -> None:
    """The pipe is closed where a job's own hooks do not know whether the batches of other pipelines fit."""
    line = "rank 1: the targets have the shape [0, 3]; dimension 0 must be 1 or more"
    closed = "InvalidInput: the pipe is closed, by close() or by a failed step; load the plan again"
    for knows, said in ((False, [f"InvalidInput: {line}", closed]), (True, [f"BatchRefused: {line}", f"BatchRefused: {line}"])):
        results = four.run(hook_runs.refuse_batches, few_plan("1f1b"), knows)
        assert results == ([said] * 2 + [[]] * 2)
