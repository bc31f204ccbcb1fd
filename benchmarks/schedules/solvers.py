"""What the compiler must show: each required row run as it is required, with gaps, ratios to what was published, and a verdict.

Every instance is compiled with `--method auto` in a process of its own by `schedc.study.bench`; the hardest cells and the proofs
may have limits of their own. A ratio is the objective over the best comparable published value, so at most 1 is met or beaten.

Run it as `python benchmarks/schedules/solvers.py [--rows m70,32x64] [--time-limit 20s] [--first 2]`: only these rows, no limit
longer than that, only the first instances of each row. A verdict under less time than required is marked, since more time may meet
it.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.solvers.common.base import Limits
from schedc.study.bench.instances import PublishedUnit, instances
from schedc.study.bench.run import run
from schedc.units import parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.study.bench.instances import Instance
    from schedc.study.bench.run import BenchRow

EXACT = 1e-9
"""A gap of no more is a proof."""
TIE = {PublishedUnit.MS: 0.5e-4, PublishedUnit.BUBBLE_RATE: 0.6e-4}
"""How far above 1 a ratio may be and still be the printed value: makespans of 400 ms and more are printed to 0.1 ms, rates to four
decimals, half a unit of which is at most 0.6e-4 of the cost where the rate is below 0.16."""
HARDEST = ("m70-4dc-2-0.25-case3", "m70-4dc-0.25-2-case3")
"""Of the unidirectional cells; they have 300 s, the others 20 s."""
SLACK_S = 5.0
"""Over a limit: methods look at the clock between their steps only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One row of what must be shown."""

    name: str
    """What `--rows` calls it."""
    set_name: str
    chosen: Callable[[str], bool]
    """Which instances of the set, by name."""
    seconds: float
    required: str
    met: Callable[[BenchRow], bool]
    """Whether one instance's row meets it."""
    shows_all: bool = False
    """Whether every instance is printed, not only those that miss."""

    def instances(self) -> tuple[Instance, ...]:
        """Its instances."""
        return tuple(instance for instance in instances(self.set_name) if self.chosen(instance.name))


def gap_at_most(most: float) -> Callable[[BenchRow], bool]:
    """A schedule whose gap is no more."""
    return lambda row: row.answer.gap is not None and row.answer.gap <= most + EXACT


def published_met(row: BenchRow) -> bool:
    """A schedule no worse than the best comparable published value; without one, any schedule with a gap."""
    if row.instance.published_best() is None:
        return row.answer.gap is not None
    return row.ratio is not None and row.ratio <= 1 + TIE.get(row.instance.unit, 0.0)


def wave_met(row: BenchRow) -> bool:
    """Per microbatch at most CrossPipe's own Wave value; gap at most 1.5 % without delay, 8 % elsewhere."""
    if row.answer.objective_ns is None:
        return False
    without_delay = all(link.latency_ns == 0 and link.occupancy_ns(0) == 0 for link in row.instance.problem.links)
    within = row.answer.objective_ns <= row.instance.published_ns("Wave")
    return within and gap_at_most(0.015 if without_delay else 0.08)(row)


def named(*names: str) -> Callable[[str], bool]:
    """Instances whose name begins with one of these."""
    return lambda name: name.startswith(names)


REQUIREMENTS = (
    Requirement(
        name="m70",
        set_name="m70",
        chosen=lambda name: name not in HARDEST,
        seconds=20,
        required="18 proven in 20 s",
        met=gap_at_most(0),
    ),
    Requirement(
        name="m70-hardest", set_name="m70", chosen=named(*HARDEST), seconds=300, required="proven in 300 s", met=gap_at_most(0)
    ),
    Requirement(
        name="16x32", set_name="large", chosen=named("large-16x32"), seconds=120, required="gap 1 % in 120 s", met=gap_at_most(0.01)
    ),
    Requirement(
        name="16x32-proof",
        set_name="large",
        chosen=named("large-16x32"),
        seconds=600,
        required="proven in 600 s",
        met=gap_at_most(0),
    ),
    Requirement(
        name="32x64", set_name="large", chosen=named("large-32x64"), seconds=60, required="proven in 60 s", met=gap_at_most(0)
    ),
    Requirement(
        name="64x128",
        set_name="large",
        chosen=named("large-64x128"),
        seconds=300,
        required="gap 3 % in 300 s",
        met=gap_at_most(0.03),
    ),
    Requirement(
        name="m70-wave",
        set_name="m70-wave",
        chosen=named(""),
        seconds=120,
        required="Wave's value, gap 1.5 or 8 %, in 120 s",
        met=wave_met,
    ),
    Requirement(
        name="m70-loop",
        set_name="m70-loop",
        chosen=named(""),
        seconds=120,
        required="ratio 1; each gap stated",
        met=published_met,
        shows_all=True,
    ),
    Requirement(
        name="8x1024",
        set_name="large",
        chosen=named("large-8x1024"),
        seconds=60,
        required="gap 0.5 % in 60 s",
        met=gap_at_most(0.005),
    ),
    Requirement(
        name="zero-bubble", set_name="zero-bubble", chosen=named(""), seconds=60, required="ratio 1 in 60 s", met=published_met
    ),
    Requirement(
        name="zero-bubble-span",
        set_name="zero-bubble-span",
        chosen=named(""),
        seconds=60,
        required="ratio 1 where published, in 60 s",
        met=published_met,
    ),
    Requirement(
        name="pipemorph", set_name="pipemorph", chosen=named(""), seconds=60, required="ratio 1 in 60 s", met=published_met
    ),
)


