"""`schedc compare` as its users run it: what it says of a known difference, its JSON, what it writes, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
import typer
from inputs.problems import make_problem
from inputs.traces import slower_link, slower_stage, trace_of_timelines
from typer.testing import CliRunner

from schedc.analysis.simulation.simulate import simulate
from schedc.cli.commands.compare import compare_command
from schedc.compile.certify import certify
from schedc.errors import InvalidInput, SchedcError, Unsupported
from schedc.formats.plan.plan_file import write_plan
from schedc.formats.profile_file import stage_profile_json
from schedc.formats.trace_file import read_trace, write_trace_file
from schedc.frontend.job import load_job
from schedc.ir.ops import Kind
from schedc.ir.plan import MadeBy
from schedc.solvers.driver.registry import constructive
from schedc.units import parse_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

JOB = """\
[pipeline]
ranks = 4
microbatches = 6
{pipeline}
[memory]
limit = "2 GiB"

[topology]
{topology}

[profile]
{profile}
"""
PROFILE = """\
forward = "10 ms"
backward_input = "11 ms"
backward_weight = "9 ms"
backward = "19 ms"
activation = "341 MiB"
activation_after_input = "100 MiB"
message = "64 MiB"
gradient_message = "32 MiB"
"""
TOPOLOGY = """\
sites = [1, 2, 1]
[topology.within]
latency = "10 us"
bandwidth = "50 GB/s"
[topology.between]
latency = "7 ms"
bandwidth = "9 GB/s"
[[topology.link]]
ranks = [0, 1]
trunk = false
transfer = "3 ms"
"""
LOOP = 'placement = "loop"\nchunks = 2\n'
runner = CliRunner()


@dataclass(frozen=True)
class Files:
    """A job, its plan, and a trace of a run in which F of stage 1 was slower by 4 ms and the link from rank 2 to 3 by 5 ms."""

    directory: Path
    plan: Plan
    ran: Problem

    @property
    def plan_path(self) -> Path:
        return self.directory / "plan.json"

    @property
    def trace_path(self) -> Path:
        return self.directory / "trace.json"


def make_files(directory: Path, pipeline: str = "") -> Files:
    problem = problem_of(directory, pipeline, PROFILE, TOPOLOGY)
    problem = replace(problem, stages=tuple(replace(stage, parameters=1000, expert_parameters=10) for stage in problem.stages))
    plan = certify(problem, constructive("greedy")(problem), MadeBy(schedc="0", method="greedy"))
    ran = slower_link(slower_stage(problem, 1, Kind.F, 4_000_000), 2, 3, 5_000_000)
    trace = trace_of_timelines(plan, [simulate(each, plan.schedule()) for each in (ran, problem, ran)], first_step=2)
    files = Files(directory, plan, ran)
    write_plan(plan, files.plan_path)
    write_trace_file(trace, files.trace_path)
    return files


def problem_of(directory: Path, pipeline: str, profile: str, topology: str) -> Problem:
    path = directory / "job.toml"
    path.write_text(JOB.format(pipeline=pipeline, profile=profile, topology=topology), encoding="utf-8")
    return load_job(path).problem


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_files(tmp_path_factory.mktemp("compare"))


def compared(*arguments: object, width: int = 120) -> str:
    """What the command prints."""
    app = typer.Typer()
    app.command()(compare_command)
    result = runner.invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(width)}, catch_exceptions=True)
    if result.exception is not None:
        raise result.exception
    assert result.exit_code == 0
    return result.stdout


def test_the_tables_name_what_was_slower(files: Files) -> None:
    said = compared(files.plan_path, files.trace_path)
    predicted_ns, ran_ns = files.plan.certificate.makespan_ns, simulate(files.ran, files.plan.schedule()).makespan_ns
    assert f"predicted {predicted_ns / 1e6:g} ms, measured {ran_ns / 1e6:g} ms" in said
    assert "recorded steps 2 to 4" in said
    blocks = said.partition("blocks, over")[2].partition("transfers")[0].splitlines()
    slower = [line.split() for line in blocks if "+40.0%" in line]
    assert [line[:2] for line in slower] == [["1", "F"]]
    assert sum("+0.0%" in line for line in blocks) + 1 == len(
        {(op.stage, op.kind) for rank in files.plan.ranks for op in rank.compute}
    )
    (link,) = [line for line in said.splitlines() if line.startswith("2 → 3")]
    assert "14.46 ms" in link and "19.46 ms" in link
    late = said.partition("the last op")[2]
    assert "F of stage 1 on rank 1" in late
    for rank in range(4):
        assert f"rank {rank} planned" in said
    assert said.count("measured ") >= 4


def test_planned_and_measured_lanes_stand_beneath_each_other(files: Files) -> None:
    for width in (80, 160):
        lines = compared(files.plan_path, files.trace_path, "--step", 3, width=width).splitlines()
        assert any(line.startswith("step 3:") for line in lines)
        at = next(index for index, line in enumerate(lines) if line.lstrip().startswith("rank 0 planned"))
        for planned, measured in zip(lines[at : at + 8 : 2], lines[at + 1 : at + 8 : 2], strict=True):
            assert measured.lstrip().startswith("measured ")
            assert len(measured) == len(planned) <= width
            assert planned[len("rank 0 planned ") :] == measured[len("rank 0 planned ") :]  # step 3 went as planned


def test_json(files: Files) -> None:
    found = json.loads(compared(files.plan_path, files.trace_path, "--json"))
    ran_ns = simulate(files.ran, files.plan.schedule()).makespan_ns
    assert found["predicted_ns"] == files.plan.certificate.makespan_ns
    assert found["measured_ns"] == ran_ns
    assert found["runs_ns"] == [ran_ns, found["predicted_ns"], ran_ns]
    assert (found["steps"], found["shown_step"]) == ([2, 3, 4], 2)
    assert {rank["rank"] for rank in found["ranks"]} == {0, 1, 2, 3}
    for rank in found["ranks"]:
        measured = rank["measured"]
        assert measured["compute_ns"] + measured["waiting_ns"] + measured["idle_ns"] == ran_ns
    assert found["last_op"]["late_ns"] == ran_ns - found["predicted_ns"]
    assert sum(cause["added_ns"] for cause in found["last_op"]["causes"]) == found["last_op"]["late_ns"]
    slow = next(block for block in found["blocks"] if (block["stage"], block["kind"]) == (1, "F"))
    assert (slow["planned_ns"], slow["measured"]["high_ns"]) == (10_000_000, 14_000_000)
    assert found["worst_op"]["first_cause"]["op"].startswith("F")
    as_planned = json.loads(compared(files.plan_path, files.trace_path, "--json", "--step", "3"))
    assert as_planned["worst_op"]["late_ns"] == 0
    assert as_planned["worst_op"]["first_cause"] is None


@pytest.mark.parametrize("pipeline", ["", LOOP, 'placement = "bidirectional"\n'])
def test_the_written_costs_compile_into_the_measured_problem(tmp_path: Path, pipeline: str) -> None:
    """A job that names the written profile and topology is the measured problem, trunks and all."""
    made = make_files(tmp_path, pipeline)
    compared(made.plan_path, made.trace_path, "--profile", tmp_path / "profile.json", "--topology", tmp_path / "topology.toml")
    again = problem_of(tmp_path, pipeline, 'path = "profile.json"', 'path = "topology.toml"')
    planned = made.plan.problem
    slow = {1} if "bidirectional" not in pipeline else set()
    for stage, (found, before) in enumerate(zip(again.stages, planned.stages, strict=True)):
        assert replace(found, forward_ns=before.forward_ns, layers=None) == replace(before, layers=None)
        if stage in slow:
            assert found.forward_ns == (14_000_000,)
        elif slow:
            assert found.forward_ns == before.forward_ns
    if not slow:  # the two stages of a piece are one layer
        twins = [path[1] for path in planned.paths]
        assert [again.stages[stage].forward_ns for stage in twins] == [(12_000_000,)] * 2
    assert again.memory_limit_bytes == planned.memory_limit_bytes
    for link, before_link in zip(again.links, planned.links, strict=True):
        more_ns = 5_000_000 if (before_link.source, before_link.destination) == (2, 3) else 0
        assert link == replace(before_link, latency_ns=before_link.latency_ns + more_ns)


def test_perfetto_file(files: Files, tmp_path: Path) -> None:
    said = compared(files.plan_path, files.trace_path, "--perfetto", tmp_path / "both.json")
    assert "wrote planned and measured lanes to" in said
    events = json.loads((tmp_path / "both.json").read_bytes())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"rank 3, planned", "rank 3, measured"} <= names


def refused(error: type[SchedcError], message: str, *arguments: object) -> None:
    with pytest.raises(error, match=message) as found:
        compared(*arguments)
    assert found.value.exit_status == 2
    assert "\n" not in str(found.value)


def test_a_trace_of_another_plan_is_refused(files: Files, tmp_path: Path) -> None:
    other = certify(files.plan.problem, constructive("zb-h1")(files.plan.problem), MadeBy(schedc="0", method="zb-h1"))
    write_plan(other, tmp_path / "other.json")
    message = (
        r"trace\.json: is a trace of the plan '\w*' with the sha256 \w{12}…, found \S+other\.json with \w{12}…; compare the plan"
    )
    refused(InvalidInput, message, tmp_path / "other.json", files.trace_path)
    file = json.loads(files.trace_path.read_bytes())
    file["schedc"]["ranks"][1]["compute"][0] = file["schedc"]["ranks"][1]["compute"][0].replace("F1.0", "F1.5", 1)
    (tmp_path / "trace.json").write_text(json.dumps(file), encoding="utf-8")
    refused(
        InvalidInput,
        r"rank 1 ran F1\.5 at place 0, expected F1\.0; the trace is not of this plan",
        files.plan_path,
        tmp_path / "trace.json",
    )


def test_what_cannot_be_used_is_refused(files: Files, tmp_path: Path) -> None:
    both = files.plan_path, files.trace_path
    refused(InvalidInput, r"trace\.json: step 9 is not in the trace, which has the steps 2 to 4", *both, "--step", "9")
    refused(InvalidInput, "--step: found 'last', expected the number of a recorded step, or median", *both, "--step", "last")
    refused(InvalidInput, "schedc: found no such key, expected a trace file", files.plan_path, files.plan_path)
    refused(InvalidInput, "found no readable file", files.plan_path, tmp_path / "no.json")
    refused(InvalidInput, "the directory .* does not exist", *both, "--profile", tmp_path / "no" / "profile.json")


def test_trunks_that_are_not_named_after_sites_are_not_written_as_a_topology(tmp_path: Path) -> None:
    made = make_files(tmp_path)
    links = tuple(replace(link, trunk="cable" if link.trunk else None) for link in made.plan.problem.links)
    problem = replace(made.plan.problem, links=links)
    plan = certify(problem, made.plan.schedule(), made.plan.made_by)
    write_plan(plan, made.plan_path)
    write_trace_file(trace_of_timelines(plan, [simulate(problem, plan.schedule())]), made.trace_path)
    arguments = ("--profile", tmp_path / "profile.json", "--topology", tmp_path / "topology.toml")
    refused(
        Unsupported,
        "the trunk 'cable' of the link from rank 2 to rank 3 is not named after two sites",
        made.plan_path,
        made.trace_path,
        *arguments,
    )
    assert not (tmp_path / "profile.json").exists()


def test_one_cause_of_many_ranks_is_said_once(tmp_path: Path) -> None:
    """Stage 0 of eight is slower, so everything behind it is late for the same reason."""
    problem = make_problem(8, 4)
    plan = certify(problem, constructive("1f1b")(problem), MadeBy(schedc="0", method="1f1b"))
    ran = slower_stage(problem, 0, Kind.F, 1_000)
    write_plan(plan, tmp_path / "plan.json")
    write_trace_file(trace_of_timelines(plan, [simulate(ran, plan.schedule())]), tmp_path / "trace.json")
    said = compared(tmp_path / "plan.json", tmp_path / "trace.json")
    lines = [line for line in said.splitlines() if "first cause" in line]
    assert len([line for line in lines if "F of stage 0 on rank 0" in line]) == 1
    assert "the same" in lines[1]
    assert len(lines) == 2


def test_of_many_ranks_some_lanes_are_drawn_with_those_that_were_late(tmp_path: Path) -> None:
    problem = make_problem(40, 4)
    plan = certify(problem, constructive("1f1b")(problem), MadeBy(schedc="0", method="1f1b"))
    ran = slower_stage(problem, 6, Kind.BW, 1_000)
    write_plan(plan, tmp_path / "plan.json")
    write_trace_file(trace_of_timelines(plan, [simulate(ran, plan.schedule())]), tmp_path / "trace.json")
    lines = compared(tmp_path / "plan.json", tmp_path / "trace.json").splitlines()
    drawn = [line.split()[1] for line in lines if line.strip().startswith("rank ") and " planned " in line]
    assert len(drawn) == 17
    assert "6" in drawn
    assert "not shown: 23 of 40 ranks; --perfetto FILE writes all" in lines


@pytest.mark.parametrize(("scale", "said"), [(0.2, "5 times faster"), (2.0, "2 times slower")])
def test_the_scale_of_a_run_is_said_the_right_way_round(tmp_path: Path, scale: float, said: str) -> None:
    files = make_files(tmp_path)
    write_trace_file(replace(read_trace(files.trace_path), scale=scale), files.trace_path)
    assert f"the run was {said} than the plan's costs" in compared(files.plan_path, files.trace_path)


def test_sizes_that_are_measured_are_written_exactly_and_short(tmp_path: Path) -> None:
    sizes = (6_003_371, 64 << 20, 1536)
    stages = tuple(replace(make_problem(3, 1).stages[rank], message_bytes=size) for rank, size in enumerate(sizes))
    problem = replace(make_problem(3, 1), stages=stages)
    layers = json.loads(stage_profile_json(problem))["layers"]
    assert all("backward_input" in layer and "activation_after_input" in layer for layer in layers)
    whole = tuple(replace(stage, backward_input_ns=stage.backward_ns, backward_weight_ns=(0,)) for stage in stages)
    fused = json.loads(stage_profile_json(replace(problem, stages=whole, split_backward=False)))["layers"]
    assert all("backward" in layer and not layer.keys() & {"backward_input", "activation_after_input"} for layer in fused)
    assert [layer["message"] for layer in layers] == ["6003371 B", "64 MiB", "1.5 KiB"]
    assert tuple(parse_bytes(layer["message"]) for layer in layers) == sizes
