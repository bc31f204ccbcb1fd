"""A sweep file made into its jobs: combinations, keys that tell jobs apart, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from inputs.sweeps import JOB, sweep_in

from schedc.errors import InvalidInput
from schedc.study.sweep import jobs as jobs_module
from schedc.study.task import JobFiles, JobOptions

if TYPE_CHECKING:
    from pathlib import Path

FULL = """
job = ["job.toml", "./job.toml"]
[compile]
method = ["greedy", "1f1b"]
seed = 3
time_limit = "1500 ms"
[set]
"topology.between.latency" = "2 ms"
[grid]
pipeline.microbatches = [2, 4]
"pipeline.partition" = ["auto", [1, 1]]
[[cases]]
name = "free"
[[cases]]
name = "tight"
set = { memory.in_flight = 1, "topology.between.latency" = "3 ms" }
"""


def test_every_combination_is_a_job(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path, FULL)
    assert len(sweep.jobs) == 2 * 2 * 2 * 2 * 2
    assert len({job.key for job in sweep.jobs}) == 32
    assert sweep.columns == (
        "job",
        "case",
        "topology.between.latency",
        "memory.in_flight",
        "pipeline.microbatches",
        "pipeline.partition",
        "compile.method",
        "compile.time_limit",
        "compile.seed",
    )
    last = sweep.jobs[-1]
    assert last.columns == {
        "job": "./job.toml",
        "case": "tight",
        "topology.between.latency": "3 ms",
        "memory.in_flight": 1,
        "pipeline.microbatches": 4,
        "pipeline.partition": [1, 1],
        "compile.method": "1f1b",
        "compile.seed": 3,
        "compile.time_limit": "1.5 s",
    }
    assert isinstance(last.task.source, JobFiles)
    assert last.task.source.options == JobOptions(method="1f1b", seed=3, time_limit_ns=1_500_000_000)
    assert last.task.kill_after_s == 63
    assert [job.columns["compile.method"] for job in sweep.jobs[:3]] == ["greedy", "1f1b", "greedy"], "the last key changes first"


def test_a_sweep_of_nothing_but_a_job_is_that_job(tmp_path: Path) -> None:
    (job,) = sweep_in(tmp_path, 'job = "job.toml"').jobs
    assert job.columns == {"job": "job.toml"}
    assert job.task.kill_after_s == 180
    (limited,) = sweep_in(tmp_path, 'job = "job.toml"\nset = {"solver.time_limit" = "5 s"}').jobs
    assert limited.task.kill_after_s == 70
    (worked,) = sweep_in(tmp_path, 'job = "job.toml"\ncompile = {deterministic_limit = 2}').jobs
    assert worked.task.kill_after_s == 300


def test_a_key_changes_with_all_that_the_plan_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(text: str = 'job = "job.toml"\nset = {"profile.path" = "p.json"}', job: str = JOB) -> str:
        (found,) = sweep_in(tmp_path, text, job).jobs
        return found.key

    first = key()
    assert key() == first
    assert key('job = "job.toml"\nset = {profile = {path = "p.json"}}') == first, "another way to write the same"
    (tmp_path / "p.json").write_text("{}")
    with_file = key()
    (tmp_path / "p.json").write_text("{ }")
    others = [
        with_file,
        key(),
        key(job=JOB + "\n"),
        key('job = "job.toml"\nset = {"profile.path" = "q.json"}'),
        key('job = "job.toml"\nset = {"profile.path" = "p.json"}\ncompile = {seed = 1}'),
    ]
    monkeypatch.setattr(jobs_module, "__version__", "0.0.0")
    others.append(key())
    assert len({first, *others}) == 7


def test_a_key_does_not_depend_on_where_a_value_is_set_unless_that_matters(tmp_path: Path) -> None:
    def keys(text: str) -> list[str]:
        return [job.key for job in sweep_in(tmp_path, f'job = "job.toml"\n{text}').jobs]

    assert keys("set = {solver.seed = 1, name = 2, solver.gap = 3}") == keys(
        "set = {solver.gap = 3}\ngrid = {name = [2], solver.seed = [1]}"
    )
    assert keys('set = {"memory.limit" = 1}\ngrid = {memory = [{}]}') != keys('set = {memory = {}}\ngrid = {"memory.limit" = [1]}')


def test_values_may_be_anything_that_toml_has(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path, 'job = "job.toml"\ngrid = {name = [1979-05-27, {a = 1}, [], inf]}')
    assert len({job.key for job in sweep.jobs}) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('job = "none.toml"', "none.toml: found no readable file"),
        ('job = "."', 'sweep.toml: job: found ".", no regular file, expected a job file'),
        ('job = ["job.toml", "job.toml"]', 'sweep.toml: job: found "job.toml" twice, expected it once'),
        (
            'jobs = "job.toml"',
            "sweep.toml: jobs: found an unknown key, expected one of job, compile, set, cases, grid; did you mean",
        ),
        ('job = "job.toml"\ncompile = {method = "gredy"}', "sweep.toml: compile.method: method 'gredy' is unknown; did you mean"),
        (
            'job = "job.toml"\ncompile = {time_limit = 5}',
            'compile.time_limit: found 5, expected a duration such as "38 ms" or a list',
        ),
        (
            'job = "job.toml"\ngrid = {pipeline.rank = [8]}',
            "sweep.toml: grid.pipeline.rank = 8: found an unknown key, expected one of",
        ),
        ('job = "job.toml"\ncases = [{name = "a"}, {name = "b", set = {a.b = 1}}]', "cases[1].set.a.b = 1: found an unknown key"),
        ('job = "job.toml"\ngrid = {"pipeline.ranks" = 8}', 'grid."pipeline.ranks": found 8, expected a list of the values'),
        ('job = "job.toml"\ngrid = {"pipeline.ranks" = []}', "found [], expected a list of the values"),
        ('job = "job.toml"\ngrid = {"pipeline.ranks" = [1, 2, 1]}', "found 1 twice, expected it once"),
        ('job = "job.toml"\ngrid = 3', "sweep.toml: grid: found 3, expected a table of keys of the job"),
        ('job = "job.toml"\nset = {"a b" = 1}', 'found the key "a b", expected the path of a key'),
        (
            'job = "job.toml"\nset = {"pipeline.ranks" = 1}\ngrid = {"pipeline.ranks" = [1]}',
            "grid: found the key pipeline.ranks, which [set] sets, too, expected it in one of the two",
        ),
        (
            'job = "job.toml"\nset = {"topology.link[0].latency" = 1}\ngrid = {"topology.link.0.latency" = [1]}',
            "grid: found the key topology.link[0].latency, which [set] sets, too",
        ),
        ('job = "job.toml"\n[grid]\n"a.b" = [1]\na.b = [2]', "grid.a.b: found the key a.b twice, expected it once, quoted or not"),
        ('job = "job.toml"\ncases = [{name = "a"}, {name = "a"}]', 'cases: found "a" twice, expected it once'),
        ('job = "job.toml"\ncases = [{name = "a"}, {name = "b"}]', 'found the same job twice, in the cases "a" and "b"'),
        (f'job = "job.toml"\ncompile = {{seed = {list(range(101))}}}', "found 101 jobs, expected at most 100"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.setattr(jobs_module, "MOST_JOBS", 100)
    with pytest.raises(InvalidInput) as refused:
        sweep_in(tmp_path, text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
