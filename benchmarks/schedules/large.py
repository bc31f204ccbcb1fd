"""Large problems: how near the best schedule is to the best bound, within a time limit on this machine.

M70's costs (CrossPipe) on a pipeline whose middle link is slow or not; activations are half released by B, half by W. Cheap methods
run first, for half of the time at most; where their gap is above the target, the searches of `auto` get the rest. Every schedule is
verified and timed by the simulator; bounds are the analytic ones, or what the searches prove.

Run it as `python benchmarks/schedules/large.py [part of an instance's name]`.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.gap import relative_gap
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.driver.portfolio import solve
from schedc.solvers.heuristics.greedy import Greedy, GreedySpread
from schedc.solvers.heuristics.in_turn import InTurn
from schedc.solvers.templates import TEMPLATES
from schedc.study.bench.pipelines import LinkTimes, both_ways, pipeline
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

MS = 1_000_000
M70_NS = (38 * MS, 46_500_000, 20_500_000)
CHEAP: dict[str, Callable[[Problem], Schedule]] = {
    "in-turn, W in 32": InTurn(n_sub=32),
    "greedy, W in 32, early": Greedy(n_sub=32, weights_first=2),
    "greedy, W in 8": Greedy(n_sub=8),
    "greedy, W in 32": Greedy(n_sub=32),
    "zb-h1": TEMPLATES["zb-h1"].construct,
    "greedy, W whole": Greedy(n_sub=1),
    "greedy": Greedy(),
    "greedy, spread": GreedySpread(),
    "in-turn": InTurn(),
}
"""What needs no search, the strongest on large problems first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One problem and what is asked of it."""

    ranks: int
    microbatches: int
    in_flight: int
    """The memory limit of each rank, in activations."""
    latency: float
    """Of the middle link, in units of F; so is its occupancy."""
    occupancy: float
    target: float
    """The largest gap that meets the target."""
    seconds: float

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.ranks}x{self.microbatches} ({self.latency:g},{self.occupancy:g}) memory {self.in_flight}"

    def problem(self) -> Problem:
        """The problem itself."""
        cost = LinkTimes(int(self.latency * M70_NS[0]), int(self.occupancy * M70_NS[0]))
        slow = both_ways((self.ranks // 2 - 1,), cost)
        return pipeline(self.name, self.ranks, self.microbatches, M70_NS, in_flight=self.in_flight, slow=slow)


SLOW = ((2, 0.25), (0.25, 2), (2, 2))
INSTANCES = (
    *(
        Instance(ranks=8, microbatches=1024, in_flight=held, latency=a, occupancy=b, target=0.005, seconds=60)
        for a, b in ((0, 0), (0.25, 0.25), *SLOW)
        for held in (8, 12, 16)
    ),
    *(Instance(ranks=64, microbatches=n, in_flight=64, latency=2, occupancy=2, target=0.005, seconds=60) for n in (128, 1024)),
    Instance(ranks=32, microbatches=64, in_flight=32, latency=0, occupancy=0, target=0, seconds=60),
    *(Instance(ranks=16, microbatches=32, in_flight=16, latency=a, occupancy=b, target=0.01, seconds=120) for a, b in SLOW),
)


def row(instance: Instance, table: Table, console: Console) -> None:
    """One row for each method tried."""
    problem = instance.problem()
    begun = time.perf_counter()
    bound = best_bound(problem)
    bound_ns, bound_name = bound.value_ns, bound.name
    best: tuple[int, Schedule] | None = None

    def judge(method: str, construct: Callable[[], Schedule]) -> float:
        nonlocal best
        try:
            schedule = construct()
        except Unsupported:
            return 1.0
        if violations := verify_schedule(problem, schedule):
            raise RuntimeError(f"{method} on {instance.name}: {violations[0]}")
        makespan_ns = simulate(problem, schedule).makespan_ns
        if best is None or makespan_ns < best[0]:
            best = (makespan_ns, schedule)
        gap = relative_gap(makespan_ns, bound_ns, bound_name)
        seconds = time.perf_counter() - begun
        met = "yes" if gap <= instance.target and seconds <= instance.seconds else "no"
        cells = [instance.name, method, f"{makespan_ns / MS:.2f}", f"{bound_ns / MS:.2f} ({bound_name})", f"{gap:.2%}"]
        table.add_row(*cells, f"{seconds:.1f}", f"{instance.target:.1%}", met)
        console.log(*cells, f"{seconds:.1f} s", met)
        return gap

    gap = 1.0
    for method, construct in CHEAP.items():
        if gap > instance.target and time.perf_counter() - begun < instance.seconds / 2:
            gap = min(gap, judge(method, partial(construct, problem)))
    left_s = instance.seconds * 0.9 - (time.perf_counter() - begun)
    if gap > instance.target and best is not None and left_s > 0:
        known, settings = [(best[1], "nothing better found")], SearchSettings(limits=Limits(time_s=left_s))
        found = solve(problem, settings, bound_ns=bound_ns, bound_by=bound_name, known=known)
        bound_ns, bound_name = found.bound_ns, found.bound_by
        judge(f"auto: {found.found_by}", lambda: found.schedule or known[0][0])


def main() -> None:
    """Print the table; progress goes to standard error."""
    parser = argparse.ArgumentParser(description="How near the best schedule of a large problem is to the best bound.")
    parser.add_argument("instance", nargs="?", default="", help="part of an instance's name; without it, all run")
    part = parser.parse_args().instance
    wanted = [instance for instance in INSTANCES if part in instance.name]
    if not wanted:
        parser.error(f"{part!r} is in no instance's name; expected a part of {', '.join(each.name for each in INSTANCES)}")
    table = Table(title="Large problems, M70 costs; (latency, occupancy) of the middle link in units of F")
    for name in ("instance", "method", "makespan ms", "bound ms", "gap", "seconds", "target", "met"):
        table.add_column(name, justify="left" if name in ("instance", "method") else "right")
    console = Console(stderr=True)
    for instance in wanted:
        row(instance, table, console)
    output = Console()
    (output if output.is_terminal else Console(width=140)).print(table)


if __name__ == "__main__":
    main()
