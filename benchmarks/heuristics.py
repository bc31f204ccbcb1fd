"""The two heuristics beside the numbers their papers print, and beside the peers, in four tables.

CrossPipe, tables 5 and 6: the M70 cells in milliseconds per microbatch; the paper's were measured on a cluster, ours come from the
model. PipeMorph, section 3.1: 4 ranks, 12 microbatches, F = B = W = 10 ms. The best schedule of zero-bubble's, PipeMorph's and
PyTorch's own generators where one link is slow. And what greedy costs at 64 ranks.

Run it as `python benchmarks/heuristics.py`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.analysis.simulate import simulate
from schedc.ir.problem import Link, Problem, Stage
from schedc.solvers.greedy import greedy
from schedc.solvers.pipemorph import pipemorph

if TYPE_CHECKING:
    from collections.abc import Collection

MS = 1_000_000
M70_NS = (38 * MS, 46_500_000, 20_500_000)
M70_SLOW = {2: (3,), 4: (1, 3, 5)}
"""By sites, the ranks whose link to the next one is slow."""
M70_CASES = {1: 1, 3: 2}
"""Case 1: 16 microbatches, memory as 1F1B. Case 3: twice both."""
UDSUB = {
    (2, 0, 0): (137, 121),
    (2, 0.25, 0.25): (149, 123),
    (2, 0.25, 2): (181, 144),
    (2, 2, 0.25): (160, 127),
    (2, 2, 2): (198, 145),
    (4, 0, 0): (138, 123),
    (4, 0.25, 0.25): (155, 126),
    (4, 0.25, 2): (216, 158),
    (4, 2, 0.25): (200, 138),
    (4, 2, 2): (268, 178),
}
"""(sites, latency, occupancy in units of F) → CrossPipe's greedy, UDSub, in ms per microbatch, in case 1 and case 3."""
SECTION_3_1 = {0: 390, 10: 400, 20: 440}
"""PipeMorph: the first link's delay in ms → the makespan in ms of the order made for no delay."""

BEST_PEER = {
    (4, 12, None, 0): (390, 390),
    (4, 12, 0, 10): (460, 400),
    (4, 12, 0, 20): (560, 450),
    (4, 12, 2, 10): (480, 400),
    (4, 12, 2, 20): (600, 460),
    (8, 32, None, 0): (1030, 1030),
    (8, 32, 6, 30): (1880, 1230),
    (8, 32, 6, 60): (2840, 1260),
}
"""(ranks p, microbatches, first rank of the slow link, its latency in ms) → the best peer's makespan in ms with memory p and 2p."""


def pipeline(
    ranks: int,
    microbatches: int,
    costs_ns: tuple[int, int, int],
    *,
    in_flight: int | None,
    slow: Collection[int] = (),
    latency_ns: int = 0,
    transfer_ns: int = 0,
) -> Problem:
    """Equal ranks with half an activation held between B and W; the links from and to the rank after each of `slow` are slow."""
    forward_ns, backward_input_ns, backward_weight_ns = costs_ns
    links = []
    for rank in range(ranks - 1):
        latency, transfer = (latency_ns, transfer_ns) if rank in slow else (0, 0)
        for source, destination in ((rank, rank + 1), (rank + 1, rank)):
            links.append(Link(source=source, destination=destination, latency_ns=latency, transfer_ns=transfer))
    return Problem(
        name="heuristics",
        ranks=ranks,
        microbatches=microbatches,
        stages=tuple(
            Stage(
                rank=rank,
                forward_ns=(forward_ns,),
                backward_input_ns=(backward_input_ns,),
                backward_weight_ns=(backward_weight_ns,),
                backward_ns=(backward_input_ns + backward_weight_ns,),
                activation_bytes=2,
                activation_after_input_bytes=1,
            )
            for rank in range(ranks)
        ),
        paths=(tuple(range(ranks)),),
        path_of=(0,) * microbatches,
        links=tuple(links),
        memory_limit_bytes=(None if in_flight is None else 2 * in_flight,) * ranks,
    )


def crosspipe() -> Table:
    """M70, ours beside UDSub."""
    table = Table("sites", "latency, occupancy", "case", "UDSub", "greedy", "pipemorph", "greedy, seconds", title="CrossPipe: M70")
    f_ns = M70_NS[0]
    for (sites, latency, occupancy), published in UDSUB.items():
        for (case, times), theirs in zip(M70_CASES.items(), published, strict=True):
            problem = pipeline(
                8,
                16 * times,
                M70_NS,
                in_flight=8 * times,
                slow=M70_SLOW[sites],
                latency_ns=int(latency * f_ns),
                transfer_ns=int(occupancy * f_ns),
            )
            begun = time.perf_counter()
            schedules = [greedy(problem)]
            seconds = time.perf_counter() - begun
            schedules.append(pipemorph(problem))
            ours = [simulate(problem, schedule).makespan_ns / problem.microbatches / MS for schedule in schedules]
            cells = [f"{value:.1f}" for value in (theirs, *ours)]
            table.add_row(str(sites), f"{latency}, {occupancy}", str(case), *cells, f"{seconds:.3f}")
    return table


def section_3_1() -> Table:
    """PipeMorph's example: the order for no delay, its adapted order, and greedy with as much memory."""
    table = Table("first link", "paper", "warm-up 7 5 3 1", "adapted", "greedy", title="PipeMorph 3.1: makespan, ms")
    costs_ns = (10 * MS, 10 * MS, 10 * MS)
    fixed = pipemorph(pipeline(4, 12, costs_ns, in_flight=None), warm_up=(7, 5, 3, 1))
    for delay_ms, theirs in SECTION_3_1.items():
        problem = pipeline(4, 12, costs_ns, in_flight=None, slow=(0,), latency_ns=delay_ms * MS)
        ours = (simulate(problem, schedule).makespan_ns / MS for schedule in (fixed, pipemorph(problem), greedy(problem)))
        table.add_row(f"{delay_ms} ms", str(theirs), *(f"{value:.0f}" for value in ours))
    return table


def peers() -> Table:
    """One slow link, one stage per rank, F = B = W = 10 ms."""
    table = Table("ranks", "microbatches", "slow link", "memory", "best peer", "greedy", "pipemorph", title="Peers: makespan, ms")
    for (ranks, microbatches, link, delay_ms), best in BEST_PEER.items():
        for times, theirs in zip((1, 2), best, strict=True):
            slow = () if link is None else (link,)
            costs_ns = (10 * MS, 10 * MS, 10 * MS)
            problem = pipeline(ranks, microbatches, costs_ns, in_flight=times * ranks, slow=slow, latency_ns=delay_ms * MS)
            ours = (simulate(problem, schedule).makespan_ns / MS for schedule in (greedy(problem), pipemorph(problem)))
            where = "none" if link is None else f"{link}|{link + 1}, {delay_ms} ms"
            memory = f"{times * ranks} activations"
            table.add_row(str(ranks), str(microbatches), where, memory, str(theirs), *(f"{value:.0f}" for value in ours))
    return table


def large() -> Table:
    """64 ranks, 1,024 microbatches, one slow link in the middle."""
    table = Table("memory", "work and fill, s", "greedy, s", "seconds to make", title="64 ranks × 1,024 microbatches")
    for in_flight in (64, 128):
        problem = pipeline(64, 1024, M70_NS, in_flight=in_flight, slow=(31,), latency_ns=M70_NS[0], transfer_ns=M70_NS[0] // 4)
        begun = time.perf_counter()
        schedule = greedy(problem)
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
