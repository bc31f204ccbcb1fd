"""Steps that overlap, on the command line: a job in, a period out, its runs, what shows them, and what refuses them."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from suite.command_line import schedc

from schedc.analysis.simulation.unroll import depth_of
from schedc.api import read_job, read_plan, unroll_plan, verify_plan
from schedc.errors import InvalidInput
from schedc.ir import Objective
from schedc.solvers.common.base import Improvement, Limits, SearchSettings
from schedc.view.terminal import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JOB = Path(__file__).parents[2] / "examples" / "never-drained" / "job.toml"


@pytest.fixture(scope="module")
def period(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("period") / "plan.json"
    done = schedc("compile", JOB, "-o", path, "--method", "steady")
    assert done.returncode == 0, done.stderr
    assert "period 316 ms, proven optimal" in done.stdout
    assert "2bw: stages' delays 1, 1, 1, 1 updates, versions 2, 2, 2, 2" in done.stdout
    return path


def test_a_period_and_its_runs_hold(period: Path, tmp_path: Path) -> None:
    done = schedc("verify", period, "--job", JOB)
    assert (done.returncode, done.stderr) == (0, "")
    assert schedc("unroll", period, "--steps", 20, "-o", tmp_path / "run.json").returncode == 0
    run = read_plan(tmp_path / "run.json")
    assert verify_plan(run) == ()
    assert run == unroll_plan(read_plan(period), 20)
    assert run.problem.microbatches == 160
    tokens = [op for rank in run.ranks for op in rank.compute]
    assert len(tokens) == len(set(tokens))
    # fill and drain are all that twenty steps take more than twenty periods
    assert 20 * 316e6 <= run.certificate.makespan_ns <= 24 * 316e6


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("simulate {plan}", "makespan"),
        ("show {plan} --width 120", "3^^ update"),
        ("report {plan} -o {out}.html", ""),
        ("plot {plan} -o {out}.svg", ""),
        ("export perfetto {plan} -o {out}.trace", "written to"),
        ("diff {plan} {plan}", "the plans are equal"),
        ("bounds {job}", "rank"),
    ],
)
def test_what_shows_it(period: Path, tmp_path: Path, command: str, shown: str) -> None:
    done = schedc(*command.format(plan=period, out=tmp_path / "out", job=JOB).split(), width=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        "explain {plan}",
        "repartition {plan} --job {job} --slow 0=2",
        "export torch {plan} -o {out}.csv",
        "simulate {plan} --choose",
        "compile {job} --method cpsat -o {out}.json",
        "family {job} --links {links} -o {out}",
        "compile {job} --robust {links} -o {out}.json",
        "lint {csv} --job {job}",
    ],
)
def test_what_is_for_steps_that_end_refuses_it_in_one_line(period: Path, tmp_path: Path, command: str) -> None:
    links, csv = tmp_path / "links.csv", tmp_path / "actions.csv"
    links.write_text("time_ms,ranks,latency_ms,bandwidth_GBps\n0,0-1,20,\n")
    csv.write_text("0F0\n")
    done = schedc(*command.format(plan=period, job=JOB, out=tmp_path / "out", links=links, csv=csv).split())
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1
    assert "overlap" in done.stderr
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('versions = "stash"', "pipeline.versions: found a value without pipeline.mode"),
        ('mode = "asynchronous"', "pipeline.versions: found nothing"),
        ('mode = "asynchronous"\nversions = "bounded"', "pipeline.most_delay: found nothing"),
        ('mode = "asynchronous"\nversions = "stash"\nmost_delay = 2', "pipeline.most_delay: found a value"),
        ('mode = "asynchronous"\nversions = "stash"\nplacement = "bidirectional"', "pipeline.placement"),
        ('mode = "asynchronous"\nversions = "stash"\nsemantics = "torch"', "pipeline.semantics"),
        ('mode = "asynchronous"\nversions = "stash"\nrecompute = "auto"', "pipeline.recompute"),
        ('mode = "asynchronous"\nversions = "stash"\nupdate = ["1 ms", "1 ms", "1 ms"]', "pipeline.update"),
    ],
)
def test_keys_that_do_not_go_together(tmp_path: Path, keys: str, said: str) -> None:
    job = tmp_path / "job.toml"
    rest = '[profile]\nforward = "1 ms"\nbackward_input = "1 ms"\nbackward_weight = "1 ms"\n'
    job.write_text(f"[pipeline]\nranks = 4\nmicrobatches = 4\n{keys}\n{rest}")
    done = schedc("compile", job, "-o", tmp_path / "out.json")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_unroll_says_what_it_cannot_do(period: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole.json"
    assert schedc("unroll", period, "--steps", 2, "-o", whole).returncode == 0
    done = schedc("unroll", whole, "--steps", 2, "-o", tmp_path / "again.json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "steps do not overlap" in done.stderr
    with pytest.raises(InvalidInput, match="expected 1 to"):
        unroll_plan(read_plan(period), 10**7)


def test_what_json_says(tmp_path: Path) -> None:
    done = schedc("compile", JOB, "-o", tmp_path / "plan.json", "--method", "pipedream-2bw", "--json")
    found = json.loads(done.stdout)
    assert (found["delays"], found["versions"]) == ([1] * 4, [2] * 4)
    assert found["makespan_ns"] == found["objective_ns"] >= found["lower_bound_ns"] > 0


def test_what_the_file_says(period: Path) -> None:
    file = json.loads(period.read_text())
    assert file["pipeline"]["updates"] == {"versions": "2bw", "microbatches": 8, "is_period": True}
    assert file["costs"]["update_ns"] == [4_000_000] * 4
    assert file["costs"]["version_bytes"] == [2 * 2**30] * 4
    assert file["certificate"]["delays"] == [1] * 4
    assert all(rank["channels"] == [] for rank in file["ranks"])


def test_a_job_says_what_its_periods_and_runs_cost(period: Path, tmp_path: Path) -> None:
    """A run is as many steps of its job; a period is timed as such a run."""
    run = tmp_path / "run.json"
    assert "a run of 1 step\n" in schedc("unroll", period, "--steps", 1, "-o", run).stdout
    assert schedc("verify", run, "--job", JOB).returncode == 0
    for plan in (period, run):
        assert schedc("simulate", plan, "--job", JOB).stdout == schedc("simulate", plan).stdout != ""
        slower = schedc("simulate", plan, "--job", JOB, "--set", 'topology.within.latency="80 ms"')
        assert (slower.returncode, slower.stderr) == (0, "")
    other = schedc("verify", period, "--job", JOB, "--set", "pipeline.versions=stash")
    assert "costs.updates.versions: same-costs: the plan has '2bw', the job 'stash'" in other.stdout + other.stderr


def test_the_table_of_methods_calls_a_period_a_period() -> None:
    assert schedc("templates", JOB).stdout.splitlines()[1].split()[:2] == ["method", "period"]


def test_a_run_that_takes_too_many_nanoseconds_is_refused_in_one_line(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    made = schedc("compile", JOB, "-o", plan, "--method", "pipedream-2bw", "--set", "pipeline.update=9000000 s")
    assert made.returncode == 0, made.stderr
    done = schedc("unroll", plan, "--steps", 2000, "-o", tmp_path / "run.json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "a run of 2000 steps: stages: length: expected a step below 2^62 ns" in done.stderr


def test_a_period_that_no_file_holds_is_refused_in_one_line(tmp_path: Path) -> None:
    chunks = ("pipeline.update=9000000 s", "pipeline.placement=wave", "pipeline.chunks=2")  # two updates on each rank
    text = JOB.read_text()
    for name in ("forward", "backward_input", "backward_weight"):
        text = re.sub(rf"(?m)^{name} = .*$", f'{name} = "7 ms"', text)
    (tmp_path / "job.toml").write_text(text)
    values = [word for value in chunks for word in ("--set", value)]
    done = schedc("compile", tmp_path / "job.toml", "-o", tmp_path / "plan.json", "--method", "one-by-one", *values)
    assert (done.returncode, done.stderr.splitlines()[1:]) == (2, [])
    assert "expected at most" in done.stderr
    assert not (tmp_path / "plan.json").exists()


def test_what_shows_a_period_says_how_many_steps(period: Path) -> None:
    plan = read_plan(period)
    steps = depth_of(plan.problem, plan.schedule()) + 2
    for command in ("simulate", "show"):
        assert f"{plan.name}, a run of {steps} steps" in schedc(command, period, width=120).stdout


def test_a_report_calls_a_period_a_period(period: Path, tmp_path: Path) -> None:
    done = schedc("compile", JOB, "-o", tmp_path / "plan.json", "--method", "pipedream-2bw", "--json")
    (tmp_path / "compiled.json").write_text(done.stdout)
    report = tmp_path / "out.html"
    made = schedc("report", tmp_path / "plan.json", "--compiled", tmp_path / "compiled.json", "-o", report)
    assert made.returncode == 0, made.stderr
    assert re.search(r"<th[^>]*>period</th>", report.read_text())
    assert not re.search(r"<th[^>]*>makespan</th>", report.read_text())


def test_progress_calls_a_period_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    @contextmanager
    def working(*_: object, **__: object) -> Iterator[Callable[[str, int], None]]:
        yield lambda line, _: lines.append(line)

    monkeypatch.setattr(progress, "working", working)
    with progress.live(read_job(JOB), SearchSettings(method="auto", limits=Limits(time_s=1.0)), hidden=True) as settings:
        settings.report(
            Improvement(
                seconds=1.0, makespan_ns=400, objective=Objective.MAKESPAN, objective_ns=400, lower_bound_ns=300, found_by="steady"
            )
        )
    assert lines[-1].startswith("period 400 ns by steady, bound 300 ns")


def test_progress_of_a_job_without_a_layout_asks_for_none(tmp_path: Path) -> None:
    layers = [{"forward": "2 ms", "backward_input": "2 ms", "backward_weight": "1 ms", "repeat": 4}]
    (tmp_path / "profile.json").write_text(json.dumps({"format": "schedc.profile", "version": 1, "layers": layers}))
    text = 'pipeline = { ranks = 2, microbatches = 2, partition = "auto" }\nprofile = { path = "profile.json" }\n'
    (tmp_path / "job.toml").write_text(text)
    done = schedc("compile", tmp_path / "job.toml", "-o", tmp_path / "plan.json", "--method", "zb-h1")
    assert done.returncode == 0, done.stderr


def test_a_search_that_takes_too_long_costs_no_plan(tmp_path: Path) -> None:
    """`pipedream` does not exist for a wave, and `steady` takes long there: it ends with the best so far."""
    text = JOB.read_text()
    for name in ("forward", "backward_input", "backward_weight"):
        text = re.sub(rf"(?m)^{name} = .*$", f'{name} = "7000003 ns"', text)
    (tmp_path / "job.toml").write_text(text)
    values = ["--set", "pipeline.placement=wave", "--set", "pipeline.chunks=2", "--set", "pipeline.microbatches=60"]
    done = schedc("compile", tmp_path / "job.toml", "-o", tmp_path / "plan.json", "--time-limit", "100ms", *values)
    assert done.returncode == 0, done.stderr
    assert re.search(r"(?m)^steady .*◀$", done.stdout)
    assert verify_plan(read_plan(tmp_path / "plan.json")) == ()
