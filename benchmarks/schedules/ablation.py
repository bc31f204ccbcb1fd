"""What each search of `auto` is worth: `auto` as it is beside `auto` without one search, whose turns another one takes.

On held-out draws: problems by seed that no test and no tuning uses, half of them equal ranks with several placements and slow
links, half the unequal stages of `random_problem`, three of four with BW cheaper than B and W. All variants of a draw start from
the same schedules of the constructive methods and have the same deterministic work; turns of a search that is left out go to
`polish`, those of `polish` to `local`, so that none has less to do. Each result goes to the CSV file at once; what is there is not
run again.

A part of a search can be left out instead:

- `local:edge`: a move of `local`, by its name (`MOVES` in `solvers/kernel/climb.py`).
- `polish:follow`: changes of several ranks at once (`solvers/kernel/order_changes.py`).
- `polish:numbering`: these, and that numbers of alike microbatches follow from their places (`solvers/kernel/numbering.py`).
- `start: + fused|{fused=`: the constructive methods with one of these texts in their names.

Prints for each search how often `auto` is worse and better without it, the mean change of the objective, the mean gap to the
bound, and the processor time. And how often each move of `local` had a part in a rule better than all before it, in what was run
now.

Run it as `python benchmarks/schedules/ablation.py ROWS.csv [--draws 200] [--first 100000] [--work 2] [--searches local,polish]
[--leave-out cpsat,refute] [--only-print]`. What is left out is in no variant: where the local searches alone are compared, proofs
take most of the time and decide nothing.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.memory import exceeded_limit
from schedc.errors import Unsupported
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.common.method import FUSED, fusing_saves_time
from schedc.solvers.driver import turns
from schedc.solvers.driver.portfolio import candidate_names, solve
from schedc.solvers.driver.registry import constructive
from schedc.solvers.kernel.climb import MOVES
from schedc.solvers.kernel.numbering import unnumbered
from schedc.solvers.search import local, polish
from schedc.solvers.search.local import local_search
from schedc.study.bench.pipelines import LinkTimes, both_ways, pipeline, random_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from schedc.analysis.bounds.lower_bounds import Bound
    from schedc.ir import Problem, Schedule
    from schedc.solvers.common.base import Climbing
    from schedc.solvers.common.incumbent import Incumbent
    from schedc.solvers.driver.turns import Turn
    from schedc.solvers.search.rounds import Found

SEARCHES = "local,polish,cpsat,refute"
PARTS = {"local": MOVES, "polish": ("follow", "numbering")}
"""Of which searches what can be left out by itself."""
SHARES = (1.0, 0.95, 0.9, 0.85)
"""BW over B + W, in turn."""


class Row(NamedTuple):
    """One draw by one variant, as the text of a CSV file."""

    draw: str
    kind: str
    without: str
    """The search that is left out, or the part of one; empty: none."""
    work: str
    objective_ns: str
    bound_ns: str
    found_by: str
    processor_s: str


PAID: Counter[str] = Counter()
"""By move of `local`."""


def main() -> int:
    """Run what is missing, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("rows", type=Path, help="a CSV file, which is continued")
    parser.add_argument("--draws", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=100_000, help="the first one's seed")
    parser.add_argument("--work", type=float, default=2.0, help="deterministic work for each")
    parser.add_argument("--searches", default=SEARCHES, help="which are left out, one at a time")
    parser.add_argument("--leave-out", default="", help="which are in no variant")
    parser.add_argument("--only-print", action="store_true", help="run nothing")
    options = parser.parse_args()
    for without in options.searches.split(","):
        search, _, part = without.partition(":")
        if part and search != "start" and part not in PARTS.get(search, ()):
            parser.error(f"--searches: found {without!r}, expected one of {', '.join(f'{a}:{b}' for a in PARTS for b in PARTS[a])}")
    local.local_search = _counted
    never = frozenset(filter(None, options.leave_out.split(",")))
    rows = _read(options.rows)
    for seed in range(options.first, options.first + options.draws) if not options.only_print else ():
        rows += _run(options.rows, rows, seed, options.work, ("", *options.searches.split(",")), never)
    for without in options.searches.split(","):
        _print(without, rows)
    if PAID:
        print("moves of local that paid:", ", ".join(f"{move} {times}" for move, times in PAID.most_common()))
    return 0


