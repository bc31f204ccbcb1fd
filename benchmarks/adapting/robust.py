"""What a robust plan gains: its mean makespan over states of links that it was not made with, beside plans for single conditions.

The setup is that of the notes on adapting: 4 ranks × 12 microbatches, F, B and W of 18, 19 and 11 ms, memory for 8
microbatches, and for each step a new latency of each pair of ranks from N(30, 10) ms, the same both ways; and 8 ranks × 32
microbatches with memory for 16. The plans are made for no delay, for 30 ms, for 35 ms (half a deviation more), for 40 ms, and
for 64 states (robust: the mean, and the 95th percentile). All are timed by the simulator in 400 other states, drawn apart. Two
references: the rule table's plan for each state, made anew for each step, as if the states of the step to come were known; and
the mean of the lower bounds, which no plan beats.

Run it as `python benchmarks/adapting/robust.py [--seconds 60] [--states 400] [--only 4x12]`. The searches end by the clock, so
figures vary; kernels that are not compiled yet are compiled within the first robust plan's time.
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import fmean

from rich.console import Console
from rich.table import Table

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.compile.driver import compile_problem
from schedc.ir.conditions import Conditions, LinkState
from schedc.ir.network import Link
from schedc.ir.problem import Problem, Stage
from schedc.lower.problem import problem_under
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.heuristics.rule_table import RuleTable
from schedc.study.robust.requests import Distribution, drawn_states, pairs_of
from schedc.study.robust.robust import compile_robust, ends_of
from schedc.study.robust.scenarios import Criterion, percentile_of

MS = 1_000_000
MEAN_MS, DEVIATION_MS = 30, 10
SETUPS = {"4x12": (4, 12, 8), "8x32": (8, 32, 16)}
"""Ranks, microbatches, and for how many microbatches there is memory."""


def problem_of(ranks: int, microbatches: int, in_flight: int) -> Problem:
    """The pipeline, without delays."""
    stages = tuple(
        Stage(
            rank=rank,
            forward_ns=(18 * MS,),
            backward_input_ns=(19 * MS,),
            backward_weight_ns=(11 * MS,),
            backward_ns=(30 * MS,),
            activation_bytes=2,
            activation_after_input_bytes=1,
        )
        for rank in range(ranks)
    )
    pairs = [(rank, rank + 1) for rank in range(ranks - 1)]
    return Problem(
        name=f"{ranks} × {microbatches}",
        ranks=ranks,
        microbatches=microbatches,
        stages=stages,
        paths=(tuple(range(ranks)),),
        path_of=(0,) * microbatches,
        links=tuple(Link(source=x, destination=y) for low, high in pairs for x, y in ((low, high), (high, low))),
        memory_limit_bytes=(2 * in_flight,) * ranks,
        in_order=True,
    )


def under(problem: Problem, latency_ms: float) -> Problem:
    """The problem with one latency on all links."""
    state = LinkState(latency_ns=round(latency_ms * MS))
    return problem_under(problem, Conditions(links={(link.source, link.destination): state for link in problem.links}))


def fresh_states(problem: Problem, count: int) -> list[Problem]:
    """Plain draws, apart from those that the robust plan is made with."""
    generator, found = random.Random("fresh"), []
    for _ in range(count):
        links = {}
        for low, high in pairs_of(problem):
            links[low, high] = links[high, low] = LinkState(latency_ns=max(0, round(generator.gauss(MEAN_MS, DEVIATION_MS) * MS)))
        found.append(problem_under(problem, Conditions(links=links)))
    return found


def main() -> None:
    """Make the plans and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of each plan")
    parser.add_argument("--states", type=int, default=400, help="how many fresh states")
    parser.add_argument("--only", choices=SETUPS, default=None, help="one setup alone")
    given = parser.parse_args()
    limits, out = Limits(time_s=given.seconds, workers=2), Console(width=110, highlight=False)
    for name, numbers in SETUPS.items():
        if given.only not in (None, name):
            continue
        problem = problem_of(*numbers)
        fresh = fresh_states(problem, given.states)
        states = drawn_states(
            problem, dict.fromkeys(pairs_of(problem), Distribution("normal", MEAN_MS * MS, DEVIATION_MS * MS)), 64, 0
        )
        ends: dict[str, tuple[int, ...]] = {}
        took_s: dict[str, float] = {}
        for latency_ms in (0, 30, 35, 40):
            begun = time.perf_counter()
            compiled = compile_problem(under(problem, latency_ms), SearchSettings(limits=limits))
            label = f"plan for {latency_ms} ms, gap {compiled.plan.certificate.gap:.2%} there"
            took_s[label], ends[label] = time.perf_counter() - begun, ends_of(fresh, compiled.plan.schedule())
        for aim in (Criterion(), Criterion(95)):
            begun = time.perf_counter()
            robust = compile_robust(problem, states, aim, SearchSettings(limits=limits))
            label = f"robust plan, {aim.text}: {robust.value_ns / MS:.1f} ms in its own states"
            took_s[label], ends[label] = time.perf_counter() - begun, ends_of(fresh, robust.compiled.plan.schedule())
        ends["rule table, anew for each state"] = tuple(ends_of([each], RuleTable()(each))[0] for each in fresh)
        ends["lower bound"] = tuple(best_bound(each).value_ns for each in fresh)
        table = Table("made for", "mean", "against 30 ms", "percentile 95", "worst", "took", title=f"{problem.name}, ms", box=None)
        mean_ns = next(fmean(values) for label, values in ends.items() if label.startswith("plan for 30"))
        for label, values in ends.items():
            took = f"{took_s[label]:.0f} s" if label in took_s else ""
            shown = (fmean(values), percentile_of(values, [1.0] * len(values), 95), max(values))
            mean, late, worst = (f"{value / MS:.1f}" for value in shown)
            table.add_row(label, mean, f"{fmean(values) / mean_ns - 1:+.2%}", late, worst, took)
        out.print(table)


if __name__ == "__main__":
    main()
