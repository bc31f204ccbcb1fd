"""How often the monitor is wrong, and how soon it is right: links and ranks simulated step by step, with noise of several kinds.

Nothing wrong: 10,000 steps of 8 ranks and their 14 links, whose transit times and durations are drawn anew with heavy tails.
Counted are alarms, what pings rejected, and what was confirmed, which must be nothing. The stated rate is 1 % for any alarm.

Something wrong: after 64, 256 or 1024 calm steps a link's latency grows by 20 %, by 50 %, to the double, to six times. Counted are
the steps until the change is confirmed, the step for the ping included; the median and the worst of several runs.

Run it as `python benchmarks/adapting/false_alarms.py`; some minutes. `--steps 2000` is faster.
"""

from __future__ import annotations

import argparse
import random
from typing import TYPE_CHECKING

from schedc.ir.ops import Kind, Op
from schedc.runtime.adapt.monitoring.change import Rate
from schedc.runtime.adapt.monitoring.link_state import LinkWatch
from schedc.runtime.adapt.monitoring.speeds import SpeedWatch

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS, MESSAGES, PINGS = 8, 4, 3
LINKS = 2 * (RANKS - 1)
RATE = Rate(LINKS + 4 * RANKS)
MS = 1_000_000
LATENCY_NS = 5.0 * MS
RUNS = 21


def exponential(draw: random.Random) -> Callable[[], float]:
    """Messages vary by a few percent."""
    return lambda: draw.expovariate(1 / 0.02)


def lognormal(draw: random.Random) -> Callable[[], float]:
    """Messages vary much, some take several times as long; steps differ, too."""
    step = draw.lognormvariate(-3.0, 0.5)
    return lambda: step + draw.lognormvariate(-2.5, 1.2)


def pareto(draw: random.Random) -> Callable[[], float]:
    """One message in a hundred takes twice as long, one in ten thousand a hundred times as long."""
    return lambda: 0.05 * draw.paretovariate(1.0)


def stalls(draw: random.Random) -> Callable[[], float]:
    """In one step of a hundred the host stalls, and all messages of the step take 1 to 20 times as long."""
    stall = draw.uniform(1, 20) if draw.random() < 0.01 else 0.0
    return lambda: stall + draw.expovariate(1 / 0.05)


NOISES = {"exponential, 2 %": exponential, "log-normal": lognormal, "Pareto, index 1": pareto, "stalls, 1 % of steps": stalls}


def step_of(watch: LinkWatch, noise: Callable[[random.Random], Callable[[], float]], draw: random.Random, factor: float) -> None:
    """One step of a link: its messages, and the pings that it wants, which meet noise of their own."""
    more = noise(draw)
    watch.step([LATENCY_NS * (factor + more()) for _ in range(MESSAGES)])
    if watch.wants_ping:
        more = noise(draw)
        watch.pinged([LATENCY_NS * (factor + more()) for _ in range(PINGS)])


def nothing_wrong(steps: int) -> None:
    """Print how often it says something."""
    print(f"nothing wrong, {steps} steps, {LINKS} links, {RANKS} ranks; the stated rate: any alarm with at most 1 %")
    print(f"{'noise':<22} {'alarms of links':>16} {'rejected':>9} {'confirmed':>10} {'alarms of ranks':>16}")
    for name, noise in NOISES.items():
        draw = random.Random(name)
        links = [LinkWatch(RATE) for _ in range(LINKS)]
        ranks = [SpeedWatch(RATE) for _ in range(RANKS)]
        ops = [Op(kind, 0, at) for kind in (Kind.F, Kind.B, Kind.W) for at in range(4)]
        for _ in range(steps):
            for watch in links:
                step_of(watch, noise, draw, 1.0)
            for speed in ranks:
                more = noise(draw)
                speed.step((op, round(10 * MS * (1 + more()))) for op in ops)
        counts = [sum(getattr(watch, what) for watch in links) for what in ("alarms", "rejected", "confirmed")]
        print(f"{name:<22} {counts[0]:>16} {counts[1]:>9} {counts[2]:>10} {sum(speed.alarms for speed in ranks):>16}", flush=True)


def something_wrong() -> None:
    """Print after how many steps it says so."""
    print(f"\nsteps until a change is confirmed, median and worst of {RUNS} runs (– : not within 200 steps)")
    print(f"{'noise':<22} {'calm steps':>10}" + "".join(f" {name:>10}" for name in ("+20 %", "+50 %", "×2", "×6", "×6 → ×1")))
    for name, noise in NOISES.items():
        for calm in (64, 256, 1024):
            cells: list[list[int]] = [[] for _ in range(5)]
            for run in range(RUNS):
                for cell, factor in enumerate((1.2, 1.5, 2.0, 6.0)):
                    draw, watch = random.Random(f"{name} {run} {factor}"), LinkWatch(RATE)
                    for _ in range(calm):
                        step_of(watch, noise, draw, 1.0)
                    cells[cell].append(delay(watch, noise, draw, factor))
                    if factor == 6.0:
                        for _ in range(64):
                            step_of(watch, noise, draw, factor)
                        cells[4].append(delay(watch, noise, draw, 1.0))
            shown = "".join(f" {said(sorted(found)[RUNS // 2])} / {said(max(found)):<3}".rjust(11) for found in cells)
            print(f"{name:<22} {calm:>10}{shown}", flush=True)


def delay(watch: LinkWatch, noise: Callable[[random.Random], Callable[[], float]], draw: random.Random, factor: float) -> int:
    """The steps until the link's change is confirmed."""
    before = bool(watch.excess_ns)
    for step in range(200):
        step_of(watch, noise, draw, factor)
        if bool(watch.excess_ns) != before:
            return step + 2  # the ping is sent when the step has ended, its times come with the next
    return 1000


def said(steps: int) -> str:
    """For people."""
    return "–" if steps == 1000 else str(steps)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000, help="with nothing wrong (default: %(default)s)")
    nothing_wrong(parser.parse_args().steps)
    something_wrong()


if __name__ == "__main__":
    main()
