"""The report of a large plan in headless Chromium: how large it is, how long it takes to open, how smoothly it pans and zooms.

A plan of 64 ranks with two chunks each and 256 microbatches (over 98,000 compute ops and 65,000 transfers) is compiled by a
deterministic method; `schedc report` writes its page; Chromium opens it. Needs `playwright` and Debian's Chromium.

Run it as `python benchmarks/report/large.py [--ranks N] [--microbatches N] [--chromium PATH]`. Status 1: a requirement is not met.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

JOB = """


[pipeline]
ranks = {ranks}
microbatches = {microbatches}
placement = "wave"
chunks = 2

[profile]
forward = "19.31 ms"
backward_input = "23.257 ms"
backward_weight = "10.259 ms"
activation = "512 MiB"
activation_after_input = "256 MiB"
message = "64 MiB"

[memory]
in_flight = {in_flight}

[topology]
sites = [{half}, {half}]

[topology.within]
latency = "20 us"
transfer = "420 us"

[topology.between]
latency = "9.5 ms"
transfer = "4.5 ms"
"""
MOST_BYTES, MOST_OPEN_S, LEAST_FRAMES_PER_S = 10_000_000, 2.0, 30.0
OPENINGS = 5
FRAMES = """async ({change, seconds}) => {
  const { report } = window.schedcReport;
  const zoomed = (at) => Math.sin(at / 40) > 0 ? 0.97 : 1 / 0.97;
  const step = { pan: (at) => report.pan(Math.sin(at / 40) * 0.02), zoom: (at) => report.zoom(zoomed(at), 0.4, true) };
  const began = performance.now();
  const times = [];
  const drawn = [];
  for (let at = 0; performance.now() - began < seconds * 1000; at += 1) {
    const now = await new Promise(requestAnimationFrame);
    times.push(now);
    drawn.push(report.frameMs);
    step[change](at);
  }
  const gaps = times.slice(1).map((time, at) => time - times[at]).sort((one, other) => one - other);
  drawn.sort((one, other) => one - other);
  return { frames: gaps.length * 1000 / (times[times.length - 1] - times[0]), slow: gaps[Math.floor(gaps.length * 0.95)],
    drawn: drawn[Math.floor(drawn.length / 2)], count: gaps.length };
}"""
"""Changes what is shown once for each frame of the screen, as a drag does; gives frames per second, the 95th percentile of their
distance, and the median of what drawing one takes, in milliseconds."""


STATE = """() => {
  const { chart } = window.schedcReport.report;
  return { ranks: chart.ranks, microbatches: chart.microbatches, ops: schedcReport.ops[0], transfers: schedcReport.transfers[0] };
}"""


def opened_s(page: Page, address: str) -> float:
    """From the begin of the navigation to the first full picture on the screen."""
    page.goto(address)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    opened_ms: float = page.evaluate("() => performance.now()")
    return opened_ms / 1000


def busy_s(session: CDPSession) -> float:
    """How long the page's thread has computed since it was opened, in CPU time, which other programs do not disturb."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def _compiled(given: argparse.Namespace, directory: Path) -> Path:
    """The plan that is asked for."""
    job, plan = directory / "job.toml", directory / "plan.json"
    values = {"ranks": given.ranks, "half": given.ranks // 2, "in_flight": given.ranks, "microbatches": given.microbatches}
    job.write_text(JOB.format(**values), encoding="utf-8")
    command = [sys.executable, "-m", "schedc", "compile", str(job), "-o", str(plan), "--method", given.method]
    subprocess.run([*command, "--time-limit", "20min", "--quiet"], check=True)
    return plan


def main() -> int:
    """Print the figures; the status says whether the requirements are met."""
    parser = argparse.ArgumentParser(description="The report of a large plan in headless Chromium.")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=256)
    parser.add_argument("--method", default="zb-v", help="how the plan is made")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="a plan that is there already, instead of compiling one")
    parser.add_argument("--chromium", default="/usr/bin/chromium", metavar="PATH")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        plan, html = given.plan or _compiled(given, Path(directory)), Path(directory) / "plan.html"
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "schedc", "report", str(plan), "-o", str(html)], check=True)
        written_s = time.perf_counter() - begun
        size = html.stat().st_size
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.on("pageerror", lambda error: sys.exit(f"the page has an error: {error}"))
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            opened = [opened_s(page, html.as_uri()) for _ in range(OPENINGS)]
            opening_cpu_s = busy_s(session)
            state: dict[str, Any] = page.evaluate(STATE)
            shape = f"{state['ranks']} ranks, {state['microbatches']} microbatches"
            print(f"{shape}: {state['ops']:,} ops, {state['transfers']:,} transfers")
            print(f"written by schedc report in {written_s:.1f} s; {size / 1e6:.2f} MB")
            opening_s = statistics.median(opened)
            times = f"median of {OPENINGS}; {min(opened):.2f} to {max(opened):.2f}"
            print(f"opens in {opening_s:.2f} s ({times}), {opening_cpu_s:.2f} s of CPU")
            least = float("inf")
            for shown, prepare in (
                ("whole step", ""),
                ("an eighth", "report.zoom(1 / 8, 0.4, true)"),
                ("a hundredth", "report.zoom(1 / 100, 0.4, true)"),
                ("an eighth, critical path", "report.zoom(1 / 8, 0.4, true); report.toggle('critical')"),
                ("an eighth, links and memory", "report.zoom(1 / 8, 0.4, true); report.toggle('links'); report.toggle('memory')"),
            ):
                for change in ("pan", "zoom"):
                    page.reload()
                    page.evaluate(f"() => {{ const {{ report }} = window.schedcReport; {prepare} }}")
                    before_s = busy_s(session)
                    found: dict[str, float] = page.evaluate(FRAMES, {"change": change, "seconds": 2})
                    cpu_ms = (busy_s(session) - before_s) / found["count"] * 1e3
                    if change == "pan":
                        least = min(least, found["frames"])
                    print(
                        f"{change} {shown}: {found['frames']:.0f} frames/s, 95 % within {found['slow']:.0f} ms; "
                        f"drawing one takes {found['drawn']:.1f} ms, the page {cpu_ms:.1f} ms of CPU"
                    )
            browser.close()
    met = size < MOST_BYTES and opening_s < MOST_OPEN_S and least >= LEAST_FRAMES_PER_S
    print(
        f"required: under {MOST_BYTES / 1e6:.0f} MB, {MOST_OPEN_S:.0f} s, {LEAST_FRAMES_PER_S:.0f} frames/s of panning:"
        f" {'met' if met else 'not met'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
