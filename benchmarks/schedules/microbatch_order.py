"""What the order of microbatches that differ is worth: the chosen order against the given one.

Each microbatch is a sequence whose length is drawn from a log-normal distribution, cut off at 32,768 tokens, as in fine-tuning on
documents: most are short, a few are very long. A stage is CrossPipe's M70 (38, 46.5 and 20.5 ms) at 8,192 tokens; the share of the
time that is quadratic in the length is fitted to what a layer of width 8,192 computes. Each job is compiled twice by `auto`, with
`microbatch_order` "given" and "auto", for equal times. Gaps are to the certificate's bound, which for "given" holds in that order.

Run it as `python benchmarks/schedules/microbatch_order.py [--time-limit 10] [--seeds 3] [--small]`.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from schedc.compile.driver import compile_problem
from schedc.frontend.job import load_job
from schedc.solvers.common.base import Limits, SearchSettings

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

LONGEST, PROFILED, WIDTH = 32_768, 8_192, 8_192
MEDIAN = 2_048
FLOPS_PER_NS = 400_000
FIT = (1_024, 4_096, 16_384, 32_768)
"""Lengths that the cost is fitted to."""
RANKS, MICROBATCHES, SPREADS = (4, 8), (16, 32, 64), (0.5, 1.0)
"""A spread is the standard deviation of a length's logarithm."""
JOB = """
name = "lengths"
[pipeline]
ranks = {ranks}
microbatches = {microbatches}
microbatch_order = "auto"
[lengths]
path = "lengths.csv"
profile_length = {profiled}
fit = "times.csv"
[profile]
forward = "38 ms"
backward_input = "46.5 ms"
backward_weight = "20.5 ms"
"""


class Outcome(NamedTuple):
    """Of one job."""

    gain: float
    """By how much the chosen order is faster than the given one."""
    gaps: tuple[float, float]
    """Of the given order and of the chosen one."""


def main() -> None:
    """Compile all jobs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each order")
    parser.add_argument("--seeds", type=int, default=3, help="batches for each row")
    parser.add_argument("--small", action="store_true", help="two rows only")
    options = parser.parse_args()
    rows = list(product(RANKS, MICROBATCHES, SPREADS, (False, True)))
    table = Table(title="the chosen order of microbatches against the given one, means over the batches")
    for heading in (
        "ranks",
        "microbatches",
        "spread",
        "memory",
        "longest / mean",
        "gain",
        "largest gain",
        "gap, given",
        "gap, chosen",
    ):
        table.add_column(heading, justify="right")
    gains: list[float] = []
    with TemporaryDirectory() as folder:
        for ranks, microbatches, spread, limited in rows[:2] if options.small else rows:
            found, longest = [], []
            for seed in range(options.seeds):
                random = Random(f"{microbatches}:{spread}:{seed}")
                lengths = [min(LONGEST, max(1, round(MEDIAN * random.lognormvariate(0, spread)))) for _ in range(microbatches)]
                longest.append(max(lengths) / statistics.mean(lengths))
                found.append(outcome(problem_of_lengths(Path(folder), ranks, lengths, limited=limited), options.time_limit))
            gains += [each.gain for each in found]
            table.add_row(
                str(ranks),
                str(microbatches),
                f"{spread:g}",
                f"{ranks} in flight" if limited else "any",
                f"{statistics.mean(longest):.1f}",
                f"{statistics.mean(each.gain for each in found):.1%}",
                f"{max(each.gain for each in found):.1%}",
                f"{statistics.mean(each.gaps[0] for each in found):.1%}",
                f"{statistics.mean(each.gaps[1] for each in found):.1%}",
            )
    console = Console(width=150)
    console.print(table)
    console.print(f"{len(gains)} batches: mean gain {statistics.mean(gains):.1%}, from {min(gains):.1%} to {max(gains):.1%}")


def problem_of_lengths(folder: Path, ranks: int, lengths: list[int], *, limited: bool) -> Problem:
    """The job of these lengths, read as a user's would be, with room for as many microbatches as ranks, or for all."""
    (folder / "lengths.csv").write_text("\n".join(["length", *map(str, lengths)]), encoding="utf-8")
    times = [f"{length},{(24 * length * WIDTH * WIDTH + 4 * length * length * WIDTH) // FLOPS_PER_NS} ns" for length in FIT]
    (folder / "times.csv").write_text("\n".join(["length,duration", *times]), encoding="utf-8")
    (folder / "job.toml").write_text(JOB.format(ranks=ranks, microbatches=len(lengths), profiled=PROFILED), encoding="utf-8")
    problem = load_job(folder / "job.toml").problem
    if not limited:
        return problem
    stages = tuple(replace(stage, activation_bytes=2, activation_after_input_bytes=1) for stage in problem.stages)
    return replace(problem, stages=stages, memory_limit_bytes=(2 * ranks,) * ranks)


def outcome(problem: Problem, time_s: float) -> Outcome:
    """Compile the problem with its microbatches in the given order, and in any."""
    both = [
        compile_problem(each, SearchSettings(limits=Limits(time_s=time_s))).plan.certificate
        for each in (replace(problem, in_order=True), problem)
    ]
    given, chosen = both
    return Outcome(given.makespan_ns / chosen.makespan_ns - 1, (given.gap, chosen.gap))


if __name__ == "__main__":
    main()
