"""`schedc explain`: what it says of a plan, and that what it says would help was found and not guessed."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from inputs.problems import make_problem, with_fused_backward
from suite.command_line import schedc

from schedc.analysis.bounds.clock import Clock
from schedc.analysis.simulation.simulate import simulate
from schedc.api import explain_plan, read_job, verify_plan
from schedc.compile.certify import certify
from schedc.errors import CheckFailed
from schedc.formats.plan.plan_file import write_plan
from schedc.frontend.job import load_job
from schedc.ir.network import Link
from schedc.ir.ops import Kind, Op
from schedc.ir.plan import BoundName, MadeBy
from schedc.ir.schedule import Schedule
from schedc.solvers.common.interruption import Interruption
from schedc.solvers.heuristics.greedy import Greedy
from schedc.solvers.templates.fused import OneFOneB
from schedc.study.explain import explain
from schedc.study.explain.changes import ChangeKind, faster_link, more_memory, one_more_microbatch, other_choices
from schedc.study.explain.resolve import Solver, pair_delays
from schedc.verify.schedule.checks import verify_schedule
from schedc.view.terminal.explanation import WIDTH, shown_explanation
from schedc.view.terminal.show import console, show

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

EXAMPLES = Path(__file__).parents[2] / "examples"
LINKS = {(0, 1): (40, 10), (1, 0): (40, 10)}
LONG_S = 600.0
"""No search is cut: what is found is the same on a slow machine."""


def certified(problem: Problem, schedule: Schedule) -> Plan:
    return certify(problem, schedule, MadeBy(schedc="0", method="test"))


def small() -> Problem:
    return make_problem(2, 4, costs_ns=(10, 12, 8), links=LINKS, in_flight=2)


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A plan's file, and what `--json` says of it."""
    problem = small()
    path = tmp_path_factory.mktemp("explain") / "plan.json"
    write_plan(certified(problem, OneFOneB()(problem)), path)
    done = schedc("explain", path, "--json", "--time-limit", "10min")
    assert (done.returncode, done.stderr) == (0, "")
    said: dict[str, Any] = json.loads(done.stdout)
    return path, said


def test_the_numbers_add_up(explained: tuple[Path, dict[str, Any]]) -> None:
    _, said = explained
    problem = small()
    timeline = simulate(problem, OneFOneB()(problem))
    assert said["makespan_ns"] == timeline.makespan_ns
    assert sum(each["end_ns"] - each["start_ns"] for each in said["critical_path"]) == timeline.makespan_ns
    for rank in said["ranks"]:
        assert rank["busy_ns"] == timeline.busy_ns[rank["rank"]]
        assert sum(each["idle_ns"] for each in rank["idle"]) == rank["idle_ns"] == timeline.makespan_ns - rank["busy_ns"]
    assert {(each["source"], each["destination"]) for each in said["links"]} == set(LINKS)
    for link in said["links"]:
        found = link["resolved"]
        assert link["free_ns"] <= min(link["slack_ns"], link["allowed_ns"])
        assert link["allowed_ns"] <= found["tolerated_ns"] < found["impossible_ns"]


def test_no_change_that_only_helps_is_a_loss(explained: tuple[Path, dict[str, Any]]) -> None:
    _, said = explained
    assert said["best_known_ns"] <= said["planned_ns"]
    assert said["lower_bound_ns"] <= said["best_known_ns"]
    changes = {(each["change"], each["rank"], each["destination"]) for each in said["changes"]}
    assert changes == {("link", 0, 1), ("link", 1, 0), ("memory", 0, None), ("memory", 1, None), ("microbatch", None, None)}
    for each in said["changes"]:
        assert each["before_ns"] == said["best_known_ns"]
        assert each["lower_bound_ns"] <= each["after_ns"] or not each["searched"]
        if each["change"] != "microbatch":
            assert each["gain"] >= 0
    gains = {each["text"]: each["gain"] for each in said["changes"]}
    assert gains["one more activation on rank 0"] > 0
    assert [each["gain"] for each in said["changes"]] == sorted((each["gain"] for each in said["changes"]), reverse=True)


