"""The pictures of docs/report.md: the pages of two plans in headless Chromium, as PNG files in docs/pictures.

Run it as `python tools/pictures/report.py [folder]`, or `make pictures`. Needs playwright and Chromium. What was measured is an
emulation on this machine, so that picture is a little different each time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What is shown, and how."""

    name: str
    page: Literal["plan", "measured"]
    scheme: Literal["light", "dark"] = "light"
    width: int = 1280
    height: int = 800
    script: str = ""
    """What is done before."""
    hover: str = ""
    """The op under the pointer."""


HOVERED = "F4.8"
PICTURES = (
    Picture(name="report", page="plan", hover=HOVERED),
    Picture(name="report-path", page="plan", scheme="dark", script="report.toggle('critical')"),
    Picture(name="report-measured", page="measured"),
    Picture(
        name="report-figures", page="plan", height=1000, script="scrollTo(0, document.getElementById('figures-of-ranks').offsetTop)"
    ),
)
PLACE = """(name) => {
  const { report } = window.schedcReport;
  const step = report.steps[0];
  const op = Array.from({ length: step.count }, (_, at) => at).find((at) =>
    `${["F", "B", "W", "BW"][step.kind[at]]}${step.stage[at]}.${step.microbatch[at]}` === name);
  const lane = report.laneOfRank(step, step.rankOf[op]);
  const corner = report.canvas.getBoundingClientRect();
  const { painter, view } = report;
  return [
    corner.left + painter.x((step.start[op] + step.end[op]) / 2, view) / painter.box.ratio,
    corner.top + painter.y(lane, view) / painter.box.ratio + lane.height / 2,
  ];
}"""
"""Where an op is in the window."""


def schedc(*arguments: object) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "schedc", *map(str, arguments)], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def draw(browser: Browser, picture: Picture, page_path: Path, folder: Path) -> None:
    """Open the page and write its picture."""
    context = browser.new_context(
        viewport={"width": picture.width, "height": picture.height}, color_scheme=picture.scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(page_path.as_uri())
    page.evaluate(f"() => {{ const {{ report }} = window.schedcReport; {picture.script} }}")
    if picture.hover:
        page.mouse.move(*page.evaluate(PLACE, picture.hover))
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.screenshot(path=folder / f"{picture.name}.png")
    context.close()


def main() -> None:
    """Compile, emulate, report, and draw all pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        plan, trace = Path(directory) / "plan.json", Path(directory) / "trace.json"
        schedc("compile", "examples/m70-2dc/job.toml", "-o", plan, "--method", "rule-table", "--quiet")
        schedc("emulate", plan, "--runs", 3, "--trace", trace)
        pages = {"plan": Path(directory) / "plan.html", "measured": Path(directory) / "measured.html"}
        schedc("report", plan, "-o", pages["plan"])
        schedc("report", plan, "--trace", trace, "-o", pages["measured"])
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture in PICTURES:
            draw(browser, picture, pages[picture.page], folder)
        browser.close()


if __name__ == "__main__":
    main()
