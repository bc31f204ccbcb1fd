"""The report in headless Chromium: what it has, zoom, pan, hover, keys, themes, narrow windows, planned and measured."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from inputs.report_plans import MARKUP, marked_plan, plain_plan, slow_trace

from schedc.analysis.attribution.waits import critical_path, waits_of
from schedc.analysis.comparison.compare import compare
from schedc.analysis.simulation.simulate import simulate
from schedc.ir.ops import Kind, Op, token
from schedc.view.report.figures import Measured
from schedc.view.report.page import report_html

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from schedc.ir.plan import Plan

PLAN = plain_plan()
TIMELINE = simulate(PLAN.problem, PLAN.schedule())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the pages of a plan, of the plan with a trace, and of a plan whose texts are markup."""
    directory = tmp_path_factory.mktemp("pages")
    (directory / "plan.html").write_bytes(report_html(PLAN, TIMELINE))
    trace = slow_trace(PLAN)
    measured = Measured(trace=trace, comparison=compare(PLAN, TIMELINE, trace))
    (directory / "trace.html").write_bytes(report_html(PLAN, TIMELINE, measured))
    marked = marked_plan()
    (directory / "marked.html").write_bytes(report_html(marked, simulate(marked.problem, marked.schedule())))
    return directory


@contextmanager
def opened(browser: Browser, path: Path, **options: Any) -> Iterator[Page]:
    """The page, drawn. At its end, it must have said nothing to the console and have asked for nothing but itself."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce", **options})
    context.set_default_timeout(200_000)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(("file:", "data:")) else problems.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_function("window.schedcReport && window.schedcReport.frames > 0")
    yield page
    settled(page)
    assert problems == []
    context.close()


def settled(page: Page) -> None:
    """Wait until what was asked for is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def state(page: Page, key: str) -> Any:
    """What the page says about itself, after all is drawn."""
    settled(page)
    return page.evaluate("(key) => window.schedcReport[key]", key)


def place_of(page: Page, op: Op, step: int = 0) -> tuple[float, float]:
    """Where the middle of an op is in the window."""
    found = page.evaluate(
        """([name, number]) => {
          const { report } = window.schedcReport;
          const step = report.steps[number];
          for (let op = 0; op < step.count; op += 1) {
            const { kind, stage, microbatch } = step;
            if (`${["F", "B", "W", "BW"][kind[op]]}${stage[op]}.${microbatch[op]}` !== name) continue;
            const lane = report.laneOfRank(step, step.rankOf[op]);
            const { painter, view } = report;
            const corner = report.canvas.getBoundingClientRect();
            const x = painter.x((step.start[op] + step.end[op]) / 2, view) / painter.box.ratio;
            return [corner.left + x, corner.top + painter.y(lane, view) / painter.box.ratio + lane.height / 2];
          }
          return null;
        }""",
        [token(op), step],
    )
    assert found is not None
    return found[0], found[1]


def shown(page: Page) -> tuple[float, float]:
    """The stretch of time that is shown."""
    view = state(page, "view")
    return view["from"], view["to"]


def test_everything_is_there(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "plan.html") as page:
        assert state(page, "ops") == [len(TIMELINE.ops)]
        assert state(page, "transfers") == [len(TIMELINE.transfers)]
        assert page.title() == "plain: schedc report"
        assert page.locator("#legend li").all_inner_texts()[:2] == ["F: forward", "BW: backward, both in one"]
        lanes = page.evaluate("schedcReport.report.lanes.map((lane) => lane.label)")
        assert lanes == ["rank 0", "memory", "rank 1", "memory", "rank 2", "memory", "trunk east", "link 1>0", "link 2>1"]
        times = page.evaluate("[...schedcReport.report.steps[0].start, ...schedcReport.report.steps[0].end]")
        assert times == [*TIMELINE.starts_ns.tolist(), *TIMELINE.ends_ns.tolist()]


