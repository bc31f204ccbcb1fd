"""The tables that the list scheduler's kernel reads and writes, a problem, a rule, and the state of a run; and an op as an integer.

Plain, a row is an object (`ROW`); compiled, an element of a structured array (`as_arrays`, and `read_back`).

A *lane* is one stage on one path. Its microbatches have consecutive *positions*, in microbatch order; the lanes of a rank are
consecutive, too, path after path, in path order. Forwards take positions in that order, and so do backwards, but that the slices of
a microbatch go backwards: `backward_at` is the position of the next one.

The *code* of an op is ((microbatch × stages + stage) × `KINDS` + kind) × width + part + 1 in all kernels; width is 1 more than the
most parts of a block, and 1 where none is cut.
"""

from __future__ import annotations

from dataclasses import make_dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from schedc.ir import BLOCKS, Op

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

NEVER = 1 << 61
"""Later than anything happens."""
F, B, W, BW = map(int, BLOCKS)
KINDS = len(BLOCKS)
COLUMNS = {
    "lanes": (
        # The problem: place, neighbours on the path (lanes, or -1), positions (from `first`, before `last`) ...
        *("stage", "path", "rank", "previous", "following", "first", "last"),
        # ... what its stage's all-gather and reduce-scatter take (-1: there is none), when the former ends if it is the first ...
        *("gather_ns", "scatter_ns", "first_gate_ns"),
        # ... what a microbatch holds from the start of F, what is left between B and W, and what a backward takes besides when it
        # starts, less the most that one of the rank's lanes takes so (where the limit has no room for that beside all inputs, the
        # first lane of a path on the rank has all that a microbatch ever holds there, and the others nothing) ...
        *("held_bytes", "kept_bytes", "again_bytes"),
        # ... and what F sends on and B sends back: over which link or trunk (-1: it stays on the rank), and how long it takes.
        *("message_on", "message_occupancy_ns", "message_latency_ns"),
        *("gradient_on", "gradient_occupancy_ns", "gradient_latency_ns"),
        # The rule: see `Rule`; the smallest priority goes first.
        *("cap", "lag", "hold", "parts", "priority_f", "priority_b", "priority_w"),
        # What changes: the positions of the next F, B and W to start, and of the first F and B of which no start is known;
        # how many W wait for their turn; how many parts of the next one are done; when the all-gather ends, as far as is known, and
        # whether it is known.
        *("next_f", "next_b", "next_w", "known_f", "known_b", "waiting", "done_parts", "gate_ns", "gathered"),
    ),
    "ranks": (
        # Its lanes (from, before), its limit less the most that a backward takes besides, the resource of its collectives, where
        # its ops begin in `order`, and its first row of `reserves`, which has one for each path; -1: none.
        *("first_lane", "end_lane", "limit_bytes", "collectives", "order_from", "reserves"),
        # What changes: the last end, the first start or -1, what is held, whether the last F or B was a B, where its next op is
        # written; and what it runs (`running` 1) or will run: kind (-1: nothing), lane and start.
        # Of graphs and slices: whether something became known to it that it has not weighed.
        *("free_ns", "begun_ns", "used_bytes", "after_b", "order_at", "kind", "lane", "start_ns", "running", "told"),
    ),
    "blocks": (
        # By position: costs, how much later than its receiver could take it the gradient of a fused backward may come (see
        # `list_kernel.decide`), whether the backward is BW, and what changes: when the inputs of F and of B are there.
        *("microbatch", "forward_ns", "backward_input_ns", "weight_ns", "backward_ns"),
        *("patience_ns", "fused", "f_at_ns", "b_at_ns"),
    ),
    # The next three are of graphs and of slices; elsewhere they have one row, which nothing reads.
    "joints": (
        # By lane: the hops that its F sends and those that its backward does (from, before); how many values its F needs, and how
        # many gradients its backward.
        *("first_hop", "end_hop", "first_back", "end_back", "needs_f", "needs_b"),
    ),
    "units": (
        # By position: what it holds and keeps, as of a lane; what changes: how many of the values and gradients that it needs are
        # not yet known.
        *("held_bytes", "kept_bytes", "f_left", "b_left"),
    ),
    "hops": (
        # The lane that needs it; over which link or trunk it goes (-1: it stays on the rank); the hop whose transfer brings it; the
        # latency; what changes: when the last one of it arrives.
        *("to", "on", "carrier", "latency_ns", "arrival_ns"),
    ),
    "reserves": (
        # What a microbatch of the path holds on the rank in all; the path's last lane on the rank, or -1; what changes: the lowest
        # microbatch with an F on the rank not yet started; what the microbatches above it, of all paths, hold on the rank.
        *("need_bytes", "last_lane", "oldest", "above_bytes"),
    ),
    "links": ("gathered_ns", "free_ns"),  # a link, a trunk, or a rank's collectives: when it is free at the start, and now
    "settings": (
        # One row: the rule's; whether patience decides which backwards are fused; the objective; sizes; the slices of a microbatch
        # (0: a chain of whole microbatches), and the most that may be in flight in a lane of a graph, whatever the rule says;
        # what changes: when the last reduce-scatter ends.
        *(
            "look_ahead_ns",
            "alternate",
            "priority_step",
            "foresight",
            "width",
            "mixes",
            "span",
            "stages",
            "paths",
            "microbatches",
            "slices",
            "most",
            "scattered_ns",
        ),
    ),
}
"""The columns of each table; all are integers, times in nanoseconds and sizes in bytes."""


