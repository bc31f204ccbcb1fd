"""Four kinds of noise, with which links and ranks are simulated, and how often the monitor's tests are wrong under them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from oracles.link_pairs import SimulatedLink

from schedc.ir.ops import Kind, Op
from schedc.runtime.adapt.monitoring.change import Rate
from schedc.runtime.adapt.monitoring.speeds import SpeedWatch

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = 8
LINKS = 2 * (RANKS - 1)
RATE = Rate(LINKS + 4 * RANKS)
MS = 1_000_000
LATENCY_NS = 5.0 * MS


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


def step_of(link: SimulatedLink, noise: Callable[[random.Random], Callable[[], float]], draw: random.Random, factor: float) -> None:
    """One step of a link: its messages, and the pings that it wants, which meet noise of their own."""

    def transit_ns() -> Callable[[], float]:
        more = noise(draw)
        return lambda: LATENCY_NS * (factor + more())

    link.step(transit_ns)


def nothing_wrong(steps: int) -> None:
    """Print how often it says something."""
    print(f"nothing wrong, {steps} steps, {LINKS} links, {RANKS} ranks; the stated rate: any alarm with at most 1 %")
    print(f"{'noise':<22} {'alarms of links':>16} {'rejected':>9} {'confirmed':>10} {'alarms of ranks':>16}")
    for name, noise in NOISES.items():
        draw = random.Random(name)
        links = [SimulatedLink(RATE) for _ in range(LINKS)]
        ranks = [SpeedWatch(RATE) for _ in range(RANKS)]
        ops = [Op(kind, 0, at) for kind in (Kind.F, Kind.B, Kind.W) for at in range(4)]
        for _ in range(steps):
            for link in links:
                step_of(link, noise, draw, 1.0)
            for speed in ranks:
                more = noise(draw)
                speed.step((op, round(10 * MS * (1 + more()))) for op in ops)
        counts = [sum(getattr(link.watch, what) for link in links) for what in ("alarms", "rejected", "confirmed")]
        print(f"{name:<22} {counts[0]:>16} {counts[1]:>9} {counts[2]:>10} {sum(speed.alarms for speed in ranks):>16}", flush=True)
