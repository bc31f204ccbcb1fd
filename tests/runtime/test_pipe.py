"""Plans executed by real processes: the gradients and losses are those of the model without a pipeline."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, strategies as st
from inputs.all_layouts import tiny_workload
from inputs.differing_problems import longest_first
from inputs.few_layouts import seek_few_layouts
from inputs.few_plans import W_IN_PARTS, made_by
from inputs.plans import plan_of
from inputs.problems import make_problem
from inputs.random_schedules import random_schedules
from runs import loss_runs, pipeline_runs, replicated_runs
from runs.processes import Ranks, rank_processes
from suite.example_counts import examples

from schedc.compile.driver import OpenLayouts, compile_question
from schedc.ir.layout import OpenLayout
from schedc.ir.ops import WHOLE, Kind
from schedc.ir.workload import Device
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.common.microbatch_order import entry_order
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Stage


def assert_trains(results: list[Any]) -> None:
    for result in results:
        assert isinstance(result, dict), result
        assert result["error"] < 1e-9
        assert result["losses"] == pytest.approx(result["expected"], rel=1e-12)
        assert result["losses"] == results[0]["losses"]
        assert result["in_order"]


PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpipe": ("gpipe", {}),
    "1f1b": ("1f1b", {}),
    "interleaved": ("interleaved", {"placement": "loop", "chunks": 2}),
    "zb-h1": ("zb-h1", {}),
    "zb-h2": ("zb-h2", {}),
    "zb-v": ("zb-v", {"placement": "wave", "chunks": 2}),
    "wave": ("hanayo", {"placement": "wave", "chunks": 4}),
    "bidirectional": ("chimera", {"placement": "bidirectional"}),
    "bidirectional greedy": ("greedy", {"placement": "bidirectional"}),
    "dualpipe-v": ("dualpipe-v", {"placement": "wave", "chunks": 2}),
    "greedy with W in parts": W_IN_PARTS,
}


def plan(name: str, ranks: int, microbatches: int = 8) -> Plan:
    method, options = PLANS[name]
    return made_by(method, ranks, microbatches, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_gradients_in_four_processes(four: Ranks, name: str) -> None:
    made = plan(name, 4)
    ran = {(op.kind, op.part != WHOLE) for rank in made.ranks for op in rank.compute}
    assert ((Kind.W, False) in ran) == (name.startswith(("zb", "dualpipe")) or "greedy" in name)
    assert ((Kind.W, True) in ran) == ("greedy" in name)
    assert_trains(four.run(pipeline_runs.train, made))


@pytest.mark.parametrize("name", PLANS)
def test_gradients_in_two_processes(two: Ranks, name: str) -> None:
    assert_trains(two.run(pipeline_runs.train, plan(name, 2)))


@pytest.mark.slow
def test_plans_whose_layout_was_chosen(two: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uneven stages, several neighbours on one rank, some that recompute."""
    seek_few_layouts(monkeypatch)
    open_layout, limits = OpenLayout(chunks=2, recompute_is_open=True), Limits(deterministic=0.3, workers=1)
    workload = tiny_workload(Random(0), layers=5, ranks=2, microbatches=4)
    stages: list[Stage] = []
    for limit_bytes in (6, 9):
        limited = replace(workload, devices=(Device(limit_bytes=limit_bytes),) * 2)
        made = compile_question(OpenLayouts(limited, open_layout), SearchSettings(limits=limits)).plan
        stages += made.problem.stages
        assert_trains(two.run(pipeline_runs.train, made))
    assert {stage.recompute for stage in stages} == {True, False}
    assert len({(stage.rank, stage.forward_ns) for stage in stages}) > 4


OUT_OF_ORDER: dict[str, dict[str, Any]] = {
    "1f1b": {},
    "zb-v": {"placement": "wave", "chunks": 2},
    "greedy": {"placement": "bidirectional"},
}


