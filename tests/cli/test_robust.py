"""`schedc compile --robust`: a plan for links that change, from a distribution or a link trace, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inputs.jobs import THREE_RANKS, write_job
from suite.command_line import schedc

FAST = ("--method", "greedy", "--deterministic-limit", "0.5")


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_job(tmp_path, THREE_RANKS)
    monkeypatch.chdir(tmp_path)


def test_a_plan_for_a_distribution() -> None:
    done = schedc("compile", "job.toml", "-o", "p.json", "--robust", "normal(30 ms, 10 ms)", "--robust-samples", 8, "--json", *FAST)
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    robust = said["robust"]
    assert (robust["states"], robust["aim"], said["method"], said["reproducible"]) == (8, "mean", "robust", True)
    assert robust["value_ns"] == sum(robust["plan"]["states_ns"]) / 8 <= robust["plan_for_mean"]["mean_ns"]
    assert robust["lower_bound_ns"] <= robust["value_ns"]
    plan = json.loads(Path("p.json").read_text())
    assert plan["certificate"]["makespan_ns"] == robust["plan"]["at_mean_ns"]
    assert schedc("verify", "p.json").returncode == 0
    # At the job's own costs it takes what is said; it is no plan for them.
    timed = json.loads(schedc("simulate", "p.json", "--job", "job.toml", "--json").stdout)
    assert timed["makespan_ns"] == robust["plan"]["as_planned_ns"]
    first = Path("p.json").read_bytes()
    schedc("compile", "job.toml", "-o", "p.json", "--robust", "normal(30 ms, 10 ms)", "--robust-samples", 8, "--quiet", *FAST)
    assert Path("p.json").read_bytes() == first


def test_a_percentile_over_a_link_trace_as_a_table() -> None:
    Path("links.csv").write_text("time_ms,ranks,latency_ms,bandwidth_GBps\n0,0-1,30,\n900,0-1,60,\n1000,0-1,,\n")
    done = schedc("compile", "job.toml", "-o", "p.json", "--robust", "links.csv", "--robust-percentile", 90, *FAST)
    assert done.returncode == 0
    assert "three: makespan of one order in 3 states of its links, each for a whole step" in done.stdout
    assert "percentile 90" in done.stdout and "the worst state" in done.stdout and "plan for the mean" in done.stdout
    assert json.loads(Path("p.json").read_text())["made_by"]["method"] == "robust{percentile=90}"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--robust", "gone.csv"), "gone.csv: "),
        (("--robust", ""), '--robust: found "", expected the file of a link trace, or "normal(MEAN, DEVIATION)"'),
        (("--robust", "0>1 = normal(3 ms, 1 ms)"), "of all links, or of a pair of ranks both ways"),
        (("--robust", "empty.csv"), "empty.csv: found a link trace without rows, expected links that change"),
        (("--robust", "normal(30 ms)"), '--robust: found "normal(30 ms)", expected "normal(MEAN, DEVIATION)"'),
        (("--robust", "normal(30, 10 ms)"), '--robust: found "30" in "normal(30, 10 ms)", expected a duration'),
        (("--robust-percentile", "95"), "--robust-percentile: found 95 without --robust"),
        (("--robust-samples", "9"), "--robust-samples: found 9 without --robust"),
        (("--robust", "normal(1 ms, 1 ms)", "--robust-percentile", "0"), "--robust-percentile: found 0, expected a number above 0"),
        (("--robust", "normal(1 ms, 1 ms)", "--set", "pipeline.ranks=1"), "but no link of the job is crossed"),
        (
            ("--robust", "normal(1 ms, 1 ms)", "--set", "pipeline.recompute=auto", "--set", "profile.activation=1 MiB"),
            'pipeline.recompute=auto: found "auto", expected a given one, as this command chooses no layout',
        ),
    ],
)
def test_what_is_refused_is_refused_in_one_line(options: tuple[str, ...], says: str) -> None:
    Path("empty.csv").write_text("time_ms,ranks,latency_ms,bandwidth_GBps\n")
    done = schedc("compile", "job.toml", "-o", "p.json", *options, *FAST)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("schedc: ") and says in done.stderr and done.stderr.count("\n") == 1
    assert not Path("p.json").exists()


def test_the_link_trace_is_not_written_over() -> None:
    trace = "time_ms,ranks,latency_ms,bandwidth_GBps\n0,0-1,30,\n"
    Path("links.csv").write_text(trace)
    done = schedc("compile", "job.toml", "-o", "links.csv", "--robust", "links.csv", *FAST)
    assert (done.returncode, Path("links.csv").read_text()) == (2, trace)
    assert "links.csv: cannot be written: this command reads it as links.csv; name another file" in done.stderr
