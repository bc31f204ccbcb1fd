"""Replaying a link trace with ranks that adapt: the plan changes with the links and changes back, and each run has its plan."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import typer
from inputs.plans import one_f_one_b, plan_of
from inputs.problems import MS, make_problem
from runs.forked import fork_emulations
from suite.marked_processes import parent, processes_of, until
from typer.testing import CliRunner

from schedc.analysis.simulation.online import not_before
from schedc.api import choosing_run
from schedc.cli.commands.emulate import emulate_command
from schedc.compile.plans import simulated_runs
from schedc.errors import CheckFailed, InvalidInput, Unsupported
from schedc.formats.plan.plan_file import plan_sha256, write_plan
from schedc.ir.conditions import AS_PLANNED, Conditions, LinkState, LinkTrace
from schedc.ir.ops import Kind
from schedc.ir.problem import DataParallel
from schedc.runtime.adapt.leading import Hysteresis, Leading
from schedc.runtime.adapt.monitor import Monitor
from schedc.runtime.adapt.proposer import ProposerAnswer
from schedc.runtime.common.program import wires_of
from schedc.runtime.emulation.delays import TraceClock, traced_delay
from schedc.runtime.emulation.emulate import AdaptingRuns, PlanMove, emulate_adapting
from schedc.solvers.driver.registry import constructive
from schedc.view.terminal.emulated import replay_times, shown_replay
from schedc.view.terminal.show import show

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan

SLOW = Conditions(links={(0, 1): LinkState(latency_ns=15 * MS)})


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_emulations(monkeypatch)


def tight_plan() -> Plan:
    """With room for so few microbatches that what is best without delay is not with one, nor the other way round."""
    problem = make_problem(3, 6, costs_ns=(2 * MS, 2 * MS, 2 * MS), in_flight=3)
    return plan_of(problem, constructive("zb-h1")(problem))


@pytest.mark.slow
@pytest.mark.parametrize("choose", [False, True])
def test_the_plan_changes_and_changes_back(tmp_path: Path, *, choose: bool) -> None:
    plan, both = tight_plan(), ((0, 1), (1, 0))
    write_plan(plan, tmp_path / "plan.json")
    (tmp_path / "links.csv").write_text("time_ms,ranks,latency_ms,bandwidth_GBps\n300,0-1,15,\n4500,0-1,,\n")
    app = typer.Typer()
    app.command()(emulate_command)
    arguments = [str(tmp_path / "plan.json"), "--adapt", "--json", "--links", str(tmp_path / "links.csv"), "--runs", "110"]
    result = CliRunner().invoke(app, [*arguments, "--choose"] if choose else arguments, catch_exceptions=False)
    found = json.loads(result.stdout)
    assert found["ended"] is None
    ran, moves, begun_ns = found["plan_of_run"], found["moves"], found["runs_begin_ns"]
    assert len(ran) == len(found["runs_ns"]) == len(begun_ns) == len(found["simulated_ns"]) == 110
    assert begun_ns[0] == 0
    assert found["plans"][0]["sha256"] == plan_sha256(plan)
    for move in moves:
        if move["run"] is not None and move["run"] <= 110:
            assert ran[move["run"] - 1] == move["plan"]
            assert ran[move["run"] - 2] != move["plan"]
        assert move["after_ns"] <= move["before_ns"]
    away, back = moves[0], next(move for move in moves if move["plan"] == 0)
    slow_ns = [state["latency_ns"] for state in away["links"] if (state["source"], state["destination"]) in both]
    assert slow_ns
    assert all(abs(latency_ns - 15 * MS) < 4 * MS for latency_ns in slow_ns)
    assert begun_ns[away["run"] - 1] >= 300 * MS
    assert all((state["latency_ns"] or 0) < MS for state in back["links"])  # a busy machine may add some
    assert begun_ns[back["run"] - 1] >= 4500 * MS
    slow = [at for at, begin_ns in enumerate(begun_ns) if 300 * MS <= begin_ns < 4300 * MS]
    assert found["simulated_ns"][slow[-1]] <= found["simulated_ns"][slow[0]]
    if not choose:
        assert found["simulated_ns"][0] == plan.certificate.makespan_ns
        assert found["simulated_ns"][slow[-1]] < found["first_plan_ns"][slow[-1]]
        for begin_ns, took_ns, simulated_ns in zip(begun_ns, found["runs_ns"], found["simulated_ns"], strict=True):
            within = any(begin_ns < change_ns <= begin_ns + took_ns for change_ns in (300 * MS, 4500 * MS))
            assert within or took_ns >= simulated_ns - 100


def test_links_are_as_planned_until_the_clock_starts() -> None:
    """A link that is slow from the trace's time 0 on is a change from what the monitor has learned."""
    plan = tight_plan()
    trace, clock = LinkTrace(((0, SLOW),)), TraceClock(2.0, before_ns=-1)
    wire = next(wire for wire in wires_of(plan) if (wire.source, wire.destination) == (0, 1))
    delay = traced_delay(plan.problem, wire, 1.0, trace, clock)
    assert delay.at(5).latency_ns == 0
    clock.start(100)
    assert (clock.time_ns(100), clock.time_ns(300)) == (0, 100)
    assert delay.at(100).latency_ns == 15 * MS
    clock.stop(300)
    assert clock.time_ns(1000) == 100


