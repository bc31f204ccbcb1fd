"""How far the analytic bounds are below the optimum where some backwards are fused and others split.

Random small problems on a line, with equal or unequal stages, and fast or slow links; BW is 0.8 to 1 × (B + W). `auto` solves each.
A table by the ratio: how many it proved; of these, in how many the bound is the optimum, the mean and the largest gap between them,
and which bounds were the largest. Where `auto` proves less than all, the others may have larger gaps.

Run it as `python benchmarks/schedules/mixed_bounds.py [--cases 30] [--time-limit 10]`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.compile.driver import compile_problem
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.study.bench.pipelines import LinkTimes, both_ways, pipeline

if TYPE_CHECKING:
    from schedc.ir.plan import BoundName
    from schedc.ir.problem import Problem

MS = 1_000_000


def mixed_case(seed: int, ratio: float) -> Problem:
    """The problem of this number, with BW as this share of B plus W, in whole milliseconds."""
    random = Random(seed)
    ranks, microbatches = random.randint(2, 4), random.choice([4, 6, 8])
    slow = both_ways((random.randint(0, ranks - 2),), LinkTimes(random.choice([0, 20, 50]) * MS, random.choice([0, 10, 20]) * MS))
    costs_ns = (random.randint(10, 20) * MS, random.randint(10, 24) * MS, random.randint(6, 16) * MS)
    in_flight = random.choice([ranks, ranks, 2 * ranks])
    problem = pipeline(f"mixed-{seed}", ranks, microbatches, costs_ns, in_flight=in_flight, slow=slow)
    unequal, stages = random.random() < 0.5, []
    for stage in problem.stages:
        f, b, w = (random.randint(8, 24), random.randint(8, 28), random.randint(5, 20))
        own = stage
        if unequal:
            own = replace(stage, forward_ns=(f * MS,), backward_input_ns=(b * MS,), backward_weight_ns=(w * MS,))
        together_ns = own.backward_input_ns[0] + own.backward_weight_ns[0]
        stages.append(replace(own, backward_ns=(round(ratio * together_ns / MS) * MS,)))
    return replace(problem, stages=tuple(stages))


def main() -> None:
    """Solve the cases; print a line for each ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=30, help="of each ratio")
    parser.add_argument("--time-limit", type=float, default=10, help="seconds for each case")
    arguments = parser.parse_args()
    table = Table("BW ÷ (B + W)", "proven", "bound is the optimum", "mean gap", "largest gap", "largest bounds")
    for ratio in (0.8, 0.85, 0.9, 0.95, 1.0):
        gaps: list[float] = []
        names: Counter[BoundName] = Counter()
        for seed in range(arguments.cases):
            problem = mixed_case(seed, ratio)
            certificate = compile_problem(
                problem, SearchSettings(method="auto", limits=Limits(time_s=arguments.time_limit))
            ).plan.certificate
            if certificate.gap == 0:
                bound = best_bound(problem)
                names[bound.name] += 1
                gaps.append(1 - bound.value_ns / certificate.objective_ns)
        if gaps:
            exact = sum(gap == 0 for gap in gaps)
            largest = ", ".join(f"{name} {count}" for name, count in names.most_common())
            table.add_row(f"{ratio:g}", str(len(gaps)), str(exact), f"{sum(gaps) / len(gaps):.2%}", f"{max(gaps):.2%}", largest)
    Console().print(table)


if __name__ == "__main__":
    main()
