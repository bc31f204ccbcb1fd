"""Re-partition by condensation (DynPipe, Algorithm 2) beside transfers between stages: how long each takes, and what it finds.

Takes the layers of the examples' jobs, and those of public profiles in a folder, as their collectors extracted them
(`tests/support/benches/real_chains.py` says what is assumed of those). The running layout is the balanced partition, with the rule
table's orders for 8 microbatches; links have 10 us and 10 GB/s. The second rank takes 1.5 times as long; 1000 steps are to come.

The table has, for each model on 4 and on 8 ranks, which share of the step (with the best orders for the layers as they run) is
saved by the layers that `transfer` gives away, and by those of `condensation` with as many critical layers as 2000 layouts allow,
with twice as many as ranks, and, where that makes at most 20,000 layouts, with all layers, which is exhaustive; behind each the
seconds of that call, of which choosing orders for the layers as they run (`replan`) is a part that all have.

Run it as `python benchmarks/adapting/condensation.py [FOLDER]`; half an hour for the examples and 16 profiles.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from benches.real_chains import Chain, chain_of
from inputs.plans import plan_of

from schedc.adapt.repartition import repartition
from schedc.errors import InvalidInput
from schedc.frontend.job import load_job
from schedc.ir import Conditions, Kind, Layout, MessageCost
from schedc.ir.network import Network
from schedc.ir.workload import Device, Workload
from schedc.lower.partition import balanced_partition
from schedc.lower.placement import place
from schedc.lower.problem import problem_of
from schedc.solvers.heuristics.rule_table import RuleTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.adapt.repartition import RepartitionMethod

FACTOR, STEPS, MICROBATCHES = 1.5, 1000, 8
MOST_EXHAUSTIVE = 20_000
LINK = MessageCost(latency_ns=10_000, bytes_per_second=10**10)
EXAMPLES = Path(__file__).parents[2] / "examples"


def chains(folder: Path | None) -> Iterator[Chain]:
    """Of the examples and the folder."""
    for path in sorted(EXAMPLES.glob("*/job.toml")):
        try:
            job = load_job(path)
        except InvalidInput:  # it needs a file that is made by its page
            continue
        if job.workload.layers[0].position is not None:
            yield Chain(name=path.parent.name, layers=job.workload.layers)
    for path in sorted(folder.glob("*.json")) if folder is not None else ():
        chain = chain_of(path) if "name" in path.read_text(encoding="utf-8") and "stages" not in path.name else None
        if chain is not None:
            yield chain


def workload_of(chain: Chain, ranks: int) -> Workload:
    """The chain on ranks without a memory limit."""
    layers = tuple(replace(layer, position=(at, at + 1)) for at, layer in enumerate(chain.layers))
    network = Network(site_of_rank=(0,) * ranks, within=LINK)
    return Workload(name=chain.name, microbatches=MICROBATCHES, layers=layers, devices=(Device(),) * ranks, network=network)


def row(chain: Chain, ranks: int) -> str:
    """One line of the table."""
    workload, placed = workload_of(chain, ranks), place("unidirectional", ranks)
    bounds = tuple(balanced_partition(workload, placed, frozenset()))
    layout = Layout(
        rank_of_stage=tuple(range(ranks)), paths=(tuple(range(ranks)),), layers_of_stage=bounds, placement="unidirectional"
    )
    problem = problem_of(workload, layout)
    plan = plan_of(problem, RuleTable()(problem))
    conditions = Conditions(slowdown={(1, kind): FACTOR for kind in (Kind.F, Kind.B, Kind.W)})

    def cell(method: RepartitionMethod, top_k: int | None = None) -> str:
        begun_s = time.perf_counter()
        found = repartition(plan, workload, conditions, steps=STEPS, method=method, top_k=top_k)
        took_s = time.perf_counter() - begun_s
        return f"{1 - found.objective_ns / found.stay_ns:.2%}, {took_s:.2f} s"

    count = len(chain.layers)
    every = cell("condensation", count) if comb(count - 1, ranks - 1) <= MOST_EXHAUSTIVE else "–"
    cells = (cell("transfer"), cell("condensation"), cell("condensation", 2 * ranks), every)
    return f"| {chain.name}, {count} | {ranks} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    print("| model, layers | ranks | transfer | condensation | twice as many as ranks | all boundaries |")
    print("|---|---|---|---|---|---|", flush=True)
    for chain in chains(Path(sys.argv[1]) if len(sys.argv) > 1 else None):
        for ranks in (4, 8):
            if len(chain.layers) > 2 * ranks:
                print(row(chain, ranks), flush=True)


if __name__ == "__main__":
    main()
