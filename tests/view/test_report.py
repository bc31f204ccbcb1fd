"""The report without a browser: its data against the timeline, its markup, its bytes, and what the command refuses."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import example, given, settings, strategies as st
from inputs.jobs import M70, write_job
from inputs.plans import plans
from inputs.report_plans import MARKUP, marked_plan, plain_plan, slow_trace
from inputs.traces import slower_link
from suite.command_line import schedc

from schedc.analysis.attribution.waits import Awaited, waits_of
from schedc.analysis.comparison.compare import compare
from schedc.analysis.simulation.memory import memory_curve
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.certify import certify
from schedc.formats.plan.plan_file import write_plan
from schedc.formats.trace_file import write_trace_file
from schedc.ir.ops import Kind
from schedc.view.report.chart import packed, step_data
from schedc.view.report.figures import ALLOWED, Measured, link_figures
from schedc.view.report.page import report_html

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.plan import Plan
    from schedc.view.report.figures import LinkFigures


def unpacked(text: str) -> list[int]:
    """The values of a column, read one byte at a time."""
    content = base64.b64decode(text)
    tag, at = content[0], 1

    def next_value() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = content[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return -(value + 1) // 2 if value & 1 else value // 2

    def next_values(count: int, *, differences: bool) -> list[int]:
        values = [next_value() for _ in range(count)]
        return [sum(values[: place + 1]) for place in range(count)] if differences else values

    count = next_value()
    if tag < 2:
        values = next_values(count, differences=tag == 1)
    else:
        colours = next_values(next_value(), differences=True)
        values = [colours[0]] * count if len(colours) == 1 else [colours[next_value()] for _ in range(count)]
    assert at == len(content)
    return values


def data_of(page: bytes) -> dict[str, Any]:
    """The data of a page."""
    found = re.search(rb'<script type="application/json" id="chart-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


class Elements(HTMLParser):
    """Which elements a page has, and its text."""

    def __init__(self, page: bytes) -> None:
        """Read the page."""
        super().__init__()
        self.elements: list[str] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep it, and that it is open unless it never closes."""
        self.elements.append(tag)
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Elements close in the order in which they opened."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep it."""
        self.texts.append(data)


@given(st.lists(st.integers(-(2**53), 2**53), max_size=40))
@example([])
@example([7])
@example([7] * 5)
@example([0, 1, -1, 63, 64, -64, -65, 2**13, 2**20, 2**27, 2**28, 2**35, 2**53])
def test_columns_come_back(values: list[int]) -> None:
    assert unpacked(packed(values)) == values


def test_long_columns_are_short() -> None:
    assert len(packed(np.arange(100_000) * 38_000_000)) < 700_000
    assert len(packed(np.full(100_000, 38_000_000))) < 20
    assert len(packed(np.tile([38_000_000, 46_500_000, 20_500_000], 30_000))) < 130_000


@settings(max_examples=25)
@given(plans())
def test_data_are_the_timeline(plan: Plan) -> None:
    timeline = simulate(plan.problem, plan.schedule())
    step = step_data(plan, "planned", timeline, waits_of(plan.problem, timeline))
    columns = {name: unpacked(value) for name, value in step.items() if isinstance(value, str) and name != "name"}
    assert columns["begin"] == timeline.begin.tolist()
    assert [list(row) for row in zip(*(columns[name] for name in ("kind", "stage", "microbatch", "part")), strict=True)] == (
        timeline.ops.tolist()
    )
    starts_ns, ends_ns = _times(columns)
    assert (starts_ns, ends_ns) == (timeline.starts_ns.tolist(), timeline.ends_ns.tolist())
    _check_transfers(columns, timeline, ends_ns)
    _check_causes(columns, timeline)
    for rank in range(plan.problem.ranks):
        first, end = columns["memoryBegin"][rank : rank + 2]
        curve = list(zip(columns["memoryNs"][first:end], columns["memoryBytes"][first:end], strict=True))
        assert curve == memory_curve(plan.problem, plan.schedule(), timeline, rank)
    assert len(step["collectives"]) == len(timeline.collectives)
    assert step["endNs"] == timeline.makespan_ns


def _times(columns: dict[str, list[int]]) -> tuple[list[int], list[int]]:
    """Starts and ends as the page computes them."""
    starts_ns: list[int] = []
    ends_ns: list[int] = []
    for op, (idle_ns, duration_ns) in enumerate(zip(columns["idleBeforeNs"], columns["durationNs"], strict=True)):
        free_ns = 0 if op in columns["begin"] else ends_ns[-1]
        starts_ns.append(free_ns + idle_ns)
        ends_ns.append(starts_ns[-1] + duration_ns)
    return starts_ns, ends_ns


