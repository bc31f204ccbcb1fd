"""Fuse backwards where nothing waits for the gradient, and split them where something does: a Schedule in, a better one out.

A fused backward that takes less time than its halves leaves its rank more time, but sends its gradient later. Exact times of the
schedule say how much later each op may end (its slack). Backwards whose slack is large enough are fused together, those on which
the next stage waits are split, and the simulator decides what is kept. Nothing is random and nothing depends on a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.simulate import simulate
from schedc.ir import Kind, Op, Problem, Schedule
from schedc.ir.index import Tables, tables_of
from schedc.solvers.common.method import fusing_saves_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from schedc.analysis.simulation.timeline import Timeline

TRIED_OPS = 10_000
"""About this many ops are simulated in all, in at least `LEAST_TRIALS` schedules and at most `MOST_TRIALS`."""
LEAST_TRIALS, MOST_TRIALS = 4, 12
FEWER = 3
"""Where a change of many backwards is no good, the most promising one in this many are tried."""
REACH = 20
"""At most this many ops come between the B and the W of a backward that is split."""
NEVER = 1 << 60


class MixedSchedule(NamedTuple):
    """A schedule and what its times say."""

    schedule: Schedule
    timeline: Timeline
    objective_ns: int
    after_ns: NDArray[np.int64]
    """Per op: how much later it may end so that nothing ends later in all, for what follows it on its rank."""
    sent_ns: NDArray[np.int64]
    """The same for what waits for its message."""


def fuse_backwards(problem: Problem, schedule: Schedule, *, tables: Tables | None = None) -> Schedule:
    """The schedule with some backwards fused or split; its objective is not worse, and it keeps the memory limits.

    Of schedules with the same objective the one with more fused backwards is kept: it leaves more time free. Where fusing cannot
    pay, the schedule itself comes back.

    Args:
        problem: any.
        schedule: valid for the problem.
        tables: the problem's lookups, where the caller has them already.
    """
    if not fusing_saves_time(problem):
        return schedule
    tables = tables or tables_of(problem)
    state = _state(problem, tables, schedule)
    trials = min(MOST_TRIALS, max(LEAST_TRIALS, TRIED_OPS // max(1, len(state.timeline.ops))))
    changed = True
    while changed:
        changed = False
        for fuse in (True, False):
            ops = (_to_fuse if fuse else _to_split)(tables, state)
            while len(ops) and trials:
                trials -= 1
                tried = (_fused if fuse else _split)(tables, state, ops)
                timeline = simulate(problem, tried, tables=tables)
                objective_ns = timeline.objective_ns(problem.objective)
                fits = fuse and not problem.edges  # values of a graph that wait come at other times
                if objective_ns < state.objective_ns + fuse and (fits or exceeded_limit(problem, tried) is None):
                    state, changed = _state(problem, tables, tried, timeline), True
                    break
                ops = ops[: len(ops) // FEWER]
    return state.schedule


def _longer_ns(tables: Tables, timeline: Timeline, ops: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of the backwards of these ops: how much longer BW takes than B, and how much less than both halves."""
    _, stage, microbatch, _ = timeline.ops[ops].T
    b_ns, w_ns, both_ns = (tables.duration_ns[kind, stage, microbatch] for kind in (Kind.B, Kind.W, Kind.BW))
    return both_ns - b_ns, b_ns + w_ns - both_ns


def _to_fuse(tables: Tables, state: MixedSchedule) -> NDArray[np.int64]:
    """The B that take less time fused with their W, and whose gradient may come later by what that takes; most slack first."""
    timeline = state.timeline
    kind, stage, microbatch, part = timeline.ops.T
    weights = np.flatnonzero(kind == Kind.W)[::-1]
    first = np.zeros(tables.duration_ns.shape[1:], np.int64)
    first[stage[weights], microbatch[weights]] = weights
    ops = np.flatnonzero((kind == Kind.B) & (part < 0))
    weight = first[stage[ops], microbatch[ops]]
    # Where W follows at once, whatever follows it starts no later than before.
    at_once = (weight == ops + 1) & (part[weight] < 0)
    slack_ns = np.where(at_once, state.sent_ns[ops], np.minimum(state.sent_ns[ops], state.after_ns[ops]))
    longer_ns, saved_ns = _longer_ns(tables, timeline, ops)
    pays = (saved_ns > 0) & (slack_ns >= longer_ns)
    return ops[pays][np.argsort(longer_ns[pays] - slack_ns[pays], kind="stable")]


def _to_split(tables: Tables, state: MixedSchedule) -> NDArray[np.int64]:
    """The BW on whose gradient more depends than on what follows them; those first where the difference is the largest."""
    timeline = state.timeline
    kind, _, _, part = timeline.ops.T
    ops = np.flatnonzero((kind == Kind.BW) & (part < 0))
    longer_ns, _ = _longer_ns(tables, timeline, ops)
    sent_ns, after_ns = state.sent_ns[ops], state.after_ns[ops]
    pays = sent_ns < np.minimum(longer_ns, after_ns)
    return ops[pays][np.argsort(sent_ns[pays] - after_ns[pays], kind="stable")]