def test_pixels_have_the_colours_of_what_happens(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "plan.html") as page:
        ops = {"--f0": Op(Kind.F, 0, 0), "--bw0": Op(Kind.BW, 2, 3)}
        places = [[name, *place_of(page, op)] for name, op in ops.items()]
        found = page.evaluate(
            """(places) => {
              const canvas = document.getElementById("chart");
              const corner = canvas.getBoundingClientRect();
              const scale = canvas.width / canvas.clientWidth;
              const picture = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
              return places.map(([name, x, y]) => {
                const at = Math.round((y - corner.top - 10) * scale) * canvas.width + Math.round((x - corner.left) * scale);
                const bytes = [...picture.data.slice(4 * at, 4 * at + 3)];
                const colour = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
                return ["#" + bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(""), colour];
              });
            }""",
            places,
        )
        assert len(found) == 2 and all(colour == expected for colour, expected in found)


def test_zoom_and_pan_by_pointer(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "plan.html") as page:
        whole = shown(page)
        x, y = place_of(page, Op(Kind.F, 1, 2))
        page.mouse.move(x - 1, y)
        page.mouse.move(x, y)
        page.mouse.wheel(0, -240)
        page.mouse.wheel(0, -240)
        begin, end = shown(page)
        assert (end - begin) * 3.9 < whole[1] - whole[0] and state(page, "view")["whole"] is False
        assert place_of(page, Op(Kind.F, 1, 2))[0] == pytest.approx(x, abs=2.5)  # what is under the pointer stays there
        page.mouse.down()
        page.mouse.move(x + 60, y)
        page.mouse.move(x + 100, y)
        page.mouse.up()
        assert place_of(page, Op(Kind.F, 1, 2))[0] == pytest.approx(x + 100, abs=2.5)
        assert state(page, "selected") is None  # a drag is no click
        for _ in range(3):
            page.mouse.wheel(0, 240)
        assert shown(page) == pytest.approx(whole)
        page.get_by_role("button", name="Zoom in").click()
        assert shown(page)[1] - shown(page)[0] == pytest.approx((whole[1] - whole[0]) / 2)
        page.get_by_role("button", name="Fit").click()
        assert shown(page) == pytest.approx(whole)


def test_hover_says_what_an_op_waited_for(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "plan.html") as page:
        page.mouse.move(*place_of(page, Op(Kind.F, 1, 0)))
        text = page.locator("#tooltip").inner_text()
        assert text.startswith("F1.0\n") and "rank 1, stage 1" in text
        assert "the transfer of F0.0 over trunk east" in text and "latency 7 us" in text
        page.mouse.move(*place_of(page, Op(Kind.F, 0, 1)))
        assert "F0.0, the op before it on its rank; the rank was not idle" in page.locator("#tooltip").inner_text()
        box = page.locator("#chart").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 5, box["y"] + 5)
        assert page.locator("#tooltip").is_hidden() and state(page, "hovered") is None


def test_click_keeps_the_chain(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "plan.html") as page:
        page.mouse.click(*place_of(page, Op(Kind.F, 2, 0)))
        assert state(page, "selected")["title"] == "F2.0"
        assert state(page, "chain") == {"ops": ["F2.0", "F0.2", "F0.1", "F0.0"], "transfers": 2}  # behind F0.2's on the trunk
        assert "F2.0" in page.locator("#details").inner_text()
        page.keyboard.press("Escape")
        assert state(page, "selected") is None and state(page, "chain") is None


def test_critical_path_is_that_of_the_analysis(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "plan.html") as page:
        page.get_by_role("button", name="Critical path").click()
        path = critical_path(TIMELINE, waits_of(PLAN.problem, TIMELINE))
        kinds = tuple(Kind)
        ops = [segment.op for segment in path if segment.op is not None and segment.destination is None]
        names = [token(Op(kinds[kind], *rest)) for kind, *rest in TIMELINE.ops[ops].tolist()]
        assert state(page, "chain")["ops"] == names[::-1]
        assert page.locator("#critical").get_attribute("aria-pressed") == "true"


