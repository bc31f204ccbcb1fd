"""Traces as Trace Events, the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

A Trace gives one process for each rank with lanes for its compute queue, its waiting and each of its channels, and an arrow for
each transfer from where it was sent to where it was taken. Times in the file are microseconds, the nanoseconds behind the point.
On one lane the viewers need slices that do not overlap, but transfers of one channel may be under way together: on the sender's
lane a slice ends when the next transfer is sent, on the receiver's it begins when the one before was taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from schedc.ir import Kind, Op, RankTrace, Trace, token

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


Event = dict[str, Any]


class TransferEvents(NamedTuple):
    """One transfer of a step."""

    op: Op
    sent_ns: int
    taken_ns: int
    arrow: int
    """What ties the two ends of its arrow together."""


COMPUTE, WAITING, FIRST_CHANNEL = 1, 2, 3
"""Lanes (thread ids) of a rank."""
COLOURS = {
    Kind.F: "thread_state_running",
    Kind.B: "thread_state_runnable",
    Kind.W: "thread_state_iowait",
    Kind.BW: "rail_response",
    Kind.U: "rail_idle",
}
"""Names of the viewers' own palette."""


def trace_events(trace: Trace, *, label: str = "", first_pid: int = 1, pids: int = 1, slices: int = 0) -> list[Event]:
    """The events of a trace.

    Args:
        trace: what to draw.
        label: follows the rank in the name of its process.
        first_pid: the process id of rank 0; viewers treat 0 specially.
        pids: how far the ids of neighbouring ranks are apart, so that several traces can be drawn rank by rank.
        slices: how many a microbatch has, where microbatches are in slices.
    """
    sent, taken = _times(trace, receives=False), _times(trace, receives=True)
    arrow = {key: first_pid + number * pids for number, key in enumerate(sent)}  # Perfetto takes numbers, or texts in base 16
    events: list[Event] = []
    for rank in trace.ranks:
        pid = first_pid + rank.rank * pids
        events += process_name(pid, f"rank {rank.rank}{label}")
        events += lane_name(pid, COMPUTE, "compute")
        events += lane_name(pid, WAITING, "waiting")
        events += _compute_events(rank, pid, slices)
        for at, channel in enumerate(rank.channels):
            lane = FIRST_CHANNEL + at
            events += lane_name(pid, lane, f"{channel.name} ({'from' if channel.receives else 'to'} rank {channel.peer})")
            draw = _received if channel.receives else _sent
            for step in rank.steps:
                moves = [
                    TransferEvents(op, sent[step.step, op], taken[step.step, op], arrow[step.step, op])
                    for op in channel.transfers
                    if (step.step, op) in sent and (step.step, op) in taken
                ]
                events += draw(moves, pid, lane, slices)
    return events


def process_name(pid: int, name: str) -> Iterator[Event]:
    """What the viewers call a process and where they put it."""
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}}


def counter_events(pid: int, name: str, unit: str, curve: Iterable[tuple[int, int]]) -> Iterator[Event]:
    """A curve over time, from (time_ns, value from then on)."""
    for time_ns, value in curve:
        yield {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": time_ns / 1000, "args": {unit: value}}


def perfetto_json(events: Sequence[Event], others: Mapping[str, Any]) -> bytes:
    """The file's bytes: the events, one on a line, then other keys, which viewers pass over; they end with a newline."""
    encode = msgspec.json.Encoder().encode
    lines = b",\n".join(map(encode, events))
    rest = b"".join(b',\n"%b":%b' % (key.encode(), encode(value)) for key, value in others.items())
    return b'{"traceEvents":[\n%b\n],\n"displayTimeUnit":"ms"%b}\n' % (lines, rest)


def _times(trace: Trace, *, receives: bool) -> dict[tuple[int, Op], int]:
    """When each transfer of each step was sent, or taken."""
    return {
        (step.step, op): time_ns
        for rank in trace.ranks
        for step in rank.steps
        for channel, times_ns in zip(rank.channels, step.channels_ns, strict=True)
        if channel.receives == receives
        for op, time_ns in zip(channel.transfers, times_ns, strict=True)
        if time_ns is not None
    }


def lane_name(pid: int, tid: int, name: str) -> Iterator[Event]:
    """What the viewers call a lane and where they put it."""
    yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def slice_event(pid: int, tid: int, name: str, begin_ns: int, end_ns: int, category: str, **more: object) -> Event:
    """Something that lasts."""
    duration_us = (end_ns - begin_ns) / 1000
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "cat": category, "ts": begin_ns / 1000, "dur": duration_us, **more}


def _compute_events(rank: RankTrace, pid: int, slices: int) -> Iterator[Event]:
    for step in rank.steps:
        for op, asked_ns, begun_ns, ended_ns in zip(rank.compute, step.asked_ns, step.begun_ns, step.ended_ns, strict=True):
            arguments = {
                "step": step.step,
                "stage": op.stage,
                "microbatch": op.microbatch // (slices or 1),
                **({"slice": op.microbatch % slices} if slices else {}),
                "waited_us": (begun_ns - asked_ns) / 1000,
            }
            colour = COLOURS[op.kind]
            yield slice_event(pid, COMPUTE, token(op, slices), begun_ns, ended_ns, op.kind.name, args=arguments, cname=colour)
            if begun_ns > asked_ns:
                yield slice_event(pid, WAITING, f"before {token(op, slices)}", asked_ns, begun_ns, "waiting")


def _sent(moves: Sequence[TransferEvents], pid: int, tid: int, slices: int) -> Iterator[Event]:
    """Slices from each send to the take or the next send, and the tails of the arrows."""
    free_ns = 0
    nexts_ns = [move.sent_ns for move in moves[1:]]
    for move, next_ns in zip(moves, [*nexts_ns, None], strict=True):
        begin_ns = max(move.sent_ns, free_ns)
        free_ns = max(begin_ns + 1, move.taken_ns if next_ns is None else min(move.taken_ns, next_ns))
        yield slice_event(pid, tid, token(move.op, slices), begin_ns, free_ns, "transfer")
        yield _arrow(pid, tid, "s", begin_ns, move)


def _received(moves: Sequence[TransferEvents], pid: int, tid: int, slices: int) -> Iterator[Event]:
    """Slices from each send, or the take before, to the take, and the heads of the arrows."""
    free_ns = 0
    for move in sorted(moves, key=lambda move: move.taken_ns):  # which need not be the order of the channel
        begin_ns = max(move.sent_ns, free_ns)
        free_ns = max(begin_ns + 1, move.taken_ns)
        yield slice_event(pid, tid, token(move.op, slices), begin_ns, free_ns, "transfer")
        yield _arrow(pid, tid, "f", free_ns - 1, move, bp="e")


def _arrow(pid: int, tid: int, end: str, time_ns: int, move: TransferEvents, **more: str) -> Event:
    common = {"pid": pid, "tid": tid, "name": "transfer", "cat": "transfer", "id": move.arrow, "ts": time_ns / 1000}
    return {"ph": end, **common, **more}
