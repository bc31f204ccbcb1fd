"""What the simulators run: a schedule as arrays of its ops, with what each costs, sends and waits for.

`flow_of` takes a Problem and a Schedule; the simulators say when things happen; `timeline_of` puts both together. Moments and
`Resources` are for simulators in plain Python; the compiled event loop has the same rules written out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from schedc.analysis.simulation.timeline import CollectiveSpan, Timeline
from schedc.ir import Collective, Kind, Problem, Schedule, token
from schedc.ir.index import Tables, ops_array, tables_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

Moment = tuple[int, int]
"""(nanosecond, delta), compared in that order: what takes no time still has an order (cost model, "Moments")."""
BEGIN: Moment = (0, 0)
NOT_RUN = -1
"""The start of an op that has not run."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """One schedule of one problem. The arrays are flat, rank after rank in the order of the schedule."""

    ops: NDArray[np.int64]
    """One row (kind, stage, microbatch, part) per op."""
    begin: NDArray[np.int64]
    """Per rank, its first op; one more entry at the end."""
    rank_of: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    receives: NDArray[np.int64]
    """Per op, how many transfers must arrive first, or collectives end that an op makes ready."""
    sender: NDArray[np.int64]
    """This and the next five are per transfer: the op that sends it, ascending."""
    to_stage: NDArray[np.int64]
    """The stage that is in its name, or -1 where stages are a chain."""
    receiver: NDArray[np.int64]
    """Its destination's rank."""
    resource: NDArray[np.int64]
    """Its link or trunk."""
    occupancy_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    taken: NDArray[np.int64]
    """Per need of an op for a transfer, the transfer; ascending. In a chain each transfer is needed once."""
    taker: NDArray[np.int64]
    """Per such need, the op."""
    takings: NDArray[np.int64]
    """Per op, the first need for what it sends; one more entry at the end."""
    gates: NDArray[np.int64]
    """Per op, the moment before which an all-gather holds it back: a row of nanoseconds and a row of deltas."""
    free: NDArray[np.int64]
    """Per resource, the moment at which the all-gathers have left it: the same two rows."""
    collective_after: NDArray[np.int64]
    """Per op, the index of the first collective that its end makes ready, or -1."""
    collective_next: NDArray[np.int64]
    """Per collective that an op makes ready, the next that the same op does, or -1; so are the next four."""
    collective_taker: NDArray[np.int64]
    """The op of its rank that waits for its end, or -1."""
    collective_resource: NDArray[np.int64]
    collective_ns: NDArray[np.int64]
    collectives: tuple[Collective, ...]
    all_gathers: tuple[CollectiveSpan, ...]
    """Those that are ready at the begin."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Times:
    """When what a flow has begins; a simulator fills it in."""

    starts_ns: NDArray[np.int64]
    """Per op, `NOT_RUN` at first."""
    transfer_start_ns: NDArray[np.int64]
    arrival_ns: NDArray[np.int64]
    collective_start_ns: NDArray[np.int64]

    @classmethod
    def none_of(cls, flow: Flow) -> Times:
        """Before anything has run."""
        transfers = len(flow.sender)
        return cls(
            starts_ns=np.full(len(flow.ops), NOT_RUN, np.int64),
            transfer_start_ns=np.zeros(transfers, np.int64),
            arrival_ns=np.zeros(transfers, np.int64),
            collective_start_ns=np.zeros(len(flow.collectives), np.int64),
        )


def flow_of(problem: Problem, schedule: Schedule, tables: Tables | None = None) -> Flow:
    """The schedule, which `verify_schedule` accepts, as arrays; `tables` are the problem's, where the caller has them already."""
    tables = tables or tables_of(problem)
    ops = ops_array(schedule.orders)
    begin = np.cumsum([0, *map(len, schedule.orders)], dtype=np.int64)
    kind, stage, microbatch, part = ops.T
    duration_ns, last_part = _durations(schedule, tables, ops)
    direction = np.array([0, 1, 0, 1, 0], np.int64)[kind]  # F sends forward, B and BW backward; W and U send nothing
    moves = (kind != Kind.W) & (kind != Kind.U)
    place = (direction * len(problem.paths) + tables.path_of[microbatch]) * len(problem.stages) + stage

    starting = np.flatnonzero((part <= 0) & moves)
    of_place = place[starting]
    first_op = np.full((2 * len(problem.paths) * len(problem.stages), problem.microbatches), -1, np.int64)
    first_op[of_place, microbatch[starting]] = starting
    receives = np.zeros(len(ops), np.int64)
    receives[starting] = tables.crossing_inputs[of_place]

    producer = np.flatnonzero(last_part & moves)
    of_place = place[producer]
    at = tables.crossing_begin[of_place]
    count = tables.crossing_begin[of_place + 1] - at
    if problem.is_chain:
        at, producer = at[count > 0], producer[count > 0]
    else:
        producer = np.repeat(producer, count)
        at = np.repeat(at - np.cumsum(count) + count, count) + np.arange(len(producer))
    taker = first_op[tables.crossing_into[at], microbatch[producer]]
    if (taker < 0).any():  # a schedule that lacks ops
        producer, at, taker = producer[taker >= 0], at[taker >= 0], taker[taker >= 0]
    sender, carrier, taken = producer, tables.crossing[at], np.arange(len(taker))
    if not problem.is_chain:
        carrier = tables.hop_carrier[carrier]
        begins = np.ones(len(taker), np.bool_)
        begins[1:] = (producer[1:] != producer[:-1]) | (carrier[1:] != carrier[:-1])
        sender, carrier, taken = producer[begins], carrier[begins], np.cumsum(begins) - 1
    to = tables.hop_to[carrier]
    of_slice = microbatch[sender] % len(problem.slices) if problem.slices else 0

    spans, gates, free = _all_gathers(problem, tables, schedule, ops, begin)
    collectives = _Collectives.of(problem, schedule, ops, begin)
    np.add.at(receives, [op for op in collectives.taker if op >= 0], 1)
    return Flow(
        ops=ops,
        begin=begin,
        rank_of=np.repeat(np.arange(problem.ranks), np.diff(begin)),
        duration_ns=duration_ns,
        receives=receives,
        sender=sender,
        to_stage=np.full(len(to), -1, np.int64) if problem.is_chain else to,
        receiver=tables.rank_of_stage[to],
        resource=tables.hop_resource[carrier],
        occupancy_ns=tables.hop_occupancy_ns[carrier, of_slice],
        latency_ns=tables.hop_latency_ns[carrier],
        taken=taken,
        taker=taker,
        takings=np.cumsum(np.bincount(producer + 1, minlength=len(ops) + 1)),
        gates=gates,
        free=free,
        collective_after=np.array(collectives.after, np.int64),
        collective_next=np.array(collectives.following, np.int64),
        collective_taker=np.array(collectives.taker, np.int64),
        collective_resource=tables.collective_resource[tables.rank_of_stage[[each.stage for each in collectives.found]]],
        collective_ns=np.array([collective_ns(problem, each) for each in collectives.found], np.int64),
        collectives=tuple(collectives.found),
        all_gathers=tuple(spans),
    )