def _check_transfers(columns: dict[str, list[int]], timeline: Timeline, ends_ns: list[int]) -> None:
    sent = timeline.sent
    assert columns["producer"] == timeline.sender[sent].tolist()
    assert columns["consumer"] == timeline.first_taker[sent].tolist()
    parts = zip(*(columns[name] for name in ("producer", "queueNs", "occupancyNs", "latencyNs")), strict=True)
    times = [[ends_ns[op] + queue, ends_ns[op] + queue + on, ends_ns[op] + queue + on + late] for op, queue, on, late in parts]
    found = (timeline.transfer_start_ns, timeline.transfer_left_ns, timeline.arrival_ns)
    assert times == [list(row) for row in zip(*(column[sent].tolist() for column in found), strict=True)]


def _check_causes(columns: dict[str, list[int]], timeline: Timeline) -> None:
    """Where a rank was idle before an op, what the op waited for came when it began."""
    taken = dict(zip(columns["consumer"], timeline.sent.tolist(), strict=True))
    for op, (cause, idle_ns) in enumerate(zip(columns["cause"], columns["idleBeforeNs"], strict=True)):
        if cause == Awaited.MESSAGE:
            assert timeline.arrival_ns[taken[op]] == timeline.starts_ns[op]
        elif cause == Awaited.ALL_GATHER:
            assert timeline.collectives[columns["awaited"][op]].end_ns == timeline.starts_ns[op]
        else:
            assert idle_ns == 0


def test_texts_of_a_plan_are_escaped() -> None:
    plan = marked_plan()
    page = report_html(plan, simulate(plan.problem, plan.schedule()))
    assert b"<script>window.ran" not in page and b"<img" not in page
    elements = Elements(page)
    assert elements.elements.count("script") == 2 and not elements.open
    assert any(text.strip() == MARKUP for text in elements.texts)
    assert data_of(page)["chart"]["name"] == MARKUP


def test_page_loads_nothing_and_is_the_same_again() -> None:
    plan = plain_plan()
    timeline = simulate(plan.problem, plan.schedule())
    page = report_html(plan, timeline)
    assert page == report_html(plan, timeline)
    assert not re.search(rb"""(?:src|href)\s*=\s*["'](?!data:|#)|@import|url\(|https?://""", page)
    assert b"default-src 'none'" in page and b"{{" not in page


def test_message_sizes_are_of_the_stages() -> None:
    plan = plain_plan()
    columns = data_of(report_html(plan, simulate(plan.problem, plan.schedule())))["steps"][0]
    kinds, producer = unpacked(columns["kind"]), unpacked(columns["producer"])
    stages, consumer = unpacked(columns["stage"]), unpacked(columns["consumer"])
    for size, one, other in zip(unpacked(columns["bytes"]), producer, consumer, strict=True):
        sender, receiver = plan.problem.stages[stages[one]], plan.problem.stages[stages[other]]
        assert size == (sender.message_bytes if kinds[one] == Kind.F else receiver.gradient_message_bytes)


def test_measured_step_is_the_recorded_one() -> None:
    plan = plain_plan()
    timeline, trace = simulate(plan.problem, plan.schedule()), slow_trace(plan)
    for step in trace.steps:
        comparison = compare(plan, timeline, trace, step)
        data = data_of(report_html(plan, timeline, Measured(trace=trace, comparison=comparison)))
        planned, measured = data["steps"]
        assert (planned["name"], measured["name"]) == ("planned", "measured")
        columns = {name: unpacked(value) for name, value in measured.items() if isinstance(value, str) and name != "name"}
        at = trace.steps.index(step)
        origin_ns = min(rank.steps[at].step_begin_ns for rank in trace.ranks)
        recorded = [
            (begun, ended)
            for rank in trace.ranks
            for begun, ended in zip(rank.steps[at].begun_ns, rank.steps[at].ended_ns, strict=True)
        ]
        assert list(zip(*_times(columns), strict=True)) == [(begun - origin_ns, ended - origin_ns) for begun, ended in recorded]
        assert min(columns["queueNs"] + columns["occupancyNs"] + columns["latencyNs"]) >= 0


