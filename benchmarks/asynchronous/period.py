"""The period against its bound, and against PipeDream's schedules, on random problems whose steps overlap.

4 to 8 ranks, 1 to 16 microbatches a step, one to three stages on a rank, odd nanoseconds, messages of odd gigabytes, all modes;
half have memory for few microbatches, in a fifth one wire goes into each rank. Each is planned by `steady`, and then by `modulo`,
CP-SAT's search for the least period, with so much work that no clock has a part in it.

A table by kind of problem: how many are proven optimal, in how many the analytic bound is the optimum, in how many `steady` alone
found it, the median and the largest gap that is left, over all of the kind, and the mean and least ratio of PipeDream's period to
ours, where it keeps the memory limits; then the mean ratio of DynPipe's estimate W (equations 4 to 7, for the given stages), which
knows neither memory nor modes, in how many it is below a proven bound, so that no schedule has it, and in how many it is else
shorter than ours.

Fails (exit status 1) where a bound is above a period that anybody found, or a schedule is worse than PipeDream's or breaks a rule.

Run it as `python benchmarks/asynchronous/period.py [--cases 100] [--work 6] [--then 60] [--processes 2]`; hours on two cores.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from benches.dynpipe import combined_ns

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.period import steady_state
from schedc.errors import Defect, Unsupported
from schedc.ir import Link, Problem, Stage, Updates, Versions
from schedc.lower.placement import place
from schedc.solvers.common.base import Limits
from schedc.solvers.exact.modulo import solve_modulo
from schedc.solvers.heuristics.steady import SteadyList
from schedc.solvers.templates import OVERLAPPING_TEMPLATES
from schedc.verify.problem import verify_problem
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How one problem ended."""

    problem: Problem
    bound_ns: int
    steady_ns: int
    period_ns: int
    proven_ns: int
    pipedream_ns: int | None
    """None: the template does not exist here, or exceeds a memory limit."""
    dynpipe_ns: float | None
    """None: a rank has several stages, which the equations do not know."""

    @property
    def gap(self) -> float:
        """What is left between the bound and the period, of the period."""
        return 1 - self.proven_ns / self.period_ns

    @property
    def kinds(self) -> tuple[str, ...]:
        """The rows of the table that it counts in."""
        problem, updates = self.problem, self.problem.updates
        assert updates is not None
        several = len(problem.stages) > problem.ranks
        short = any(limit is not None for limit in problem.memory_limit_bytes)
        inbound = any(link.trunk for link in problem.links)
        each = {
            f"versions {updates.versions}": True,
            "one stage a rank": not several,
            "several stages a rank": several,
            "memory limits": short,
            "no memory limits": not short,
            "one wire into a rank": inbound,
            "all": True,
        }
        return tuple(kind for kind, counts in each.items() if counts)