def drawn(seed: int) -> Problem:
    """The problem of the seed, the same everywhere."""
    random = Random(seed)

    def draw(least: int, most: int) -> int:
        return least + int(random.random() * (most - least + 1))

    problem = random_problem(f"draw-{seed}", seed)
    if seed % 2 == 0:
        ranks = draw(3, 8)
        costs_ns = draw(20_000_001, 60_000_001), draw(20_000_001, 60_000_001), draw(10_000_001, 50_000_001)
        slow = both_ways((draw(0, ranks - 2),), LinkTimes(draw(0, 90_000_001), draw(0, 60_000_001)))
        placement = ("wave", "loop", "unidirectional")[seed // 2 % 3]
        problem = pipeline(
            problem.name,
            ranks,
            draw(ranks, 32),
            costs_ns,
            in_flight=draw(ranks, 2 * ranks),
            placement=placement,
            slow=slow if draw(0, 3) else {},
        )
    share = SHARES[seed // 6 % 4]
    stages = tuple(
        replace(stage, backward_ns=(round(share * (stage.backward_input_ns[0] + stage.backward_weight_ns[0])),))
        for stage in problem.stages
    )
    return replace(problem, stages=stages) if share < 1 else problem


def _run(path: Path, rows: list[Row], seed: int, work: float, variants: tuple[str, ...], never: frozenset[str]) -> list[Row]:
    """The rows of a draw that are missing, which are written, too."""
    known = {row.without for row in rows if row.draw == str(seed)}
    missing = [without for without in variants if without not in known]
    if not missing:
        return []
    problem = drawn(seed)
    bound = best_bound(problem)
    schedules = _starts(problem)
    made: list[Row] = []
    for without in missing:
        search, _, part = without.partition(":")
        texts = part.split("|") if search == "start" else ()
        starts = [each for each in schedules if not any(text in each[1] for text in texts)]
        has_turn = any(_named(turn) == search for turn in turns.turns_of(problem))
        if without and not has_turn and len(starts) == len(schedules):
            continue
        begun = time.process_time()
        found = _solve(problem, bound, starts, work, never, without)
        numbers = f"{work:g}", str(found.objective_ns), str(found.bound_ns), found.found_by, f"{time.process_time() - begun:.2f}"
        made.append(Row(str(seed), turns.kind_of(problem), without, *numbers))
        with path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerow(made[-1])
    return made


def _counted(problem: Problem, climbing: Climbing, orders: Iterable[Sequence[int]] = ()) -> Found:
    """What the rule search finds; its moves are counted."""
    found = local_search(problem, climbing, orders)
    PAID.update(found.paid)
    return found


def _starts(problem: Problem) -> list[tuple[Schedule, str]]:
    """The schedules of the constructive methods that keep the memory limits, with the methods' names."""
    tables = ("rule-table", f"rule-table{FUSED}") if fusing_saves_time(problem) else ("rule-table",)
    found: list[tuple[Schedule, str]] = []
    for name in (*candidate_names(problem), *tables):
        try:
            schedule = constructive(name)(problem)
        except Unsupported:
            continue
        found.append((schedule, name))
    return [each for each in found if exceeded_limit(problem, each[0]) is None]


def _solve(
    problem: Problem,
    bound: Bound,
    schedules: list[tuple[Schedule, str]],
    work: float,
    never: frozenset[str],
    without: str,
) -> Incumbent:
    """What `auto` finds from these schedules where a search's turns are another one's."""
    instead, kind = "local" if without == "polish" else "polish", turns.kind_of(problem)
    own = tuple(
        turn._replace(search=turn.search.replace(without, instead, 1)) if _named(turn) == without else turn
        for turn in turns.TURNS[kind]
        if _named(turn) not in never
    )
    settings = SearchSettings(limits=Limits(deterministic=work, workers=2))
    with patch.dict(turns.TURNS, {kind: own}), _part_left_out(*without.split(":", 1)):
        return solve(problem, settings, bound_ns=bound.value_ns, bound_by=bound.name, known=schedules)


def _part_left_out(search: str, part: str = "") -> AbstractContextManager[object]:
    """While it lasts, the search does without this part."""
    if search == "local" and part:
        left, moves = MOVES.index(part), local.chances_of
        return patch.object(local, "chances_of", lambda **of: {at: chance for at, chance in moves(**of).items() if at != left})
    if part == "follow":
        return patch.object(polish, "FOLLOWS", 0)
    if part == "numbering":
        return patch.object(polish, "numbering_of", lambda problem: unnumbered(len(problem.stages)))
    return nullcontext()


def _named(turn: Turn) -> str:
    return turn.search.partition("{")[0]


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [Row(*row) for row in csv.reader(file)]


def _print(without: str, rows: list[Row]) -> None:
    """A line for each kind of problem, and one for all."""
    whole = {row.draw: row for row in rows if not row.without}
    if not (pairs := [(whole[row.draw], row) for row in rows if row.without == without and row.draw in whole]):
        return
    for kind in (*sorted({row.kind for row, _ in pairs}), ""):
        sides = [[row for row in side if kind in ("", row.kind)] for side in zip(*pairs, strict=True)]
        changes = [int(other.objective_ns) / int(one.objective_ns) - 1 for one, other in zip(*sides, strict=True)]
        worse, better = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
        gaps = [mean(1 - int(row.bound_ns) / int(row.objective_ns) for row in side) for side in sides]
        seconds = [sum(float(row.processor_s) for row in side) for side in sides]
        print(
            f"without {without}, {kind or 'all'}: {len(changes)} draws, {worse} worse, {better} better, mean {mean(changes):+.3%}"
            f" ({min(changes):+.2%} to {max(changes):+.2%}), mean gap {gaps[0]:.2%} -> {gaps[1]:.2%},"
            f" processor time {seconds[0]:.0f} -> {seconds[1]:.0f} s"
        )


if __name__ == "__main__":
    raise SystemExit(main())