@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
def test_the_scale_is_taken_out_of_what_is_measured(scale: float) -> None:
    monitor = Monitor(scale=scale)
    monitor._problem, monitor._rank = make_problem(2, 2, links={(0, 1): (3 * MS, 0)}), 1
    pair = type("Pair", (), {"excess_ns": round(12 * MS * scale), "occupancy_excess_ns": 0})()
    monitor._peers[0] = type("Links", (), {"pair": pair})()
    assert monitor._changed() == SLOW.links


class _Asked:
    """A proposer that answers when it is let."""

    ended = None
    own_sha256 = "own"

    def __init__(self) -> None:
        self.questions: list[tuple[str, Conditions]] = []
        self.answers: list[ProposerAnswer] = []

    def ask(self, running: str, conditions: Conditions) -> None:
        self.questions.append((running, conditions))

    def answer(self) -> ProposerAnswer | None:
        return self.answers.pop() if self.answers else None


class _Board:
    """The job's store."""

    def __init__(self) -> None:
        self.measured = {0: SLOW}
        self.published: list[bytes] = []

    def posted(self) -> dict[int, Conditions]:
        return self.measured

    def publish(self, number: int, content: bytes) -> Any:
        self.published.append(content)
        return number


def test_an_answer_to_an_older_question_is_not_published() -> None:
    """The proposer keeps the plan of its last answer only, and could not compare with an earlier one that runs."""
    asked, scheduler = _Asked(), _Board()
    leading = Leading(asked, scheduler, Hysteresis(), [], 0.0)  # type: ignore[arg-type]
    leading.go_on(None, 1)
    slower = Conditions(links={(0, 1): LinkState(latency_ns=30 * MS)})
    scheduler.measured = {0: slower}
    asked.answers = [ProposerAnswer(SLOW, "own", None, False, 10**9, 10**8, "first", b"first")]
    leading.go_on(None, 2)
    leading.go_on(None, 3)
    assert asked.questions == [("own", SLOW), ("own", slower)]
    assert scheduler.published == []
    asked.answers = [ProposerAnswer(slower, "own", None, False, 10**9, 10**8, "second", b"second")]
    leading.go_on(None, 4)
    assert scheduler.published == [b"second"]


def test_each_run_is_simulated_with_the_links_that_it_met() -> None:
    """Also where they change within it, and with a plan that was made for other costs."""
    plan = tight_plan()
    other = replace(plan_of(plan.problem, one_f_one_b(plan.problem)), problem=plan.problem)
    trace = LinkTrace(((10 * MS, SLOW), (200 * MS, AS_PLANNED)))
    begun_ns = (0, 20 * MS, 150 * MS, 300 * MS)
    for choose in (False, True):
        found = simulated_runs((plan, other), (0, 1, 0, 1), begun_ns, trace, choose=choose)
        assert found == [
            choosing_run((plan, other)[at % 2], links=trace.since(begin_ns), choose=choose).timeline.makespan_ns
            for at, begin_ns in enumerate(begun_ns)
        ]
    assert simulated_runs((plan,), (0,), (0,), None, choose=False) == [plan.certificate.makespan_ns]
    problem = make_problem(3, 6, costs_ns=(10, 10, 10), links=dict.fromkeys(((0, 1), (1, 0), (1, 2), (2, 1)), (30, 0)), in_flight=6)
    late = plan_of(problem, one_f_one_b(problem))  # choosing at any time is faster with its own costs, so ranks wait for no time
    assert not_before(problem, late.schedule()) is None
    assert simulated_runs((late,), (0,), (0,), None, choose=True) == [choosing_run(late).timeline.makespan_ns]