def test_keys(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "plan.html") as page:
        whole = shown(page)
        page.focus("#chart")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        for key in ("+", "+", "ArrowRight"):
            page.keyboard.press(key)
        begin, end = shown(page)
        assert end - begin == pytest.approx((whole[1] - whole[0]) / 4)
        page.keyboard.press("ArrowLeft")
        assert shown(page)[0] < begin
        page.keyboard.press("0")
        page.keyboard.press("Enter")
        first = state(page, "selected")["title"]
        page.keyboard.press(".")
        assert state(page, "selected")["title"] != first
        page.keyboard.press(",")
        assert state(page, "selected")["title"] == first
        page.keyboard.press("ArrowDown")
        assert "1." in state(page, "selected")["title"]
        page.keyboard.press("/")
        page.keyboard.type("bw1.2")
        page.keyboard.press("Enter")
        assert state(page, "selected")["title"] == "BW1.2"
        page.keyboard.press("w")
        assert state(page, "selected")["title"] == token(_bound_by(PLAN, Op(Kind.BW, 1, 2)))
        page.keyboard.press("l")
        page.keyboard.press("m")
        assert page.evaluate("schedcReport.report.lanes.length") == 3
        page.keyboard.press("?")
        assert page.locator("#help").is_visible()
        page.keyboard.press("Escape")
        assert page.locator("#help").is_hidden()
        assert outline != "none"


def _bound_by(plan: Plan, op: Op) -> Op:
    """The op that the op waited for, or whose message it waited for."""
    at = plan.schedule().orders[plan.problem.rank_of(op)].index(op) + int(TIMELINE.begin[plan.problem.rank_of(op)])
    kind, *rest = TIMELINE.ops[waits_of(plan.problem, TIMELINE).awaited[at]].tolist()
    return Op(Kind(kind), *rest)


def test_find_says_that_there_is_no_such_op(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "plan.html") as page:
        page.fill("#find", "<b>F9</b>")
        page.press("#find", "Enter")
        assert page.locator("#find-answer").inner_text().startswith("There is no op <b>F9</b>")


def test_light_and_dark(browser: Browser, folder: Path) -> None:
    backgrounds = []
    for scheme in ("light", "dark"):
        with opened(browser, folder / "plan.html", color_scheme=scheme) as page:
            backgrounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert page.evaluate("schedcReport.report.isDark()") is (scheme == "dark")
            page.keyboard.press("t")
            backgrounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert page.evaluate("schedcReport.report.isDark()") is (scheme == "light")
    light, from_light, dark, from_dark = backgrounds
    assert (light, dark) == (from_dark, from_light) and light != dark


def test_narrow_windows_do_not_scroll_sideways(browser: Browser, folder: Path) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
    for name in ("plan.html", "trace.html"):
        with opened(browser, folder / name, **phone) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            page.locator("#chart").scroll_into_view_if_needed()
            page.touchscreen.tap(*place_of(page, Op(Kind.F, 0, 1)))
            assert state(page, "selected")["title"] == "F0.1"


def test_a_page_without_width_waits_until_it_has_some(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "plan.html") as page:
        for hidden in ("document.body.style.display = 'none'", "document.body.style.width = '60px'"):
            page.evaluate(hidden)
            settled(page)
            marks = (
                "() => { const { report } = window.schedcReport; report.layout(); return report.painter.marks(report.view).marks }"
            )
            assert len(page.evaluate(marks)) < 9  # a negative width asked for one each nanosecond
            page.evaluate("document.body.removeAttribute('style')")
            settled(page)
            page.mouse.move(*place_of(page, Op(Kind.F, 0, 1)))
            assert page.locator("#tooltip").inner_text().startswith("F0.1")


def test_planned_and_measured_are_one_above_the_other(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "trace.html") as page:
        assert state(page, "ops") == [len(TIMELINE.ops)] * 2
        assert page.evaluate("schedcReport.report.lanes.map((lane) => lane.label)") == [
            text for rank in range(3) for text in (f"rank {rank}", "measured")
        ]
        op = Op(Kind.F, 1, 0)
        (planned_x, planned_y), (measured_x, measured_y) = place_of(page, op, 0), place_of(page, op, 1)
        assert measured_y > planned_y and measured_x > planned_x + 1  # the link was slower
        page.mouse.move(measured_x, measured_y)
        text = page.locator("#tooltip").inner_text()
        assert text.startswith("F1.0, measured") and "the transfer of F0.0" in text
        assert page.get_by_role("heading", name="Planned against measured").is_visible()


def test_texts_of_a_plan_do_not_run(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "marked.html") as page:
        assert page.evaluate("window.ran") is None
        assert page.locator("h1").inner_text() == MARKUP
        page.keyboard.press("l")
        page.keyboard.press("c")
        assert state(page, "chain")["ops"]
