"""How often the monitor is wrong, and how soon it is right: links and ranks simulated step by step, with noise of several kinds.

Nothing wrong: 10,000 steps of 8 ranks and their 14 links, whose transit times and durations are drawn anew with heavy tails.
Counted are alarms, what pings rejected, and what was confirmed, which must be nothing. The stated rate is 1 % for any alarm.

Something wrong: after 64, 256 or 1024 calm steps a link's latency grows by 20 %, by 50 %, to the double, to six times. Counted are
the steps until the change is confirmed; the median and the worst of several runs.

Both directions: after 256 calm steps both of a link grow to the same. Shown are the steps until the first of them and until the
second is reported, where nobody compares them, and where the ranks do; and after they recover. One direction: only one grows, and
counted is how often the other is taken to have changed as well, for which there is no evidence but a ping and three steps.

Run it as `python benchmarks/adapting/false_alarms.py`; some minutes. `--steps 2000` is faster.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from benches.simulated_noise import LATENCY_NS, NOISES, RATE, nothing_wrong, step_of
from oracles.link_pairs import BothEnds, SimulatedLink

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 21


def something_wrong() -> None:
    """Print after how many steps it says so."""
    print(f"\nsteps until a change is confirmed, median and worst of {RUNS} runs (– : not within 200 steps)")
    print(f"{'noise':<22} {'calm steps':>10}" + "".join(f" {name:>10}" for name in ("+20 %", "+50 %", "×2", "×6", "×6 → ×1")))
    for name, noise in NOISES.items():
        for calm in (64, 256, 1024):
            cells: list[list[int]] = [[] for _ in range(5)]
            for run in range(RUNS):
                for cell, factor in enumerate((1.2, 1.5, 2.0, 6.0)):
                    draw, link = random.Random(f"{name} {run} {factor}"), SimulatedLink(RATE)
                    for _ in range(calm):
                        step_of(link, noise, draw, 1.0)
                    cells[cell].append(delay(link, noise, draw, factor))
                    if factor == 6.0:
                        for _ in range(64):
                            step_of(link, noise, draw, factor)
                        cells[4].append(delay(link, noise, draw, 1.0))
            shown = "".join(f" {said(sorted(found)[RUNS // 2])} / {said(max(found)):<3}".rjust(11) for found in cells)
            print(f"{name:<22} {calm:>10}{shown}", flush=True)


def delay(link: SimulatedLink, noise: Callable[[random.Random], Callable[[], float]], draw: random.Random, factor: float) -> int:
    """The steps until the link's change is confirmed, by pings that are sent when the last has ended."""
    before = bool(link.watch.excess_ns)
    for step in range(200):
        step_of(link, noise, draw, factor)
        if bool(link.watch.excess_ns) != before:
            return step + 1
    return 1000


def both_directions() -> None:
    """Print when the first and the second direction are reported."""
    print(f"\nboth directions change at once: steps until the first and the second is known, medians of {RUNS} runs; apart by")
    print(f"{'noise':<22} {'change':>8} {'each alone':>12} {'together':>10} {'apart by: alone':>16} {'together':>9}")
    for name, noise in NOISES.items():
        for factor in (1.2, 2.0, 6.0):
            alone: list[tuple[int, int]] = []
            together: list[tuple[int, int]] = []
            for run in range(RUNS):
                for found, compared in ((alone, False), (together, True)):
                    draw, pair = random.Random(f"{name} {run} {factor}"), BothEnds(RATE, compared=compared)
                    for _ in range(256):
                        step_both(pair, noise, draw, (1.0, 1.0))
                    known = [1000, 1000]
                    for step in range(100):
                        step_both(pair, noise, draw, (factor, factor))
                        for way, excess_ns in enumerate(pair.reported_ns):
                            known[way] = min(known[way], step + 1) if excess_ns else known[way]
                    found.append((min(known), max(known)))
            (first, second), (sooner, later) = ((median(each) for each in zip(*found, strict=True)) for found in (alone, together))
            apart, less = (
                f"{median(b - a for a, b in found):.0f} / {said(max(b - a for a, b in found))}" for found in (alone, together)
            )
            print(
                f"{name:<22} {factor - 1:>+8.0%} {f'{first:.0f}, {second:.0f}':>12} {f'{sooner:.0f}, {later:.0f}':>10}"
                f" {apart:>16} {less:>9}",
                flush=True,
            )


def one_direction(runs: int) -> None:
    """Print how often the other one is taken to have changed."""
    print(f"\none direction changes to the double, and recovers: {runs} runs of each noise")
    print(f"{'noise':<22} {'confirmed':>10} {'the other, wrongly':>19}")
    for name, noise in NOISES.items():
        confirmed = followed = 0
        for run in range(runs):
            draw, pair = random.Random(f"{name} {run}"), BothEnds(RATE)
            for factor, steps in ((1.0, 100), (2.0, 40), (1.0, 40)):
                for _ in range(steps):
                    step_both(pair, noise, draw, (factor, 1.0))
            confirmed += pair.watches[0].confirmed
            followed += pair.watches[1].followed
        print(f"{name:<22} {confirmed:>10} {followed:>19}", flush=True)


def step_both(
    pair: BothEnds, noise: Callable[[random.Random], Callable[[], float]], draw: random.Random, factors: tuple[float, float]
) -> None:
    """One step of both directions, which take these times as long as usual."""

    def transit_ns(way: int) -> Callable[[], float]:
        more = noise(draw)
        return lambda: LATENCY_NS * (factors[way] + more())

    pair.step(transit_ns)


def said(steps: int) -> str:
    """For people."""
    return "–" if steps == 1000 else str(steps)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000, help="with nothing wrong (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=1000, help="with one direction changed (default: %(default)s)")
    arguments = parser.parse_args()
    nothing_wrong(arguments.steps)
    something_wrong()
    both_directions()
    one_direction(arguments.runs)


if __name__ == "__main__":
    main()
