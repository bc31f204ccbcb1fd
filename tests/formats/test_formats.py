"""Files of every version that has been are read: each folder beside this file holds what one version wrote."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest
from suite.command_line import schedc

from schedc.analysis.simulation.simulate import simulate
from schedc.compile.plans import problem_for
from schedc.formats.convergence_file import MeasuredUpdate, read_convergence
from schedc.formats.family_file import read_family
from schedc.formats.plan.plan_file import plan_json, read_plan
from schedc.formats.trace_file import read_trace
from schedc.frontend.job import load_job
from schedc.frontend.job_source import source_of_file
from schedc.lower.run import run_of
from schedc.runtime.interference.forest import read_forest
from schedc.study.loss.delay_table import read_delay_table
from schedc.study.sweep.run import Journal
from schedc.study.tune.request import read_request
from schedc.verify.plan.checks import verify_plan

V1, V2 = (Path(__file__).parent / folder for folder in ("v1", "v2"))
WITHOUT = "--set pipeline.recompute=none --set memory.capacity='200 MiB'"
COMMANDS = {
    "verify plan.json --job job.toml": "plan.json",
    "verify old.plan.json --job job.toml": "old.plan.json",
    "verify open.plan.json --job open.toml --json": '"violations": []',
    "verify family/plan-2.json": "plan-2.json",
    "compare plan.json trace.json": "fixed",
    "report plan.json --trace trace.json -o page.html": "",
    "report open.plan.json --compiled compiled.json -o page.html": "",
    "simulate plan.json --links links.csv": "stage span 329.622 ms",
    f"lint schedule.csv --job job.toml {WITHOUT}": "schedule.csv: sound",
    "plot table.csv --x pipeline.microbatches -o curve.svg": "curve.svg",
    "diff plan.json open.plan.json": "makespan",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = shutil.copytree(V1, tmp_path / "v1")
    monkeypatch.chdir(here)
    return here


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("here")
def test_commands_take_files_of_version_1(command: str) -> None:
    done = schedc(*shlex.split(command))
    assert done.returncode == (1 if command.startswith("diff") else 0), done.stderr
    assert COMMANDS[command] in done.stdout


@pytest.mark.parametrize(("name", "job", "objective_ns"), [("plan", "job", 241_085_599), ("open.plan", "open", 63_813_623)])
def test_plans_and_jobs_of_version_1_mean_what_they_meant(name: str, job: str, objective_ns: int) -> None:
    plan = read_plan(V1 / f"{name}.json")
    assert verify_plan(plan) == ()
    assert plan.certificate.objective_ns == objective_ns
    assert simulate(plan.problem, plan.schedule()).objective_ns(plan.problem.objective) == objective_ns
    loaded = load_job(V1 / f"{job}.toml")
    assert loaded.given_problem in (plan.problem, None)
    assert {path.name for path in loaded.files} >= {f"{job}.toml", "profile.json", "topology.toml"}


@pytest.mark.parametrize("path", sorted(V1.rglob("*plan*.json")), ids=lambda path: path.name)
def test_the_origin_of_plans_of_version_1_is_made_up_for(path: Path) -> None:
    plan = read_plan(path)
    job = load_job(V1 / ("open.toml" if path.name.startswith("open") else "job.toml"))
    origin, network = plan.problem.origin, job.workload.network
    assert plan_json(plan, 1) == path.read_bytes()
    assert origin is not None and origin.network.site_of_rank == network.site_of_rank
    assert origin.network.links == plan.problem.links
    if job.given_layout is None:
        assert (problem_for(plan, job)[0] == plan.problem) == (plan.made_by.job_sha256 == job.sha256)
    else:
        assert plan.problem.layout == job.given_layout


@pytest.mark.parametrize("path", sorted(V2.rglob("*plan*.json")), ids=lambda path: path.name)
def test_plans_of_version_2_say_their_origin(path: Path) -> None:
    plan = read_plan(path)
    job = load_job(V1 / ("open.toml" if path.name.startswith("open") else "job.toml"))
    assert plan.problem.origin is not None and plan.problem.origin.network == job.workload.network
    assert plan_json(plan) == path.read_bytes()
    assert verify_plan(plan) == ()
    assert path.name.startswith("open") or plan == read_plan(V1 / path.relative_to(V2))
    assert problem_for(plan, job)[1] == ()


def test_periods_and_runs_of_version_2_mean_what_they_meant() -> None:
    period, run = read_plan(V2 / "period.json"), read_plan(V2 / "run.json")
    assert load_job(V2 / "asynchronous.toml").problem == period.problem
    assert [plan_json(period), plan_json(run)] == [(V2 / name).read_bytes() for name in ("period.json", "run.json")]
    assert verify_plan(period) == verify_plan(run) == ()
    assert (period.certificate.makespan_ns, run.certificate.makespan_ns) == (6_750_716, 33_561_296)
    assert (period.certificate.delays, period.certificate.versions) == ((1, 1, 0), (2, 2, 1))
    assert run_of(period, 4) == run


def test_others_of_version_1_hold_what_they_held(here: Path) -> None:
    family = read_family(here / "family" / "family.json")
    assert [len(family.plans), len(family.conditions)] == [3, 3]
    trace = read_trace(here / "trace.json")
    assert len(trace.ranks) == 4
    with Journal(here / "table.csv.journal") as journal:
        assert sorted(answer.objective_ns or 0 for answer in journal.answers.values()) == [241_085_599, 274_469_599]
    assert read_request(source_of_file(here / "tune.toml")).sites[0].capacity_bytes == 81_559 * 2**20
    assert read_delay_table(here / "delays.toml").factor("muon", (2, 1, 0)).factor == 1.1
    convergence = read_convergence(here / "convergence.json")
    assert (convergence.name, convergence.learning_rate) == ("gpt", 0.01)
    forest = read_forest(here / "interference.json")
    predicted = [forest.predict_one({"others_cpu": others, "own_waiting": waiting}) for others, waiting in ((0.9, 1.0), (0.2, 2.5))]
    assert predicted == pytest.approx([3.265, 1.515])
    second = MeasuredUpdate(step=1, loss=4.1, gradient_sq=1.4, gradient_change_sq=0.02, weight_change_sq=0.00015)
    assert convergence.steps == (MeasuredUpdate(step=0, loss=4.2, gradient_sq=1.5), second)


def test_every_file_of_version_1_is_there() -> None:
    names = {os.path.relpath(path, V1) for path in V1.rglob("*") if path.is_file()}
    assert len(names) == 25
