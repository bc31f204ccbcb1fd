"""How many predictions a monitor needs until it believes that a rank is slower, by how much they vary while nothing changes.

Simulated: predictions are drawn from a normal distribution around the slow-down; the test is the monitor's with its defaults, for
four ranks and six links. A prediction comes four times a second. The table has the median and the most of 11 draws.

Run it as `python benchmarks/adapting/predictions.py`; seconds.
"""

from __future__ import annotations

from random import Random
from statistics import median

from schedc.ir.ops import Kind
from schedc.runtime.adapt.monitoring.change import Rate
from schedc.runtime.adapt.monitoring.speeds import SpeedWatch
from schedc.runtime.interference.predictor import WINDOW_S

RATE = Rate(6 + 5 * 4)
CALM, DRAWS, MOST = (100, 1000), 11, 500


def needed(draw: Random, calm: int, noise: float, factor: float) -> int:
    """How many predictions of the slow rank it takes."""
    watch = SpeedWatch(RATE)
    for _ in range(calm):
        watch.add_prediction(draw.gauss(1, noise))
    for count in range(1, MOST):
        watch.add_prediction(factor * draw.gauss(1, noise))
        if Kind.F in watch.slowdown():
            return count
    return MOST


def main() -> None:
    """Print the table."""
    print("| they vary by | slow-down | " + " | ".join(f"after {calm} calm ones" for calm in CALM) + " |")
    print("|---|---|---|---|")
    for noise in (0.02, 0.1, 0.2):
        for factor in (1.2, 1.5, 2.0, 3.0):
            cells = []
            for calm in CALM:
                counts = [needed(Random(seed), calm, noise, factor) for seed in range(DRAWS)]
                most = f"{max(counts)}" if max(counts) < MOST else f"over {MOST}"
                cells.append(f"{median(counts):g} / {most} ({median(counts) * WINDOW_S:.2g} s)")
            print(f"| {noise:.0%} | {factor} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