def test_the_page_fits(explained: tuple[Path, dict[str, Any]]) -> None:
    path, _ = explained
    done = schedc("explain", path, "--quiet", "--time-limit", "1s", width=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 100
    titles = ("The critical path", "Idle time of the ranks", "What would help", "Latency that can be added", "Delay of messages")
    places = [done.stdout.index(title) for title in titles]
    assert places == sorted(places)
    assert "not tried: other placements, split, recomputation and layouts: they need the plan's job (--job)" in done.stdout


def test_the_base_is_what_a_search_does_not_improve() -> None:
    problem = small()
    solver = Solver(work=0.1, clock=Clock(LONG_S), interruption=Interruption())
    base = solver.settle(problem, OneFOneB()(problem))
    assert solver.improved(problem, (base.schedule,)).objective_ns == base.objective_ns
    assert verify_schedule(problem, base.schedule) == ()
    link = faster_link(problem, problem.links[0])
    assert link is not None
    assert solver.improved(link.problem, (base.schedule,)).objective_ns <= base.objective_ns


def test_what_a_solver_proved_of_the_plan_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small()
    plan = certified(problem, OneFOneB()(problem))
    proven = replace(plan.certificate, lower_bound_ns=plan.certificate.makespan_ns, gap=0.0, bound=BoundName.CPSAT)
    monkeypatch.setattr("schedc.study.explain.explain.check_plan", lambda _, **__: ())
    assert explain_plan(plan, most=0).base_bound_ns < plan.certificate.makespan_ns
    assert explain_plan(replace(plan, certificate=proven), most=0).base_bound_ns == plan.certificate.makespan_ns


def test_a_link_that_takes_no_time_is_no_change() -> None:
    problem = make_problem(2, 2, links={(0, 1): (40, 10)})
    said = explain_plan(certified(problem, OneFOneB()(problem)), time_limit_s=LONG_S)
    assert [gain.change.destination for gain in said.gains if gain.change.kind is ChangeKind.LINK] == [1]
    assert "faster links: 1 of 2 take no time" in said.not_tried


def test_what_the_bound_says_of_a_plan_and_the_columns_of_80(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = small()
    plan = certified(problem, OneFOneB()(problem))
    said = explain_plan(plan, time_limit_s=LONG_S)
    monkeypatch.setenv("COLUMNS", "80")
    said_of_bound = replace(said, planned_ns=200, base_ns=200, base_bound_ns=100)
    show(shown_explanation(plan, said_of_bound), console(most=WIDTH))
    text = capsys.readouterr().out
    assert "no schedule is more than 50.00% shorter" in " ".join(text.split())
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "45")
    show(shown_explanation(plan, said), console(most=WIDTH))
    text = capsys.readouterr().out
    assert all(line.rstrip().endswith("…") for line in text.splitlines() if "rank 0" in line and "%" in line)  # cut, and says so


def test_changes() -> None:
    problem = small()
    link = Link(source=0, destination=1, latency_ns=1100, bytes_per_second=1001)
    change = faster_link(replace(problem, links=(link,)), link)
    assert change is not None
    faster = change.problem.links[0]
    assert (faster.latency_ns, faster.bytes_per_second) == (1000, 1102)
    free = Link(source=0, destination=1, latency_ns=0, transfer_ns=0)
    assert faster_link(replace(problem, links=(free,)), free) is None
    change = more_memory(problem, 1)
    assert change is not None
    assert change.problem.memory_limit_bytes == (4, 6)
    assert more_memory(replace(problem, memory_limit_bytes=(None, 4)), 0) is None
    both_ways = make_problem(2, 4, placement="bidirectional", in_flight=2)
    more = one_more_microbatch(both_ways)
    assert more is not None
    assert more.problem.path_of == (0, 1, 0, 1, 0)
    lengths = replace(problem.stages[0], forward_ns=(1, 2, 3, 4))
    assert one_more_microbatch(replace(problem, stages=(lengths, problem.stages[1]))) is None


@pytest.mark.slow
def test_a_job_is_tried_in_other_placements(tmp_path: Path) -> None:
    layers = [
        {"forward": "10 ms", "backward_input": "10 ms", "backward_weight": "10 ms", "activation": "4 B", "message": "1 B"}
    ] * 4
    (tmp_path / "profile.json").write_text(
        json.dumps({"format": "schedc.profile", "version": 1, "layers": layers}), encoding="utf-8"
    )
    text = '[pipeline]\nranks = 2\nmicrobatches = 4\n[profile]\npath = "profile.json"\n[topology]\nsites = [2]\n'
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    job = load_job(tmp_path / "job.toml")
    changes, why_not = other_choices(job, job.problem)
    assert why_not == []
    placed = [change for change in changes if change.kind is ChangeKind.PLACEMENT]
    assert [change.text for change in placed] == ["placement loop", "placement wave", "placement bidirectional"]
    assert [len(change.problem.stages) for change in placed] == [4, 4, 4]
    choices = [change for change in changes if change not in placed]
    texts = ["split_backward = false", 'recompute = "full"', 'recompute = "auto"', 'placement = "auto"']
    assert [change.text for change in choices] == texts
    assert [change.open_job is not None for change in choices] == [False, False, True, True]
    write_plan(certified(job.problem, Greedy()(job.problem)), tmp_path / "plan.json")
    done = schedc("explain", tmp_path / "plan.json", "--job", tmp_path / "job.toml", "--json", "--time-limit", "10min")
    assert done.returncode == 0
    tried = {each["text"]: each["gain"] for each in json.loads(done.stdout)["changes"]}
    assert tried["placement wave"] > 0
    assert set(texts) <= set(tried)


def test_what_cannot_be_explained_is_refused(tmp_path: Path) -> None:
    problem = small()
    plan = certified(problem, OneFOneB()(problem))
    tight = replace(plan, problem=replace(problem, memory_limit_bytes=(2, 2)))
    with pytest.raises(CheckFailed, match=r"verify"):
        explain_plan(tight)
    (tmp_path / "job.toml").write_text(
        '[pipeline]\nranks = 2\nmicrobatches = 4\n[profile]\nforward = "1 ms"\nbackward_input = "1 ms"\nbackward_weight = "1 ms"\n',
        encoding="utf-8",
    )
    write_plan(plan, tmp_path / "plan.json")
    done = schedc("explain", tmp_path / "plan.json", "--job", tmp_path / "job.toml", width=300)
    assert done.returncode == 1
    assert "is not a plan of the job: costs.stages[0] differs" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_job_of_another_name_is_the_plans_job() -> None:
    job = load_job(EXAMPLES / "pipemorph-4x12/job.toml")
    plan = certified(replace(job.problem, name="another"), OneFOneB()(job.problem))
    assert verify_plan(plan, job) == ()
    explanation = explain_plan(plan, job, most=0)
    assert explanation.gains == ()  # nothing is solved again: no placement either
    assert explanation.not_tried == ("all changes: --most 0 was given",)


def test_pipemorphs_rule_is_theorem_1_where_times_are_equal() -> None:
    problem = make_problem(3, 8, costs_ns=(10, 10, 10), links=dict.fromkeys(((0, 1), (1, 0), (1, 2), (2, 1)), (5, 0)))
    for pair in pair_delays(problem, OneFOneB()(problem)):
        assert (pair.rule.slackness, pair.rule.delay_ns) == (1, 5)
        assert pair.exact_ns == 0
    fused = with_fused_backward(problem, 8)
    assert {op.kind for op in OneFOneB()(fused).orders[0]} == {Kind.F, Kind.BW}
    rule = pair_delays(fused, OneFOneB()(fused))[0].rule
    assert rule.tolerated_ns == (rule.slackness * (10 + 16) - (10 + 16)) // 2


@pytest.mark.parametrize("slackness", [1, 2, 3, 4])
def test_pipemorphs_rule_agrees_with_the_simulator_where_it_speaks_of_all(slackness: int) -> None:
    """Two stages, all times equal, and so many microbatches that what cascades shows."""
    problem = make_problem(2, 40, costs_ns=(10, 10, 10), links={(0, 1): (0, 0), (1, 0): (0, 0)})
    (pair,) = pair_delays(problem, steady(problem, (1 + slackness, 1)))
    assert pair.rule.slackness == slackness
    assert pair.rule.tolerated_ns == (slackness - 1) * 10
    assert pair.exact_ns is not None
    assert pair.exact_ns >= pair.rule.tolerated_ns


def steady(problem: Problem, warm_up: tuple[int, ...]) -> Schedule:
    """Each rank warms up with that many forwards, then runs B, F and W by turns."""
    orders = []
    for rank, count in enumerate(warm_up):
        order = [Op(Kind.F, rank, m) for m in range(count)]
        for m in range(problem.microbatches):
            order.append(Op(Kind.B, rank, m))
            order += [Op(Kind.F, rank, m + count)] if m + count < problem.microbatches else []
            order.append(Op(Kind.W, rank, m))
        orders.append(tuple(order))
    return Schedule(orders=tuple(orders))


def test_without_changes_nothing_is_solved_again() -> None:
    problem = small()
    explanation = explain_plan(certified(problem, OneFOneB()(problem)), most=0)
    assert explanation.base_ns == explanation.planned_ns
    assert explanation.gains == ()
    assert all(delay.resolved is None for delay in explanation.delays)


def test_without_time_all_that_was_not_tried_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "LEAST_DELAYS_S", LONG_S)
    problem = small()
    said = explain_plan(certified(problem, OneFOneB()(problem)), time_limit_s=0.0)
    assert said.base_ns <= said.planned_ns
    assert all(not gain.searched or gain.share >= 0 for gain in said.gains)
    late = [each.partition(": ")[0] for each in said.not_tried if each.endswith(": there was no time (--time-limit)")]
    assert "one more microbatch" in late
    assert "delays of link 0>1" in late


def test_without_time_no_delay_is_sought(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large plan each takes a second."""
    monkeypatch.setattr(explain, "LEAST_DELAYS_S", 0.0)
    problem = small()
    said = explain_plan(certified(problem, OneFOneB()(problem)), time_limit_s=0.0)
    assert (said.delays, said.pairs) == ((), ())
    links = sum(stage.rank != after.rank for stage, after in pairwise(problem.stages)) * 2
    assert f"delays of {links} more links, and of pairs of neighbours: there was no time (--time-limit)" in said.not_tried


def test_a_search_for_a_layout_ends_with_the_explanations_time() -> None:
    """Its own limit is work, which may take a minute on a slow machine."""
    job = read_job(EXAMPLES / "open-layout" / "job.toml")
    solver = Solver(work=0.1, clock=Clock(0.0), interruption=Interruption())
    assert explain._laid_out(job, solver) is None


def test_what_is_made_at_once_ends_with_the_explanations_time() -> None:
    solver = Solver(work=0.1, clock=Clock(0.0), interruption=Interruption())
    assert solver.at_once(small()) is None
    known = OneFOneB()(small())
    assert solver.improved(small(), (known,)).schedule == known
