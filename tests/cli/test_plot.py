"""`schedc plot`: pictures of plans and tables, the same bytes each time, and what it draws from a table."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from inputs.plans import plan_of
from inputs.problems import make_problem
from suite.command_line import schedc

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import InvalidInput
from schedc.formats.plan.plan_file import write_plan
from schedc.ir.problem import DataParallel
from schedc.solvers.heuristics.greedy import Greedy
from schedc.view.plot.curves import curves, frontier, points_of
from schedc.view.plot.gantt import gantt
from schedc.view.plot.table import choose_axes, read_columns

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan

SWEEP = """job,topology.between.latency,memory.limit,status,won_by,makespan_ns,objective,objective_ns,bound_ns,error
job.toml,0 ms,8 GiB,planned,greedy,2000000000,makespan,2000000000,1900000000,
job.toml,0 ms,16 GiB,planned,greedy,1500000000,makespan,1500000000,1400000000,
job.toml,20 ms,8 GiB,planned,greedy,2200000000,makespan,2200000000,2100000000,
job.toml,20 ms,16 GiB,no-plan,,,,,,none found
"""
TUNE = """ranks,replicas,microbatches,placement,state,method,step_ns,bound_ns,gap
2,4,8,unidirectional,planned,greedy,90000000,80000000,0.1
2,4,16,unidirectional,best,greedy,80000000,80000000,0.0
2,4,8,wave,planned,auto,95000000,,
2,4,16,wave,no room,,,,
"""


def small_plan(*, chunks: int = 1) -> Plan:
    problem = make_problem(
        2, 4, placement="wave" if chunks > 1 else "unidirectional", chunks=chunks, links={(0, 1): (5, 2), (1, 0): (5, 2)}
    )
    return plan_of(problem, Greedy()(problem))


def texts(svg: bytes) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_a_plan_is_drawn_with_its_microbatches(tmp_path: Path) -> None:
    plan = small_plan()
    write_plan(plan, tmp_path / "plan.json")
    done = schedc("plot", tmp_path / "plan.json", "-o", tmp_path / "plan.svg", "--transfers", "--title", "A plan", width=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"written to {tmp_path / 'plan.svg'}\n", "")
    drawn = (tmp_path / "plan.svg").read_bytes()
    said = texts(drawn)
    numbers = [each for each in said if each in {"0", "1", "2", "3"}]
    assert len(numbers) >= sum(len(rank.compute) for rank in plan.ranks)
    assert {"time (ns)", "rank", "forward (F)", "idle", "A plan"} <= set(said)
    timeline = simulate(plan.problem, plan.schedule())
    assert drawn == gantt(plan, timeline, ".svg", width_inches=7.0, transfers=True, title="A plan")
    assert drawn != gantt(plan, timeline, ".svg", width_inches=7.0, transfers=False, title="A plan")


def test_stages_and_collectives_are_in_the_legend() -> None:
    plan = small_plan(chunks=2)
    said = texts(gantt(plan, simulate(plan.problem, plan.schedule()), ".svg", width_inches=7.0, transfers=False, title=""))
    assert "lighter: later stages of a rank" in said
    parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(5, 5), all_gather_ns=(5, 5))
    problem = make_problem(2, 3)

    problem = replace(problem, data_parallel=parallel)
    other = plan_of(problem, Greedy()(problem))
    said = texts(gantt(other, simulate(problem, other.schedule()), ".svg", width_inches=4.0, transfers=False, title=""))
    assert "collective" in said


@pytest.mark.parametrize(("ending", "begin"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_formats_have_the_same_bytes_each_time(ending: str, begin: bytes) -> None:
    plan = small_plan()
    timeline = simulate(plan.problem, plan.schedule())
    first, second = (gantt(plan, timeline, ending, width_inches=3.0, transfers=False, title="") for _ in range(2))
    assert first == second
    assert first.startswith(begin)


def test_a_sweeps_table_needs_no_options(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(SWEEP, encoding="utf-8")
    axes = choose_axes(read_columns(tmp_path / "table.csv"), None, None, ())
    assert (axes.x.name, axes.y.name) == ("topology.between.latency", "objective_ns")
    assert [column.name for column in axes.by] == ["memory.limit"]
    lines, bounds = points_of(axes)
    assert lines == {("8 GiB",): {0.0: 2e9, 2e7: 2.2e9}, ("16 GiB",): {0.0: 1.5e9}}
    assert bounds == {("8 GiB",): {0.0: 1.9e9, 2e7: 2.1e9}, ("16 GiB",): {0.0: 1.4e9}}
    done = schedc("plot", tmp_path / "table.csv", "-o", tmp_path / "table.svg")
    assert done.returncode == 0
    said = texts((tmp_path / "table.svg").read_bytes())
    assert {"latency (ms)", "makespan (s)", "memory limit", "8 GiB", "16 GiB", "lower bound"} <= set(said)


def test_a_legend_of_long_names_stays_within_the_picture(tmp_path: Path) -> None:
    rows = (f"{x} GB/s,a method with a long name {name},{x * name}" for x in (4, 64, 1024) for name in (1, 2, 3, 4, 5))
    (tmp_path / "table.csv").write_text("\n".join(["bandwidth,by,step_ns", *rows]) + "\n", encoding="utf-8")
    axes = choose_axes(read_columns(tmp_path / "table.csv"), "bandwidth", None, ("by",))
    assert axes.x.unit.name == "GB/s"
    narrow, wide = (curves(axes, ".svg", width_inches=width, title="") for width in (3.0, 9.0))
    for svg, width in ((narrow, 3.0), (wide, 9.0)):
        names = re.findall(r'<text [^>]* x="([\d.-]+)" [^>]*>a method', svg.decode())
        assert len(names) == 5
        assert all(0 < float(x) < width * 72 - 90 for x in names)  # about as long as a name is
    height = re.compile(r'height="([\d.]+)pt"')
    high, low = (float(height.findall(svg.decode())[0]) for svg in (narrow, wide))
    assert high > 3.0 * 72 * 0.56
    assert low < 9.0 * 72 * 0.6


def test_a_narrow_plan_has_its_whole_legend_and_its_title_apart() -> None:
    plan = small_plan(chunks=2)
    timeline = simulate(plan.problem, plan.schedule())
    svg = gantt(plan, timeline, ".svg", width_inches=3.3, transfers=False, title=r"A title of $\frac{$").decode()
    place = r'<text [^>]* x="([\d.-]+)" y="([\d.-]+)" [^>]*>'
    legend = re.findall(place + "(?:forward|backward|lighter|idle)", svg)
    title = re.findall(place + re.escape(r"A title of $\frac{$"), svg)  # no formula
    assert len(legend) == 5 and len(title) == 1
    assert all(0 < float(x) < 3.3 * 72 - 20 for x, _ in legend)
    assert max(float(y) for _, y in legend) + 4 < float(title[0][1])


def test_a_tunes_table_and_named_columns(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(TUNE, encoding="utf-8")
    table = read_columns(tmp_path / "table.csv")
    axes = choose_axes(table, None, None, ())
    assert (axes.x.name, axes.y.name, [column.name for column in axes.by]) == ("microbatches", "step_ns", ["placement"])
    lines, bounds = points_of(axes)
    assert lines == {("unidirectional",): {8.0: 9e7, 16.0: 8e7}, ("wave",): {8.0: 9.5e7}}
    assert bounds == {("unidirectional",): {8.0: 8e7, 16.0: 8e7}}
    merged, _ = points_of(choose_axes(table, "microbatches", "step_ns", ("ranks",)))
    assert merged == {("2",): {8.0: 9e7, 16.0: 8e7}}
    with pytest.raises(InvalidInput, match=r"--x: found 'latency', expected a column of .*: ranks, replicas"):
        choose_axes(table, "latency", None, ())
    with pytest.raises(InvalidInput, match=r"--y: found the column placement, which has other values than numbers"):
        choose_axes(table, "microbatches", "placement", ())


def test_memory_on_the_x_axis_is_a_cloud_with_what_no_row_beats(tmp_path: Path) -> None:
    rows = (
        "ranks,state,step_ns,peak_bytes,bound_ns\n1,best,70,300,70\n2,planned,90,100,60\n2,planned,95,200,60\n4,planned,80,250,60\n"
    )
    (tmp_path / "table.csv").write_text(rows + "4,bounded,,,60\n", encoding="utf-8")
    axes = choose_axes(read_columns(tmp_path / "table.csv"), "peak_bytes", None, ("ranks",))
    points, bounds = points_of(axes)
    assert axes.is_cloud and not bounds
    assert points == {("1",): {300.0: 70.0}, ("2",): {100.0: 90.0, 200.0: 95.0}, ("4",): {250.0: 80.0}}
    assert frontier(points) == {100.0: 90.0, 250.0: 80.0, 300.0: 70.0}
    assert "least step with as much" in curves(axes, ".svg", width_inches=7, title="").decode()


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plan(small_plan(), tmp_path / "plan.json")
    (tmp_path / "empty.csv").write_text("a,b\n", encoding="utf-8")
    (tmp_path / "same.csv").write_text("a,step_ns\nx,1\ny,2\n", encoding="utf-8")
    (tmp_path / "table.parquet").write_bytes(b"no")
    for arguments, message in (
        (("plan.json", "-o", "plan.gif"), "-o: found 'plan.gif', expected a name that ends with .svg, .png or .pdf"),
        (("plan.json", "-o", "p.svg", "--x", "a"), "--x: found it with the plan"),
        (("same.csv", "-o", "p.svg", "--transfers"), "--transfers: found it with the table"),
        (("empty.csv", "-o", "p.svg"), "found no rows"),
        (("same.csv", "-o", "p.svg"), "found no setting of numbers that varies"),
        (("table.parquet", "-o", "p.svg"), "found no Parquet file"),
    ):
        named = [str(tmp_path / each) if "." in each else each for each in arguments]
        done = schedc("plot", *named, width=400)
        assert done.returncode == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "p.svg").exists()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = schedc("plot", tmp_path / "plan.json", "-o", tmp_path / "p.svg", width=400)
    assert (done.returncode, done.stderr) == (
        2,
        "schedc: plot needs matplotlib, which is not installed: pip install 'schedc[plot]'\n",
    )
