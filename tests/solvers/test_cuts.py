"""Cuts into slices that are chosen: the bound beside brute force, and jobs that leave them open, by the command line."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from inputs.few_layouts import seek_few_layouts
from inputs.jobs import write_job
from oracles.cut_checks import check_cuts
from suite.command_line import schedc

from schedc.compile.driver import compile_job
from schedc.errors import InvalidInput
from schedc.formats.plan.plan_file import read_plan
from schedc.frontend.chosen_layout import job_in_layout
from schedc.frontend.job import load_job
from schedc.ir.layout import OpenSlices
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.layout.cuts import named_cuts

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
[pipeline]
ranks = 3
microbatches = 2
{pipeline}
[profile]
forward = "{forward}"
backward_input = "12 ms"
backward_weight = "6 ms"
activation = "90 MB"
message = "1 MB"
[topology.within]
bandwidth = "50 GB/s"
[slices]
{slices}
quadratic = 0.5
fixed = {fixed}
{rest}
"""
OPEN = 'count = "auto"\ntokens = 6144\nmost = 6'


def job_text(slices: str = OPEN, *, pipeline: str = "", forward: str = "8 ms", fixed: float = 0.02, rest: str = "") -> str:
    return JOB.format(slices=slices, pipeline=pipeline, forward=forward, fixed=fixed, rest=rest)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    seek_few_layouts(monkeypatch)


@pytest.mark.parametrize("number", range(16))
def test_the_bound_is_no_more_than_any_cut_takes(number: int) -> None:
    assert check_cuts(number, Counter()) == []


def test_a_job_whose_cuts_are_open_gets_slices_that_pay(tmp_path: Path) -> None:
    job, path, cut = write_job(tmp_path, job_text()), tmp_path / "plan.json", tmp_path / "cut.toml"
    done = schedc("compile", job, "-o", path, "--deterministic-limit", "1", "--write-job", cut, "--json")
    assert done.returncode == 0, done.stderr
    found, plan = json.loads(done.stdout), read_plan(path)
    slices = plan.problem.slices
    assert found["layout"]["slices"] == list(slices) and 2 <= len(slices) <= 6 and sum(slices) == 6144
    assert all(length % 128 == 0 for length in slices)
    assert (found["scope"], found["bound"]) == ("layout", "layouts") and found["gap"] < 0.08
    assert found["whole_ns"] > 1.3 * found["makespan_ns"]
    verified = schedc("verify", path, "--job", job)
    assert verified.returncode == 0, verified.stdout
    assert load_job(cut).problem == plan.problem and "granularity" not in cut.read_text() and "quadratic = 0.5" in cut.read_text()
    assert job_in_layout(load_job(job).source, plan, "--layout").problem == plan.problem


def test_where_room_is_short_the_partition_is_that_of_the_job_with_the_lengths(tmp_path: Path) -> None:
    """Few slices are in flight beside a microbatch, so the partition is not unbalanced for as many microbatches as 1F1B has."""
    layer = {"forward": "4 ms", "backward_input": "6 ms", "backward_weight": "3 ms", "message": "1 MB", "activation": "10 MB"}
    profile = {"format": "schedc.profile", "version": 1, "layers": [{**layer, "repeat": 8, "parameters": 1000}]}
    (tmp_path / "profile.json").write_text(json.dumps(profile), encoding="utf-8")
    text = """
[pipeline]
ranks = 2
microbatches = 4
[profile]
path = "profile.json"
[memory]
capacity = ["60 MB", "60 MB"]
static = "0 B"
[slices]
"""
    given = load_job(write_job(tmp_path, text + "count = 4\n"))
    assert given.layout.layers_of_stage == ((0, 4), (4, 8))
    job = load_job(write_job(tmp_path, text + OPEN))
    assert job.open_layout is not None and job.open_layout.layers_of_stage == given.layout.layers_of_stage
    plan = compile_job(job, SearchSettings(method="greedy", limits=Limits(deterministic=0.2, workers=1))).plan
    assert job_in_layout(job.source, plan, "--layout").problem == plan.problem


def test_whole_microbatches_where_each_slice_costs_too_much(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path, job_text(fixed=0.5)))
    compiled = compile_job(job, SearchSettings(limits=Limits(deterministic=0.5, workers=1)))
    assert compiled.plan.problem.slices == () and ", whole" in compiled.chosen
    assert job_in_layout(job.source, compiled.plan, "--layout").problem == compiled.plan.problem


def test_less_memory_takes_shorter_slices(tmp_path: Path) -> None:
    """One microbatch needs 90 MB; 1F1B of whole ones would hold two on the first rank."""
    job = load_job(write_job(tmp_path, job_text(rest='[memory]\nlimit = "110 MB"\n')))
    plan = compile_job(job, SearchSettings(limits=Limits(deterministic=1, workers=1))).plan
    assert len(plan.problem.slices) > 2 and max(plan.certificate.peak_activation_bytes) <= 110 * 10**6


