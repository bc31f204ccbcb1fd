"""The shipped sets with BW cheaper than B and W, beside the same cells with BW = B + W: gap and time by `auto`, cell by cell.

Each cell runs alone, in a process of its own, as `schedc bench` runs it. A finished cell goes to the CSV file at once; cells that
are there already are not run again, so a run may be interrupted and resumed. Prints a line for each cell, with a column for each
share: the gap, or that the optimum is proven, and the processor time, which other work on the machine changes least. Then, for each
set, how many are proven, and the mean gap.

Run it as
`python benchmarks/schedules/fused_backward.py ROWS.csv [--sets m70:60,m70-wave:10] [--shares 1,0.95,0.9,0.85]
[--cells loop,V] [--only-print | --bounds 20]`.
After a set's name comes its time limit, in seconds for each cell; `m70-wave:10:3` runs every third cell only, `m70-wave-odd:10` all
in odd numbers, as measured: each time has some nanoseconds more, and each size some bytes. `--cells` keeps cells with one of these
texts in their names, before every third is chosen.

With `--bounds WORK` it runs no method: it bounds the rows of the file anew, by the analytic bounds and by `refute` with this much
work, and prints the gaps to the same makespans, then and now.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from resource import RUSAGE_CHILDREN, getrusage
from statistics import mean, median
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from inputs.odd_numbers import odd
from rich.console import Console
from rich.table import Table

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.simulate import event_loop
from schedc.compiled.compiler import compiled
from schedc.solvers.common.base import Limits
from schedc.solvers.exact.refute import refute
from schedc.solvers.kernel.climb import climb_mixing, climb_with_reserves, climb_without_reserves
from schedc.solvers.kernel.list_kernel import run_chain_rule
from schedc.solvers.kernel.order_climb import polish_chain
from schedc.study.bench.instances import instances
from schedc.study.bench.run import run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.study.bench.instances import Instance

SETS = "m70:60,large:15,m70-wave:10,m70-loop:10,pipemorph:6,zero-bubble:6"
KERNELS: tuple[Callable[..., object], ...] = (
    climb_without_reserves,
    climb_mixing,
    climb_with_reserves,
    run_chain_rule,
    polish_chain,
    event_loop,
)
"""What the searches run is compiled, or found in the cache, before anything is timed."""


ODD = "-odd"
"""Ends the name of a set whose numbers are made odd."""


class Row(NamedTuple):
    """One cell with one BW, as the text of a CSV file."""

    set_name: str
    cell: str
    share: str
    """BW over B + W."""
    limit_s: str
    makespan_ns: str
    bound_ns: str
    gap: str
    seconds: str
    """From start to end, without the start of the process."""
    processor_s: str
    """Of all its threads, with the start of the process."""
    won_by: str
    bound: str
    why_not: str


class Chosen(NamedTuple):
    """A set to run."""

    name: str
    limit_s: float
    every: int
    """1: all its cells; 2: every second one."""


def main() -> None:
    """Run the cells that the file lacks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("rows", type=Path, help="the CSV file that finished cells are appended to")
    parser.add_argument("--sets", default=SETS, help="sets with their time limits for each cell in seconds, and which cells")
    parser.add_argument("--shares", default="1,0.95,0.9,0.85", help="BW as shares of B + W")
    parser.add_argument("--cells", default="", help="texts of which a cell's name has one")
    parser.add_argument("--bounds", type=float, metavar="WORK", help="run nothing; bound the rows anew, refute with this much work")
    parser.add_argument("--only-print", action="store_true", help="run nothing; print what the file has")
    options = parser.parse_args()
    sets = [_chosen(*entry.split(":")) for entry in options.sets.split(",")]
    shares = options.shares.split(",")
    rows = _read(options.rows)
    if options.bounds is not None:
        _print_bounds(list(rows.values()), [chosen.name for chosen in sets], Limits(deterministic=options.bounds, workers=8))
        return
    if not options.only_print:
        _run_missing(options.rows, rows, sets, shares, options.cells.split(","))
    _print(list(rows.values()), [chosen.name for chosen in sets], shares)


def _chosen(name: str, limit_s: str, every: str = "1") -> Chosen:
    return Chosen(name, float(limit_s), int(every))