def timeline_of(problem: Problem, flow: Flow, times: Times) -> Timeline:
    """What happened when, after a simulator has run all ops."""
    ends_ns = times.starts_ns + flow.duration_ns
    spans = list(flow.all_gathers)
    for op in np.flatnonzero(flow.collective_after >= 0).tolist():
        at, ready_ns = int(flow.collective_after[op]), int(ends_ns[op])
        while at >= 0:
            collective, start_ns = flow.collectives[at], int(times.collective_start_ns[at])
            end_ns = int(start_ns + flow.collective_ns[at])
            spans.append(CollectiveSpan(collective, problem.stages[collective.stage].rank, ready_ns, start_ns, end_ns))
            at = int(flow.collective_next[at])
    return Timeline(
        ops=flow.ops,
        begin=flow.begin,
        starts_ns=times.starts_ns,
        ends_ns=ends_ns,
        sender=flow.sender,
        to_stage=flow.to_stage,
        receiver=flow.receiver,
        resource=flow.resource,
        taken=flow.taken,
        taker=flow.taker,
        transfer_start_ns=times.transfer_start_ns,
        transfer_left_ns=times.transfer_start_ns + flow.occupancy_ns,
        arrival_ns=times.arrival_ns,
        collectives=tuple(spans),
    )


def waiting_text(schedule: Schedule, flow: Flow, times: Times) -> str:
    """What to say where not all ops have run: before which op each rank waits."""
    waiting = []
    for rank, order in enumerate(schedule.orders):
        stuck = np.flatnonzero(times.starts_ns[flow.begin[rank] : flow.begin[rank + 1]] == NOT_RUN)
        if len(stuck):
            waiting.append(f"rank {rank} before {token(order[stuck[0]])}")
    return f"the ranks wait for each other indefinitely: {', '.join(waiting)}; `schedc.verify` names the cycle"


def after(start: Moment, duration_ns: int) -> Moment:
    """The end of an op, an occupancy or a collective that starts then."""
    start_ns, delta = start
    return (start_ns + duration_ns, 0) if duration_ns > 0 else (start_ns, delta + 1)


def arrived(left: Moment, latency_ns: int) -> Moment:
    """The arrival of a transfer that leaves its link then."""
    return (left[0] + latency_ns, 0) if latency_ns > 0 else left


def gates_of(flow: Flow) -> list[Moment]:
    """Per op, the moment before which an all-gather holds it back."""
    return list(zip(*flow.gates.tolist(), strict=True))


