"""`schedc family`: a folder of plans with a table, what is printed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inputs.jobs import THREE_RANKS, write_job
from suite.command_line import schedc

FAST = ("--method", "rule-table")


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_job(tmp_path, THREE_RANKS)
    monkeypatch.chdir(tmp_path)


def test_a_family_of_written_conditions_a_trace_and_a_distribution() -> None:
    Path("links.csv").write_text("time_ms,ranks,latency_ms,bandwidth_GBps\n0,0-1,30,\n900,0-1,60,\n1000,0-1,,\n")
    links = ("--links", "1-2=20ms", "--links", "links.csv", "--links", "normal(30 ms, 10 ms)", "--most", 2)
    done = schedc("family", "job.toml", "-o", "made", *links, *FAST)
    assert done.returncode == 0
    # Of the trace, one state is the job's own costs.
    assert done.stderr.splitlines()[0] == "plan 1 of 5, for as planned"
    for name in ("as planned", "1-2=20ms", "links.csv 1", "normal(30 ms, 10 ms) 1", "normal(30 ms, 10 ms) 2"):
        assert name in done.stdout
    assert "written to made/family.json" in done.stdout
    for number in range(5):
        assert schedc("verify", f"made/plan-{number}.json").returncode == 0
    assert schedc("verify", "made/plan-0.json", "--job", "job.toml").returncode == 0
    again = schedc("family", "job.toml", "-o", "made", *links, *FAST, "--json")
    said = json.loads(again.stdout)
    assert (said["kept"], len(said["conditions"]), again.stderr) == (5, 5, "")
    for each in said["conditions"]:
        assert each["lower_bound_ns"] <= each["objective_ns"] <= each["as_planned_ns"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--links", "3-4=10ms"), '--links: found "3-4=10ms", expected links of the job: 0>1, 1>0, 1>2, 2>1'),
        (("--links", "0-1=10"), '--links: found "10" in "0-1=10", expected a duration'),
        (("--links", "gone.csv"), "gone.csv: "),
        (("--links", "all=1ms", "--method", "none"), "--method: "),
        (("--links", "all=1ms", "-o", "-"), "-o: found -, expected a folder"),
        (("--links", "all=1ms", "-o", "job.toml"), "job.toml: cannot be made: File exists"),
    ],
)
def test_what_is_refused_is_refused_in_one_line(options: tuple[str, ...], says: str) -> None:
    done = schedc("family", "job.toml", "-o", "made", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"schedc: {says}") and done.stderr.count("\n") == 1
    assert not Path("made").exists()
