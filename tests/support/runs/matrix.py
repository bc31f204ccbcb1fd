"""The runtime's matrix: kinds of stages × ways to run them. Each cell trains as a model without a pipeline does, or is refused.

A cell is one kind and one choice of each way; `cells` gives enough of them that every pair of choices is in one (pairwise testing).
`check_cell` runs one on four processes, as many ranks as are left by replicas and by processes that share a stage, and compares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from inputs.plans import plan_of
from inputs.problems import make_problem
from oracles.findings import Finding

from runs import matrix_runs
from runs.matrix_stages import KINDS, PEERS, RANDOM, SPREADS, grid_of
from schedc.analysis.simulation.memory import peak_bytes
from schedc.ir.problem import DataParallel, with_whole_weights
from schedc.lower.sharding import placed
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence
    from pathlib import Path

    from runs.processes import Ranks
    from schedc.ir.plan import Plan
    from schedc.ir.schedule import Schedule

MICROBATCHES, STEPS = 4, 3
MOST_ERROR = {"float64": 1e-12, "autocast": 0.05, "bf16": 0.05}
"""By precision, relative to the largest element of a tensor; of few digits, or to a tenth of the largest of all."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of stage and the way it is run."""

    kind: str
    spread: str
    """Over what processes its stages are spread, and how."""
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
    precision: str
    """`bf16`: of weights, with gradients in float32; under FSDP its own policy."""
    compiled: bool
    shapes: str
    """In what microbatches have other numbers of samples."""

    def __str__(self) -> str:
        """In one line."""
        ways = [self.spread, self.replicas, self.backward, "several stages on a rank" if self.chunks > 1 else "", self.after]
        ways += [self.precision, self.shapes]
        ways += [
            name for name in ("recomputes", "chooses", "swaps", "accumulates", "checkpoint", "compiled") if getattr(self, name)
        ]
        return f"{self.kind}: {', '.join(filter(None, ways))}"


VALUES: dict[str, tuple[Any, ...]] = {
    "kind": KINDS,
    "spread": SPREADS,
    "chunks": (1, 2),
    "backward": ("fused", "split"),
    "recomputes": (False, True),
    "chooses": (False, True),
    "swaps": (False, True),
    "replicas": ("one pipeline", "ZeRO 0", "ZeRO 1", "ZeRO 3"),
    "accumulates": (False, True),
    "after": ("", "clipping", "scaling", "scaling and clipping"),
    "checkpoint": (False, True),
    "precision": tuple(MOST_ERROR),
    "compiled": (False, True),
    "shapes": ("same", "by step", "by microbatch"),
}
KINDS_OF = ("grad", "weight", "loss")
"""What is compared."""
SELDOM = "compiled", "chooses"
"""What takes long, or is refused with much else: in few cells beside those that need it."""


def changed(cell: Cell) -> Cell:
    """The cell, but for pairs of choices that mean nothing, or that one process cannot do alike."""
    if cell.spread in ("experts over replicas", "context", "FSDP2 in replicas") and cell.replicas == "one pipeline":
        cell = replace(cell, replicas="ZeRO 0")  # they are for processes with other data
    if cell.replicas == "ZeRO 3" and not cell.spread.startswith("FSDP2"):
        cell = replace(cell, spread="FSDP2 and TP" if cell.spread == "TP" else "FSDP2")  # it is for weights in shards
    if cell.spread == "context" and (cell.kind in RANDOM or cell.kind == "buffers"):
        cell = replace(cell, kind="plain")  # each process draws for its own samples, and has means of these
    if cell.spread == "FSDP2 in replicas" and cell.kind in ("buffers", "loss with weights"):
        cell = replace(cell, kind="plain")  # the runtime would sum over replicas alone
    if cell.spread.startswith("FSDP2") and cell.kind in ("buffers", "loss with weights") and cell.replicas == "one pipeline":
        cell = replace(cell, replicas="ZeRO 0")  # else what FSDP is not around is each process's own
    if cell.kind == "mixture" and cell.precision != "float64" and cell.spread in (*PEERS, "context", "experts over replicas"):
        cell = replace(cell, kind="plain")  # they add in another order, and what is rounded otherwise chooses another expert
    if cell.kind == "complex" and (cell.precision != "float64" or cell.spread.startswith(("FSDP2", "context"))):
        cell = replace(cell, kind="plain")
    return cell


def cells(seed: int = 0) -> tuple[Cell, ...]:
    """Cells in which every pair of choices is that `changed` leaves."""
    random = Random(seed)

    def drawn(given: dict[str, Any]) -> Cell:
        row = {name: random.choice(VALUES[name]) for name in VALUES}
        row |= {name: random.random() < 0.15 for name in SELDOM}
        return changed(Cell(**row | given))

    missing = dict.fromkeys(pairs_that_hold())  # in an order, as sets have none
    found: list[Cell] = []
    while missing:
        rows = [drawn(dict(start)) for start in random.sample(list(missing), min(12, len(missing)))]
        best = max(rows, key=lambda cell: sum(pair in missing for pair in _pairs(cell)))
        new = [pair for pair in _pairs(best) if pair in missing]
        found += [best] if new else []
        for pair in new:
            del missing[pair]
    return tuple(found)


