"""`[pipeline] semantics`: the costs that the executing runtime has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from inputs.jobs import M70, read_problem, write_job

from schedc.compile.driver import compile_problem
from schedc.errors import InvalidInput
from schedc.formats.plan.plan_file import parse_plan, plan_json
from schedc.frontend.job import load_job
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.units import parse_duration_ns
from schedc.verify.problem import check_costs, check_pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.problem import Problem

TORCH = M70.replace("microbatches = 16", 'microbatches = 16\nsemantics = "torch"')
MS = 10**6


def problem(directory: Path, text: str) -> Problem:
    return read_problem(write_job(directory, text))


def test_the_default_is_schedcs_own(tmp_path: Path) -> None:
    named = problem(tmp_path, M70.replace("microbatches = 16", 'microbatches = 16\nsemantics = "schedc"'))
    plain = problem(tmp_path, M70)
    assert named == plain and plain.cut_blocks
    assert {stage.backward_input_ns for stage in plain.stages} == {(46_500_000,)}


def test_torchs_first_stage_does_not_split(tmp_path: Path) -> None:
    plain, made = problem(tmp_path, M70), problem(tmp_path, TORCH)
    assert made.stages[0].backward_input_ns == (0,)
    assert made.stages[0].backward_weight_ns == made.stages[0].backward_ns == (67 * MS,)
    for ours, theirs in zip(plain.stages[1:], made.stages[1:], strict=True):
        for kind in ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns"):
            assert getattr(theirs, kind) == getattr(ours, kind)
    assert made.stages[0].forward_ns == plain.stages[0].forward_ns


def test_nothing_is_released_before_w_and_nothing_is_cut(tmp_path: Path) -> None:
    made = problem(tmp_path, TORCH)
    assert {(stage.activation_bytes, stage.activation_after_input_bytes) for stage in made.stages} == {(2**30, 2**30)}
    assert not made.cut_blocks


def test_a_measured_fused_backward_is_what_w_takes_there(tmp_path: Path) -> None:
    made = problem(tmp_path, TORCH.replace("activation =", 'backward = "60 ms"\nactivation ='))
    assert made.stages[0].backward_weight_ns == made.stages[0].backward_ns == (60 * MS,)
    assert made.stages[1].backward_weight_ns == (20_500_000,)


def test_first_on_the_path_not_on_rank_0(tmp_path: Path) -> None:
    text = TORCH.replace("ranks = 8\n", "ranks = 8\nplacement = [7, 6, 5, 4, 3, 2, 1, 0, 7]\n")
    made = problem(tmp_path, text)
    assert [stage.backward_input_ns == (0,) for stage in made.stages] == [True] + [False] * 8
    assert made.stages[0].rank == 7


def test_without_a_split_only_the_fused_time_matters(tmp_path: Path) -> None:
    text = TORCH.replace('semantics = "torch"', 'semantics = "torch"\nsplit_backward = false')
    text = text.replace('backward_input = "46.5 ms"\nbackward_weight = "20.5 ms"', 'backward = "60 ms"')
    made = problem(tmp_path, text)
    assert {stage.backward_ns for stage in made.stages} == {(60 * MS,)}


def test_two_paths_are_refused(tmp_path: Path) -> None:
    text = TORCH.replace("ranks = 8\n", 'ranks = 8\nplacement = "bidirectional"\n')
    with pytest.raises(InvalidInput) as caught:
        problem(tmp_path, text)
    says = 'pipeline.semantics: found "torch" where pipeline.placement is "bidirectional", expected a placement with one path'
    assert says in str(caught.value)


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r'pipeline\.semantics: found "pytorch", expected "schedc" or "torch"'):
        problem(tmp_path, TORCH.replace('"torch"', '"pytorch"'))


def test_plans_go_round_and_are_their_jobs(tmp_path: Path) -> None:
    """`auto` cuts no block for torch; the plan's file gives it back, and only the job with these semantics is its job."""
    job = load_job(write_job(tmp_path, TORCH))
    plan = compile_problem(job.problem, SearchSettings(limits=Limits(time_s=2.0, workers=1))).plan
    assert plan.parts == ()
    read = parse_plan(plan_json(plan), "plan.json")
    assert read == plan and not read.problem.cut_blocks
    assert not [*check_pipeline(read, job.problem), *check_costs(read, job.problem)]
    other = problem(tmp_path, M70)
    assert {violation.place for violation in check_costs(read, other)} >= {"costs.stages[0]", "costs.cut_blocks"}
    assert not check_pipeline(read, other)


def test_other_plans_files_say_nothing_of_it(tmp_path: Path) -> None:
    plan = compile_problem(problem(tmp_path, M70), SearchSettings(method="1f1b")).plan
    assert b"cut_blocks" not in plan_json(plan)


@pytest.mark.parametrize("method", ["greedy", "greedy{n_sub=4}", "spread"])
def test_methods_that_cut_leave_blocks_whole(tmp_path: Path, method: str) -> None:
    cut = compile_problem(problem(tmp_path, M70), SearchSettings(method=method)).plan
    whole = compile_problem(problem(tmp_path, TORCH), SearchSettings(method=method)).plan
    assert whole.parts == ()
    assert cut.parts or method == "spread"
    assert whole.certificate.makespan_ns >= parse_duration_ns("1 s")
