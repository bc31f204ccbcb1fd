"""`schedc show`: which rows are drawn, the text beside them, and that chunks and collectives can be distinguished."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import pytest
from inputs.plans import plan_of, small_plan
from inputs.problems import make_problem

from schedc.analysis.simulation.simulate import simulate
from schedc.cli.app import main
from schedc.errors import InvalidInput
from schedc.formats.plan.plan_file import write_plan
from schedc.ir.problem import DataParallel
from schedc.solvers.driver.registry import constructive
from schedc.view.terminal.gantt import link_spans
from schedc.view.terminal.plan import chosen_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem


def shown(plan: Plan, directory: Path, *options: str) -> list[str]:
    """The lines that `show` prints of the plan."""
    write_plan(plan, directory / "plan.json")
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "stdout", out)
        main(["show", str(directory / "plan.json"), "--width", "120", *options])
    assert ended.value.code == 0
    return out.getvalue().splitlines()


def rows(lines: list[str], label: str) -> dict[str, str]:
    """The rows whose label begins so, by what follows it."""
    found = (line.split(maxsplit=2) for line in lines if line.startswith(f"{label} "))
    return {name: rest for _, name, rest in found}


def made(problem: Problem, method: str = "greedy") -> Plan:
    return plan_of(problem, constructive(method)(problem))


def test_the_busy_share_is_that_of_the_shown_time(tmp_path: Path) -> None:
    """Rank 0 waits for its all-gather until 1 ns, then runs three F of 10 ns."""
    plan = small_plan()
    lines = shown(plan, tmp_path)
    whole = rows(lines, "rank")["0"]
    assert "in this time:" not in "".join(lines)
    busy_ns, makespan_ns = simulate(plan.problem, plan.schedule()).busy_ns[0], plan.certificate.makespan_ns
    assert whole.endswith(f"{busy_ns / makespan_ns:.1%} busy")
    assert rows(shown(plan, tmp_path, "--to", "10ns"), "rank")["0"].endswith(" 90.0% busy")
    lines = shown(plan, tmp_path, "--from", "2ns", "--to", "12ns")
    assert rows(lines, "rank")["0"].endswith(" 100.0% busy")
    assert any(line.rstrip().endswith("in this time:") for line in lines)


def test_the_memory_is_that_of_the_shown_time(tmp_path: Path) -> None:
    problem = make_problem(2, 4, activation=(1 << 20, 1), memory_limit_bytes=(4 << 20, 4 << 20))
    plan = made(problem, "gpipe")
    assert rows(shown(plan, tmp_path), "mem")["0"].endswith("4 MiB of 4 MiB")
    assert rows(shown(plan, tmp_path, "--to", "15ns"), "mem")["0"].endswith("2 MiB of 4 MiB")


@pytest.mark.parametrize("placement", ["wave", "loop"])
def test_the_stages_of_a_rank_are_told_apart_without_colour(tmp_path: Path, placement: str) -> None:
    lines = shown(made(make_problem(2, 4, placement=placement, chunks=2)), tmp_path)
    for row in rows(lines, "rank").values():
        for one, other in (("<", "("), (">", ")")):
            assert one in row
            assert other in row
    assert any(line.startswith("chunk 2: 3)) 3((") for line in lines)
    assert not any(line.startswith("chunk") for line in shown(made(make_problem(2, 4)), tmp_path))


def test_collectives_are_drawn_on_lanes_of_their_own_or_on_their_trunk(tmp_path: Path) -> None:
    plan = small_plan()
    lines = shown(plan, tmp_path)
    lanes = rows(lines, "coll")
    assert list(lanes) == ["0", "1", "2"]
    for stage, lane in lanes.items():
        assert "r" in lane, stage
    assert any("gg all-gather of stage 3" in line and "rr reduce-scatter of stage 3" in line for line in lines)
    parallel = DataParallel(size=2, zero_stage=0, reduce_scatter_ns=(9, 9, 9), trunk="east")
    lines = shown(small_plan(data_parallel=parallel), tmp_path)
    assert rows(lines, "coll") == {}
    assert "0rr" in rows(lines, "trunk")["east"]
    assert any("rr all-reduce of stage 3" in line for line in lines)


def test_many_ranks_fit_a_picture_and_all_can_be_asked_for(tmp_path: Path) -> None:
    links = {(a, b): (0, 3) for a in range(40) for b in (a - 1, a + 1) if 0 <= b < 40}
    plan = made(make_problem(40, 4, links=links), "1f1b")
    lines = shown(plan, tmp_path)
    assert len(lines) < 40
    ranks = [int(name) for name in rows(lines, "rank")]
    assert (ranks[0], ranks[-1], len(ranks)) == (0, 39, 16)
    assert len(rows(lines, "link")) == 8
    assert {"0", "39"} <= rows(lines, "mem").keys()
    assert lines[-1].startswith("not shown: 24 of 40 ranks, 70 of 78 links, 36 of 40 ranks' memory; --ranks")
    everything = shown(plan, tmp_path, "--ranks", "all")
    assert (len(rows(everything, "rank")), len(rows(everything, "link")), len(rows(everything, "mem"))) == (40, 78, 40)
    assert not everything[-1].startswith("not shown")
    some = shown(plan, tmp_path, "--ranks", "7,3-4")
    assert list(rows(some, "rank")) == list(rows(some, "mem")) == ["3", "4", "7"]
    assert set(rows(some, "link")) == {f"{a}>{b}" for a, b in links if {a, b} & {3, 4, 7}}


def with_stages(problem: Problem, static_bytes: Sequence[int | None], **changes: Any) -> Plan:
    """A plan in whose stages each layer is one of two, and this is held all the time."""
    stages = tuple(
        replace(stage, layers=(2 * index, 2 * index + 2), static_bytes=size)
        for index, (stage, size) in enumerate(zip(problem.stages, static_bytes, strict=True))
    )
    return made(replace(problem, stages=stages, **changes))


def table_of_stages(lines: list[str]) -> list[list[str]]:
    """Its rows; cells are two spaces apart."""
    first = next(at for at, line in enumerate(lines) if line.split()[:2] == ["stage", "rank"])
    return [
        re.split(r"\s{2,}", line.strip()) for line in takewhile(lambda line: not line.startswith("not shown"), lines[first + 1 :])
    ]


def test_the_stages_have_a_table(tmp_path: Path) -> None:
    """Layers from the first to the last, both in it; the capacity of a rank is its limit and what all its stages hold."""
    problem = make_problem(2, 4, placement="loop", chunks=2, memory_limit_bytes=(100, 200))
    plan = with_stages(problem, (1, 2, 30, 2))
    recomputed = (replace(plan.problem.stages[0], recompute=True), *plan.problem.stages[1:])
    lines = shown(made(replace(plan.problem, stages=recomputed)), tmp_path, "--width", "80")
    assert table_of_stages(lines) == [
        ["0", "0", "0 to 1", "yes", "1 B", "131 B"],
        ["1", "1", "2 to 3", "no", "2 B", "204 B"],
        ["2", "0", "4 to 5", "no", "30 B", "131 B"],
        ["3", "1", "6 to 7", "no", "2 B", "204 B"],
    ]
    assert table_of_stages(shown(plan, tmp_path, "--ranks", "1")) == [
        ["1", "1", "2 to 3", "no", "2 B", "204 B"],
        ["3", "1", "6 to 7", "no", "2 B", "204 B"],
    ]
    old = with_stages(problem, (None,) * 4)  # a plan made before stages said what they hold
    assert {tuple(row[-2:]) for row in table_of_stages(shown(old, tmp_path))} == {("–", "–")}
    assert "capacity" not in "".join(shown(made(problem), tmp_path))  # nothing is known but ranks


def test_stages_that_are_alike_are_one_row_and_of_very_many_some_are_shown(tmp_path: Path) -> None:
    problem = make_problem(40, 4)
    plan = with_stages(problem, (9, *(5,) * 39), memory_limit_bytes=(96, *(100,) * 39))
    lines = shown(plan, tmp_path, "--width", "80")
    assert table_of_stages(lines) == [
        ["0", "0", "0 to 1", "no", "9 B", "105 B"],
        ["1 to 39", "1 to 39", "2 to 79, 2 each", "no", "5 B", "105 B"],
    ]
    assert max(map(len, lines)) <= 80
    differing = with_stages(problem, range(40), memory_limit_bytes=(100,) * 40)
    lines = shown(differing, tmp_path)
    assert [row[0] for row in table_of_stages(lines)] == [*map(str, range(8)), "…", *map(str, range(32, 40))]
    assert "24 of 40 stages; --ranks all" in lines[-1]
    assert len(table_of_stages(shown(differing, tmp_path, "--ranks", "all"))) == 40


def test_a_trunk_is_shown_before_busier_links(tmp_path: Path) -> None:
    links = {(a, b): (0, 3) for a in range(12) for b in (a - 1, a + 1) if 0 <= b < 12}
    problem = make_problem(12, 4, links={**links, (5, 6): (0, 1)}, trunks={(5, 6): "east"})
    assert "trunk east" in "\n".join(shown(made(problem, "1f1b"), tmp_path))


@pytest.mark.parametrize(("text", "ranks"), [("0", (0,)), ("1-2", (1, 2)), ("3, 0-1,1", (0, 1, 3)), ("all", (0, 1, 2, 3))])
def test_ranks_are_chosen(text: str, ranks: tuple[int, ...]) -> None:
    assert chosen_ranks(text, 4) == ranks


@pytest.mark.parametrize("text", ["", "4", "2-1", "-1", "0-", "1,,2", "two", "²", "0-99999999999999999999"])
def test_ranks_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected ranks from 0 to 3"):
        chosen_ranks(text, 4)


def test_without_unicode_every_character_is_a_plain_one(tmp_path: Path) -> None:
    problem = make_problem(2, 4, activation=(4, 4), memory_limit_bytes=(8, 8))
    write_plan(made(replace(problem, name="µ"), "1f1b"), tmp_path / "plan.json")
    done = subprocess.run(
        [sys.executable, "-m", "schedc", "show", str(tmp_path / "plan.json"), "--width", "100"],
        capture_output=True,
        check=True,
        env={"PYTHONIOENCODING": "ascii"},
    )
    lines = done.stdout.decode("ascii").splitlines()
    assert lines[0].startswith("u: 2 ranks")
    assert "?" not in done.stdout.decode("ascii")
    full = rows(lines, "mem")["0"]
    assert "@" in full and "=" in full
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("width", [40, 70, 200])
def test_the_width_may_be_given_or_come_from_the_environment(
    tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(small_plan(), tmp_path / "plan.json")
    for variable, options in ((str(width), ()), ("90", ("--width", str(width)))):
        monkeypatch.setenv("COLUMNS", variable)
        with pytest.raises(SystemExit):
            main(["show", str(tmp_path / "plan.json"), *options])
        assert max(len(line) for line in capsys.readouterr().out.splitlines()) == width


def test_a_plan_that_takes_no_time_is_shown(tmp_path: Path) -> None:
    lines = shown(made(make_problem(2, 1, costs_ns=(0, 0, 0))), tmp_path)
    assert any(line.startswith("makespan 0 ns") for line in lines)


def test_every_message_is_drawn_also_the_one_that_the_first_rank_begins_with() -> None:
    """Stage 0 is on rank 1."""
    problem = make_problem(2, 3, placement=[1, 0], links={(0, 1): (4, 3), (1, 0): (4, 3)})
    timeline = simulate(problem, made(problem).schedule())
    spans = link_spans(problem, timeline)
    assert sorted(len(of_link) for of_link in spans.values()) == [3, 3]
