"""Whether re-planning should predict what a plan takes as ranks run it that choose, where `replan` predicts it in the plan's order.

Random states of links, one after the other, each for long: a pair of neighbours is slow with probability 0.2 (0.4 on 4 ranks), by
N(30, 10) ms. Two proposers have the same candidates: the plan that runs, the job's own, the new one of `replan`. One takes the best
by its time in the plan's order, the other by its time as ranks choose; each moves where its prediction gains 1 % or more. Both run
what they have taken with ranks that choose. The job's own plan is 1F1B's, ZB-H1's, or the best without delay.

Run it as `python benchmarks/adapting/predicting.py [--states 40]`. It prints mean steps by the simulator, and the CPU time of one
prediction both ways.
"""

from __future__ import annotations

import argparse
import time
from random import Random
from statistics import fmean, median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.analysis.simulation.choosing import not_before, simulate_choosing
from schedc.analysis.simulation.simulate import simulate
from schedc.bench.pipelines import pipeline
from schedc.compile import certify, compile_problem
from schedc.ir.conditions import Conditions, LinkState
from schedc.ir.plan import MadeBy
from schedc.lower.conditions import problem_under
from schedc.replan import replan
from schedc.solvers.common.base import Limits
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

MS = 1_000_000
SIZES = {(4, 12): 0.4, (8, 24): 0.2}
"""Ranks and microbatches, and the probability that a pair is slow."""
LEAST_GAIN = 0.01


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--states", type=int, default=40)
    states = parser.parse_args().states
    table = Table(title="mean step in ms, ranks choose", title_justify="left", box=None)
    for header in (
        "",
        "job's own plan",
        "keeps it",
        "by order",
        "as they choose",
        "order takes longer by",
        "most",
        "CPU ms",
        "choosing",
    ):
        table.add_column(header, justify="right" if header else "left")
    for (ranks, microbatches), slow in SIZES.items():
        problem = pipeline("states", ranks, microbatches, (18 * MS, 19 * MS, 11 * MS), in_flight=2 * ranks)
        plans = {name: certify(problem, constructive(name)(problem), MadeBy(schedc="0", method=name)) for name in ("1f1b", "zb-h1")}
        plans["best"] = compile_problem(problem, limits=Limits(time_s=6, gap=0.001)).plan
        random = Random(5)
        conditions = [drawn(random, ranks, slow) for _ in range(states)]
        for name, plan in plans.items():
            row = compared(plan, conditions)
            table.add_row(f"{ranks} × {microbatches}", name, *row)
    Console(width=132).print(table)


def compared(job: Plan, states: Sequence[Conditions]) -> list[str]:
    """The rest of a row of the table."""
    by_order, by_choosing = job, job
    kept: list[float] = []
    ordered: list[float] = []
    chosen: list[float] = []
    cpu_ms: tuple[list[float], list[float]] = [], []
    for conditions in states:
        problem = problem_under(job.problem, conditions)
        new = replan(job, conditions).plan
        by_order = best((by_order, job, new), problem, in_order_ns)
        by_choosing = best((by_choosing, job, new), problem, choosing_ns)
        for values, plan in ((kept, job), (ordered, by_order), (chosen, by_choosing)):
            values.append(choosing_ns(problem, plan) / MS)
        for values, takes_ns in zip(cpu_ms, (in_order_ns, choosing_ns), strict=True):
            begun_s = time.process_time()
            takes_ns(problem, by_order)
            values.append(1e3 * (time.process_time() - begun_s))
    most = max(one / other for one, other in zip(ordered, chosen, strict=True))
    means = [fmean(kept), fmean(ordered), fmean(chosen)]
    shares = [means[1] / means[2] - 1, most - 1]
    return [f"{mean:.1f}" for mean in means] + [f"{share:+.2%}" for share in shares] + [f"{median(each):.1f}" for each in cpu_ms]


def best(plans: Sequence[Plan], problem: Problem, takes_ns: Callable[[Problem, Plan], int]) -> Plan:
    """The plan that takes least, where that pays; the first one runs."""
    values_ns = [takes_ns(problem, plan) for plan in plans]
    least = min(range(len(plans)), key=values_ns.__getitem__)
    return plans[least] if values_ns[0] - values_ns[least] >= LEAST_GAIN * values_ns[0] else plans[0]


def in_order_ns(problem: Problem, plan: Plan) -> int:
    """A step in the plan's order, as `replan` predicts it."""
    return simulate(problem, plan.schedule()).makespan_ns


def choosing_ns(problem: Problem, plan: Plan) -> int:
    """A step of ranks that choose."""
    schedule = plan.schedule()
    return simulate_choosing(problem, schedule, planned=not_before(plan.problem, schedule)).timeline.makespan_ns


def drawn(random: Random, ranks: int, slow: float) -> Conditions:
    """A state of the links."""
    links: dict[tuple[int, int], LinkState] = {}
    for rank in range(ranks - 1):
        if random.random() < slow:
            state = LinkState(latency_ns=round(max(0.0, random.gauss(30, 10)) * MS))
            links |= {(rank, rank + 1): state, (rank + 1, rank): state}
    return Conditions(links=links)


if __name__ == "__main__":
    main()
