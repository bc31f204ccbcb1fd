"""The two heuristics beside the numbers their papers print, and beside the peers, in four tables.

CrossPipe, tables 5 and 6: the M70 cells in milliseconds per microbatch; the paper's were measured on a cluster, ours come from the
model. PipeMorph, section 3.1: 4 ranks, 12 microbatches, F = B = W = 10 ms. The best schedule of zero-bubble's, PipeMorph's and
PyTorch's own generators where one link is slow. And what greedy costs at 64 ranks.

Run it as `python benchmarks/schedules/heuristics.py`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.analysis.simulation.simulate import simulate
from schedc.solvers.heuristics.greedy import Greedy
from schedc.solvers.heuristics.pipemorph import PipeMorph
from schedc.study.bench.instances import instances
from schedc.study.bench.pipelines import LinkTimes, both_ways, pipeline

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

MS = 1_000_000
M70_NS = (38 * MS, 46_500_000, 20_500_000)
SECTION_3_1 = {0: 390, 10: 400, 20: 440}
"""PipeMorph: the first link's delay in ms → the makespan in ms of the order made for no delay."""


def crosspipe() -> Table:
    """M70, ours beside UDSub."""
    table = Table("cell", "UDSub", "greedy", "pipemorph", "greedy, seconds", title="CrossPipe: M70, ms per microbatch")
    for instance in instances("m70"):
        problem = instance.problem
        begun = time.perf_counter()
        schedules = [Greedy()(problem)]
        seconds = time.perf_counter() - begun
        schedules.append(PipeMorph()(problem))
        ours = [simulate(problem, schedule).makespan_ns / problem.microbatches / MS for schedule in schedules]
        cells = [f"{value:.1f}" for value in (1000 * instance.published["UDSub"], *ours)]
        table.add_row(instance.name, *cells, f"{seconds:.3f}")
    return table


def without_limit(delay_ms: int) -> Problem:
    """PipeMorph's example; memory holds all of its 12 microbatches."""
    return pipeline("section 3.1", 4, 12, (10 * MS,) * 3, in_flight=12, slow=both_ways((0,), LinkTimes(delay_ms * MS, 0)))


def section_3_1() -> Table:
    """PipeMorph's example: the order for no delay, its adapted order, and greedy with as much memory."""
    table = Table("first link", "paper", "warm-up 7 5 3 1", "adapted", "greedy", title="PipeMorph 3.1: makespan, ms")
    fixed = PipeMorph(warm_up=(7, 5, 3, 1))(without_limit(0))
    for delay_ms, theirs in SECTION_3_1.items():
        problem = without_limit(delay_ms)
        ours = (simulate(problem, schedule).makespan_ns / MS for schedule in (fixed, PipeMorph()(problem), Greedy()(problem)))
        table.add_row(f"{delay_ms} ms", str(theirs), *(f"{value:.0f}" for value in ours))
    return table


def peers() -> Table:
    """One slow link, one stage per rank, F = B = W = 10 ms."""
    table = Table("instance", "best peer", "greedy", "pipemorph", title="Peers: makespan, ms")
    for instance in instances("pipemorph"):
        problem = instance.problem
        if problem.placement == "unidirectional":
            ours = (simulate(problem, schedule).makespan_ns / MS for schedule in (Greedy()(problem), PipeMorph()(problem)))
            table.add_row(instance.name, f"{instance.published['best peer']:.0f}", *(f"{value:.0f}" for value in ours))
    return table


def large() -> Table:
    """64 ranks, 1,024 microbatches, one slow link in the middle."""
    table = Table("memory", "work and fill, s", "greedy, s", "seconds to make", title="64 ranks × 1,024 microbatches")
    for in_flight in (64, 128):
        slow = both_ways((31,), LinkTimes(M70_NS[0], M70_NS[0] // 4))
        problem = pipeline("large", 64, 1024, M70_NS, in_flight=in_flight, slow=slow)
        begun = time.perf_counter()
        schedule = Greedy()(problem)
        seconds = time.perf_counter() - begun
        least_s = (1024 * sum(M70_NS) + 63 * M70_NS[0]) / 1e9
        made_s = simulate(problem, schedule).makespan_ns / 1e9
        table.add_row(f"{in_flight} activations", f"{least_s:.1f}", f"{made_s:.1f}", f"{seconds:.2f}")
    return table


def main() -> None:
    """Print the tables."""
    console = Console()
    for table in (crosspipe(), section_3_1(), peers(), large()):
        console.print(table)


if __name__ == "__main__":
    main()
