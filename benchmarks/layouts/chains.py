"""Layouts that the compiler chooses for chains of real models, beside the balanced partitions in the three known placements.

Takes profiles as they were extracted from public sources; `tests/support/benches/real_chains.py` says how they become workloads,
and what is assumed where they say nothing. A case is a profile on 4 or 8 ranks, with twice as many microbatches, with a memory
limit or without, in one site or in two. Each is compiled four times by `auto`: with the balanced partition unidirectional, loop 2
and wave 2; and with an open layout of at most two stages on a rank. This takes hours and may end at any time: every result is a row
of a CSV, and what has a row is not done again. The table says what the open layout gains over the best of the other three, and its
gap to the bound over all layouts.

Run it as `python benchmarks/layouts/chains.py FOLDER ROWS.csv [--only balanced|open|bounds|table] [--every 1] [--time-limit 60]`.
Exit status 1: an open layout is worse than a balanced one. To do cases again, delete their rows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.compile.driver import compile_problem
from schedc.errors import Infeasible, NoPlanFound
from schedc.ir.layout import Layout, OpenLayout
from schedc.lower.partition import balanced_partition
from schedc.lower.placement import place
from schedc.lower.problem import problem_of
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.verify.layout import verify_layout

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from benches.kept_rows import append_row, rows_of
from benches.real_chains import Chain, chain_of, chosen_layout, workload_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from schedc.ir.workload import Workload

MS = 1_000_000
CHUNKS = 2
OPEN = "open"
PLACEMENTS = {"balanced unidirectional": ("unidirectional", 1), "balanced loop 2": ("loop", 2), "balanced wave 2": ("wave", 2)}
KEYS = ("profile", "ranks", "limit", "sites")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One profile on some ranks."""

    chain: Chain
    ranks: int
    is_limited: bool
    sites: int

    @property
    def key(self) -> tuple[str, ...]:
        """What names it in the rows."""
        return (self.chain.name, str(self.ranks), str(self.is_limited), str(self.sites))

    def workload(self) -> Workload:
        """What is compiled."""
        return workload_of(self.chain, ranks=self.ranks, microbatches=2 * self.ranks, is_limited=self.is_limited, sites=self.sites)


