"""What the canvas of the page draws, as plain data for JSON: ops, transfers, collectives and memory of a step, planned or measured.

Columns are packed (`packing.py`); `page/model.js` reads them. Ops are numbered flat, rank after rank in the plan's order, and
transfers by the op that produced them. Times are nanoseconds from the begin of the step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from schedc.analysis.attribution.waits import Awaited, Waits
from schedc.analysis.simulation.memory import memory_curve
from schedc.ir.index import tables_of
from schedc.ir.ops import Kind
from schedc.view.report.packing import packed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem


def chart_data(plan: Plan) -> dict[str, Any]:
    """What is the same for the planned and the measured step: names, stages, resources, limits."""
    problem = plan.problem
    seen: Counter[int] = Counter()
    chunks = []
    for stage in problem.stages:
        chunks.append(seen[stage.rank])
        seen[stage.rank] += 1
    return {
        "name": plan.name,
        "ranks": problem.ranks,
        "microbatches": problem.microbatches,
        "stages": [
            {"rank": stage.rank, "chunk": chunk, "layers": None if stage.layers is None else [stage.layers[0], stage.layers[1] - 1]}
            for stage, chunk in zip(problem.stages, chunks, strict=True)
        ],
        "resources": [resource.label for resource in tables_of(problem).resources],
        "memoryLimits": list(problem.memory_limit_bytes),
        "zeroStage": None if problem.data_parallel is None else problem.data_parallel.zero_stage,
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChartStep:
    """One step, planned or measured: when everything happens, and what it waited for."""

    name: str
    """`planned` or `measured`."""
    timeline: Timeline
    idle_ns: NDArray[np.int64]
    """Per op, as `Waits` has it; so are the next four."""
    cause: NDArray[np.int64]
    awaited: NDArray[np.int64]
    collective_after: NDArray[np.int64]
    behind: NDArray[np.int64]


def planned_step(timeline: Timeline, waits: Waits) -> ChartStep:
    """The step as the simulator says that it happens."""
    return ChartStep(
        name="planned",
        timeline=timeline,
        idle_ns=waits.idle_ns,
        cause=waits.cause,
        awaited=waits.awaited,
        collective_after=waits.collective_after,
        behind=waits.behind,
    )


def step_data(plan: Plan, step: ChartStep) -> dict[str, Any]:
    """One step of the plan as the page reads it."""
    timeline = step.timeline
    problem = plan.problem
    kind, stage, microbatch, part = timeline.ops.T
    sent = np.flatnonzero(timeline.consumer >= 0)
    curves = [memory_curve(problem, plan.schedule(), timeline, rank) for rank in range(problem.ranks)]
    return {
        "name": step.name,
        "endNs": timeline.makespan_ns,
        "begin": packed(timeline.begin),
        "kind": packed(kind),
        "stage": packed(stage),
        "microbatch": packed(microbatch),
        "part": packed(part),
        "idleBeforeNs": packed(step.idle_ns),
        "durationNs": packed(timeline.ends_ns - timeline.starts_ns),
        "cause": packed(step.cause),
        "awaited": packed(np.where(step.cause == Awaited.ALL_GATHER, step.awaited, -1)),
        "producer": packed(sent),
        "consumer": packed(timeline.consumer[sent]),
        "resource": packed(timeline.resource[sent]),
        "queueNs": packed(timeline.transfer_start_ns[sent] - timeline.ends_ns[sent]),
        "occupancyNs": packed(timeline.transfer_left_ns[sent] - timeline.transfer_start_ns[sent]),
        "latencyNs": packed(timeline.arrival_ns[sent] - timeline.transfer_left_ns[sent]),
        "bytes": packed(_message_bytes(problem, timeline, sent)),
        "behind": packed(step.behind[sent]),
        "memoryBegin": packed(np.cumsum([0, *map(len, curves)])),
        "memoryNs": packed([time_ns for curve in curves for time_ns, _ in curve]),
        "memoryBytes": packed([held for curve in curves for _, held in curve]),
        "collectives": [
            [span.collective.kind, span.collective.stage, span.rank, span.ready_ns, span.start_ns, span.end_ns]
            for span in timeline.collectives
        ],
        "collectiveResource": packed(tables_of(problem).collective_resource[[span.rank for span in timeline.collectives]]),
        "collectiveAfter": packed(step.collective_after),
        "collectiveBehind": packed(step.behind[len(timeline.ops) :]),
    }


def _message_bytes(problem: Problem, timeline: Timeline, sent: NDArray[np.int64]) -> list[int]:
    """Per transfer, its size: an activation's belongs to the stage that sends it, a gradient's to the stage that receives it."""
    sizes = []
    stages = problem.stages
    receivers: list[int] = timeline.ops[timeline.consumer[sent], 1].tolist()
    for (kind, stage, _, _), receiver in zip(timeline.ops[sent].tolist(), receivers, strict=True):
        sizes.append(stages[stage].message_bytes if kind == Kind.F else stages[receiver].gradient_message_bytes)
    return sizes