def _read(path: Path) -> dict[tuple[str, str], Row]:
    """The rows of the file by cell and share; none where there is no file."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        found = [Row(*line) for line in csv.reader(file)]
    return {(row.cell, row.share): row for row in found}


def _run_missing(
    path: Path, rows: dict[tuple[str, str], Row], sets: Sequence[Chosen], shares: Sequence[str], texts: Sequence[str]
) -> None:
    for kernel in KERNELS:
        compiled(kernel)
    for set_name, limit_s, every in sets:
        kept = [each for each in _cells(set_name, shares) if any(text in each[0] for text in texts)]
        for cell, of_cell in kept[::every]:
            for share, instance in of_cell.items():
                if (cell, share) in rows:
                    continue
                row = _row(set_name, cell, share, instance, limit_s)
                rows[cell, share] = row
                with path.open("a", encoding="utf-8", newline="") as file:
                    csv.writer(file).writerow(row)
                print(f"{cell} {share}: {_shown(row)} {row.why_not}", file=sys.stderr, flush=True)


def _cells(set_name: str, shares: Sequence[str]) -> list[tuple[str, dict[str, Instance]]]:
    """The cells of a set by name, each with its instances by share."""
    names = [instance.name for instance in _instances(set_name, "1")]
    of_shares = [_instances(set_name, share) for share in shares]
    return [(name, dict(zip(shares, of_cell, strict=True))) for name, *of_cell in zip(names, *of_shares, strict=True)]


def _row(set_name: str, cell: str, share: str, instance: Instance, limit_s: float) -> Row:
    """Run one cell."""
    before = getrusage(RUSAGE_CHILDREN)
    (done,) = run([instance], ["auto"], limits=Limits(time_s=limit_s))
    after, answer = getrusage(RUSAGE_CHILDREN), done.answer
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    times = (answer.makespan_ns, answer.bound_ns, answer.gap, answer.seconds, processor_s)
    values = (*times, answer.won_by, answer.bound, answer.error)
    texts = ["" if value is None else str(value) for value in values]
    return Row(set_name, cell, share, f"{limit_s:g}", *texts)


def _instances(set_name: str, share: str) -> tuple[Instance, ...]:
    if set_name.endswith(ODD):
        return tuple(_odd(instance, float(share)) for instance in instances(set_name.removesuffix(ODD)))
    return instances(set_name, None if float(share) == 1 else float(share))


def _odd(instance: Instance, share: float) -> Instance:
    """The instance in odd nanoseconds and bytes, the same for each share of BW."""
    problem = odd(instance.problem, Random(instance.name), scaled=False).problem
    stages = tuple(
        replace(stage, backward_ns=(round(share * (stage.backward_input_ns[0] + stage.backward_weight_ns[0])),))
        for stage in problem.stages
    )
    return replace(instance, problem=replace(problem, name=problem.name + ODD, stages=stages))


def _print_bounds(rows: Sequence[Row], set_names: Sequence[str], limits: Limits) -> None:
    """Gaps of rows that are not proven: in the file, by the analytic bounds of now, and by `refute` after them."""
    known = {(set_name, share): _instances(set_name, share) for set_name, share in {row[:3:2] for row in rows}}
    table = Table("cell", "BW / (B + W)", "then", "analytic", "with refute", title="gaps to the same makespans")
    console = Console(width=120)
    for row in rows:
        if row.set_name not in set_names or not row.gap or float(row.gap) <= 0:
            continue
        cells = [instance.name for instance in _instances(row.set_name, "1")]
        problem, makespan_ns = known[row.set_name, row.share][cells.index(row.cell)].problem, int(row.makespan_ns)
        bound_ns = best_bound(problem).value_ns
        found = refute(problem, bound_ns=bound_ns, objective_ns=makespan_ns, limits=limits)
        gaps = [f"{1 - each / makespan_ns:.2%}" for each in (int(row.bound_ns), bound_ns, found.lower_bound_ns)]
        print(row.cell, row.share, *gaps, file=sys.stderr, flush=True)
        table.add_row(row.cell, row.share, *gaps)
    console.print(table)


def _shown(row: Row | None) -> str:
    if row is None or not row.gap:
        return "–"
    gap = "proven" if float(row.gap) <= 0 else f"{float(row.gap):.2%}"
    return f"{gap} {float(row.processor_s):.1f} s"


def _print(rows: Sequence[Row], set_names: Sequence[str], shares: Sequence[str]) -> None:
    console = Console(width=120)
    totals = Table(title="by set: proven of all, mean gap, median processor time to a proof")
    totals.add_column("set")
    for share in shares:
        totals.add_column(f"BW = {share} (B + W)", justify="right")
    for set_name in set_names:
        mine = {(row.cell, row.share): row for row in rows if row.set_name == set_name}
        table = Table(title=f"{set_name}: gap and processor time by BW / (B + W)")
        table.add_column("cell")
        for share in shares:
            table.add_column(share, justify="right")
        for cell in dict.fromkeys(cell for cell, _ in mine):
            table.add_row(cell, *(_shown(mine.get((cell, share))) for share in shares))
        console.print(table)
        totals.add_row(set_name, *(_total([row for row in mine.values() if row.share == share and row.gap]) for share in shares))
    console.print(totals)


def _total(rows: Sequence[Row]) -> str:
    if not rows:
        return "–"
    proven_s = [float(row.processor_s) for row in rows if float(row.gap) <= 0]
    when = f", {median(proven_s):.1f} s" if proven_s else ""
    return f"{len(proven_s)} of {len(rows)}, {mean(float(row.gap) for row in rows):.2%}{when}"


if __name__ == "__main__":
    main()
