"""The window of every op of the MILP: between which ticks it may start, and from when each rank's clock runs.

Blocks and an upper bound of the objective go in. What may be fused counts with the least that it takes. For the makespan the
windows are those of `models.start_windows`. For the stage span a rank's clock runs from its first start. Where that is the same in
every schedule (one path, and a first message that nothing can hold up) the rank ends by it plus the upper bound. Elsewhere the
first start is a decision, and all that is known of the end is that there is no moment at which nothing happens, since ranks never
wait without a reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from schedc.ir.alike import are_alike
from schedc.ir.ops import Kind, Op
from schedc.ir.problem import Objective
from schedc.models.start_windows import windows_of

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.models.blocks import Blocks
    from schedc.models.milp.graph import Graph

__all__ = ["Horizon", "horizon_of"]


@dataclass(frozen=True, slots=True)
class Horizon:
    """In ticks."""

    earliest: dict[Op, int]
    """Per op, its earliest start."""
    latest: dict[Op, int]
    """Per op, its latest start in a schedule whose objective is at most the upper bound."""
    tail: dict[Op, int]
    """Per op, the least time from its end to the end of everything; 0 where the stage span is the objective."""
    end: int
    """By then everything that the objective counts has ended."""
    origin: dict[int, int | None]
    """Per rank with ops, when its clock starts; None: with its first op, whose start is decided."""
    least: int
    """No schedule has a smaller objective."""


def horizon_of(problem: Problem, blocks: Blocks, graph: Graph, upper: int) -> Horizon:
    """The windows of all schedules whose objective is at most `upper` ticks."""
    windows = windows_of(replace(problem, objective=Objective.MAKESPAN), blocks)
    earliest = windows.head
    length = {op: blocks.least(op) for op in blocks.duration}
    ranks = sorted({problem.rank_of(op) for op in length})
    if problem.objective is Objective.MAKESPAN:
        latest = {op: upper - windows.tail[op] - length[op] for op in length}
        return Horizon(earliest, latest, windows.tail, upper, dict.fromkeys(ranks, 0), windows.path)
    busy = sum(blocks.duration.values()) + sum(move.occupancy + move.latency for move in blocks.transfers)
    busy += sum(blocks.gather.values()) + sum(blocks.scatter.values())
    first = _certain_first_ops(problem, blocks)
    origin = {rank: earliest[first[rank]] if rank in first else None for rank in ranks}
    last = {rank: busy if start is None else min(busy, start + upper) for rank, start in origin.items()}
    latest = {op: last[problem.rank_of(op)] - length[op] for op in length}
    latest |= {op: earliest[op] for op in first.values()}
    for op in reversed(graph.after):
        for later, gap in graph.after[op]:
            latest[op] = min(latest[op], latest[later] - gap - length[op])
    work = dict.fromkeys(ranks, 0)
    for op, ticks in blocks.duration.items():  # fused, B and W take the least together
        work[problem.rank_of(op)] += 0 if blocks.may_vanish(op) else blocks.fused.get(op, ticks)
    return Horizon(earliest, latest, dict.fromkeys(length, 0), max(last.values()), origin, max(work.values()))


def _certain_first_ops(problem: Problem, blocks: Blocks) -> dict[int, Op]:
    """The ranks whose first op starts at the same time in every schedule, with that op.

    It is the first forward of the rank's first stage on the path, if microbatches are alike, what sends its input is such an op
    itself and sends it through a link of its own.
    """
    parallel = problem.data_parallel
    queued = parallel is not None and parallel.trunk is not None and any(blocks.gather.values())
    if queued or not are_alike(problem) or len(set(problem.path_of)) > 1:
        return {}
    resource = {move.producer: move.resource for move in blocks.transfers}
    certain: dict[int, Op] = {}
    visited: set[int] = set()
    before: Op | None = None
    for stage in problem.path(0):
        op = Op(Kind.F, stage, 0)
        rank = problem.rank_of(op)
        if rank not in visited:
            visited.add(rank)
            if before is None or (certain.get(problem.rank_of(before)) == before and resource[before].kind == "link"):
                certain[rank] = op
        before = op
    return certain
