"""A watch of free memory where steps do not overlap: all ranks move to the next plan, or none; what is refused, all refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from inputs.few_plans import made_by
from runs import pressure_runs

import schedc
from schedc.runtime.adapt.memory_pressure import free_in

if TYPE_CHECKING:
    from pathlib import Path

    from runs.processes import Ranks

    from schedc.ir import Plan


def named(name: str, method: str) -> Plan:
    plan = made_by(method)
    return replace(plan, problem=replace(plan.problem, name=name))


PLANS = [named("usual", "gpipe"), named("tight", "1f1b")]


@pytest.mark.parametrize("fails", [False, True])
def test_all_ranks_move_with_one_watch_after_the_other(two: Ranks, *, fails: bool) -> None:
    """Also where a watch ends before a rank has looked again. A function of the job's that fails ends one rank's watch alone."""
    for rank, found in enumerate(two.run(pressure_runs.moved, PLANS, fails=fails)):
        assert isinstance(found, tuple), found
        names, said, error = found
        assert names == ["tight"] * 3
        assert said == ["the watch of free memory ends: its own error is above"] * (fails and rank == 0)
        assert error < 1e-9


def test_pipelines_move_by_themselves(four: Ranks) -> None:
    """With data parallelism the second pipeline stays with its plan where the first moves."""
    for process, found in enumerate(four.run(pressure_runs.moved, PLANS)):
        assert isinstance(found, tuple), found
        names, said, error = found
        assert names == ["tight", *(["tight"] * 2 if process < 2 else ["usual"] * 2)]
        assert said == []
        assert error < 1e-9


def test_pipelines_of_a_swap_group_move_together(four: Ranks) -> None:
    found: list[Any] = four.run(pressure_runs.with_peers, PLANS)
    assert [(name, warned) for name, _, warned in found] == [("tight", int(process == 2)) for process in range(4)]
    assert len({step for _, step, _ in found}) == 1


def test_layers_leave_a_rank_that_has_too_little(two: Ranks, tmp_path: Path) -> None:
    """Its warning is answered by another layout for the memory that there is: losses are those of this layout from the start."""
    layers = [{"forward": "10 us", "backward": "20 us", "activation": "1 B", "parameters": 1, "message": "1 B"} for _ in range(6)]
    (tmp_path / "profile.json").write_text(json.dumps({"format": "schedc.profile", "version": 1, "layers": layers}))
    job = tmp_path / "job.toml"
    job.write_text(
        """
        [pipeline]
        ranks = 2
        microbatches = 4
        partition = [3, 3]
        split_backward = false
        [profile]
        path = "profile.json"
        [memory]
        capacity = ["9 B", "100 B"]
        bytes_per_parameter = 1
        """
    )
    set_to: tuple[dict[str, Any], ...] = ({}, {"pipeline.partition": [2, 4]})
    plans = [schedc.compile_job(schedc.read_job(job, set=each), method="1f1b").plan for each in set_to]
    found: list[Any] = two.run(pressure_runs.relieved, plans[0], job, 12, 3)
    usual = two.run(pressure_runs.relieved, plans[1], job, 12, None)
    assert [layers for _, layers, _ in found] == [layers for _, layers, _ in usual] == [[0, 1], [2, 3, 4, 5]]
    assert [losses for losses, *_ in found] == [losses for losses, *_ in usual]
    assert [len(said) for *_, said in found] == [1, 0]


NUMBERS = "found least_free_bytes=-1 and look_s=0.02, expected numbers from 0 and above 0"


@pytest.mark.parametrize(
    ("given", "own", "others"),
    [
        ({"least_free_bytes": -1}, f"InvalidInput: {NUMBERS}", f"CheckFailed: rank 1 has refused: {NUMBERS}"),
        ({"look_s": 0}, "InvalidInput: found least_free_bytes=0 and look_s=0, ", "CheckFailed: rank 1 has refused: found least"),
        (
            {"plans": ["tight.json"]},
            "InvalidInput: found 1 plans on one rank and 0 on another, expected the same on all",
            "InvalidInput: found 0 plans on one rank and 1 on another, expected the same on all",
        ),
        ({"free_bytes": None}, "Unsupported: nobody knows", "CheckFailed: rank 1 has refused: nobody knows"),
    ],
)
def test_all_refuse_what_one_refuses(two: Ranks, given: dict[str, Any], own: str, others: str) -> None:
    said = two.run(pressure_runs.refused, PLANS[0], [{}, given])
    assert said[1].startswith(own)
    assert said[0].startswith(others)


def test_free_in_a_cgroup(tmp_path: Path) -> None:
    """Pages of files that give way count as free, as they do in the machine's figure."""
    assert free_in(tmp_path) == float("inf")
    (tmp_path / "memory.max").write_text("max\n")
    assert free_in(tmp_path) == float("inf")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_anon 7\ninactive_file 300\nactive_file 50\n")
    assert free_in(tmp_path) == 400
