"""Long sequences in slices: the cuts that the compiler chooses beside whole microbatches and Seq1F1B's, with bounds.

Costs are those of `schedc costs` for llama3-70b on H100, tensor parallel 8, and context parallel so that a device has at most
128 Ki tokens, on 8 ranks with messages over 50 GB/s. What each slice takes however short it is, are the launches and the
synchronizations of the costs. Seq1F1B (arXiv:2406.03488) has slices of equal FLOPs and its own order: rank r of p warms up with
p - r - 2 + n forwards, then one forward and one backward alternate, fused. Cuts that are given are scheduled by `rule-table` and
`greedy`, the better counts; open ones by `auto`, at most 64 slices, in multiples of 128 tokens. Capacity, where there is one, is
80 GiB, 16 bytes for each parameter and 5 GiB in reserve.

Run it as `python benchmarks/layouts/slices.py [--time-limit 40] [--tokens 32,64,128,256,512] [--microbatches 4,8]
[--capacity no,80]`. The time limit is for each job with open cuts. Tables are Markdown. Exit status 1: a plan with open cuts takes
more than 0.1 % longer than one of equal FLOPs.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.memory import exceeded_limit, peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.driver import compile_job
from schedc.costs.efficiency import ROOFLINE
from schedc.costs.predicted import predicted
from schedc.errors import NoPlanFound, Unsupported
from schedc.formats.profile_file import profile_json
from schedc.frontend.job import Job, checked_job
from schedc.frontend.job_source import source_of_table
from schedc.ir import Kind, Op, Schedule
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schedc.ir import Problem

RANKS, TENSOR, KI = 8, 8, 1024
COUNTS = (4, 8, 16, 32, 64)
GRANULARITY, MOST = 128, 64
MODEL = "llama3-70b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a schedule takes."""

    slices: int
    objective_ns: int
    bubble_ratio: float
    peak_bytes: int
    bound_ns: int

    @property
    def gap(self) -> float:
        """To the bound, as a share of the makespan."""
        return 1 - self.bound_ns / self.objective_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A length of sequences, and how many microbatches."""

    tokens: int
    microbatches: int
    capacity: bool
    fixed: float
    flops: float
    """The share of FLOPs that grows with the square of the tokens."""
    directory: Path

    def job(self, slices: dict[str, Any] | None) -> Job:
        """The job with this section, [slices]."""
        table: dict[str, Any] = {
            "pipeline": {"ranks": RANKS, "microbatches": self.microbatches},
            "profile": {"path": "profile.json"},
            "topology": {"within": {"latency": "10 us", "bandwidth": "50 GB/s"}},
        }
        if slices is not None:
            table["slices"] = {**slices, "fixed": self.fixed}
        if self.capacity:
            table["memory"] = {"capacity": "80 GiB", "bytes_per_parameter": 16, "reserve": "5 GiB"}
        return checked_job(source_of_table(table, directory=self.directory, name="slices"))

    def equal_flops(self, count: int) -> list[int]:
        """The lengths of slices of equal FLOPs, in multiples of the granularity but for the last."""
        q = self.flops
        shares = [(math.sqrt((1 - q) ** 2 + 4 * q * at / count) - (1 - q)) / (2 * q) for at in range(count)]
        cuts = [round(share * self.tokens / GRANULARITY) * GRANULARITY for share in shares]
        return [end - begin for begin, end in pairwise((*cuts, self.tokens))]


def case_of(tokens: int, microbatches: int, directory: Path, *, capacity: bool) -> Case:
    """The case; writes its profile."""
    without_launches = replace(ROOFLINE, launch_s=0.0, move_s=0.0, collective_s=0.0)
    context = max(1, tokens // (128 * KI))
    made, without = (
        predicted(MODEL, "h100", tp=TENSOR, cp=context, sequence=tokens, rates=rates) for rates in (ROOFLINE, without_launches)
    )
    (directory / "profile.json").write_text(profile_json(made.layers, model=made.title), encoding="utf-8")
    whole, moving = (
        sum(layer.repeat * (layer.forward_ns + sum(layer.parts_ns)) for layer in each.layers) for each in (made, without)
    )
    model = made.architecture
    attention = sum(layer.repeat for layer in made.layers if layer.quadratic)
    linear = 2 * sum(layer.repeat * (layer.parameters or 0) for layer in made.layers) * TENSOR * tokens
    square = 2 * attention * model.hidden * tokens**2  # the products of queries, keys and values that the causal mask leaves
    return Case(
        tokens=tokens,
        microbatches=microbatches,
        capacity=capacity,
        fixed=round(1 - moving / whole, 7),
        flops=square / (linear + square),
        directory=directory,
    )


def seq1f1b(problem: Problem) -> Schedule:
    """Seq1F1B's order; where microbatches are whole, 1F1B's."""
    count = len(problem.slices) or 1
    units = problem.microbatches
    back = [at - at % count + count - 1 - at % count for at in range(units)]
    orders = []
    for rank in range(problem.ranks):
        ahead = min(problem.ranks - rank - 2 + count, units)
        order = [Op(Kind.F, rank, at) for at in range(ahead)]
        for at in range(units):
            if at + ahead < units:
                order.append(Op(Kind.F, rank, at + ahead))
            order.append(Op(Kind.BW, rank, back[at]))
        orders.append(tuple(order))
    return Schedule(orders=tuple(orders))


def timed(problem: Problem, schedule: Schedule, bound_ns: int | None = None) -> Row | None:
    """What a schedule takes; None: it has too little memory."""
    if exceeded_limit(problem, schedule) is not None:
        return None
    timeline = simulate(problem, schedule)
    return Row(
        slices=len(problem.slices) or 1,
        objective_ns=timeline.makespan_ns,
        bubble_ratio=timeline.bubble_ratio,
        peak_bytes=max(peak_bytes(problem, schedule)),
        bound_ns=best_bound(problem).value_ns if bound_ns is None else bound_ns,
    )


def ours(problem: Problem) -> Row | None:
    """The better of two of our methods."""
    found = []
    for method in ("rule-table", "greedy"):
        try:
            found.append(timed(problem, constructive(method)(problem)))
        except Unsupported:
            continue
    return best_of(found)


def best_of(rows: Iterable[Row | None]) -> Row | None:
    """The fastest."""
    return min((row for row in rows if row is not None), key=lambda row: row.objective_ns, default=None)


def compared(case: Case, time_s: float) -> dict[str, Row | None]:
    """All that is compared."""
    whole = case.job(None).problem
    by_flops = {count: case.job({"lengths": case.equal_flops(count)}).problem for count in COUNTS}
    rows: dict[str, Row | None] = {"1F1B, whole": timed(whole, seq1f1b(whole)), "ours, whole": ours(whole)}
    for count, problem in by_flops.items():
        rows[f"Seq1F1B, {count} of equal FLOPs"] = timed(problem, seq1f1b(problem))
    for count in COUNTS:
        rows[f"ours, {count} of equal tokens"] = ours(case.job({"count": count}).problem)
    for count, problem in by_flops.items():
        rows[f"ours, {count} of equal FLOPs"] = ours(problem)
    job = case.job({"count": "auto", "tokens": case.tokens, "most": MOST, "granularity": GRANULARITY})
    assert job.open_layout is not None
    try:
        plan = compile_job(job, SearchSettings(limits=Limits(time_s=time_s, workers=2))).plan
    except NoPlanFound:
        rows["auto"] = None
    else:
        bound_ns = layout_bound(job.workload, job.open_layout).value_ns
        rows["auto"] = timed(plan.problem, plan.schedule(), bound_ns)
    return rows


def shown(case: Case, rows: dict[str, Row | None]) -> None:
    """A table of the case."""
    title = f"{case.tokens // KI} Ki tokens, {case.microbatches} microbatches, {'80 GiB' if case.capacity else 'no limit'}"
    print(f"\n{title}; each slice takes {case.fixed:.3%}, of FLOPs {case.flops:.0%} are quadratic\n")
    print("| schedule | slices | makespan | bubble | peak activations | bound | gap |\n|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        if row is None:
            print(f"| {name} | | does not fit | | | | |")
            continue
        size, bubble = f"{row.peak_bytes / 2**30:.1f} GiB", f"{row.bubble_ratio:.1%}"
        seconds, bound = f"{row.objective_ns / 1e9:.3f} s", f"{row.bound_ns / 1e9:.3f} s"
        print(f"| {name} | {row.slices} | {seconds} | {bubble} | {size} | {bound} | {row.gap:.1%} |", flush=True)


def _cell(row: Row | None, *, slices: bool = True) -> str:
    if row is None:
        return "–"
    return f"{row.objective_ns / 1e9:.2f} s" + (f" ({row.slices})" if slices and row.slices > 1 else "")


def _gain(before: Row | None, after: Row | None) -> str:
    return "–" if before is None or after is None else f"{before.objective_ns / after.objective_ns - 1:.1%}"


def main() -> int:
    """Compare all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--time-limit", type=float, default=40.0)
    parser.add_argument("--tokens", default="32,64,128,256,512", help="in Ki")
    parser.add_argument("--microbatches", default="4,8")
    parser.add_argument("--capacity", default="no,80")
    given = parser.parse_args()
    lines, worse = [], False
    for capacity in given.capacity.split(","):
        for tokens in map(int, given.tokens.split(",")):
            for microbatches in map(int, given.microbatches.split(",")):
                with TemporaryDirectory() as folder:
                    case = case_of(tokens * KI, microbatches, Path(folder), capacity=capacity != "no")
                    rows = compared(case, given.time_limit)
                shown(case, rows)
                whole, best_whole, auto = rows["1F1B, whole"], rows["ours, whole"], rows["auto"]
                theirs, by_tokens, by_flops = (
                    best_of(row for name, row in rows.items() if name.startswith(begin) and name.endswith(end))
                    for begin, end in (("Seq1F1B", "FLOPs"), ("ours", "tokens"), ("ours", "FLOPs"))
                )
                worse |= by_flops is not None and (auto is None or auto.objective_ns > 1.001 * by_flops.objective_ns)
                cells = [
                    f"{tokens} Ki",
                    str(microbatches),
                    "80 GiB" if case.capacity else "no",
                    _cell(whole),
                    _cell(best_whole),
                    *map(_cell, (theirs, by_tokens, by_flops, auto)),
                    "–" if auto is None else f"{auto.bound_ns / 1e9:.2f} s",
                    "–" if auto is None else f"{auto.gap:.1%}",
                    _gain(theirs, auto),
                    _gain(by_flops, auto),
                    "–" if auto is None else f"{auto.peak_bytes / 2**30:.0f} GiB",
                ]
                lines.append(f"| {' | '.join(cells)} |")
    heads = ["tokens", "microbatches", "limit", "1F1B, whole", "ours, whole", "Seq1F1B", "equal tokens", "equal FLOPs", "auto"]
    heads += ["bound over cuts", "gap", "over Seq1F1B", "over equal FLOPs", "peak"]
    print(f"\nThe best of {', '.join(map(str, COUNTS))} slices where they are given, in brackets how many:\n")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", *lines, sep="\n")
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
