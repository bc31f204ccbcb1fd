"""The runtime's matrix: kinds of stages × ways to run them. Each cell trains as a model without a pipeline does, or is refused.

A cell is one kind and one choice of each way; `cells` gives enough of them that every pair of choices is in one (pairwise testing).
`check_cell` runs one on four processes, two ranks in two pipelines or with stages spread over two processes, and compares.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from inputs.plans import plan_of
from inputs.problems import make_problem
from oracles.fuzz_checks import Finding

from runs import matrix_runs
from runs.matrix_stages import KINDS, OVER_PROCESSES
from schedc.ir.problem import DataParallel
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    from runs.processes import Ranks
    from schedc.ir.plan import Plan

MICROBATCHES, STEPS = 4, 3
MOST_ERROR = 1e-9


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of stage and the way it is run."""

    kind: str
    chunks: int
    """Stages on a rank."""
    backward: str
    recomputes: bool
    chooses: bool
    swaps: bool
    """To another plan after the first step."""
    replicas: str
    accumulates: bool
    """Two steps of the pipe to one of the optimizer."""
    after: str
    """What is done with gradients before the optimizer's step."""
    checkpoint: bool
    """Saved after the first step, and loaded again."""

    def __str__(self) -> str:
        """In one line."""
        ways = [self.replicas, self.backward, "several stages on a rank" if self.chunks > 1 else "", self.after]
        ways += [name for name in ("recomputes", "chooses", "swaps", "accumulates", "checkpoint") if getattr(self, name)]
        return f"{self.kind}: {', '.join(filter(None, ways))}"


VALUES: dict[str, tuple[Any, ...]] = {
    "kind": KINDS,
    "chunks": (1, 2),
    "backward": ("fused", "split"),
    "recomputes": (False, True),
    "chooses": (False, True),
    "swaps": (False, True),
    "replicas": ("one pipeline", "ZeRO 0", "ZeRO 1"),
    "accumulates": (False, True),
    "after": ("", "clipping", "scaling", "scaling and clipping"),
    "checkpoint": (False, True),
}


def cells(seed: int = 0) -> tuple[Cell, ...]:
    """Cells in which every pair of choices is, but for replicas of what is spread over processes."""
    random = Random(seed)
    names = [field.name for field in fields(Cell)]
    missing = {
        ((a, x), (b, y)): None  # in the order in which they are made, as sets have none
        for a, b in combinations(names, 2)
        for x in VALUES[a]
        for y in VALUES[b]
        if not (a == "kind" and x in OVER_PROCESSES and b == "replicas" and y != "one pipeline")
    }
    found: list[Cell] = []
    while missing:
        rows = []
        for start in random.sample(list(missing), min(12, len(missing))):
            row = {name: random.choice(VALUES[name]) for name in names} | dict(start)
            if row["kind"] in OVER_PROCESSES:
                row["replicas"] = "one pipeline"
            rows.append(Cell(**row))
        best = max(rows, key=lambda cell: sum(pair in missing for pair in _pairs(cell, names)))
        for pair in _pairs(best, names):
            missing.pop(pair, None)
        found.append(best)
    return tuple(found)


def _pairs(cell: Cell, names: list[str]) -> list[tuple[tuple[str, Any], tuple[str, Any]]]:
    return [((a, getattr(cell, a)), (b, getattr(cell, b))) for a, b in combinations(names, 2)]


def plans_of(cell: Cell) -> tuple[Plan, Plan]:
    """The plan to begin with, and another for the same model."""
    placement = "loop" if cell.chunks > 1 else "unidirectional"
    zero = {"one pipeline": None, "ZeRO 0": 0, "ZeRO 1": 1}[cell.replicas]
    found: list[Plan] = []
    for method, links in (("greedy{n_sub=1}", {}), ("gpipe", {(0, 1): (30, 5), (1, 0): (30, 5)})):
        problem = make_problem(
            2,
            MICROBATCHES,
            placement=placement,
            chunks=cell.chunks,
            costs_ns=(10, 12, 9),
            links=links,
            split_backward=cell.backward == "split",
        )
        if zero is not None:
            times = (5,) * len(problem.stages)
            parallel = DataParallel(size=2, zero_stage=zero, reduce_scatter_ns=times, all_gather_ns=times if zero else ())
            problem = replace(problem, data_parallel=parallel)
        found.append(plan_of(problem, constructive(method)(problem)))
    first, other = found
    same = [one.collectives for one in first.ranks] == [one.collectives for one in other.ranks]
    return first, other if same else replace(
        first, problem=replace(first.problem, name="other")
    )  # replicas move only where collectives keep their order


def check_cell(cell: Cell, ranks: Ranks, folder: Path, counts: Counter[str]) -> list[Finding]:
    """What is wrong with the cell; a refusal is counted under what it says."""
    results = ranks.run(matrix_runs.train, cell, plans_of(cell), str(folder))
    counts["cells"] += 1
    refusals = [result["refused"] for result in results if isinstance(result, dict) and "refused" in result]
    if len(refusals) == len(results):
        counts[f"refused: {refusals[0]}"] += 1
        long = [text for text in refusals if "\n" in text]
        return [Finding("refused in more than a line", f"{cell}: {long[0]}")] if long else []
    failed = [str(result) for result in results if not isinstance(result, dict)]
    if failed:  # the rank that lost a connection says less than the one that left
        failed.sort(key=lambda text: "TransferFailed" in text)
        return [Finding("fails", f"{cell}: {failed[0]}")]
    error, where = _error(cell, results)
    counts["right"] += error <= MOST_ERROR
    return [] if error <= MOST_ERROR else [Finding("wrong", f"{cell}: {where} is wrong by {error:.2g}")]


def _error(cell: Cell, results: list[Any]) -> tuple[float, str]:
    """The largest relative error of a gradient, a weight or a loss, and of what."""
    drawn: dict[int, dict[int, Any]] = {}
    for result in results:
        for stage, values in result["drawn"].items():
            drawn.setdefault(stage, {}).update(values)
    expected = matrix_runs.expected(cell, plans_of(cell)[0], drawn)
    worst = (0.0, "nothing")
    for rank, result in enumerate(results):
        for step, values in enumerate(result["steps"]):
            for name, found in values.items():
                right = expected[step].get(name.partition("[")[0])
                if found is None or right is None:
                    error = 0.0 if found is right else float("inf")
                else:
                    part = name.partition("[")[2].rstrip("]")
                    whole = torch.as_tensor(right)
                    if part:
                        begin, end = map(int, part.split(":"))
                        whole = whole.flatten()[begin:end]
                    own = torch.as_tensor(found)
                    error = float((own - whole).abs().max() / whole.abs().max().clamp_min(1e-12)) if whole.numel() else 0.0
                    error = error if error == error else float("inf")
                worst = max(worst, (error, f"{name} of rank {rank} in step {step}"))
    return worst
