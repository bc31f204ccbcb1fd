"""`schedc assign`: what it says of the nodes of a job, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from inputs.plans import one_f_one_b, plan_of
from inputs.problems import make_problem
from suite.command_line import schedc

from schedc.api import read_plan
from schedc.formats.plan.plan_file import write_plan
from schedc.ir.problem import DataParallel

if TYPE_CHECKING:
    from pathlib import Path

LINKS = """
[within]
latency = "1 ns"
[[link]]
ranks = [{}, {}]
latency = "1 us"
"""


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """The plan of two replicas of two ranks."""
    problem = make_problem(2, 3)
    write_plan(
        plan_of(replace(problem, data_parallel=DataParallel(size=2, zero_stage=0, reduce_scatter_ns=(5, 5))), one_f_one_b(problem)),
        tmp_path / "plan.json",
    )
    return tmp_path / "plan.json"


def said(path: Path, *options: object) -> dict[str, Any]:
    done = schedc("assign", path, "--links", path.with_name("links.toml"), "--gradients", "8B,4B", "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    read: dict[str, Any] = json.loads(done.stdout)
    return read


def test_the_slow_link_of_a_ring_is_used_no_more(given: Path) -> None:
    given.with_name("links.toml").write_text(LINKS.format(0, 2), encoding="utf-8")
    found = said(given, "--keep-orders", "--exact-links")
    assert found["before"]["rings_ns"] == [2 * 1000, 2]
    assert found["after"] == {"step_ns": found["bound_ns"], "pipelines_ns": [124, 124], "rings_ns": [2, 2]}
    assert (found["proven"], len(found["moved"]), sorted(found["hosts"])) == (True, 2, [0, 1, 2, 3])
    for node in found["nodes"]:
        to = node["to"]
        assert found["hosts"][to["replica"] * 2 + to["rank"]] == node["node"]
    # As Megatron-LM numbers them, 0 and 2 are the ranks of the first pipeline.
    given.with_name("links.toml").write_text(LINKS.format(0, 2), encoding="utf-8")
    other = said(given, "--keep-orders", "--exact-links", "--order", "ranks")
    assert other["before"]["rings_ns"] == [2, 2]
    assert other["before"]["pipelines_ns"][0] > 1000
    assert other["after"]["step_ns"] == found["after"]["step_ns"]
    for node in other["nodes"]:
        to = node["to"]
        assert other["hosts"][to["rank"] * 2 + to["replica"]] == node["node"]


def test_the_plan_for_the_new_links(given: Path) -> None:
    given.with_name("links.toml").write_text(LINKS.format(0, 2), encoding="utf-8")
    out = given.with_name("new.json")
    done = schedc("assign", given, "--links", given.with_name("links.toml"), "--gradients", "8B", "-o", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert "hosts in the order of processes: " in done.stdout
    assert "in the search, which has links that are alike as equal, " in done.stdout
    done = schedc("assign", given, "--links", given.with_name("links.toml"), "--gradients", "8B", "--keep-orders", "--exact-links")
    assert "in the search, which has the links as they are given, " in done.stdout
    plan = read_plan(out)
    assert {link.latency_ns for link in plan.problem.links} == {1}
    assert plan.problem.data_parallel == read_plan(given).problem.data_parallel


def test_refusals(given: Path) -> None:
    links = given.with_name("links.toml")
    links.write_text(LINKS.format(0, 9), encoding="utf-8")
    for options, line in (
        (("--gradients", "8B"), f"schedc: {links}: link[0].ranks: found [0, 9], expected two of the ranks 0 to 3"),
        (("--gradients", "8"), "schedc: --gradients: found '8', "),
        (("--gradients", "8B", "-o", links), f"schedc: {links}: cannot be written: this command reads it"),
    ):
        done = schedc("assign", given, "--links", links, *options)
        assert done.returncode == 2
        assert done.stderr.startswith(line), done.stderr
        assert done.stderr.count("\n") == 1
    links.write_text(LINKS.format(0, 3), encoding="utf-8")
    done = schedc("assign", given, "--links", links, "--gradients", "1B,2B,3B")
    assert done.stderr == "schedc: gradients: found [1, 2, 3], expected 2 sizes, one for each rank, of at least 0\n"
    plan = read_plan(given)
    write_plan(plan_of(replace(plan.problem, data_parallel=None), plan.schedule()), given)
    done = schedc("assign", given, "--links", links, "--gradients", "1B")
    assert done.stderr.startswith("schedc: --replicas: found nothing, and ")