def test_refusals(tmp_path: Path) -> None:
    plan = tight_plan()
    with pytest.raises(InvalidInput, match=r"^warm_up: found 0, expected at least 1$"):
        emulate_adapting(plan, warm_up=0)
    with pytest.raises(InvalidInput, match=r"scale 0\.1 makes the shortest op"):
        emulate_adapting(plan, scale=0.1)
    problem = replace(plan.problem, data_parallel=DataParallel(size=2, zero_stage=0, reduce_scatter_ns=(MS, MS, MS)))
    with pytest.raises(Unsupported, match="ranks that choose are not emulated"):
        emulate_adapting(plan_of(problem, one_f_one_b(problem)), choose=True)
    with pytest.raises(CheckFailed, match="plan 'test' breaks a rule: "):
        emulate_adapting(replace(plan, ranks=plan.ranks[:2]))
    write_plan(plan, tmp_path / "plan.json")
    app = typer.Typer()
    app.command()(emulate_command)
    for options, said in (
        (["--warm-up", "3"], "--warm-up: is for --adapt; add that, or leave it out"),
        (["--adapt", "--queues", "1"], "--adapt: cannot be combined with --queues 1 or --trace; leave them out"),
        (["--adapt", "--trace", "t.json"], "--adapt: cannot be combined with --queues 1 or --trace; leave them out"),
    ):
        result = CliRunner().invoke(app, [str(tmp_path / "plan.json"), *options])
        assert str(result.exception) == said


def test_each_stretch_has_a_row_and_each_plan_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    plan = tight_plan()
    both = Conditions(links=dict.fromkeys(((0, 1), (1, 0)), LinkState(latency_ns=15 * MS)))
    trace = LinkTrace(((100 * MS, both), (400 * MS, AS_PLANNED), (9000 * MS, both)))
    move = PlanMove(run=2, refusal=None, plan=1, conditions=both, before_ns=128 * MS, after_ns=100 * MS)
    found = AdaptingRuns(
        runs_ns=(40 * MS, 130 * MS, 101 * MS, 103 * MS, 45 * MS),
        begun_ns=(0, 100 * MS, 200 * MS, 290 * MS, 410 * MS),
        plan_of_run=(0, 0, 1, 1, 0),
        plans=(plan, plan),
        sha256=("a", "b"),
        moves=(
            move,
            replace(move, run=4, plan=0, conditions=AS_PLANNED),
            replace(move, run=None, conditions=Conditions(slowdown={(2, Kind.F): 1.5})),
            replace(move, run=None, refusal="rank 1 does not like it"),
        ),
        ended="the proposer has ended: it ended by SIGKILL",
        before_others=False,
    )
    times = replay_times(plan, trace, found, choose=False)
    show(shown_replay(trace, found, times, scale=2.0, choose=False))
    shown = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    text = " ".join(lines)
    for words in (
        "the machine's load shows in the times",
        "plan 1, from run 3 on: measured links 0-1 15 ms, with which a step takes 100 ms, before 128 ms",
        "back to plan 0, from run 5 on: measured links as planned",
        "plan 1, not taken up before the end: measured rank 2's F +50%,",
        "plan 1, refused: rank 1 does not like it: measured",
        "the ranks adapt no more: the proposer has ended: it ended by SIGKILL",
        "1 changes of the link trace come after the last run",
    ):
        assert words in text
    starts = [line.split()[0] for line in lines if line[:1].isdigit()]
    assert starts[:4] == ["1", "2", "3–4", "5"]


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.slow
@pytest.mark.parametrize("killed", ["the caller", "the proposer"])
def test_the_proposer_ends_with_the_command_and_not_the_command_with_it(tmp_path: Path, killed: str) -> None:
    write_plan(tight_plan(), tmp_path / "plan.json")
    mark = f"SCHEDC_TEST_{uuid.uuid4().hex}"
    code = "import sys, typer; from schedc.cli.commands.emulate import emulate_command; typer.run(emulate_command)"
    arguments = ["--adapt", "--json", "--scale", "20", "--runs", "3", "--warm-up", "3"]
    caller = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "plan.json"), *arguments],
        env={**os.environ, mark: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert until(lambda: len(processes_of(mark)) == 6), "the caller, the server, three ranks and the proposer"
        if killed == "the caller":
            caller.kill()
            assert until(lambda: not processes_of(mark) or processes_of(mark) == [caller.pid])
        else:
            os.kill(next(one for one in processes_of(mark) if parent(parent(parent(one))) == caller.pid), signal.SIGKILL)
            printed, _ = caller.communicate(timeout=250)
            assert caller.returncode == 0
            found = json.loads(printed)
            assert found["ended"] == "the proposer has ended: it ended by SIGKILL"
            assert found["plan_of_run"] == [0, 0, 0]
    finally:
        for process in processes_of(mark):
            os.kill(process, signal.SIGKILL)
        caller.communicate()
