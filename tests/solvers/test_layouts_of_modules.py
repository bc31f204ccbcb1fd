"""Layouts of several modules: those with a name; all of tiny ones, by brute force (more: `benchmarks/layouts/tiny_modules.py`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from inputs.few_layouts import seek_few_layouts
from oracles.module_checks import check_modules

from schedc.frontend.job import load_job
from schedc.ir.layout import OpenLayout
from schedc.solvers.layout.baselines import attempts, named_layouts
from schedc.solvers.layout.layout_arrays import lay_out
from schedc.verify.layout import verify_open_layout

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
[pipeline]
ranks = 4
microbatches = 6
split_backward = false
placement = "auto"
chunks = 3
{more}
[[module]]
name = "vision"
layers = 6
[[module]]
name = "text"
layers = 8
inputs = ["vision"]
{edge}
[profile]
path = "profile.json"
"""
EDGE = """
[[edge]]
source = "vision.0"
destination = "text.0"
value = "ids"
message = "32 KiB"
gradient = false
"""
PROFILE = """{"format": "schedc.profile", "version": 1, "layers": [
{"name": "vision", "repeat": 6, "forward": "2 ms", "backward": "4 ms", "activation": "1 MiB", "message": "1 MiB"},
{"name": "text", "repeat": 8, "forward": "3 ms", "backward": "6 ms", "activation": "1 MiB", "message": "1 MiB"}]}"""


def assert_sound(numbers: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    assert [(number, finding) for number in numbers for finding in check_modules(number, counts)] == []
    return counts


def test_tiny_ones_agree_with_brute_force_over_all_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    seek_few_layouts(monkeypatch)
    counts = assert_sound(range(13, 21))
    assert counts["compared with brute force"] == 8
    assert counts["compile finds the optimum"] >= 6


@pytest.mark.slow
def test_more_tiny_ones_agree_with_brute_force() -> None:
    counts = assert_sound(range(36, 50))
    assert counts["compared with brute force"] >= 12
    assert counts["compile finds the optimum"] >= 0.8 * counts["compared with brute force"]


@pytest.mark.parametrize("edge", ["", EDGE])
def test_modules_have_layouts_apart_and_together(edge: str, tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(PROFILE)
    (tmp_path / "job.toml").write_text(JOB.format(more="", edge=edge))
    job = load_job(tmp_path / "job.toml")
    assert job.workload is not None and job.open_layout is not None
    assert job.workload.modules == (6, 8)
    named = {name: layout for name, layout in named_layouts(job.workload, job.open_layout).items() if name.split()[1] in KINDS}
    assert set(named) == {"balanced apart 1", "balanced apart 2", "balanced together 1", "balanced together 2"}
    for name, layout in named.items():
        assert not verify_open_layout(job.workload, job.open_layout, layout)
        assert all(last <= 6 or first >= 6 for first, last in layout.layers_of_stage)
        ranks = {
            module: {
                rank
                for rank, (first, _) in zip(layout.rank_of_stage, layout.layers_of_stage, strict=True)
                if (first >= 6) == module
            }
            for module in (False, True)
        }
        assert ranks[False] | ranks[True] == {0, 1, 2, 3}
        assert bool(ranks[False] & ranks[True]) == ("together" in name)
    assert named["balanced apart 1"].layers_of_stage == ((0, 6), (6, 9), (9, 12), (12, 14))
    assert named["balanced together 2"].rank_of_stage == 3 * (0, 1, 2, 3)
    timed = [
        lay_out(job.workload, each.layout, each.construct, each.title)
        for each in attempts(job.workload, job.open_layout)
        if each.method in ("greedy", "1f1b", "interleaved")
    ]
    assert {each.layout for each in timed} >= set(named.values())


def test_what_is_given_leaves_no_room_for_them(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(PROFILE)
    (tmp_path / "job.toml").write_text(JOB.format(more="partition = [4, 4, 3, 3]", edge=EDGE))
    job = load_job(tmp_path / "job.toml")
    assert job.workload is not None and job.open_layout is not None
    assert not any(name.split()[1] in KINDS for name in named_layouts(job.workload, job.open_layout))
    one = replace(job.workload, modules=())
    assert not any(name.split()[1] in KINDS for name in named_layouts(one, OpenLayout(chunks=3)))


KINDS = ("apart", "together")
