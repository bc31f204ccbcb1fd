"""`schedc diff` as its users run it: statuses, words, JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from inputs.jobs import M70, write_job
from suite.command_line import schedc

from schedc.analysis.difference.orders import RankOrder
from schedc.analysis.difference.plans import PlanDifference, PlanFacts, changes_of
from schedc.ir.ops import Kind, Op
from schedc.view.terminal.difference import MOST_LINES, difference_lines

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plans of one job by two methods, and of a job with another latency."""
    directory = tmp_path_factory.mktemp("diff")
    job = write_job(directory, M70)
    for name, method, *values in (
        ("a", "zb-h1"),
        ("b", "1f1b"),
        ("c", "zb-h1", "--set", "topology.between.latency=9 ms"),
        ("d", "zb-h1", "--set", "pipeline.microbatches=32"),
    ):
        done = schedc("compile", job, "-o", directory / f"{name}.json", "--method", method, "--quiet", *values)
        assert done.returncode == 0, done.stderr
    return directory


def test_equal_plans_are_one_line_and_status_0(plans: Path) -> None:
    done = schedc("diff", plans / "a.json", plans / "a.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(": the plans are equal\n") and done.stdout.count("\n") == 1
    done = schedc("diff", plans / "a.json", plans / "a.json", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "equal": True,
        "layout": [],
        "certificate": [],
        "memory": [],
        "cuts": [],
        "costs": [],
        "made_by": [],
        "orders": [],
        "not_compared": None,
    }


def test_plans_that_differ_are_status_1(plans: Path) -> None:
    done = schedc("diff", plans / "a.json", plans / "b.json")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert "  ranks 0-7: backwards: 16 fused" in lines
    assert "  method: zb-h1 → 1f1b" in lines
    table = json.loads(schedc("diff", plans / "a.json", plans / "b.json", "--json").stdout)
    assert [(order["rank"], order["fused"], order["moved"]) for order in table["orders"]] == [(r, 16, 0) for r in range(8)]
    assert {"place": "made_by.method", "before": "zb-h1", "after": "1f1b"} in table["made_by"]


def test_it_says_what_the_plans_were_made_for(plans: Path) -> None:
    lines = schedc("diff", plans / "a.json", plans / "c.json").stdout.splitlines()
    assert "  latency of links 3>4, 4>3: 76 ms → 9 ms" in lines
    assert any(line.startswith("  job digest: ") for line in lines)
    assert not {"layout:", "memory:"} & set(lines)
    lines = schedc("diff", plans / "a.json", plans / "d.json").stdout.splitlines()
    assert {"  microbatches: 16 → 32", "  not compared: the numbers of microbatches differ"} <= set(lines)
    assert len(lines) < 20


def test_what_is_no_plan_is_status_2(plans: Path) -> None:
    done = schedc("diff", plans / "a.json", plans / "no.json")
    assert done.returncode == 2
    assert done.stderr.endswith("no.json: found no readable file (no such file or directory), expected a file\n")


def test_a_section_has_at_most_eight_lines() -> None:
    """However many ranks moved, whatever else their queues have otherwise, and with blocks cut otherwise beside them."""
    before: PlanFacts = {("costs.parts[]", f"W{stage}"): (1, stage) for stage in range(1, 12)}
    cuts = changes_of(before, dict.fromkeys(before, (2, 2)))
    assert [change.at for change in cuts] == [f"W{stage}" for stage in range(1, 12)]
    orders = tuple(RankOrder(rank=rank, ops=50, moved=rank, first=Op(Kind.W, 0, 0), first_places=1) for rank in range(1, 20))
    transfers = tuple(RankOrder(rank=rank, ops=50, channels=True) for rank in range(20, 23))
    for difference in (
        PlanDifference(orders=orders),
        PlanDifference(orders=orders + transfers),
        PlanDifference(orders=orders[:7] + transfers, cuts=cuts),
        PlanDifference(orders=orders + transfers, cuts=cuts),
        PlanDifference(cuts=cuts),
    ):
        lines = difference_lines(difference, "job")
        section = lines[lines.index("orders:") + 1 :]
        assert len(section) <= MOST_LINES
        assert sum("--json has all" in line for line in section) <= 1