def _fused(tables: Tables, state: MixedSchedule, ops: NDArray[np.int64]) -> Schedule:
    """The schedule with BW in the places of these B."""
    kind, stage, microbatch, _ = state.timeline.ops.T
    fuse = np.zeros(tables.duration_ns.shape[1:], np.bool_)
    fuse[stage[ops], microbatch[ops]] = True
    marked = (fuse[stage, microbatch] & (kind != Kind.F)).tolist()
    begin = state.timeline.begin.tolist()
    orders = tuple(
        tuple(
            op._replace(kind=Kind.BW) if mark else op
            for op, mark in zip(order, marked[at:], strict=False)
            if not (mark and op.kind is Kind.W)
        )
        for order, at in zip(state.schedule.orders, begin, strict=False)
    )
    cut = {(op.kind, op.stage) for order in orders for op in order if op.part >= 0} if state.schedule.parts else set()
    return Schedule(orders=orders, parts=tuple(parts for parts in state.schedule.parts if (parts.kind, parts.stage) in cut))


def _split(tables: Tables, state: MixedSchedule, ops: NDArray[np.int64]) -> Schedule:
    """The schedule with these BW split: W in the next gap of the rank that holds it, if one is near, else right behind B."""
    timeline = state.timeline
    starts_ns, ends_ns, begin = timeline.starts_ns, timeline.ends_ns, timeline.begin
    orders = [list[tuple[Op, ...]]((op,) for op in order) for order in state.schedule.orders]
    for op in sorted(ops.tolist()):
        rank = int(np.searchsorted(begin, op, "right")) - 1
        _, stage, microbatch, _ = timeline.ops[op].tolist()
        near = min(op + REACH, int(begin[rank + 1]) - 1)
        fits = np.flatnonzero(starts_ns[op + 1 : near + 1] - ends_ns[op:near] >= tables.duration_ns[Kind.W, stage, microbatch])
        behind = op + int(fits[0]) if len(fits) else op
        at = op - int(begin[rank])
        orders[rank][at] = (Op(Kind.B, stage, microbatch), *orders[rank][at][1:])
        orders[rank][behind - int(begin[rank])] += (Op(Kind.W, stage, microbatch),)
    made = tuple(tuple(op for group in order for op in group) for order in orders)
    return Schedule(orders=made, parts=state.schedule.parts)


def _state(problem: Problem, tables: Tables, schedule: Schedule, timeline: Timeline | None = None) -> MixedSchedule:
    """The schedule with its times, and what they leave."""
    timeline = timeline or simulate(problem, schedule, tables=tables)
    kind, stage, _, _ = timeline.ops.T
    parallel = problem.data_parallel
    occupancy_ns = (timeline.transfer_left_ns - timeline.transfer_start_ns).tolist()
    latency_ns = (timeline.arrival_ns - timeline.transfer_left_ns).tolist()
    first_transfer = np.searchsorted(timeline.sender, np.arange(len(kind) + 1)).tolist()
    first_need = np.searchsorted(timeline.taken, np.arange(len(timeline.sender) + 1)).tolist()
    starts_ns, ends_ns = timeline.starts_ns.tolist(), timeline.ends_ns.tolist()
    tail_ns = np.array(parallel.reduce_scatter_ns if parallel else [0] * len(problem.stages), np.int64)
    last_ns = (timeline.makespan_ns - np.where(kind == Kind.F, 0, tail_ns[stage])).tolist()
    following = np.arange(1, len(kind) + 1)
    following[timeline.begin[1:] - 1] = -1
    latest_start_ns, after_ns, sent_ns = [NEVER] * len(kind), [NEVER] * len(kind), [NEVER] * len(kind)
    link_ns = [NEVER] * len(tables.resources)
    resource, taker, next_of = timeline.resource.tolist(), timeline.taker.tolist(), following.tolist()
    for op in np.lexsort((timeline.starts_ns, timeline.ends_ns))[::-1].tolist():  # each behind what waits for it
        end_ns, latest_ns, then = ends_ns[op], last_ns[op], next_of[op]
        if then >= 0 and latest_start_ns[then] < latest_ns:
            latest_ns = latest_start_ns[then]
        after_ns[op] = latest_ns - end_ns
        for transfer in range(first_transfer[op + 1] - 1, first_transfer[op] - 1, -1):
            link = resource[transfer]
            latest_arrival_ns = min(latest_start_ns[each] for each in taker[first_need[transfer] : first_need[transfer + 1]])
            link_ns[link] = message_ns = min(latest_arrival_ns - latency_ns[transfer], link_ns[link]) - occupancy_ns[transfer]
            sent_ns[op] = min(sent_ns[op], message_ns - end_ns)
            if message_ns < latest_ns:
                latest_ns = message_ns
        latest_start_ns[op] = latest_ns - end_ns + starts_ns[op]
    slack_ns = np.array(after_ns, np.int64), np.array(sent_ns, np.int64)
    return MixedSchedule(schedule, timeline, timeline.objective_ns(problem.objective), *slack_ns)
