"""The exact search over layouts beside brute force over all of them, on 320 tiny models.

A model has 5 to 9 unequal layers on 2 to 4 ranks with at most 2 stages on a rank, half of them with a memory limit, half with slow
links; it counts where it has at most 500 layouts, but for symmetric ones. Brute force gives every layout to CP-SAT, each with the
best objective so far as its limit, and no bound of ours. It takes some 5 s of a core for each model, half an hour for all. Exit
status 1: an objective differs, a bound is above it, or fewer than 90 % are proven.

Run it as `python benchmarks/layouts/exact.py [MODELS [FIRST_SEED]] [--rows FILE.csv]`. With a file, each model's row is kept there
as soon as it is done, and those that are there already count and are not done again; 0 models: the table of these.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from itertools import combinations, count, islice, pairwise, product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Infeasible
from schedc.ir.layout import Layout, OpenLayout
from schedc.ir.network import Link, Network
from schedc.ir.workload import Device, Layer, Workload
from schedc.lower.problem import problem_of
from schedc.solvers.common.base import Limits
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.heuristics.greedy import Greedy
from schedc.solvers.layout.exact import search_layouts
from schedc.verify.layout import verify_layout

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from benches.kept_rows import append_row, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

MODELS = 320
MOST_LAYOUTS = 500
LEAST_PROVEN = 0.9
LIMIT_S = 30.0
"""Of the exact search, for each model."""
US = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One model."""

    seed: int
    group: str
    best_ns: int | None
    """By brute force."""
    found_ns: int | None
    lower_bound_ns: int | None
    over_all_ns: int | None
    """The analytic bound over all layouts."""
    layouts: int
    evaluated: int
    search_s: float
    brute_s: float

    @property
    def is_right(self) -> bool:
        """Whether search and bounds agree with brute force."""
        if self.best_ns is None:
            return self.found_ns is None
        bounds = (self.lower_bound_ns, self.over_all_ns)
        return self.found_ns == self.best_ns and all(bound is not None and bound <= self.best_ns for bound in bounds)

    @property
    def is_proven(self) -> bool:
        """Whether the search proved its result."""
        return self.found_ns == self.lower_bound_ns

    @classmethod
    def of_row(cls, row: dict[str, str]) -> Result:
        """The result that became this row."""
        kinds: dict[str, Callable[[str], Any]] = {
            "str": str,
            "int": int,
            "float": float,
            "int | None": lambda text: int(text) if text else None,
        }
        return cls(**{field.name: kinds[str(field.type)](row[field.name]) for field in fields(cls)})


def random_model(seed: int) -> tuple[str, Workload, OpenLayout]:
    """The model of this number, its group, and what is open: everything, with one or two stages on a rank."""
    random = Random(seed)
    ranks = random.randint(2, 4)
    has_limit, has_slow_links = seed % 2 == 1, seed // 2 % 2 == 1
    layers = []
    for _ in range(random.randint(5, 9)):
        forward, gradient, weight = random.randint(2, 12), random.randint(2, 12), random.randint(1, 8)
        fused = random.choice([1.0, 1.0, 0.9])
        size = random.randint(1, 5)
        layer = Layer(
            forward_ns=(forward * US,),
            backward_input_ns=(gradient * US,),
            backward_weight_ns=(weight * US,),
            backward_ns=(round(fused * (gradient + weight)) * US,),
            activation_bytes=size,
            activation_after_input_bytes=random.randint(0, size),
            static_bytes=random.randint(0, 4),
        )
        layers.append(layer)
    whole = sum(layer.activation_bytes + layer.static_bytes for layer in layers)
    devices = []
    speeds = random.choice([[Fraction(1)] * 4, [Fraction(1), Fraction(1), Fraction(3, 2), Fraction(1, 2)]])
    for rank in range(ranks):
        capacity = whole // ranks + random.randint(4, 20) if has_limit else None
        devices.append(Device(speed=speeds[rank], capacity_bytes=capacity))
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    links = tuple(
        Link(source=a, destination=b, latency_ns=random.choice([0, 5, 20]) * US, transfer_ns=random.choice([0, 4, 15]) * US)
        for a, b in pairs
        if has_slow_links
    )
    workload = Workload(
        name=f"model-{seed}",
        microbatches=random.randint(3, 5),
        layers=tuple(layers),
        devices=tuple(devices),
        network=Network(site_of_rank=(0,) * ranks, links=links),
    )
    group = f"{'limit' if has_limit else 'no limit'}, {'slow' if has_slow_links else 'free'} links"
    return group, workload, OpenLayout(chunks=random.choice([1, 2, 2]))


def layouts_of(workload: Workload, chunks: int) -> list[Layout] | None:
    """Every layout, ranks with like devices on free links taken in one order; None: more than may be."""
    found: list[Layout] = []
    layers, alike = len(workload.layers), len(set(workload.devices)) == 1 and not workload.network.links
    for stages in range(workload.ranks, min(layers, chunks * workload.ranks) + 1):
        for ranks in product(range(workload.ranks), repeat=stages):
            ascending = list(dict.fromkeys(ranks)) == list(range(workload.ranks))
            if len(set(ranks)) < workload.ranks or max(map(ranks.count, ranks)) > chunks or (alike and not ascending):
                continue
            for inner in combinations(range(1, layers), stages - 1):
                bounds = tuple(pairwise((0, *inner, layers)))
                found.append(Layout(rank_of_stage=ranks, paths=(tuple(range(stages)),), layers_of_stage=bounds))
                if len(found) > MOST_LAYOUTS:
                    return None
    return found