@pytest.mark.parametrize("pipeline", ['placement = "wave"\nchunks = 2', "placement = [0, 1, 2, 0]", "split_backward = false"])
def test_placements_and_fused_backwards(tmp_path: Path, pipeline: str) -> None:
    job = load_job(write_job(tmp_path, job_text(pipeline=pipeline)))
    plan = compile_job(job, SearchSettings(method="greedy", limits=Limits(deterministic=0.5, workers=1))).plan
    assert plan.problem.slices and plan.certificate.gap < 0.35


def test_partition_and_cuts_are_open_together(tmp_path: Path) -> None:
    layer = {
        "forward": "4 ms",
        "backward_input": "6 ms",
        "backward_weight": "3 ms",
        "message": "1 MB",
        "quadratic": {"forward": 0.5},
    }
    profile = {"format": "schedc.profile", "version": 1, "layers": [{**layer, "repeat": 6}, {**layer, "forward": "2 ms"}]}
    (tmp_path / "profile.json").write_text(json.dumps(profile), encoding="utf-8")
    text = '[pipeline]\nranks = 2\nmicrobatches = 2\npartition = "auto"\nhead = "{head}"\n[profile]\npath = "profile.json"\n'
    for head in ("whole", "auto"):
        job = load_job(write_job(tmp_path, text.format(head=head) + "[slices]\n" + OPEN))
        plan = compile_job(job, SearchSettings(method="greedy", limits=Limits(deterministic=0.5, workers=1))).plan
        assert plan.problem.slices and plan.certificate.scope == "layout" and plan.certificate.gap < 0.3


def test_the_bound_is_sharp_where_slices_of_equal_work_are_the_best(tmp_path: Path) -> None:
    """With stages alike, fused backwards that take what forwards do, and slices without a cost of their own."""
    open_cuts = 'count = 4\nlengths = "auto"\ntokens = 4000\ngranularity = 1'
    text = job_text(open_cuts, pipeline="split_backward = false", fixed=0).replace('"6 ms"', '"0 ms"')
    job = load_job(write_job(tmp_path, text.replace('"12 ms"', '"8 ms"').replace("50 GB/s", "50000 GB/s")))
    assert job.open_layout is not None and job.open_layout.slices is not None
    assert job.open_layout.slices == OpenSlices(tokens=4000, granularity=1, least=4, most=4)
    plan = compile_job(job, SearchSettings(method="greedy", limits=Limits(deterministic=0.1, workers=1))).plan
    assert plan.problem.slices == named_cuts(job.workload, job.open_layout.slices)["4 slices, equal work"]
    assert plan.certificate.gap < 0.0003  # a token is this much


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ('count = "auto"', "slices.tokens: found nothing, expected how many a microbatch's sequence has, as slices are chosen"),
        (
            "count = 4\ntokens = 99",
            'slices.tokens: found a value without slices.count or lengths = "auto", expected both, or neither',
        ),
        ("count = 4\ngranularity = 9", "slices.granularity: found a value without"),
        ('count = 4\nlengths = "auto"\ntokens = 999\nmost = 9', 'slices.most: found a value without slices.count = "auto"'),
        (
            'count = 9\nlengths = "auto"\ntokens = 1024',
            "slices.count: found 9, expected at most 8, as a slice has 128 of 1024 tokens",
        ),
        ('count = "auto"\nlengths = [1, 2]\ntokens = 3', "slices.count: found a value beside slices.lengths"),
        ('count = "auto"\ntokens = 1048576\nmost = 1048576\ngranularity = 1', "slices: found up to 1048576 slices, which makes"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, slices: str, message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        load_job(write_job(tmp_path, job_text(slices)))
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_what_does_not_go_with_open_cuts(tmp_path: Path) -> None:
    given = job_text().replace('forward = "8 ms"', 'forward = [["1 ms", "2 ms"], "3 ms", "4 ms"]')
    with pytest.raises(InvalidInput, match=r"found 2 values, expected|durations for each slice"):
        load_job(write_job(tmp_path, given))
    with pytest.raises(InvalidInput, match=r'job\.toml: slices\.count: found "auto", expected a given one'):
        _ = load_job(write_job(tmp_path, job_text())).problem
    for pipeline in ('placement = "bidirectional"', 'semantics = "torch"'):
        with pytest.raises(InvalidInput, match="found a section with"):
            load_job(write_job(tmp_path, job_text(pipeline=pipeline).replace("ranks = 3", "ranks = 2")))