def pairs_that_hold() -> list[tuple[tuple[str, Any], tuple[str, Any]]]:
    """All pairs of choices that `changed` leaves, where the others are the first ones."""
    first = {name: values[0] for name, values in VALUES.items()}
    pairs = [((a, x), (b, y)) for a, b in combinations(VALUES, 2) for x in VALUES[a] for y in VALUES[b]]
    return [pair for pair in pairs if pair in _pairs(changed(Cell(**first | dict(pair))))]


def _pairs(cell: Cell) -> list[tuple[tuple[str, Any], tuple[str, Any]]]:
    return [((a, getattr(cell, a)), (b, getattr(cell, b))) for a, b in combinations(VALUES, 2)]


def plans_of(cell: Cell) -> tuple[Plan, Plan]:
    """The plan to begin with, and another for the same model."""
    placement, ranks = "loop" if cell.chunks > 1 else "unidirectional", grid_of(cell).ranks
    zero = {"one pipeline": None, "ZeRO 0": 0, "ZeRO 1": 1, "ZeRO 3": 3}[cell.replicas]
    found: list[Plan] = []
    for method, links in (("greedy{n_sub=1}", {}), ("gpipe", {(0, 1): (30, 5), (1, 0): (30, 5)})):
        problem = make_problem(
            ranks,
            MICROBATCHES,
            placement=placement,
            chunks=cell.chunks,
            costs_ns=(10, 12, 9),
            links=links if ranks > 1 else {},
            split_backward=cell.backward == "split",
        )
        if zero is not None:
            times = (5,) * len(problem.stages)
            parallel = DataParallel(
                size=2 if cell.spread == "FSDP2 in replicas" else grid_of(cell).data,
                zero_stage=zero,
                reduce_scatter_ns=times,
                all_gather_ns=times if zero else (),
                gathered_bytes=times if zero == 3 else (),
                gradient_bytes=times if zero == 3 else (),
            )
            problem = replace(problem, data_parallel=parallel)
        orders = constructive(method)(with_whole_weights(problem))
        schedule: Schedule | None = orders
        if problem.is_sharded:  # a rank has room for all of its gradients, and for the weights of one stage at a time
            held = peak_bytes(with_whole_weights(problem), orders)
            problem = replace(problem, memory_limit_bytes=tuple(5 * (cell.chunks + 1) + each for each in held))
            schedule = placed(problem, orders)
        assert schedule is not None
        found.append(plan_of(problem, schedule))
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
    drawn: dict[int, dict[int, Any]] = {}
    for result in results:
        for stage, values in result["drawn"].items():
            drawn.setdefault(stage, {}).update(values)
    error, where = error_of(cell, results, matrix_runs.expected(cell, plans_of(cell)[0], drawn))
    most = MOST_ERROR[cell.precision]
    counts["right"] += error <= most
    return [] if error <= most else [Finding("wrong", f"{cell}: {where} is wrong by {error:.2g}")]


def error_of(cell: Cell, results: Sequence[Any], expected: Sequence[Any]) -> tuple[float, str]:
    """The largest relative error of a gradient, a weight or a loss, and of what."""
    worst = (0.0, "nothing")
    # Of few digits none may be right of what is left where much cancels.
    least = 1e-12 if cell.precision == "float64" else 0.1
    for rank, result in enumerate(results):
        for step, values in enumerate(result["steps"]):
            most = {kind: max(_largest(own) for name, own in expected[step].items() if name.startswith(kind)) for kind in KINDS_OF}
            for name, found in values.items():
                right = expected[step].get(name.partition("[")[0])
                if right is None and cell.spread.startswith("FSDP2") and found is not None and not found.any():
                    error = 0.0  # what no process has used gets zeros
                elif found is None or right is None:
                    error = 0.0 if found is right else float("inf")
                else:
                    part = name.partition("[")[2].rstrip("]")
                    whole = torch.as_tensor(right)
                    if part:
                        begin, end = map(int, part.split(":"))
                        whole = whole.flatten()[begin:end]
                    own = torch.as_tensor(found)
                    scale = max(_largest(whole), least * most[name.split()[0]])
                    error = _largest(own - whole) / (scale or 1.0)
                    error = error if error == error else float("inf")
                worst = max(worst, (error, f"{name} of rank {rank} in step {step}"))
    return worst


def _largest(values: Any) -> float:
    """The largest absolute value among them; NaN where there is one."""
    found = torch.as_tensor(0.0 if values is None else values).abs()
    return float(found.max()) if found.numel() else 0.0