def brute_force_ns(workload: Workload, layouts: list[Layout]) -> int | None:
    """The best objective of all layouts, by CP-SAT; None: no layout has room.

    Those with the best greedy schedules go first, so that little is left to seek in the others.
    """
    starts: list[tuple[int, int, Problem, Schedule]] = []
    for layout in layouts:
        if verify_layout(workload, layout):
            continue
        problem = problem_of(workload, layout)
        held = [0] * problem.ranks
        for stage in problem.stages:
            held[stage.rank] += stage.activation_bytes
        if all(limit is None or size <= limit for size, limit in zip(held, problem.memory_limit_bytes, strict=True)):
            start = Greedy(n_sub=1)(problem)
            starts.append((simulate(problem, start).makespan_ns, len(starts), problem, start))
    best_ns: int | None = None
    for _, _, problem, start in sorted(starts, key=lambda each: each[:2]):
        found = solve_cpsat(problem, start, limits=Limits(workers=1), below_ns=best_ns)
        if best_ns is None or found.objective_ns < best_ns:
            best_ns = found.objective_ns
    return best_ns


def results(first_seed: int, done: Container[int]) -> Iterator[Result]:
    """All models that count, from this seed on, but for those that are done."""
    for seed in count(first_seed):
        if seed in done:
            continue
        group, workload, open_layout = random_model(seed)
        layouts = layouts_of(workload, open_layout.chunks)
        if layouts is None:
            continue
        begun = time.perf_counter()
        best_ns = brute_force_ns(workload, layouts)
        brute_s = time.perf_counter() - begun
        found_ns = lower_bound_ns = None
        evaluated = 0
        begun = time.perf_counter()
        over_all_ns = None
        try:
            over_all_ns = layout_bound(workload, open_layout).value_ns
            outcome = search_layouts(workload, open_layout, Limits(time_s=LIMIT_S, workers=2))
            found_ns = None if outcome.best is None else outcome.best.objective_ns
            lower_bound_ns, evaluated = outcome.lower_bound_ns, outcome.evaluated
        except Infeasible:
            pass
        search_s = time.perf_counter() - begun
        result = Result(
            seed=seed,
            group=group,
            best_ns=best_ns,
            found_ns=found_ns,
            lower_bound_ns=lower_bound_ns,
            over_all_ns=over_all_ns,
            layouts=len(layouts),
            evaluated=evaluated,
            search_s=search_s,
            brute_s=brute_s,
        )
        if not result.is_right:
            print(f"seed {seed} differs: {result}", file=sys.stderr)
        yield result


def main() -> int:
    """Run all models and print a line for each group."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="?", type=int, default=MODELS, help="how many")
    parser.add_argument("first_seed", nargs="?", type=int, default=0)
    parser.add_argument("--rows", type=Path, help="a CSV that keeps what is done")
    options = parser.parse_args()
    kept = [Result.of_row(row) for row in rows_of(options.rows)] if options.rows else []
    groups: defaultdict[str, list[Result]] = defaultdict(list)
    for result in kept:
        groups[result.group].append(result)
    for result in islice(results(options.first_seed, {each.seed for each in kept}), max(0, options.models - len(kept))):
        if options.rows:
            append_row(options.rows, asdict(result))
        groups[result.group].append(result)
    table = Table("models", title="the exact search over layouts, beside brute force over all of them")
    for heading in (
        "number",
        "no room",
        "as brute force",
        "proven",
        "bound over all",
        "layouts",
        "evaluated",
        "search s",
        "brute s",
    ):
        table.add_column(heading, justify="right")
    everything = [result for some in groups.values() for result in some]
    for group, some in [*sorted(groups.items()), ("all", everything)]:
        ratios = [result.over_all_ns / result.best_ns for result in some if result.best_ns and result.over_all_ns]
        table.add_row(
            group,
            str(len(some)),
            str(sum(result.best_ns is None for result in some)),
            str(sum(result.is_right for result in some)),
            str(sum(result.is_proven for result in some)),
            f"{statistics.mean(ratios):.3f}" if ratios else "",
            f"{statistics.mean(result.layouts for result in some):.0f}",
            f"{statistics.mean(result.evaluated for result in some):.1f}",
            f"{sum(result.search_s for result in some):.0f}",
            f"{sum(result.brute_s for result in some):.0f}",
        )
    console = Console(width=132)
    console.print(table)
    right, proven = (sum(getattr(result, name) for result in everything) for name in ("is_right", "is_proven"))
    console.print(f"{right} of {len(everything)} as brute force, {proven} proven (required: all, and {LEAST_PROVEN:.0%})")
    return 0 if right == len(everything) and proven >= LEAST_PROVEN * len(everything) else 1


if __name__ == "__main__":
    sys.exit(main())