def random_problem(seed: int) -> Problem:
    """The problem of this number."""
    random = Random(seed)
    ranks, microbatches = random.randint(4, 8), random.choice([1, 1, 2, 3, 4, 6, 8, 12, 16])
    name = random.choice(["unidirectional"] * 4 + ["loop", "wave"])
    placed = place(name, ranks, 1 if name == "unidirectional" else random.choice([2, 2, 3]))
    mode = random.choice(list(Versions))
    split, unequal = random.random() < 0.5, random.random() < 0.7
    scale = random.choice([1_000_003, 400_009])
    common = [random.randint(5, 12) * scale + random.randint(0, 999) for _ in range(3)]
    stages = []
    for rank in placed.rank_of_stage:
        f, b, w = ([random.randint(4, 14) * scale + random.randint(0, 999) for _ in range(3)]) if unequal else common
        held = random.randint(GIB, 3 * GIB)
        stages.append(
            Stage(
                rank=rank,
                forward_ns=(f,),
                backward_input_ns=(b,),
                backward_weight_ns=(w,),
                backward_ns=(b + w - random.choice([0, 0, (b + w) // 10]),),
                activation_bytes=held,
                activation_after_input_bytes=random.choice([0, held // 2, held]) if split else 0,
                message_bytes=random.randint(GIB // 2, 2 * GIB) | 1,
                gradient_message_bytes=random.randint(GIB // 2, 2 * GIB) | 1,
                update_ns=random.randint(0, 3) * scale + random.randint(0, 99),
                version_bytes=random.randint(0, 2 * GIB),
            )
        )
    slow = random.choice([0, 0, 1, 2])
    links = []
    for number, (x, y) in enumerate(placed.crossed()):
        latency_ns = random.randint(0, 30) * scale + 7 if slow and number % ranks < slow else random.randint(0, 999_999)
        links.append(Link(source=x, destination=y, latency_ns=latency_ns, bytes_per_second=random.randint(200, 900) * GIB + 1))
    limits: list[int | None] = [None] * ranks
    if random.random() < 0.5:
        for rank in range(ranks):
            own = [stage for stage in stages if stage.rank == rank]
            versions = sum(stage.version_bytes for stage in own)
            least = sum(stage.activation_bytes for stage in own) + versions * (mode is Versions.TWO_BUFFERED)
            more = sum(stage.activation_bytes + stage.version_bytes * (mode is Versions.STASH) for stage in own)
            limits[rank] = least + random.randint(0, ranks) * more
    updates = Updates(
        versions=mode,
        microbatches=microbatches,
        is_period=True,
        most_delay=random.randint(0, 4) if mode is Versions.BOUNDED else None,
    )
    if random.random() < 0.2:
        links = [replace(link, trunk=f">rank{link.destination}") for link in links]
    return Problem(
        name=f"period-{seed}",
        ranks=ranks,
        microbatches=microbatches,
        stages=tuple(stages),
        paths=placed.paths,
        path_of=placed.path_of(microbatches),
        links=tuple(links),
        memory_limit_bytes=tuple(limits),
        split_backward=split,
        placement=name,
        updates=updates,
    )


def pipedream_ns(problem: Problem) -> int | None:
    """The period of PipeDream's schedule of this mode, if there is one within memory."""
    for template in OVERLAPPING_TEMPLATES.values():
        try:
            schedule = template(problem)
        except Unsupported:
            continue
        if exceeded_limit(problem, schedule) is None:
            return steady_state(problem, schedule).period_ns
    return None


def dynpipe_ns(problem: Problem) -> float | None:
    """DynPipe's W of the given stages, for the microbatches of a step: equation 5 from the first stage on, messages both ways."""
    path = problem.paths[0]
    if len(path) != problem.ranks:
        return None
    whole_ns = 0.0
    for at, stage in enumerate(path):
        costs = problem.stages[stage]
        own_ns = float(costs.forward_ns[0] + costs.backward_ns[0])
        if at == 0:
            whole_ns = own_ns
            continue
        before = problem.stages[path[at - 1]]
        there, back = problem.link(before.rank, costs.rank), problem.link(costs.rank, before.rank)
        message_ns = there.occupancy_ns(before.message_bytes) + there.latency_ns
        message_ns += back.occupancy_ns(before.gradient_message_bytes) + back.latency_ns
        two = (np.array(each, float) for each in (whole_ns, own_ns, message_ns))
        whole_ns = float(combined_ns(*two, as_printed=False))
    return problem.microbatches * whole_ns + max(stage.update_ns for stage in problem.stages)


def solve(seed: int, limits: Limits, then: Limits | None = None) -> Case:
    """Plan the problem of this number; where it stays open, again with other limits, from what is known.

    Raises:
        RuntimeError: as of `check`, or a plan breaks a rule.
    """
    problem = random_problem(seed)
    first = SteadyList()(problem)
    bound_ns = best_bound(problem).value_ns
    solved = solve_modulo(problem, first, limits=limits, known_bound_ns=bound_ns)
    if then is not None and solved.lower_bound_ns < solved.objective_ns:
        solved = solve_modulo(problem, solved.schedule, limits=then, known_bound_ns=solved.lower_bound_ns)
    case = Case(
        problem=problem,
        bound_ns=bound_ns,
        steady_ns=steady_state(problem, first).period_ns,
        period_ns=steady_state(problem, solved.schedule).period_ns,
        proven_ns=solved.lower_bound_ns,
        pipedream_ns=pipedream_ns(problem),
        dynpipe_ns=dynpipe_ns(problem),
    )
    if violations := (*verify_problem(problem), *verify_schedule(problem, solved.schedule)):
        raise RuntimeError(f"{problem.name}: {violations[0]}")
    check(case)
    return case


def check(case: Case) -> None:
    """That no bound is above a period that was found, and PipeDream's is no better than ours.

    Raises:
        RuntimeError: one is.
    """
    name, proven_ns = case.problem.name, max(case.bound_ns, case.proven_ns)
    found = {"ours": case.period_ns, "steady's": case.steady_ns, "PipeDream's": case.pipedream_ns}
    for whose, period_ns in found.items():
        if period_ns is not None and period_ns < proven_ns:
            raise RuntimeError(f"{name}: a bound of {proven_ns} ns, but {whose} period is {period_ns} ns")
    if case.pipedream_ns is not None and case.pipedream_ns < case.steady_ns:
        raise RuntimeError(f"{name}: {case.steady_ns} ns, PipeDream takes {case.pipedream_ns} ns")


def rows(cases: list[Case]) -> Iterator[tuple[str, ...]]:
    """A row for each kind, and one for all."""
    names = sorted({kind for case in cases for kind in case.kinds}, key=lambda kind: (kind == "all", "versions" in kind, kind))
    for name in names:
        each = [case for case in cases if name in case.kinds]
        proven = [case for case in each if case.period_ns == case.proven_ns]
        ratios = [case.pipedream_ns / case.period_ns for case in each if case.pipedream_ns is not None]
        estimates = [case.dynpipe_ns / case.period_ns for case in each if case.dynpipe_ns is not None]
        yield (
            name,
            str(len(each)),
            str(len(proven)),
            str(sum(case.period_ns == case.bound_ns for case in each)),
            str(sum(case.steady_ns == case.proven_ns for case in each)),
            f"{median(case.gap for case in each):.2%}",
            f"{max(case.gap for case in each):.2%}",
            str(len(ratios)),
            f"{sum(ratios) / len(ratios):.3f}" if ratios else "",
            f"{min(ratios):.3f}" if ratios else "",
            str(len(estimates)),
            f"{sum(estimates) / len(estimates):.3f}" if estimates else "",
            str(sum(case.dynpipe_ns is not None and case.dynpipe_ns < case.proven_ns for case in each)),
            str(sum(case.dynpipe_ns is not None and case.proven_ns <= case.dynpipe_ns < case.period_ns for case in each)),
        )


def main() -> int:
    """Solve the cases; print the table. The exit status is 1 where a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    parser.add_argument("--work", type=float, default=20, help="of CP-SAT for each problem, in units of about a second")
    parser.add_argument("--then", type=float, help="of CP-SAT for those that this leaves open")
    parser.add_argument("--workers", type=int, default=8, help="ways in which CP-SAT searches in turn")
    parser.add_argument("--processes", type=int, default=1, help="problems at the same time")
    arguments = parser.parse_args()
    limits = Limits(deterministic=arguments.work, workers=arguments.workers)
    then = None if arguments.then is None else replace(limits, deterministic=arguments.then)
    seeds = range(arguments.first, arguments.first + arguments.cases)
    console, cases = Console(width=200), []
    try:
        with ProcessPoolExecutor(arguments.processes) as pool:
            for case in pool.map(partial(solve, limits=limits, then=then), seeds):
                cases.append(case)
                if case.period_ns > case.proven_ns:
                    updates = case.problem.updates
                    assert updates is not None
                    console.print(
                        f"{case.problem.name}: {case.problem.ranks} ranks, {len(case.problem.stages)} stages, "
                        f"{updates.microbatches} microbatches, {updates.versions}: "
                        f"bound {case.bound_ns}, proven {case.proven_ns}, found {case.period_ns}"
                    )
    except (RuntimeError, Defect) as error:
        console.print(f"[red]{error}")
        return 1
    table = Table("kind", "problems", "proven", "bound is optimum", "steady is optimum", "median gap", "largest gap")
    for header in ("PipeDream", "÷ ours, mean", "least", "DynPipe's W", "÷ ours, mean", "impossible", "shorter"):
        table.add_column(header)
    for row in rows(cases):
        table.add_row(*row)
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