def main() -> int:
    """Do what has no row yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="the profiles")
    parser.add_argument("rows", type=Path, help="a CSV that keeps what is done")
    parser.add_argument(
        "--only", choices=("balanced", "open", "bounds", "table"), help="do no other rows; bounds: bound the rows anew"
    )
    parser.add_argument("--every", type=int, default=1, help="do every n-th case: a sample")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for an open layout")
    parser.add_argument("--balanced-limit", type=float, default=5.0, help="seconds for each balanced partition")
    options = parser.parse_args()
    if not options.folder.is_dir():
        print(f"{options.folder}: there is no such folder; it is not part of this repository")
        return 0
    if options.only == "bounds":
        return _bounds_anew(options.folder, rows_of(options.rows))
    done = {(*(row[key] for key in KEYS), row["layout"]) for row in rows_of(options.rows)}
    names = {"balanced": [*PLACEMENTS], "open": [OPEN], "table": []}.get(options.only, [*PLACEMENTS, OPEN])
    for case in islice(cases(options.folder), 0, None, options.every):
        for name in names:
            if (*case.key, name) not in done:
                limits = Limits(time_s=options.time_limit if name == OPEN else options.balanced_limit)
                begun = time.perf_counter()
                found = _chosen(case.workload(), limits) if name == OPEN else _balanced(case.workload(), name, limits)
                row = dict(zip(KEYS, case.key, strict=True)) | {"layout": name, "limit_s": limits.time_s} | found
                append_row(options.rows, row | {"seconds": f"{time.perf_counter() - begun:.1f}"})
    return _report(rows_of(options.rows))


def cases(folder: Path) -> Iterator[Case]:
    """All cases, every profile once before any comes again, and what is done at any time as mixed as all of them."""
    chains = [chain for path in sorted(folder.glob("*.json")) if (chain := chain_of(path)) is not None]
    settings = list(product((4, 8), (False, True), (1, 2)))
    for turn in range(len(settings)):
        for number, chain in enumerate(chains):
            ranks, is_limited, sites = settings[(number + turn) % len(settings)]
            if len(chain.layers) >= ranks:
                yield Case(chain=chain, ranks=ranks, is_limited=is_limited, sites=sites)


def _bounds_anew(folder: Path, rows: Sequence[Mapping[str, str]]) -> int:
    """Bound what has a row over all layouts, and in its own; gaps by kind, as medians. 1 if a bound is above what was found."""
    found = {tuple(row[key] for key in KEYS): row for row in rows if row["layout"] == OPEN and row["makespan_ns"]}
    gaps: defaultdict[str, list[tuple[float, ...]]] = defaultdict(list)
    most = 0.0
    for case in cases(folder):
        row = found.get(case.key)
        if row is None:
            continue
        workload, begun = case.workload(), time.process_time()
        over_all_ns = layout_bound(workload, OpenLayout(chunks=CHUNKS)).value_ns
        most = max(most, time.process_time() - begun)
        ranks = tuple(map(int, row["rank_of_stage"].split()))
        bounds = tuple(pairwise(accumulate(map(int, row["layers"].split()), initial=0)))
        layout = Layout(rank_of_stage=ranks, paths=(tuple(range(len(ranks))),), layers_of_stage=bounds)
        own_ns = best_bound(problem_of(workload, layout)).value_ns
        these = tuple(1 - each / int(row["makespan_ns"]) for each in (int(row["bound_ns"]), over_all_ns, own_ns))
        kind = f"{'limit' if case.is_limited else 'no limit'}, {case.sites} sites"
        for group in (kind, f"{kind}, {case.ranks} ranks", "all"):
            gaps[group].append(these)
    table = Table("cases", title="median gap of what was found to bounds")
    for heading in ("number", "as recorded", "over all layouts", "in its own layout"):
        table.add_column(heading, justify="right")
    for group, each in sorted(gaps.items()):
        table.add_row(group, str(len(each)), *(f"{statistics.median(column):.1%}" for column in zip(*each, strict=True)))
    console = Console(width=150)
    console.print(table)
    console.print(f"a bound over all layouts takes at most {most:.1f} s of a core")
    return 1 if any(min(these) < 0 for these in gaps["all"]) else 0


def _balanced(workload: Workload, name: str, limits: Limits) -> dict[str, object]:
    """The balanced partition in a known placement."""
    placement, chunks = PLACEMENTS[name]
    if len(workload.layers) < chunks * workload.ranks:
        return _row(None, None, None)
    placed = place(placement, workload.ranks, chunks)
    bounds = balanced_partition(workload, placed, frozenset())
    layout = Layout(rank_of_stage=placed.rank_of_stage, paths=placed.paths, layers_of_stage=bounds, placement=placement)
    if verify_layout(workload, layout):
        return _row(None, None, None)
    try:
        certificate = compile_problem(problem_of(workload, layout), SearchSettings(limits=limits)).plan.certificate
    except (Infeasible, NoPlanFound):
        return _row(None, None, None)
    return _row(certificate.makespan_ns, certificate.lower_bound_ns, layout)


def _chosen(workload: Workload, limits: Limits) -> dict[str, object]:
    """The layout that the compiler chooses."""
    try:
        chosen = chosen_layout(workload, OpenLayout(chunks=CHUNKS), limits)
    except (Infeasible, NoPlanFound):
        return _row(None, None, None)
    return _row(chosen.makespan_ns, chosen.lower_bound_ns, chosen.layout)


def _row(makespan_ns: int | None, bound_ns: int | None, layout: Layout | None) -> dict[str, object]:
    return {
        "makespan_ns": makespan_ns,
        "bound_ns": bound_ns,
        "layers": None if layout is None else " ".join(str(last - first) for first, last in layout.layers_of_stage),
        "rank_of_stage": None if layout is None else " ".join(map(str, layout.rank_of_stage)),
    }


def _report(rows: Sequence[Mapping[str, str]]) -> int:
    """Print what is known; 1 if an open layout is worse."""
    of_case: defaultdict[tuple[str, ...], dict[str, Mapping[str, str]]] = defaultdict(dict)
    for row in rows:
        of_case[tuple(row[key] for key in KEYS)][row["layout"]] = row
    table = Table("profile", title="makespans in ms: balanced partitions, and the open layout; * : no room, or too few layers")
    for heading in (
        "ranks",
        "limit",
        "sites",
        *(name.removeprefix("balanced ") for name in PLACEMENTS),
        OPEN,
        "gain",
        "bound",
        "gap",
    ):
        table.add_column(heading, justify="right")
    gains: defaultdict[str, list[float]] = defaultdict(list)
    gaps, worse = [], []
    for key, found in of_case.items():
        if OPEN not in found or any(name not in found for name in PLACEMENTS):
            continue
        times = [int(found[name]["makespan_ns"] or 0) for name in PLACEMENTS]
        best_ns, open_ns = min((each for each in times if each), default=0), int(found[OPEN]["makespan_ns"] or 0)
        bound_ns = int(found[OPEN]["bound_ns"] or 0)
        gain = best_ns / open_ns - 1 if best_ns and open_ns else None
        if gain is not None:
            _, ranks, limit, sites = key
            for group in (f"{ranks} ranks", "limit" if limit == "True" else "no limit", f"{sites} sites", "all"):
                gains[group].append(gain)
            gaps.append(1 - bound_ns / open_ns)
        if (best_ns and not open_ns) or (gain is not None and gain < 0):
            worse.append(key)
        table.add_row(
            key[0],
            key[1],
            "yes" if key[2] == "True" else "no",
            key[3],
            *(f"{each / MS:.2f}" if each else "*" for each in (*times, open_ns)),
            "" if gain is None else f"{gain:.2%}",
            f"{bound_ns / MS:.2f}",
            f"{1 - bound_ns / open_ns:.1%}" if open_ns else "",
        )
    console = Console(width=150)
    console.print(table)
    for group, each in sorted(gains.items(), key=lambda item: item[0] == "all"):
        positive = sum(gain > 0 for gain in each)
        console.print(
            f"{group}: {len(each)} cases, better in {positive}, worse in {sum(gain < 0 for gain in each)};"
            f" mean gain {statistics.mean(each):.2%}, largest {max(each):.2%}"
        )
    if gaps:
        console.print(f"gap to the bound over layouts: mean {statistics.mean(gaps):.1%}, median {statistics.median(gaps):.1%}")
    for key in worse:
        console.print(f"worse: {', '.join(key)}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
