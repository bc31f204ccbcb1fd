"""Exported CSVs executed by torch's own pipeline runtime: a second opinion on our plans, and on what the linter says of CSVs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, strategies as st
from inputs.differing_problems import longest_first
from inputs.few_plans import made_by
from inputs.jobs import write_job
from inputs.problems import make_problem
from inputs.sharded_problems import plan_that_gathers_again
from inputs.torch_plans import torch_plans
from oracles.torch_stock import dump
from runs import torch_runs
from runs.processes import Ranks, rank_processes
from suite.example_counts import examples

from schedc.compile.driver import compile_problem
from schedc.formats.torch_csv.exporter import CsvFormat, torch_csv
from schedc.formats.torch_csv.lint.actions import layout_of, read_rows
from schedc.formats.torch_csv.lint.linter import verify_torch_csv
from schedc.frontend.job import load_job
from schedc.ir.ops import Kind
from schedc.solvers.common.base import Limits, SearchSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from schedc.ir.plan import Plan

pytestmark = pytest.mark.slow

SLOW = {"links": {(0, 1): (40, 25), (1, 0): (40, 25)}, "in_flight": 6}
PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpipe": ("gpipe", {}),
    "1f1b": ("1f1b", {}),
    "1f1b, slow link": ("1f1b", SLOW),
    "interleaved": ("interleaved", {"placement": "loop", "chunks": 2}),
    "zb-h1": ("zb-h1", {}),
    "zb-h2": ("zb-h2", {}),
    "zb-v": ("zb-v", {"placement": "wave", "chunks": 2}),
    "wave of four chunks": ("hanayo", {"placement": "wave", "chunks": 4}),
    "dualpipe-v": ("dualpipe-v", {"placement": "wave", "chunks": 2}),
    "greedy, slow link": ("greedy{n_sub=1}", SLOW),
    "greedy, loop, slow link": ("greedy{n_sub=1}", {"placement": "loop", "chunks": 2, **SLOW}),
}
JOB = """\
[pipeline]
ranks = {ranks}
microbatches = 6
semantics = "torch"
[profile]
forward = "10 ms"
backward_input = "12 ms"
backward_weight = "9 ms"
activation = "2 GiB"
activation_after_input = "1 GiB"
message = "64 MiB"
[memory]
in_flight = 5
[[topology.link]]
ranks = [0, 1]
latency = "40 ms"
transfer = "15 ms"
"""


def written(plan: Plan, directory: Path, layout: CsvFormat = "compute_comms", text: str | None = None) -> str:
    path = directory / "plan.csv"
    path.write_text(torch_csv(plan, layout) if text is None else text)
    return str(path)


def findings(csv: str, plan: Plan) -> set[str]:
    with open(csv, "rb") as file:
        rows = read_rows(file.read(), csv)
    return {finding.rule for finding in verify_torch_csv(rows, plan.problem, layout_of(rows))}


def assert_trains(results: list[Any]) -> None:
    """Torch's gradients are those of the model without a pipeline and those of schedc's runtime; its losses, too."""
    for result in results:
        assert isinstance(result, dict), result
        assert result["model"] < 1e-12 and result["ours"] < 1e-12
    (losses,) = [result["losses"] for result in results if None not in result["losses"]]
    assert losses == pytest.approx(results[0]["expected"], rel=1e-12)


@pytest.mark.parametrize("name", PLANS)
def test_gradients_in_four_processes(four: Ranks, name: str, tmp_path: Path) -> None:
    method, options = PLANS[name]
    plan = made_by(method, 4, 8, **options)
    csv = written(plan, tmp_path)
    assert findings(csv, plan) == set()
    assert_trains(four.run(torch_runs.train_in_torch, plan, csv))


@pytest.mark.parametrize("layout", ["compute_comms", "compute_only"])
@pytest.mark.parametrize("name", PLANS)
def test_gradients_in_two_processes(two: Ranks, name: str, layout: CsvFormat, tmp_path: Path) -> None:
    method, options = PLANS[name]
    plan = made_by(method, 2, 6, **options)
    csv = written(plan, tmp_path, layout)
    assert findings(csv, plan) == set()
    assert_trains(two.run(torch_runs.train_in_torch, plan, csv, layout))


@pytest.mark.parametrize(("method", "options"), [("1f1b", {}), ("zb-v", {"placement": "wave", "chunks": 2})])
def test_gradients_where_microbatches_enter_out_of_order(two: Ranks, method: str, options: dict[str, Any], tmp_path: Path) -> None:
    plan = longest_first(2, method, **options)
    csv = written(plan, tmp_path)
    assert findings(csv, plan) == set()
    assert_trains(two.run(torch_runs.train_in_torch, plan, csv))


@pytest.mark.parametrize("method", ["auto", "cpsat"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_gradients_of_plans_for_torchs_costs(two: Ranks, four: Ranks, ranks: int, method: str, tmp_path: Path) -> None:
    """Jobs with semantics = "torch" and a slow link, as a solver plans them."""
    problem = load_job(write_job(tmp_path, JOB.format(ranks=ranks))).problem
    plan = compile_problem(problem, SearchSettings(method=method, limits=Limits(time_s=3.0, workers=2))).plan
    csv = written(plan, tmp_path)
    assert findings(csv, plan) == set()
    assert_trains((two if ranks == 2 else four).run(torch_runs.train_in_torch, plan, csv))


@examples(12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_valid_plan(four: Ranks, tmp_path: Path, data: st.DataObject) -> None:
    """Any placement, stages per rank, backwards split or fused, and order that does not deadlock."""
    plan = data.draw(torch_plans(ranks=4))
    for error in four.run(torch_runs.torch_alone, plan, written(plan, tmp_path)):
        assert isinstance(error, float) and error < 1e-12, error


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_sharded_stages(four: Ranks, name: str, tmp_path: Path) -> None:
    """Two pipelines of two ranks each, stages sharded by FSDP: UNSHARD, RESHARD and REDUCE_GRAD are where it needs them."""
    method, options = PLANS[name]
    plan = made_by(method, 2, 4, **options)
    for errors in four.run(torch_runs.sharded_in_torch, plan, written(plan, tmp_path)):
        assert isinstance(errors, list) and max(errors) < 1e-12, errors


@pytest.mark.parametrize("split", [False, True])
def test_stages_that_are_gathered_again(four: Ranks, tmp_path: Path, *, split: bool) -> None:
    """Weights are released between two ops of a stage, and gradients that are not reduced stay, as the plan has it."""
    plan = plan_that_gathers_again(split=split)
    assert any(op.kind is Kind.W for op in plan.ranks[0].compute) == split
    csv = written(plan, tmp_path)
    assert findings(csv, plan) == set()
    for errors in four.run(torch_runs.sharded_in_torch, plan, csv):
        assert isinstance(errors, list) and max(errors) < 1e-12, errors


# what the linter says of CSVs, torch does


def swapped(rows: list[list[str]]) -> list[list[str]]:
    """Both receives of the last rank first, in the wrong order."""
    later = [cell for cell in rows[1] if cell not in ("1RECV_F0", "1RECV_F1")]
    return [rows[0], [later[0], "1RECV_F1", "1RECV_F0", *later[1:]]]


def without_reduction(rows: list[list[str]]) -> list[list[str]]:
    return [[cell for cell in row if cell != "0REDUCE_GRAD"] for row in rows]


def losses_out_of_order(rows: list[list[str]]) -> list[list[str]]:
    rows[1].remove("1F0")
    rows[1].insert(rows[1].index("1F1") + 1, "1F0")
    return rows


WRONG: dict[str, tuple[Callable[[list[list[str]]], list[list[str]]], set[str], int]] = {
    "swapped receives": (swapped, {"pair-order"}, 0),
    "no REDUCE_GRAD": (without_reduction, {"reduce-grad"}, 0),
    "losses out of order": (losses_out_of_order, {"loss-order"}, 0),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_torch_trains_on_without_a_word(two: Ranks, name: str, tmp_path: Path) -> None:
    """The CSV loads, the step ends, and the gradients of rank 0 are wrong; the linter names why."""
    change, rules, rank = WRONG[name]
    plan = made_by("gpipe", 2, 2)
    rows = change([line.split(",") for line in torch_csv(plan).splitlines()])
    csv = written(plan, tmp_path, text="\n".join(map(",".join, rows)) + "\n")
    assert findings(csv, plan) == rules
    errors = two.run(torch_runs.torch_alone, plan, csv)
    assert all(isinstance(error, float) for error in errors), errors
    assert errors[rank] > 0.01


def test_torchs_own_deferred_receives(two: Ranks, tmp_path: Path) -> None:
    """With `defer_pp_recv=True`, torch 2.13 lowers ZBV to receives in another order than their sends, and trains on wrong data."""
    plan = made_by("zb-v", 2, 8, placement="wave", chunks=2)
    csv = str(dump("ScheduleZBVZeroBubble", 2, 8, 2, "compute_comms", tmp_path, defer_recv=True))
    assert findings(csv, plan) == {"pair-order"}
    assert max(two.run(torch_runs.torch_alone, plan, csv)) > 0.01
    csv = str(dump("ScheduleZBVZeroBubble", 2, 8, 2, "compute_comms", tmp_path))
    assert findings(csv, plan) == set()
    assert max(two.run(torch_runs.torch_alone, plan, csv)) < 1e-12


def test_stages_that_are_not_let_go_fail_in_the_next_step(tmp_path: Path) -> None:
    plan = made_by("1f1b", 2, 4)
    csv = written(plan, tmp_path, text=torch_csv(plan).replace(",0RESHARD", "").replace(",1RESHARD", ""))
    assert findings(csv, plan) == {"unshard"}
    with rank_processes(4, tmp_path) as ranks:
        for error in ranks.run(torch_runs.sharded_in_torch, plan, csv):
            assert "Unsharding the same" in error


# what semantics = "torch" rests on


def test_torchs_first_stage_does_not_split(two: Ranks, tmp_path: Path) -> None:
    """After its I no weight has a gradient, after its W all have; the last stage's W ends what its I began."""
    plan = made_by("zb-h1", 2, 3)
    first, last = two.run(torch_runs.what_each_half_does, plan, written(plan, tmp_path))
    assert first == {"I": (False, False), "W": (False, True)}
    assert last == {"I": (True, False), "W": (False, True)}


def test_torchs_input_backward_releases_no_activation() -> None:
    """What autograd saved in F is all there after I, on any stage, and gone after W."""
    after_forward, after_input, after_weight = torch_runs.held_by_a_split_backward()
    assert after_forward == after_input > 0 == after_weight


def test_problem_of_the_job_has_these_costs(tmp_path: Path) -> None:
    problem = load_job(write_job(tmp_path, JOB.format(ranks=2))).problem
    costs = make_problem(2, 6, costs_ns=[(10, 0, 21), (10, 12, 9)])
    for stage, expected in zip(problem.stages, costs.stages, strict=True):
        assert stage.backward_input_ns[0] == expected.backward_input_ns[0] * 10**6
        assert stage.backward_weight_ns[0] == expected.backward_weight_ns[0] * 10**6
        assert stage.activation_after_input_bytes == stage.activation_bytes