def cells(requirement: Requirement, rows: Sequence[BenchRow], limit_s: float) -> tuple[str, ...]:
    """The table's row: what came of the instances."""
    gaps = [row.answer.gap for row in rows if row.answer.gap is not None]
    seconds = [row.answer.seconds for row in rows if row.answer.seconds is not None]
    ratios = [row.ratio for row in rows if row.ratio is not None]
    in_time = [row.answer.seconds is not None and row.answer.seconds <= requirement.seconds + SLACK_S for row in rows]
    met = sum(requirement.met(row) and timely for row, timely in zip(rows, in_time, strict=True))
    verdict = "met" if met == len(rows) else f"NOT MET: {met} of {len(rows)}"
    return (
        requirement.name,
        str(len(rows)),
        str(sum(gap <= EXACT for gap in gaps)),
        f"{max(gaps):.2%}" if gaps else "–",
        f"{statistics.mean(gaps):.2%}" if gaps else "–",
        f"{max(ratios):.4f}" if ratios else "–",
        f"{statistics.median(seconds):.1f}" if seconds else "–",
        f"{max(seconds):.1f}" if seconds else "–",
        requirement.required,
        verdict + (f" ({limit_s:g} s each)" if limit_s < requirement.seconds else ""),
    )


def main() -> None:
    """Print the table, and single instances below it; progress goes to standard error."""
    names = [requirement.name for requirement in REQUIREMENTS]
    parser = argparse.ArgumentParser(description="What the compiler must show.")
    parser.add_argument("--rows", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--time-limit", default="1h", help="no instance gets more than this")
    parser.add_argument("--first", type=int, help="at most this many instances of each row")
    arguments = parser.parse_args()
    wanted = arguments.rows.split(",")
    if unknown := set(wanted) - set(names):
        parser.error(f"--rows: {', '.join(sorted(unknown))} unknown; expected {', '.join(names)}")
    if arguments.first is not None and arguments.first < 1:
        parser.error(f"--first {arguments.first}: expected at least 1")
    try:
        most_s = parse_duration_ns(arguments.time_limit) / 1e9
    except ValueError as error:
        parser.error(f"--time-limit {arguments.time_limit!r}: {error}")

    table = Table(title="Required and reached; auto on this machine", title_justify="left", box=None)
    for header in ("row", "instances", "proven", "worst gap", "mean gap", "worst ratio", "s, median", "s, max", "required", ""):
        table.add_column(header, justify="left" if header in ("row", "required", "") else "right")
    single = Table(title="Instances that miss, and all of m70-loop", title_justify="left", box=None)
    for header in ("instance", "objective, ms", "bound, ms", "gap", "ratio", "seconds", "why not"):
        single.add_column(header, justify="left" if header in ("instance", "why not") else "right")
    progress, console = Console(stderr=True), Console()
    console = console if console.is_terminal else Console(width=160)
    try:
        for requirement in (each for each in REQUIREMENTS if each.name in wanted):
            limit_s = min(most_s, requirement.seconds)
            rows: list[BenchRow] = []
            for row in run(requirement.instances()[: arguments.first], ("auto",), limits=Limits(time_s=limit_s)):
                rows.append(row)
                described = described_row(row)
                progress.log(requirement.name, *described)
                if requirement.shows_all or not requirement.met(row):
                    single.add_row(*described)
            table.add_row(*cells(requirement, rows, limit_s))
    finally:  # an interrupt shows what is known so far
        console.print(table)
        if single.row_count:
            console.print(single)


def described_row(row: BenchRow) -> tuple[str, ...]:
    """One instance, for people."""
    answer = row.answer
    return (
        row.instance.name,
        "–" if answer.objective_ns is None else f"{answer.objective_ns / 1e6:.1f}",
        "–" if answer.bound_ns is None else f"{answer.bound_ns / 1e6:.1f}",
        "–" if answer.gap is None else f"{answer.gap:.2%}",
        "–" if row.ratio is None else f"{row.ratio:.4f}",
        "–" if answer.seconds is None else f"{answer.seconds:.1f}",
        answer.error,
    )


if __name__ == "__main__":
    main()
