"""What the canvas of the page draws, as plain data for JSON: ops, transfers, collectives and memory of a step, planned or measured.

Columns are packed as short text, so that a hundred thousand ops are a few hundred kilobytes; `page/decode.js` and `page/model.js`
read them. A column is base64 of a tag, the number of values and varints: little-endian groups of seven bits, signs in the lowest
bit (zigzag). The tag says what the varints are, whichever is shortest: the values, their differences, or places in a palette that
is before them. Ops are numbered flat, rank after rank in the plan's order, and
transfers by their place in the columns. Times are nanoseconds from the begin of the waits.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from schedc.analysis.attribution.waits import Awaited
from schedc.analysis.simulation.memory import memory_curve
from schedc.ir import Plan
from schedc.ir.index import tables_of
from schedc.view.terminal.gantt import chunk_of_stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from schedc.analysis.attribution.waits import Waits
    from schedc.analysis.simulation.timeline import Timeline


def chart_data(plan: Plan) -> dict[str, Any]:
    """What is the same for the planned and the measured step: names, stages, resources, limits."""
    problem = plan.problem
    return {
        "name": plan.name,
        "ranks": problem.ranks,
        "microbatches": problem.microbatches,
        "slices": len(problem.slices),
        "stages": [
            {"rank": stage.rank, "chunk": chunk, "layers": None if stage.layers is None else [stage.layers[0], stage.layers[1] - 1]}
            for stage, chunk in zip(problem.stages, chunk_of_stage(problem), strict=True)
        ],
        "resources": [resource.label for resource in tables_of(problem).resources],
        "memoryLimits": list(problem.memory_limit_bytes),
        "zeroStage": None if problem.data_parallel is None else problem.data_parallel.zero_stage,
    }


def step_data(plan: Plan, name: str, timeline: Timeline, waits: Waits) -> dict[str, Any]:
    """One step of the plan as the page reads it: when everything happens, and what it waited for; it is `planned` or `measured`."""
    problem = plan.problem
    kind, stage, microbatch, part = timeline.ops.T
    sent, producer = timeline.sent, timeline.sender[timeline.sent]
    place = np.full(len(timeline.sender) + len(timeline.collectives), -1, np.int64)
    place[[*sent.tolist(), *range(len(timeline.sender), len(place))]] = np.arange(len(sent) + len(timeline.collectives))
    behind = np.where(waits.behind >= 0, place[waits.behind], -1) if len(place) else waits.behind
    curves = [memory_curve(problem, plan.schedule(), timeline, rank) for rank in range(problem.ranks)]
    return {
        "name": name,
        "endNs": timeline.makespan_ns,
        "begin": packed(timeline.begin),
        "kind": packed(kind),
        "stage": packed(stage),
        "microbatch": packed(microbatch),
        "part": packed(part),
        "idleBeforeNs": packed(waits.idle_ns),
        "durationNs": packed(timeline.ends_ns - timeline.starts_ns),
        "cause": packed(waits.cause),
        "awaited": packed(np.where(waits.cause == Awaited.ALL_GATHER, waits.awaited, -1)),
        "producer": packed(producer),
        "consumer": packed(timeline.first_taker[sent]),
        "toStage": packed(timeline.to_stage[sent]),
        "taken": packed(place[timeline.taken]),
        "taker": packed(timeline.taker),
        "resource": packed(timeline.resource[sent]),
        "queueNs": packed(timeline.transfer_start_ns[sent] - timeline.ends_ns[producer]),
        "occupancyNs": packed(timeline.transfer_left_ns[sent] - timeline.transfer_start_ns[sent]),
        "latencyNs": packed(timeline.arrival_ns[sent] - timeline.transfer_left_ns[sent]),
        "bytes": packed([problem.message_bytes(timeline.transfer_names[transfer]) for transfer in sent.tolist()]),
        "behind": packed(behind[sent]),
        "memoryBegin": packed(np.cumsum([0, *map(len, curves)])),
        "memoryNs": packed([time_ns for curve in curves for time_ns, _ in curve]),
        "memoryBytes": packed([held for curve in curves for _, held in curve]),
        "collectives": [
            [span.collective.kind, span.collective.stage, span.rank, span.ready_ns, span.start_ns, span.end_ns]
            for span in timeline.collectives
        ],
        "collectiveResource": packed(tables_of(problem).collective_resource[[span.rank for span in timeline.collectives]]),
        "collectiveAfter": packed(waits.collective_after),
        "collectiveBehind": packed(behind[len(timeline.sender) :]),
    }


PLAIN, DIFFERENCES, PALETTE = 0, 1, 2
MOST_COLOURS = 4096
"""How many different values a palette may have."""


def packed(values: NDArray[np.int64] | Sequence[int]) -> str:
    """The column as text; the same values give the same text."""
    column = np.asarray(values, np.int64)
    ways = [(PLAIN, _varints(column)), (DIFFERENCES, _varints(np.diff(column, prepend=0)))]
    colours, places = np.unique(column, return_inverse=True)
    if len(colours) <= MOST_COLOURS:
        size = _varints(np.array([len(colours)]))
        many = len(colours) > 1  # one value needs no places
        ways.append((PALETTE, size + _varints(np.diff(colours, prepend=0)) + _varints(places[: len(places) * many])))
    tag, content = min(ways, key=lambda way: len(way[1]))
    return base64.b64encode(bytes([tag]) + _varints(np.array([len(column)])) + content).decode()


def _varints(values: NDArray[np.int64]) -> bytes:
    """The integers one after another, in one to ten bytes each."""
    unsigned = ((values << 1) ^ (values >> 63)).astype(np.uint64)
    sizes = np.ones(len(values), np.int64)
    for group in range(1, 10):
        sizes += unsigned >= np.uint64(1 << 7 * group)
    first = np.cumsum(sizes) - sizes
    out = np.zeros(int(sizes.sum()), np.uint8)
    for group in range(int(sizes.max(initial=0))):
        has = sizes > group
        more = np.where(sizes[has] > group + 1, 0x80, 0)
        out[first[has] + group] = ((unsigned[has] >> np.uint64(7 * group)) & np.uint64(0x7F)) | more.astype(np.uint64)
    return out.tobytes()