class Resources:
    """Links, trunks and what collectives queue on: each serves one thing at a time, in the order in which they are served."""

    def __init__(self, flow: Flow) -> None:
        """All-gathers have been served."""
        self._free: list[Moment] = list(zip(*flow.free.tolist(), strict=True))
        self._scatters: list[tuple[int, int]] = list(
            zip(flow.collective_resource.tolist(), flow.collective_ns.tolist(), strict=True)
        )

    def serve(self, resource: int, ready: Moment, duration_ns: int) -> tuple[Moment, Moment]:
        """When something that is ready then begins and ends."""
        start = max(ready, self._free[resource])
        self._free[resource] = after(start, duration_ns)
        return start, self._free[resource]

    def reduce_scatter(self, collective: int, ready: Moment) -> int:
        """The nanosecond in which a reduce-scatter begins that is ready then."""
        resource, duration_ns = self._scatters[collective]
        return self.serve(resource, ready, duration_ns)[0][0]


def _durations(schedule: Schedule, tables: Tables, ops: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Per op, its duration and whether it ends its block."""
    kind, stage, microbatch, part = ops.T
    duration_ns = tables.duration_ns[kind, stage, microbatch]
    last_part = part < 0
    for parts in schedule.parts:
        cut = (kind == parts.kind) & (stage == parts.stage) & (part >= 0)
        edges = np.cumsum([0, *parts.shares])
        done, block_ns = part[cut], duration_ns[cut]
        duration_ns[cut] = block_ns * edges[done + 1] // edges[-1] - block_ns * edges[done] // edges[-1]
        last_part |= cut & (part == len(parts.shares) - 1)
    return duration_ns, last_part


def collective_ns(problem: Problem, collective: Collective) -> int:
    """How long it takes."""
    parallel = problem.data_parallel
    assert parallel is not None
    return (parallel.all_gather_ns if collective.kind == "AG" else parallel.reduce_scatter_ns)[collective.stage]


def _all_gathers(
    problem: Problem, tables: Tables, schedule: Schedule, ops: NDArray[np.int64], begin: NDArray[np.int64]
) -> tuple[list[CollectiveSpan], NDArray[np.int64], NDArray[np.int64]]:
    """The all-gathers that are ready at 0; per op, the earliest start that they leave; per resource, when they leave it.

    The last two hold moments: a row of nanoseconds and a row of deltas.
    """
    gates = np.zeros((2, len(ops)), np.int64)
    free = np.zeros((2, len(tables.resources)), np.int64)
    spans: list[CollectiveSpan] = []
    parallel = problem.data_parallel
    if parallel is None or not parallel.all_gather_ns:
        return spans, gates, free
    for rank in range(problem.ranks):
        if problem.is_sharded:
            gathers = [each for each in schedule.collectives[rank] if each.before == 0]
            users = np.arange(begin[rank], begin[rank + 1])
        else:
            users = np.flatnonzero(ops[begin[rank] : begin[rank + 1], 0] == Kind.F) + begin[rank]
            # in order of first use, so the first needed is gathered first
            gathers = [Collective("AG", stage) for stage in dict.fromkeys(ops[users, 1].tolist())]
        for gather in gathers:
            resource = tables.collective_resource[rank]
            start_ns, delta = free[:, resource].tolist()
            duration_ns = parallel.all_gather_ns[gather.stage]
            end_ns = start_ns + duration_ns
            free[:, resource] = end_ns, 0 if duration_ns else delta + 1
            gates[:, users[ops[users, 1] == gather.stage]] = free[:, [resource]]
            spans.append(CollectiveSpan(gather, rank, 0, start_ns, end_ns))
    return spans, gates, free


@dataclass(slots=True)
class _Collectives:
    """The collectives that the end of an op makes ready, as columns."""

    after: list[int]
    """Per op, the first that its end makes ready, or -1."""
    found: list[Collective] = field(default_factory=list)
    following: list[int] = field(default_factory=list)
    """The next that the same op makes ready, or -1."""
    taker: list[int] = field(default_factory=list)
    """The op that waits for it, or -1."""

    @classmethod
    def of(cls, problem: Problem, schedule: Schedule, ops: NDArray[np.int64], begin: NDArray[np.int64]) -> _Collectives:
        """Those of a schedule; where weights are not sharded, a reduce-scatter after the last W or BW of each stage."""
        made = cls([-1] * len(ops))
        if problem.is_sharded:
            for (first, end), collectives in zip(pairwise(begin.tolist()), schedule.collectives, strict=True):
                for each in reversed(collectives):
                    if each.kind == "RS":
                        taker = first + each.until if first + each.until < end else -1
                    else:
                        users = np.flatnonzero(ops[first + each.before : end, 1] == each.stage)
                        taker = first + each.before + int(users[0]) if len(users) else -1
                    if each.before:
                        made._add(first + each.before - 1, each, taker)
        elif problem.data_parallel is not None:
            weights = np.flatnonzero(ops[:, 0] >= Kind.W)
            for stage in np.unique(ops[weights, 1]).tolist():
                made._add(int(weights[ops[weights, 1] == stage][-1]), Collective("RS", stage), -1)
        return made

    def _add(self, op: int, collective: Collective, taker: int) -> None:
        """One that the op makes ready, before those of it that are there."""
        self.following.append(self.after[op])
        self.after[op] = len(self.found)
        self.found.append(collective)
        self.taker.append(taker)