@pytest.mark.parametrize("method", OUT_OF_ORDER)
def test_microbatches_that_enter_out_of_order(two: Ranks, method: str) -> None:
    """Gradients and losses are those of the model without a pipeline, the losses by the numbers of the batch."""
    made = longest_first(2, method, **OUT_OF_ORDER[method])
    entered = entry_order(made.problem, made.schedule())
    assert entered == ((4, 3, 0, 1, 2, 5) if method == "greedy" else (3, 0, 5, 2, 1, 4))
    assert_trains(two.run(pipeline_runs.train, made))
    for found, expected in two.run(loss_runs.losses_of_microbatches, made):
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("placement", ["unidirectional", "loop"])
def test_one_process(tmp_path: Path, placement: str) -> None:
    problem = make_problem(1, 3, placement=placement, chunks=2 if placement == "loop" else 1)
    with rank_processes(1, tmp_path) as one:
        assert_trains(one.run(pipeline_runs.train, plan_of(problem, constructive("greedy")(problem))))


@pytest.mark.slow
@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_valid_plan(four: Ranks, data: st.DataObject) -> None:
    """All placements, backwards split or fused, every kind of block in parts, any order that does not deadlock."""
    placement: Any = data.draw(st.sampled_from(["unidirectional", "loop", "wave", "bidirectional", "explicit"]))
    chunks = 2 if placement in ("loop", "wave") else 1
    if placement == "explicit":
        placement = data.draw(st.permutations(range(4))) + data.draw(st.lists(st.integers(0, 3), max_size=3))
    pairs = [(x, y) for x in range(4) for y in range(4) if x != y]
    links = {pair: data.draw(st.tuples(st.integers(0, 15), st.integers(0, 8))) for pair in pairs}
    problem = make_problem(4, data.draw(st.integers(1, 4)), placement=placement, chunks=chunks, links=links)
    assert_trains(four.run(pipeline_runs.train, plan_of(problem, data.draw(random_schedules(problem)))))


@pytest.mark.parametrize("name", ["zb-v", "bidirectional"])
def test_gradients_accumulate_over_steps(two: Ranks, name: str) -> None:
    for error in two.run(pipeline_runs.accumulate, plan(name, 2)):
        assert error < 1e-12


def test_tied_weights_on_both_paths(two: Ranks) -> None:
    """A weight of two pieces, which a rank of a bidirectional placement has both, is summed once."""
    made = plan("bidirectional", 2)
    for error in two.run(replicated_runs.tied_on_both_paths, made, [0, 1]):
        assert error < 1e-12, error
    for refused in two.run(replicated_runs.tied_on_both_paths, made, [0]):
        assert "stages 1 and 3 are replicas, but the weights that they share with other stages (tied weights) differ" in refused


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1f1b", "zb-v", "greedy with W in parts"])
def test_memory_is_held_as_the_plan_says(two: Ranks, name: str) -> None:
    """A block lives from its F to the end of its BW or last W, and steps leave nothing behind."""
    made = plan(name, 2, microbatches=4)
    last = {(parts.kind, parts.stage): len(parts.shares) - 1 for parts in made.parts}
    for rank, (blocks, tensors) in zip(made.ranks, two.run(pipeline_runs.live_things, made), strict=True):
        begun = [op.kind is Kind.F and op.part in (WHOLE, 0) for op in rank.compute]
        ended = [op.kind in (Kind.W, Kind.BW) and op.part in (WHOLE, last.get((op.kind, op.stage))) for op in rank.compute]
        assert blocks == list(accumulate(int(one) - int(other) for one, other in zip(begun, ended, strict=True)))
        assert tensors == [tensors[0]] * 4


@pytest.mark.parametrize("name", ["zb-v", "bidirectional"])
def test_losses_of_microbatches(two: Ranks, name: str) -> None:
    """In their order, wherever they end; the same on all ranks."""
    results = two.run(loss_runs.losses_of_microbatches, plan(name, 2))
    for found, expected in results:
        assert len(found) == 8
        assert found == pytest.approx(expected, rel=1e-12)
        assert found == results[0][0]
