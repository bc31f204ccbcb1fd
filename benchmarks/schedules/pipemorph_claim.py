"""PipeMorph's claim for heuristics, held against proven optima: within 1 % on average, each schedule in less than 10 ms.

3 to 8 ranks, 6 to 32 microbatches, by seed. Half of the problems have stages from 5 to 20 ms (F, B and W each drawn alone), half
nearly equal ones, from 9 to 12 ms: with very unequal stages the slowest alone decides much. All links differ, every second problem
has a straggler; memory is unlimited, p activations, or p to 2 p. The reference is the optimum over schedules of whole blocks,
proven by a bound or by CP-SAT; greedy may cut W into parts, so that it can be faster than the reference. Problems without a proof
are counted and left out.

Run it as `python benchmarks/schedules/pipemorph_claim.py [--problems 96] [--time-limit 60s]`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.problem import Problem, Stage
from schedc.lower.placement import place
from schedc.solvers.common.base import Climbing, Limits
from schedc.solvers.driver.registry import constructive
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.search.local import local_search
from schedc.study.bench.pipelines import LinkTimes, both_ways, links_of
from schedc.units import parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.solvers.common.base import Construct

MS = 1_000_000
REQUIRED_GAP, REQUIRED_MS = 0.01, 10.0
RUNS = 5
"""A method's time is the least processor time of this many runs of its one thread: other load only adds to it."""
METHODS: dict[str, Construct] = {
    **{
        name: constructive(name)
        for name in (
            "rule-table",
            "greedy",
            "greedy{n_sub=1}",
            "greedy{n_sub=2}",
            "spread",
            "pipemorph",
            "pipemorph{policy=initial}",
            "gpipe",
            "1f1b",
            "zb-h1",
            "zb-h2",
        )
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One problem, and its class of problems."""

    problem: Problem
    stages: str
    links: str
    memory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the methods made of one case; methods that do not exist for it or exceed its memory are missing."""

    case: Case
    gaps: dict[str, float]
    """By method, makespan over the reference, less 1."""
    ms: dict[str, float]

    def best(self, methods: Sequence[str]) -> float:
        """The least gap of the methods."""
        return min(self.gaps[method] for method in methods if method in self.gaps)


def case_of(seed: int) -> Case:
    """The case of the seed."""
    source = Random(seed)  # of which only random() gives the same numbers in every Python version

    def draw(least: int, most: int) -> int:
        return least + int(source.random() * (most - least + 1))

    ranks, microbatches = draw(3, 8), draw(6, 32)
    unequal, straggler = seed // 6 % 2 == 0, seed % 2 == 1
    stages = []
    for rank in range(ranks):
        forward_ns, input_ns, weight_ns = (MS * (draw(5, 20) if unequal else draw(9, 12)) for _ in range(3))
        stages.append(
            Stage(
                rank=rank,
                forward_ns=(forward_ns,),
                backward_input_ns=(input_ns,),
                backward_weight_ns=(weight_ns,),
                backward_ns=(input_ns + weight_ns,),
                activation_bytes=2,
                activation_after_input_bytes=1,
            )
        )
    costs: dict[tuple[int, int], LinkTimes] = {}
    for before in range(ranks - 1):
        costs |= both_ways((before,), LinkTimes(draw(0, 5) * MS, draw(0, 2) * MS))
    if straggler:
        costs |= both_ways((draw(0, ranks - 2),), LinkTimes(draw(10, 60) * MS, draw(0, 10) * MS))
    memory, in_flight = (("unlimited", None), ("p", ranks), ("p to 2p", draw(ranks, 2 * ranks)))[seed % 3]
    placed = place("unidirectional", ranks)
    problem = Problem(
        name=f"claim-{seed:02}",
        ranks=ranks,
        microbatches=microbatches,
        stages=tuple(stages),
        paths=placed.paths,
        path_of=placed.path_of(microbatches),
        links=links_of(placed, costs),
        memory_limit_bytes=(None if in_flight is None else 2 * in_flight,) * ranks,
        placement="unidirectional",
    )
    links, kind = "a straggler" if straggler else "no straggler", "unequal" if unequal else "nearly equal"
    return Case(problem=problem, stages=f"stages {kind}", links=links, memory=f"memory {memory}")


def optimum_ns(problem: Problem, time_s: float) -> tuple[int, bool]:
    """The best makespan of whole blocks that is known within the time, and whether it is proven."""
    bound_ns = best_bound(problem).value_ns
    start = local_search(problem, Climbing(rounds=3, time_s=time_s, good_enough_ns=bound_ns)).schedule
    makespan_ns = simulate(problem, start).makespan_ns
    if makespan_ns > bound_ns:
        solved = solve_cpsat(problem, start, limits=Limits(time_s=time_s), known_bound_ns=bound_ns)
        makespan_ns, bound_ns = simulate(problem, solved.schedule).makespan_ns, max(bound_ns, solved.lower_bound_ns)
    return makespan_ns, makespan_ns <= bound_ns


def measured(case: Case, reference_ns: int) -> Result:
    """All methods on the case."""
    problem = case.problem
    gaps, ms = {}, {}
    for name, construct in METHODS.items():
        try:
            schedule = construct(problem)
        except Unsupported:
            continue
        held = zip(peak_bytes(problem, schedule), problem.memory_limit_bytes, strict=True)
        if all(limit is None or peak <= limit for peak, limit in held):
            gaps[name] = simulate(problem, schedule).makespan_ns / reference_ns - 1
            ms[name] = least_ms(partial(construct, problem))
    return Result(case=case, gaps=gaps, ms=ms)


def least_ms(call: Callable[[], object]) -> float:
    """The least milliseconds of processor time of `RUNS` calls."""
    taken = []
    for _ in range(RUNS):
        begun = time.thread_time()
        call()
        taken.append(time.thread_time() - begun)
    return min(taken) * 1e3


def gap_cells(gaps: Sequence[float]) -> tuple[str, ...]:
    """Count, mean, median, largest, smallest, and the share within the requirement."""
    within = sum(gap <= REQUIRED_GAP for gap in gaps) / len(gaps)
    values = (statistics.mean(gaps), statistics.median(gaps), max(gaps), min(gaps))
    return (str(len(gaps)), *(f"{value:.2%}" for value in values), f"{within:.0%}")


def by_method(results: Sequence[Result]) -> Table:
    """Each method on its own; then the methods that take at most `REQUIRED_MS` on every problem, together; then all."""
    table = Table(
        title="Gap to the optimum of whole blocks; ms: processor time, least of 5 runs of each problem",
        title_justify="left",
        box=None,
    )
    for header in ("method", "problems", "mean", "median", "max", "min", "within 1 %", "ms, median", "ms, max", ""):
        table.add_column(header, justify="left" if header == "method" else "right")
    quick = []
    for method in METHODS:
        ms = [result.ms[method] for result in results if method in result.ms]
        if ms:
            gaps = [result.gaps[method] for result in results if method in result.gaps]
            table.add_row(method, *gap_cells(gaps), f"{statistics.median(ms):.1f}", f"{max(ms):.1f}")
            if max(ms) < REQUIRED_MS:
                quick.append(method)
    for title, family in ((f"best of those under {REQUIRED_MS:g} ms", quick), ("best of all", list(METHODS))):
        together = [result for result in results if set(family) & result.gaps.keys()]
        if together:
            gaps = [result.best(family) for result in together]
            ms = [sum(result.ms.get(method, 0) for method in family) for result in together]
            met = statistics.mean(gaps) <= REQUIRED_GAP and len(together) == len(results) and family == quick
            verdict = "" if family != quick else "met" if met else "NOT MET"
            table.add_row(title, *gap_cells(gaps), f"{statistics.median(ms):.1f}", f"{max(ms):.1f}", verdict)
    return table


def by_class(results: Sequence[Result]) -> Table:
    """Where each of the strongest methods loses."""
    table = Table(title="Mean and largest gap by class of problems", title_justify="left", box=None)
    strongest = ("rule-table", "greedy", "spread", "pipemorph")
    for header in ("class", "problems", *strongest, "best of all"):
        table.add_column(header, justify="left" if header == "class" else "right")
    for attribute in ("stages", "links", "memory"):
        for name in dict.fromkeys(getattr(result.case, attribute) for result in results):
            mine = [result for result in results if getattr(result.case, attribute) == name]
            columns = [[result.gaps[method] for result in mine if method in result.gaps] for method in strongest]
            columns.append([result.best(list(METHODS)) for result in mine])
            cells = (f"{statistics.mean(gaps):.2%} {max(gaps):.2%}" if gaps else "–" for gaps in columns)
            table.add_row(name, str(len(mine)), *cells)
    return table


def main() -> None:
    """Print the tables; progress goes to standard error."""
    parser = argparse.ArgumentParser(description="PipeMorph's claim against proven optima.")
    parser.add_argument("--problems", type=int, default=96, help="how many, by seed from 0")
    parser.add_argument("--time-limit", default="60s", help="of each proof")
    arguments = parser.parse_args()
    if arguments.problems < 1:
        parser.error(f"--problems {arguments.problems}: expected at least 1")
    try:
        time_s = parse_duration_ns(arguments.time_limit) / 1e9
    except ValueError as error:
        parser.error(f"--time-limit {arguments.time_limit!r}: {error}")
    progress, console = Console(stderr=True), Console()
    console = console if console.is_terminal else Console(width=140)
    measured(case_of(0), 1)  # loads what is compiled
    results, unproven = [], []
    for seed in range(arguments.problems):
        case = case_of(seed)
        begun = time.perf_counter()
        reference_ns, proven = optimum_ns(case.problem, time_s)
        seconds = time.perf_counter() - begun
        progress.log(f"{case.problem.name}: {reference_ns / MS:.0f} ms, {'proven' if proven else 'not proven'} in {seconds:.1f} s")
        if proven:
            results.append(measured(case, reference_ns))
        else:
            unproven.append(case.problem.name)
    console.print(f"{len(results)} of {arguments.problems} problems proven; left out: {', '.join(unproven) or 'none'}")
    if results:
        console.print(by_method(results))
        console.print(by_class(results))


if __name__ == "__main__":
    main()
