"""`schedc repartition`: which layers it moves, the plan that it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from suite.command_line import schedc

from schedc.api import read_plan

JOB = Path(__file__).parents[2] / "examples" / "llama-3b" / "job.toml"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of the example, which has a profile of layers."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert schedc("compile", JOB, "-o", path, "--method", "1f1b", "--quiet").returncode == 0
    return path


def test_layers_leave_the_slow_rank(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "moved.json"
    done = schedc("repartition", plan, "--job", JOB, "--slow", "2=1.3", "--links", "1-2=5ms", "--pause", "2s", "-o", out)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("llama-3b: rank 2 takes 1.3 times as long; step ") and " with the best layers" in lines[0]
    assert any(line.split() == ["17", "2", "1"] for line in lines), done.stdout
    assert "; 1000 steps gain " in lines[-1]
    assert schedc("verify", out).returncode == 0
    found = json.loads(schedc("repartition", plan, "--job", JOB, "--slow", "2=1.3", "--links", "1-2=5ms", "--json").stdout)
    assert {"layer": 17, "from": 2, "to": 1} in found["moved"]
    assert found["objective_ns"] < found["stay_ns"] <= found["running_ns"]
    assert found["gain_ns"] == 1000 * (found["stay_ns"] - found["objective_ns"]) - found["move_ns"]
    assert json.loads(out.read_text())["certificate"]["makespan_ns"] == found["objective_ns"]


def test_set_is_the_same_as_editing_the_file(plan: Path, tmp_path: Path) -> None:
    text = JOB.read_text().replace('"profile.json"', json.dumps(str(JOB.with_name("profile.json"))))
    for name, latency in (("job.toml", "5 ms"), ("edited.toml", "20 ms")):
        tmp_path.joinpath(name).write_text(text.replace('"5 ms"', f'"{latency}"'))
    options = ("--slow", "2=1.3", "--json")
    edited = schedc("repartition", plan, "--job", tmp_path / "edited.toml", *options)
    changed = schedc("repartition", plan, "--job", tmp_path / "job.toml", "--set", "topology.between.latency=20 ms", *options)
    assert (changed.returncode, changed.stdout) == (0, edited.stdout)
    assert schedc("repartition", plan, "--job", tmp_path / "job.toml", *options).stdout != edited.stdout


def test_nothing_moves_where_no_step_is_to_come(plan: Path, tmp_path: Path) -> None:
    """Then the plan has the best orders for the layers as they are."""
    done = schedc("repartition", plan, "--job", JOB, "--slow", "2=1.3", "--steps", 0, "-o", tmp_path / "same.json")
    assert done.returncode == 0
    assert "no layer moves: no other layout gains more than the move takes" in done.stdout
    before, after = (read_plan(path).problem.stages for path in (plan, tmp_path / "same.json"))
    assert [stage.layers for stage in before] == [stage.layers for stage in after]


def test_condensation_is_a_method(plan: Path) -> None:
    found = {}
    for options in (("--top-k", 32), ("--top-k", 4), ()):
        done = schedc("repartition", plan, "--job", JOB, "--slow", "2=1.3", "--method", "condensation", *options, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        found[options] = json.loads(done.stdout)
    assert {"layer": 17, "from": 2, "to": 1} in found["--top-k", 32]["moved"]
    assert found[()]["gain_ns"] > 0 and found["--top-k", 32]["gain_ns"] >= found["--top-k", 4]["gain_ns"]


def test_a_rank_that_can_hold_less(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "moved.json"
    done = schedc("repartition", plan, "--job", JOB, "--memory-limit", "0=20 GiB", "--memory-limit", "3=70GiB", "-o", out)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("llama-3b: rank 0 can hold 20 GiB, rank 3 can hold 70 GiB; step ")
    assert " as it runs, for which there is no room, nor for other orders, " in lines[0]
    assert any(line.split()[1:] == ["0", "1"] for line in lines), done.stdout
    assert lines[-1].endswith(" longer than as it runs")
    assert schedc("verify", out).returncode == 0
    assert json.loads(out.read_text())["costs"]["memory_limit_bytes"][0] == round((20 - 17.9) * 2**30)
    found = json.loads(schedc("repartition", plan, "--job", JOB, "--memory-limit", "0=30GiB", "--json").stdout)
    assert (found["running_fits"], found["stay_fits"]) == (False, True)
    done = schedc("repartition", plan, "--job", JOB, "--memory-limit", "0=17GiB", "-o", tmp_path / "none.json")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("schedc: llama-3b: no boundaries of the stages have room on their ranks: in the best ones found")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "none.json").exists()


def test_refusals(plan: Path) -> None:
    for options, line in (
        ((), "found nothing that has changed, expected --slow RANK=FACTOR, --links RANKS=LATENCY or --memory-limit RANK=SIZE"),
        (("--memory-limit", "4=1GiB"), '--memory-limit: found "4=1GiB", expected a rank from 0 to 3'),
        (
            ("--memory-limit", "1=1GiB", "--memory-limit", "1=2GiB"),
            '--memory-limit: found "1=2GiB", expected each rank at most once',
        ),
        (("--memory-limit", "1=20"), '--memory-limit: found "1=20", expected RANK=SIZE, as in 2=20GiB'),
        (("--memory-limit", "20GiB"), '--memory-limit: found "20GiB", expected RANK=SIZE, as in 2=20GiB'),
        (("--slow", "4=1.3"), '--slow: found "4=1.3", expected a rank from 0 to 3'),
        (("--slow", "1=2", "--slow", "1=3"), '--slow: found "1=3", expected each rank at most once'),
        (("--slow", "2:1.3"), '--slow: found "2:1.3", expected RANK=FACTOR with a number above 0, as in 2=1.3'),
        (("--slow", "2=inf"), '--slow: found "2=inf", expected RANK=FACTOR with a number above 0, as in 2=1.3'),
        (("--links", "0-3=5ms"), '--links: found "0-3=5ms", expected links of the job: 0>1, 1>0, 1>2, 2>1, 2>3, 3>2'),
        (
            ("--links", "all=5ms,9ms"),
            '--links: found "all=5ms,9ms", 2 conditions, expected one: RANKS=LATENCY, as in 3-4=30ms',
        ),
        (("--slow", "2=2", "--top-k", "3"), "--top-k: found 3 with --method transfer, expected --method condensation"),
        (("--slow", "2=2", "--pause", "2"), "--pause: found '2', expected a duration such as"),
        (("--slow", "2=2", "-o", plan), f"{plan}: cannot be written: this command reads it"),
    ):
        done = schedc("repartition", plan, "--job", JOB, *options)
        assert done.returncode == 2
        assert done.stderr.startswith(f"schedc: {line}"), done.stderr
        assert done.stderr.count("\n") == 1
    other = JOB.parents[1] / "m70-2dc" / "job.toml"
    done = schedc("repartition", plan, "--job", other, "--slow", "2=1.3")
    assert done.stderr.startswith("schedc: plan 'llama-3b' is not in the layers of job 'm70-2dc'; give the plan's job, with")
