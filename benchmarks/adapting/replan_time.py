"""How long `replan` takes, in the process of a proposer that has begun: the schedule alone, and the proposal ready to be published.

Ready is: scheduled, timed beside the running plan, lowered, accepted by the plan verifier, written as bytes. 8 ranks and 32
microbatches, and 16 and 64, the link in the middle slow. Times are those of one core's work (`process_time`), the median of --runs,
which other processes of the machine disturb least; kernels are compiled before, as they are in a proposer.

Run it as `python benchmarks/adapting/replan_time.py`. Exit status 1: the schedule takes 10 ms, or the proposal 50 ms (8 × 32) or
150 ms (16 × 64).
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.adapt.replan import CLIMB_OPS, Choice, replan
from schedc.analysis.simulation.online import not_before
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.certify import certify
from schedc.compiled.compiler import compiled
from schedc.formats.plan.plan_file import parse_plan, plan_json
from schedc.ir.conditions import Conditions, LinkState
from schedc.ir.plan import MadeBy
from schedc.lower.plan import lower
from schedc.lower.problem import problem_under
from schedc.solvers.heuristics.rule_table import RuleTable, slow_link_rules
from schedc.solvers.kernel.climb import climb_of, climbing_scheduler
from schedc.study.bench.pipelines import pipeline
from schedc.verify.plan.checks import verify_plan

if TYPE_CHECKING:
    from collections.abc import Callable

MS = 1_000_000
SIZES = {(8, 32): 50.0, (16, 64): 150.0}
"""The most milliseconds of a proposal."""
SCHEDULE_MS = 10.0


def measure(ranks: int, microbatches: int, runs: int) -> dict[str, float]:
    """The milliseconds of each piece of work, and of all."""
    problem = pipeline("slow link", ranks, microbatches, (18 * MS, 19 * MS, 11 * MS), in_flight=2 * ranks)
    compiled(climb_of(climbing_scheduler(problem)))
    plan = certify(problem, RuleTable()(problem), MadeBy(schedc="0", method="rule-table"))
    slow, half = LinkState(latency_ns=30 * MS), ranks // 2
    conditions = Conditions(links={(half - 1, half): slow, (half, half - 1): slow})
    now = problem_under(problem, conditions)
    new = replan(plan, conditions)
    if new.choice is not Choice.NEW:
        raise SystemExit("there is nothing to re-plan")
    rule_table = RuleTable(climb_ops=CLIMB_OPS)
    timeline = simulate(now, new.plan.schedule())
    content = plan_json(new.plan)
    work: dict[str, Callable[[], object]] = {
        "schedule": lambda: rule_table.best_of(now, slow_link_rules),
        "simulate, once": lambda: simulate(now, new.plan.schedule()),
        "lower": lambda: lower(now, new.plan.schedule(), timeline, certificate=new.plan.certificate, made_by=new.plan.made_by),
        "verify": lambda: verify_plan(new.plan),
        "write": lambda: plan_json(new.plan),
        "read (each rank's thread)": lambda: parse_plan(content, "plan"),
        "simulate for ranks that choose (each one's thread)": lambda: not_before(now, new.plan.schedule()),
        "proposal": lambda: plan_json(replan(replace(plan), conditions).plan),
    }
    gc.collect()
    gc.freeze()  # as a proposer does
    return {name: _median_ms(job, runs) for name, job in work.items()}


def _median_ms(job: Callable[[], object], runs: int) -> float:
    taken = []
    for _ in range(runs):
        begun = time.process_time()
        job()
        taken.append(1e3 * (time.process_time() - begun))
    return median(taken)


def main() -> None:
    """Measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    found = {size: measure(*size, runs) for size in SIZES}
    table = Table(title="milliseconds on one core")
    for column in ("", *(f"{ranks} × {microbatches}" for ranks, microbatches in found)):
        table.add_column(column, justify="right" if column else "left")
    for name in next(iter(found.values())):
        table.add_row(name, *(f"{values[name]:.1f}" for values in found.values()))
    Console().print(table)
    late = [values["schedule"] >= SCHEDULE_MS or values["proposal"] >= SIZES[size] for size, values in found.items()]
    sys.exit(any(late))


if __name__ == "__main__":
    main()
