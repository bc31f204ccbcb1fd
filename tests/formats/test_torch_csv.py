"""Plans as CSVs of torch's: what is where, what is refused, and the stage map beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from inputs.few_plans import made_by
from inputs.plans import one_f_one_b, plan_of, small_plan
from inputs.problems import make_problem
from inputs.sharded_problems import plan_that_gathers_again
from inputs.torch_plans import torch_plans
from oracles.torch_oracle import act_out
from suite.example_counts import examples

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.formats.torch_csv.exporter import CsvFormat, check_expressible, stage_map_path, torch_csv, write_torch_csv
from schedc.formats.torch_csv.lint.linter import schedule_of_rows, verify_torch_csv
from schedc.formats.torch_csv.stage_map import notes, stage_map
from schedc.ir.graph import Edge
from schedc.ir.ops import Kind, Op
from schedc.ir.problem import DataParallel
from schedc.ir.schedule import Schedule
from schedc.verify.plan.channels import needs_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from schedc.ir.plan import Plan


def rows_of(plan: Plan, layout: Any = "compute_comms") -> list[list[str]]:
    return [line.split(",") for line in torch_csv(plan, layout).splitlines()]


def test_a_small_plan_word_for_word() -> None:
    assert torch_csv(made_by("1f1b", 2, 2)) == (
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\n"
        "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\n"
    )


def test_compute_only_has_the_order_and_nothing_else() -> None:
    plan = made_by("zb-v", 2, 3, placement="wave", chunks=2)
    names = {Kind.F: "F", Kind.B: "I", Kind.W: "W", Kind.BW: "B"}
    expected = [[f"{op.stage}{names[op.kind]}{op.microbatch}" for op in rank.compute] for rank in plan.ranks]
    assert rows_of(plan, "compute_only") == expected
    assert {cell[1] for row in rows_of(plan, "compute_only") for cell in row} == {"F", "I", "W"}


@examples(60)
@given(plan=torch_plans())
def test_every_csv_is_sound(plan: Plan) -> None:
    """The linter and the oracle of torch's runtime accept it, however c10d queues; what it computes is the plan's order."""
    rows, problem = rows_of(plan), plan.problem
    assert verify_torch_csv(rows, problem, "compute_comms") == ()
    for level in (1, 2, 3):
        act_out(rows, [stage.rank for stage in problem.stages], problem.microbatches, level)
    assert schedule_of_rows(rows, problem) == plan.schedule()
    assert verify_torch_csv(rows_of(plan, "compute_only"), problem, "compute_only") == ()


def places(plan: Plan) -> dict[str, tuple[int, int]]:
    """Per action its rank and how many compute actions are before it."""
    found = {}
    for rank, row in enumerate(rows_of(plan)):
        before = 0
        for cell in row:
            found[cell] = (rank, before)
            before += cell.lstrip("0123456789")[0] in "FIWB" and "_" not in cell
    return found


@examples(60)
@given(plan=torch_plans())
def test_sends_do_not_wait_and_receives_are_not_late(plan: Plan) -> None:
    """A send is before the next op that takes time; a receive where `post_before` says, earlier only behind a busy link."""
    found, needs = places(plan), needs_of(plan)
    busy = {(link.source, link.destination) for link in plan.problem.links if link.transfer_ns or link.trunk}
    for rank in plan.ranks:
        for channel in rank.channels:
            for at, op in enumerate(channel.transfers):
                direction = "F" if op.kind is Kind.F else "B"
                need = needs[op]
                if not channel.receives:
                    assert found[f"{op.stage}SEND_{direction}{op.microbatch}"] == (rank.rank, need.producer + 1)
                    continue
                to = op.stage + (1 if direction == "F" else -1)
                where = found[f"{to}RECV_{direction}{op.microbatch}"]
                if (need.source, need.destination) in busy:
                    assert where[0] == rank.rank and where[1] <= channel.post_before[at]
                else:
                    assert where == (rank.rank, channel.post_before[at])


def test_a_receive_is_earlier_behind_a_busy_link() -> None:
    plan = made_by("gpipe", 2, 4, links={(0, 1): (0, 50), (1, 0): (0, 50)})
    posts = next(channel.post_before for channel in plan.ranks[1].channels if channel.receives)
    earlier = [places(plan)[f"1RECV_F{microbatch}"][1] < post for microbatch, post in enumerate(posts)]
    assert any(earlier)


# what torch cannot express


def with_order(plan: Plan, rank: int, order: tuple[Op, ...]) -> Plan:
    orders = [each.compute for each in plan.ranks]
    orders[rank] = order
    return plan_of(plan.problem, Schedule(orders=tuple(orders)))


def late_loss() -> Plan:
    plan = made_by("gpipe", 2, 2)
    first, second, *others = plan.ranks[1].compute
    return with_order(plan, 1, (second, first, *others))


def test_microbatches_have_the_numbers_of_the_losses() -> None:
    """The last stage begins with microbatch 1, which is torch's 0; the linter and the oracle of torch's runtime accept it."""
    plan = late_loss()
    rows = rows_of(plan)
    assert [cell for cell in rows[1] if cell.startswith("1F")] == ["1F0", "1F1"]
    assert [cell for cell in rows[0] if cell.startswith("0F")] == ["0F1", "0F0"]
    for layout in ("compute_comms", "compute_only"):
        assert verify_torch_csv(rows_of(plan, layout), plan.problem, layout) == ()
    act_out(rows, [0, 1], 2, 3)
    made = stage_map(plan, "x.csv", "compute_comms")
    assert made["microbatch_order"] == [1, 0]
    assert any("torch numbers microbatches in the order of" in note for note in made["notes"])
    assert "microbatch_order" not in stage_map(made_by("gpipe", 2, 2), "x.csv", "compute_comms")


def other_path() -> Plan:
    plan = made_by("gpipe", 2, 2)
    problem = replace(plan.problem, paths=((1, 0),))
    orders = (tuple(op._replace(stage=1 - op.stage) for op in rank.compute) for rank in reversed(plan.ranks))
    return plan_of(problem, Schedule(orders=tuple(orders)))


def sharded(chunks: int) -> Plan:
    stages = 2 * chunks
    parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(5,) * stages, all_gather_ns=(3,) * stages)
    placement = "unidirectional" if chunks == 1 else "wave"
    problem = replace(make_problem(2, 3, placement=placement, chunks=chunks), data_parallel=parallel)
    plan = made_by("gpipe", 2, 3, placement=placement, chunks=chunks)
    return plan_of(problem, plan.schedule())


def recomputed() -> Plan:
    plan = made_by("gpipe", 2, 2)
    first, second = plan.problem.stages
    return plan_of(replace(plan.problem, stages=(first, replace(second, recompute=True))), plan.schedule())


def in_slices() -> Plan:
    plan = made_by("gpipe", 2, 2)
    return plan_of(replace(plan.problem, slices=(1,)), plan.schedule())


def graph() -> Plan:
    problem = replace(make_problem(2, 2), edges=(Edge(source=0, destination=1),))
    return plan_of(problem, made_by("gpipe", 2, 2).schedule())


REFUSED: dict[str, tuple[Callable[[], Plan], str]] = {
    "two paths": (lambda: made_by("chimera", 2, 4, placement="bidirectional"), "it has two paths (a bidirectional placement)"),
    "parts": (
        lambda: made_by("greedy{n_sub=3}", 4, 12, links={(0, 1): (25, 10), (1, 0): (25, 10)}, in_flight=6),
        "is a part of a block, and torch runs blocks whole",
    ),
    "another path": (other_path, "its path visits the stages in the order [1, 0]"),
    "slices": (in_slices, "its microbatches are in slices, and torch's stages are a chain"),
    "graph": (graph, "its stages are a graph, and torch's stages are a chain"),
    "recomputation": (recomputed, "stage 1 recomputes, and torch's stages do not"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    make, says = REFUSED[name]
    plan = make()
    layouts: tuple[CsvFormat, ...] = ("compute_comms", "compute_only")
    for layout in layouts:
        with pytest.raises(Unsupported, match="torch cannot run this plan") as caught:
            write_torch_csv(plan, tmp_path / "x.csv", layout)
        assert says in str(caught.value) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_collectives_of_one_stage_per_rank_are_gathers_and_reductions() -> None:
    rows = rows_of(sharded(1))
    assert [row[0] for row in rows] == ["0UNSHARD", "1UNSHARD"]
    assert [row[-2:] for row in rows] == [["0REDUCE_GRAD", "0RESHARD"], ["1REDUCE_GRAD", "1RESHARD"]]


def test_gathers_stand_in_the_plans_order_before_anything_else() -> None:
    plan = made_by("zb-v", 2, 4, placement="wave", chunks=2)
    for rank, row in zip(plan.ranks, rows_of(plan), strict=True):
        first_used = list(dict.fromkeys(op.stage for op in rank.compute))
        assert row[: len(first_used)] == [f"{stage}UNSHARD" for stage in first_used]


def test_sharded_weights_are_gathered_and_released_where_the_plan_has_it() -> None:
    plan = plan_that_gathers_again()
    rows = rows_of(plan)
    for rank, row in zip(plan.ranks, rows, strict=True):
        gathers, releases = ([cell for cell in row if name in cell] for name in ("UNSHARD", "RESHARD"))
        planned = [entry for entry in rank.collectives if entry.kind == "AG"]
        assert gathers == [f"{entry.stage}UNSHARD" for entry in planned]
        assert sorted(releases) == sorted(f"{entry.stage}RESHARD" for entry in planned)
    assert len([entry for entry in plan.ranks[0].collectives if entry.kind == "AG"]) > 6
    assert verify_torch_csv(rows, plan.problem, "compute_comms") == ()
    read = schedule_of_rows(rows, plan.problem)
    assert [[each for each in of_rank if each.kind == "AG"] for of_rank in read.collectives] == [
        [entry for entry in rank.collectives if entry.kind == "AG"] for rank in plan.ranks
    ]
    assert simulate(plan.problem, read).makespan_ns >= plan.certificate.makespan_ns  # torch waits in REDUCE_GRAD
    assert max(map(int.__sub__, peak_bytes(plan.problem, read), plan.certificate.peak_activation_bytes)) <= 0
    assert "by a rule of its own" in notes(plan, "compute_only")[0]
    least = replace(plan.problem, memory_limit_bytes=(0, None))
    assert {finding.rule for finding in verify_torch_csv(rows, least, "compute_comms")} == {"memory-limit"}


# the files


def test_stage_map(tmp_path: Path) -> None:
    plan = made_by("zb-v", 2, 4, placement="wave", chunks=2)
    stages = tuple(replace(stage, layers=(2 * index, 2 * index + 2)) for index, stage in enumerate(plan.problem.stages))
    plan = replace(plan, problem=replace(plan.problem, stages=stages))
    beside = write_torch_csv(plan, tmp_path / "v.csv")
    assert beside == tmp_path / "v.stages.json"
    assert (tmp_path / "v.csv").read_text() == torch_csv(plan)
    read = json.loads(beside.read_text())
    assert read == stage_map(plan, "v.csv", "compute_comms")
    assert [entry["rank"] for entry in read["stages"]] == [0, 1, 1, 0]
    assert [entry["layers"] for entry in read["stages"]] == [[0, 2], [2, 4], [4, 6], [6, 8]]
    assert (read["ranks"], read["microbatches"], read["num_stages"]) == (2, 4, 4)
    assert read["stages_of_rank"] == [[0, 3], [1, 2]]
    assert "schedule._load_csv('v.csv', format=\"compute_comms\")" in read["load"]


def test_stage_map_stands_beside_a_csv_of_any_name(tmp_path: Path) -> None:
    assert stage_map_path(tmp_path / "a.b.csv").name == "a.b.stages.json"
    assert stage_map_path(tmp_path / "plan").name == "plan.stages.json"


@pytest.mark.parametrize(
    ("placement", "chunks", "schedule"),
    [("unidirectional", 1, "PipelineScheduleSingle"), ("loop", 2, "PipelineScheduleMulti"), ("wave", 2, "ZBVZeroBubble")],
)
def test_torchtitan_places_stages_by_the_schedules_name(placement: str, chunks: int, schedule: str) -> None:
    plan = made_by("gpipe", 2, 3, placement=placement, chunks=chunks)
    titan = stage_map(plan, "x.csv", "compute_only")["torchtitan"]
    assert f"--parallelism.pipeline_parallel_schedule={schedule}" in titan["options"]
    assert stage_map(plan, "x.csv", "compute_comms")["torchtitan"]["options"] is None


def test_torchtitan_cannot_place_anything_else() -> None:
    plan = made_by("gpipe", 2, 3, placement=[0, 0, 1])
    assert "no other way" in stage_map(plan, "x.csv", "compute_only")["torchtitan"]["why_not"]


def test_notes_say_what_is_different_in_torch() -> None:
    """Stage 0 does not split there, and nothing is released before W; a plan for torch's costs has no such notes."""
    plan = made_by("zb-h1", 2, 4)
    split, memory = notes(plan)
    assert "stage 0 splits" in split and "stages 0, 1" in memory
    stages = [replace(stage, activation_after_input_bytes=stage.activation_bytes) for stage in plan.problem.stages]
    stages[0] = replace(stages[0], backward_input_ns=(0,), backward_weight_ns=stages[0].backward_ns)
    assert notes(plan_of(replace(plan.problem, stages=tuple(stages)), plan.schedule())) == ()
    assert notes(made_by("1f1b", 2, 4)) == ()
    assert notes(sharded(1)) == ()
    (beside,) = notes(sharded(2))  # of 5 ns each, all but the last that a rank starts
    assert "beside the reduce-scatter of stages 2, 3, and torch's rank waits" in beside and "by at most 10 ns" in beside


def test_a_plan_with_collectives_is_accepted_where_they_end_the_rank() -> None:
    check_expressible(small_plan())
    check_expressible(plan_of(make_problem(3, 4), one_f_one_b(make_problem(3, 4))))