def test_command_writes_the_page(tmp_path: Path) -> None:
    plan = plain_plan()
    write_plan(plan, tmp_path / "plan.json")
    write_trace_file(slow_trace(plan), tmp_path / "trace.json")
    done = schedc("report", tmp_path / "plan.json", "-o", tmp_path / "plan.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "plan.html").read_bytes() == report_html(plan, simulate(plan.problem, plan.schedule()))
    done = schedc("report", tmp_path / "plan.json", "--trace", tmp_path / "trace.json", "--step", "5", "-o", tmp_path / "both.html")
    assert (done.returncode, done.stderr) == (0, "")
    words = " ".join(Elements((tmp_path / "both.html").read_bytes()).texts)
    assert "step 5," in words and "the link 0 → 1" in words


def test_refusals_are_one_line_and_write_nothing(tmp_path: Path) -> None:
    plan = plain_plan()
    path, out = tmp_path / "plan.json", tmp_path / "plan.html"
    write_plan(plan, path)
    other = tmp_path / "other.json"
    write_plan(certify(replace(plan.problem, name="other"), plan.schedule(), plan.made_by), other)
    write_trace_file(slow_trace(plan), tmp_path / "trace.json")
    broken = tmp_path / "broken.json"
    broken.write_text(path.read_text().replace(f'"makespan_ns": {plan.certificate.makespan_ns}', '"makespan_ns": 1'))
    assert broken.read_bytes() != path.read_bytes()
    (tmp_path / "folder").mkdir()
    for arguments, status, words in (
        ((tmp_path / "none.json", "-o", out), 2, "none.json"),
        ((path, "-o", tmp_path / "folder"), 2, "a directory"),
        ((path, "-o", path), 2, "this command reads it"),
        ((broken, "-o", out), 1, "makespan"),
        ((other, "--trace", tmp_path / "trace.json", "-o", out), 2, "is a trace of the plan"),
        ((path, "--trace", path, "-o", out), 2, "not a plan"),
        ((path, "--trace", tmp_path / "trace.json", "--step", "9", "-o", out), 2, "step 9 is not in the trace"),
        ((path, "--step", "5", "-o", out), 2, "--trace"),
    ):
        done = schedc("report", *arguments)
        assert (done.returncode, done.stdout) == (status, ""), done
        assert words in done.stderr and done.stderr.count("\n") == 1 and done.stderr.startswith("schedc: ")
    assert not out.exists() and not list((tmp_path / "folder").iterdir())


def test_candidates_tried_are_shown(tmp_path: Path) -> None:
    job = write_job(tmp_path, M70)
    plan, printed, page = tmp_path / "plan.json", tmp_path / "printed.json", tmp_path / "plan.html"
    made = schedc("compile", job, "-o", plan, "--method", "zb-h1", "--json")
    found = json.loads(made.stdout)
    found["candidates"].append({"method": "<b>", "seconds": 0.5, "why_not": "not for this"})
    printed.write_text(json.dumps(found))
    assert schedc("report", plan, "--compiled", printed, "-o", page).returncode == 0
    words = " ".join(Elements(page.read_bytes()).texts)
    assert "2 methods in" in words and "the method is done" in words and "<b>" in words and "not for this" in words
    printed.write_text(json.dumps({**found, "makespan_ns": 1}))
    for file, expected in ((printed, "found a makespan of 1 ns by zb-h1, expected"), (plan, "makespan_ns"), (tmp_path, "director")):
        done = schedc("report", plan, "--compiled", file, "-o", tmp_path / "none.html")
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and expected in done.stderr, done
    assert not (tmp_path / "none.html").exists()


def test_memory_is_shown_against_its_limit() -> None:
    plan = plain_plan()
    page = report_html(plan, simulate(plan.problem, plan.schedule())).decode()
    assert "of 4 MiB" in page and data_of(page.encode())["chart"]["memoryLimits"] == [2**22, 2**22, None]
    assert page.count('class="mark"') == 2


def test_links_tolerate_what_the_simulator_says() -> None:
    plan = plain_plan()
    problem, timeline = plan.problem, simulate(plan.problem, plan.schedule())
    found = link_figures(plan, timeline, waits_of(problem, timeline))
    assert [(link.source, link.destination, link.messages) for link in found] == [(0, 1, 4), (1, 0, 4), (1, 2, 4), (2, 1, 4)]
    for link in found:
        assert link.free_ns is not None and link.allowed_ns is not None

        def longer_ns(by_ns: int, link: LinkFigures = link) -> int:
            slow = slower_link(problem, link.source, link.destination, by_ns)
            return simulate(slow, plan.schedule()).makespan_ns - timeline.makespan_ns

        assert longer_ns(link.free_ns) <= 0 < longer_ns(link.free_ns + 1)
        assert longer_ns(link.allowed_ns) <= timeline.makespan_ns * ALLOWED < longer_ns(link.allowed_ns + 1)


def test_a_page_needs_no_terminal() -> None:
    program = "import sys, schedc.cli.commands.report, schedc.view.report.page; assert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
