"""`schedc emulate`: what it prints, as text and as JSON, and the trace that it writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import typer
from inputs.plans import one_f_one_b, plan_of
from inputs.problems import MS, make_problem
from runs.forked import fork_emulations
from typer.testing import CliRunner

from schedc.analysis.simulation.engines import Transfers
from schedc.cli.commands.emulate import emulate_command
from schedc.compile.plans import time_plan
from schedc.formats.plan.plan_file import plan_sha256, write_plan
from schedc.formats.trace_file import read_trace
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan

app = typer.Typer()
app.command()(emulate_command)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    problem = make_problem(2, 3, costs_ns=(2 * MS, 2 * MS, 2 * MS), links={(0, 1): (3 * MS, MS), (1, 0): (3 * MS, MS)})
    made = plan_of(problem, one_f_one_b(problem))
    write_plan(made, tmp_path / "plan.json")
    return made


@pytest.mark.slow
def test_json_and_trace(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "links.csv").write_text("time_ms,ranks,latency_ms,bandwidth_GBps\n0,0-1,3,\n")
    arguments = [str(tmp_path / "plan.json"), "--json", "--runs", "3", "--scale", "2", "--trace", str(tmp_path / "trace.json")]
    arguments += ["--links", str(tmp_path / "links.csv")]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    found = json.loads(result.stdout)
    assert found["predicted_ns"] == plan.certificate.makespan_ns
    assert len(found["runs_ns"]) == 3
    assert [later >= found["predicted_ns"] * run for run, later in enumerate(found["runs_begin_ns"])] == [True] * 3
    assert found["measured_ns"] == sorted(found["runs_ns"])[1] >= found["predicted_ns"] - 100
    assert {"op", "rank", "late_ns", "first_cause"} <= found["worst_op"].keys()
    assert (found["scale"], found["queues"]) == (2, 4)
    idle_ns = [found["predicted_ns"] - 3 * 6 * MS] * 2
    assert found["predicted_idle_ns"] == idle_ns
    assert len(found["measured_idle_ns"]) == len(found["ranks"]) == 2
    trace = read_trace(tmp_path / "trace.json")
    assert (trace.plan_sha256, trace.scale, trace.steps) == (plan_sha256(plan), 2, (1, 2, 3))


@pytest.mark.slow
def test_text(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_emulations(monkeypatch)
    (tmp_path / "links.csv").write_text("time_ms,ranks,latency_ms,bandwidth_GBps\n")
    result = CliRunner().invoke(
        app,
        [str(tmp_path / "plan.json"), "--runs", "1", "--queues", "1", "--links", str(tmp_path / "links.csv")],
        catch_exceptions=False,
        env={"COLUMNS": "160"},
    )
    queued_ns = time_plan(plan, transfers=Transfers.ONE_QUEUE).makespan_ns
    assert f"simulated with one queue {format_duration_ns(queued_ns)}, measured " in result.stdout
    for words in (
        "all transfers of a rank in one queue",
        "runs while the links change",
        "time without compute",
        "predicted",
        "the worst-placed op",
    ):
        assert words in result.stdout


@pytest.mark.slow
def test_ranks_that_choose(tmp_path: Path) -> None:
    """The link is 15 ms slower than the plan says, so rank 0 runs its third F before its first backward."""
    problem = make_problem(2, 3, costs_ns=(2 * MS, 2 * MS, 2 * MS), in_flight=3)
    write_plan(plan_of(problem, one_f_one_b(problem)), tmp_path / "plan.json")
    links = tmp_path / "links.csv"
    links.write_text("time_ms,ranks,latency_ms,bandwidth_GBps\n0,0-1,15,\n")
    arguments = [str(tmp_path / "plan.json"), "--choose", "--runs", "2", "--scale", "2", "--links", str(links)]
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert len(found["runs_ns"]) == len(found["simulated_ns"]) == 2
    simulated_ns, planned_ns = found["simulated_ns"][0], found["as_planned_ns"][0]
    assert simulated_ns - 100 <= min(found["runs_ns"])
    assert simulated_ns < planned_ns
    assert found["moved_ops"][0] > 0
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    assert format_duration_ns(planned_ns, 2) in shown
    refused = CliRunner().invoke(app, [*arguments, "--queues", "1"])
    assert str(refused.exception) == "--choose: cannot be combined with --queues 1 or --trace; leave them out"
