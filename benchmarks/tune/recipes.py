"""`schedc tune` beside configurations that people made by hand: Megatron-Bridge's recipes for six models on 17 clusters.

`recipes.csv` has the numbers of the 16-bit presets of NVIDIA-NeMo/Megatron-Bridge (Apache-2.0),
scripts/performance/configs/*/*_workload_base_configs.py and, for DeepSeek-V3, the layers of each stage. Each recipe is planned in
our model as its framework runs it: 1F1B, interleaved where there are chunks, with fused backwards. `tune` gets the model, the
devices and the batch.

- *theirs*, *ours*: the step in seconds. Where a device would hold more than it has, as our model counts it, *why* says so, and
  there is no ratio. What recipes do besides, as offloading activations, is not modelled.
- *ratio*: theirs over ours; *could be*: how far any candidate can be below ours.
- *why*: the largest causes of the difference, in percent of ours.

Each row is on standard error when it is known, with how many candidates had a plan by then.

`python benchmarks/tune/recipes.py [--time-limit 90] [--rows FIRST:LAST] [--only llama3-70b]` prints a table.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.compile.driver import compile_problem
from schedc.frontend.job_source import source_of_table
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.study.tune.candidates import candidates
from schedc.study.tune.causes import CAUSES, causes_ns
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.request import read_request
from schedc.study.tune.search import tune
from schedc.units import format_bytes

if TYPE_CHECKING:
    from schedc.study.tune.request import TuneRequest

RECIPES = Path(__file__).with_suffix(".csv")
SEQUENCE = {"llama3-8b": 8192, "llama3-70b": 8192, "llama3-405b": 8192}
HEADERS = ("model", "devices", "batch", "recipe", "theirs", "ours", "ratio", "could be", "what tune chooses", "why")


def request_of(row: dict[str, str], *, as_recipe: bool) -> TuneRequest:
    """The recipe alone, or what a person who has its cluster asks."""
    experts, chunks, ranks = int(row["ep"]) > 1, int(row["chunks"]), int(row["ranks"])
    model = {
        "name": row["model"],
        "device": row["device"],
        "framework": "megatron-te",
        "expert_exchange": row["exchange"] or "all-to-all",
        "sequence": SEQUENCE.get(row["model"], 4096),
    }
    tune_keys: dict[str, object] = {"batch": int(row["batch"]), "chunks": sorted({2, chunks} - {1})}
    if as_recipe:
        model |= {key: int(row[key]) for key in ("tp", "cp", "ep")} | ({"etp": 1} if experts else {})
        tune_keys |= {
            "ranks": [ranks],
            "microbatch_sizes": [int(row["size"])],
            "placements": ["loop" if chunks > 1 else "unidirectional"],
            "chunks": [max(2, chunks)],
            "zero_stages": [int(row["zero"])],
            "recompute": [row["recompute"]],
            "split_backward": False,
        }
    # The presets do not reduce gradients in 32 bits (grad_reduce_in_fp32); those of DeepSeek-V3 have 16-bit moments and remainders
    # of weights (use_precision_aware_optimizer).
    memory = {"gradient": "2 B", "optimizer": f"{row['optimizer']} B"}
    table = {"model": model, "tune": tune_keys, "topology": {"sites": [int(row["devices"])]}, "memory": memory}
    return read_request(source_of_table(table, directory=Path(), name=row["model"]))


def partition_of(text: str) -> list[int] | None:
    """How many layers each stage has; none: the balanced partition."""
    counts: list[int] = []
    for word in text.split():
        each, _, times = word.partition("*")
        counts += [int(each)] * int(times or 1)
    return counts or None


def theirs(row: dict[str, str]) -> tuple[int, dict[str, float], str]:
    """The step, its causes, and what a device lacks."""
    request = request_of(row, as_recipe=True)
    (site,) = request.sites
    room_bytes, request = site.room_bytes, replace(request, sites=(replace(site, capacity_bytes=10**15),))
    (candidate,) = candidates(request.choices)
    method = "sequential" if candidate.ranks == 1 else "interleaved" if candidate.chunks > 1 else "1f1b"
    made = candidate_problem(request, candidate, partition_of(row["partition"]))
    plan = compile_problem(made.problem, SearchSettings(method=method)).plan
    held = max(map(sum, zip(made.static_bytes, plan.certificate.peak_activation_bytes, strict=True)))
    lacks = f"needs {format_bytes(held, 0)} of {format_bytes(room_bytes, 0)}" if held > room_bytes else ""
    return plan.certificate.makespan_ns, causes_ns(request, candidate, made, plan), lacks


def compared(row: dict[str, str], time_s: float) -> tuple[str, ...]:
    """One row of the table."""
    used = [f"{name} {row[key]}" for name, key in (("tp", "tp"), ("cp", "cp"), ("pp", "ranks"), ("ep", "ep")) if row[key] != "1"]
    used += [f"vp {row['chunks']}"] * (row["chunks"] != "1") + ["FSDP"] * (row["zero"] == "3") + [f"size {row['size']}"]
    begun_s = time.perf_counter()
    request, of_recipe = request_of(row, as_recipe=False), theirs(row)
    settings = SearchSettings(limits=Limits(time_s=time_s, gap=0.002))
    with settings.interruption.listening():  # so the time ends as it does for who calls `schedc tune`
        found = tune(request, settings, candidate_s=time_s / 6)
    ours_ns = found.best.step_ns or 0
    step_ns, of_theirs, lacks = of_recipe
    of_ours = causes_ns(request, found.best.candidate, found.problem, found.plan)
    more = sorted(((of_theirs[cause] - of_ours[cause]) / ours_ns, cause) for cause in CAUSES)
    largest = sorted(more, key=lambda each: -abs(each[0]))[:3]
    why = "; ".join(f"{cause} {share:+.1%}" for share, cause in largest if abs(share) >= 0.0005)
    why = "; ".join(filter(None, (lacks, row["besides"], why)))
    their, ratio = f"{step_ns / 1e9:.3f}", "–" if lacks else f"{step_ns / ours_ns:.3f}"
    could, planned = 1 - found.bound_ns / ours_ns, sum(each.step_ns is not None for each in found.rows)
    cells = (
        row["model"],
        f"{row['devices']} {row['device']}",
        row["batch"],
        ", ".join(used),
        their,
        f"{ours_ns / 1e9:.3f}",
        ratio,
        f"{could:.1%}",
        found.best.candidate.title,
        why,
    )
    took = f"{time.perf_counter() - begun_s:.0f} s, {planned} of {len(found.rows)} candidates planned"
    print(*cells, took, sep=" | ", file=sys.stderr, flush=True)
    return cells


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--time-limit", type=float, default=90.0, help="seconds of each search")
    parser.add_argument("--rows", default=":", help="of the file, FIRST:LAST")
    parser.add_argument("--only", default="", help="the rows of models or devices whose names have this")
    options = parser.parse_args()
    first, _, last = options.rows.partition(":")
    with RECIPES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[int(first or 0) : int(last) if last else None]
    table = Table(box=None, pad_edge=False)
    for header in HEADERS:
        table.add_column(header, justify="right" if header in ("batch", "theirs", "ours", "ratio", "could be") else "left")
    behind = 0
    for row in rows:
        if options.only in f"{row['model']} {row['device']}":
            cells = compared(row, options.time_limit)
            behind += cells[6] != "–" and float(cells[6]) < 1
            table.add_row(*cells)
    Console(width=250).print(table)
    print(f"{table.row_count} recipes, {behind} of them faster in our model than what tune chose")


if __name__ == "__main__":
    main()