class SchedulerState(NamedTuple):
    """All that the kernel reads and writes: tables with the columns of `COLUMNS`, and plain ones."""

    lanes: Any
    ranks: Any
    blocks: Any
    reserves: Any
    held: Any
    """[rank, microbatch], bytes; kept where the rank has reserves."""
    links: Any
    left: Any
    """[stage]: lanes with a backward left."""
    order: Any
    """What each rank has run, by code, from `order_from` to `order_at`."""
    settings: Any
    when: Any
    """[rank]: when something happens there: twice the nanosecond, plus 1 unless an op ends."""
    joints: Any
    units: Any
    hops: Any
    occupancy_ns: Any
    """[hop × slices + slice]."""


def ops_of(codes: Iterable[int], stages: int, width: int = 1) -> tuple[Op, ...]:
    """The ops of these codes."""
    ops, ends = [], [(kind, part - 1) for kind in BLOCKS for part in range(width)]
    count = len(ends)
    for code in codes:
        block, end = divmod(code, count)
        microbatch, stage = divmod(block, stages)
        kind, part = ends[end]
        ops.append(Op(kind, stage, microbatch, part))
    return tuple(ops)


ROW = {
    table: make_dataclass(
        f"Row of {table}".title().replace(" ", ""), [(column, int, 0) for column in columns], slots=True, repr=False
    )
    for table, columns in COLUMNS.items()
}
"""What a row of each table is when the kernel runs plain."""


def as_arrays(scheduler: SchedulerState) -> SchedulerState:
    """The same for the compiled kernel."""
    return SchedulerState(**{name: _array(name, rows) for name, rows in scheduler._asdict().items()})


def refresh(arrays: SchedulerState, scheduler: SchedulerState) -> SchedulerState:
    """Write what a rule changes of the scheduler into its arrays, and return them."""
    for name in ("lanes", "settings"):
        getattr(arrays, name)[:] = _array(name, getattr(scheduler, name))
    arrays.blocks["fused"] = [block.fused for block in scheduler.blocks]
    return arrays


def _rows_of(name: str, array: NDArray[Any]) -> list[Any]:
    """The rows of a table that is an array."""
    return [ROW[name](*row) for row in array.tolist()]


def _array(name: str, rows: list[Any]) -> NDArray[Any]:
    import numpy as np  # here and below: a plain run does without it

    if name not in COLUMNS:
        return np.array(rows, np.int64)
    values = list(map(attrgetter(*COLUMNS[name]), rows))
    return np.array(values, np.int64).view(_type_of(name)).reshape(len(rows))


def read_back(scheduler: SchedulerState, arrays: SchedulerState) -> SchedulerState:
    """The scheduler with what a run on its arrays has written for others."""
    ranks, settings = (_rows_of(name, getattr(arrays, name)) for name in ("ranks", "settings"))
    return scheduler._replace(ranks=ranks, settings=settings, order=arrays.order.tolist())


def example_scheduler() -> SchedulerState:
    """A scheduler of nothing, of the types that kernels are compiled for."""
    import numpy as np

    return SchedulerState(*(np.zeros((2, 2) if name == "held" else 2, _type_of(name)) for name in SchedulerState._fields))


def _type_of(table: str) -> np.dtype[Any]:
    """The type of the elements of a compiled kernel's table."""
    import numpy as np

    return np.dtype([(column, np.int64) for column in COLUMNS[table]] if table in COLUMNS else np.int64)
