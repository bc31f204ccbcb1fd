"""The trace file: JSON that Perfetto and chrome://tracing open as it is, with the exact numbers beside the picture.

    {"traceEvents": [what the viewers draw], "displayTimeUnit": "ms",
     "schedc": {"format": "schedc.trace", "version": 1, "plan": {"name": …, "sha256": …}, "ranks": […]}}

`trace_json` and `write_trace_file` take a Trace, `parse_trace` and `read_trace` give the equal one back, from `schedc` alone.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct, structs

from schedc.formats.plan.plan_structs import Count, FileEntry, FileHeader, OpTokens, Text, lines_of, parse_plan_op, read_tokens
from schedc.formats.trace_events import perfetto_json, trace_events
from schedc.io.input_file import MOST_BYTES, read_bytes, without_mark
from schedc.io.location import Location, show
from schedc.io.outputs import write_atomically
from schedc.io.tables import decode
from schedc.ir import Channel, Op, RankTrace, StepTrace, Trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


FORMAT: Final = "schedc.trace"
VERSION: Final = 1

Tokens = tuple[str, ...]


class _PlanEntry(FileEntry, frozen=True):
    name: Text
    sha256: str


class _ChannelEntry(FileEntry, frozen=True):
    name: Text
    peer: Count
    transfers: Tokens


class _StepEntry(FileEntry, frozen=True):
    step: Count
    step_begin_ns: Count
    step_end_ns: Count
    asked_ns: tuple[Count, ...]
    begun_ns: tuple[Count, ...]
    ended_ns: tuple[Count, ...]
    channels_ns: tuple[tuple[Count | None, ...], ...]


class _RankEntry(FileEntry, frozen=True):
    rank: Count
    clock_offset_ns: int
    clock_error_ns: Count
    compute: Tokens
    channels: tuple[_ChannelEntry, ...]
    steps: tuple[_StepEntry, ...]


class _TraceEntry(FileEntry, frozen=True):
    format: Literal["schedc.trace"]
    version: Literal[1]
    plan: _PlanEntry
    scale: Annotated[float, Meta(gt=0)]
    ranks: Annotated[tuple[_RankEntry, ...], Meta(min_length=1)]


class _HeaderFile(Struct):
    schedc: FileHeader | None = None


class TraceFile(Struct, frozen=True):
    """The part of the file that is read; viewers' keys are passed over."""

    schedc: _TraceEntry


def trace_json(trace: Trace) -> bytes:
    """The trace file's bytes; they end with a newline."""
    lines = partial(lines_of, OpTokens().__getitem__)
    ranks = [
        {
            "rank": rank.rank,
            "clock_offset_ns": rank.clock_offset_ns,
            "clock_error_ns": rank.clock_error_ns,
            "compute": lines(rank.compute),
            "channels": [
                {"name": channel.name, "peer": channel.peer, "transfers": lines(channel.transfers)} for channel in rank.channels
            ],
            "steps": rank.steps,
        }
        for rank in trace.ranks
    ]
    plan = {"name": trace.plan_name, "sha256": trace.plan_sha256}
    file = {"format": FORMAT, "version": VERSION, "plan": plan, "scale": trace.scale, "ranks": ranks}
    return perfetto_json(trace_events(trace), {"schedc": file})


def write_trace_file(trace: Trace, path: Path | str) -> None:
    """Write the trace file, whole or not at all.

    Raises:
        InvalidInput: the directory does not exist, or the file cannot be written.
    """
    write_atomically(path, trace_json(trace))


def read_trace(path: Path | str) -> Trace:
    """The trace in the file.

    Raises:
        InvalidInput: names the file, the place in it, what was found and what was expected.
    """
    return parse_trace(read_bytes(path, MOST_BYTES), str(path))


def trace_unless_profile(path: Path | str) -> Trace | None:
    """The trace in the file, which is read once; None: it is one of `torch.profiler`'s, which say so, plain or packed.

    Raises:
        InvalidInput: as `read_trace`.
    """
    content = read_bytes(path, MOST_BYTES)
    is_profile = content[:2] == b"\x1f\x8b" or b'"baseTimeNanoseconds"' in content
    return None if is_profile else parse_trace(content, str(path))


def parse_trace(content: bytes, name: str) -> Trace:
    """The trace that the bytes of a trace file hold; `name` is what messages call the file.

    Raises:
        InvalidInput: names the file, the place in it, what was found and what was expected.
    """
    file, content = Location(name), without_mark(content)
    header, location = decode(content, _HeaderFile, file).schedc, file / "schedc"
    if header is None:
        raise location.refuse("no such key", "a trace file of schedc, not a plan or another tool's trace")
    if header.format != FORMAT:
        raise (location / "format").refuse(show(header.format), show(FORMAT))
    if header.version != VERSION:
        raise (location / "version").refuse(show(header.version), f"{VERSION}; another version of schedc has written this trace")
    entry, parse = decode(content, TraceFile, file).schedc, cache(parse_plan_op)
    ranks = tuple(_rank_trace(rank, parse, location / "ranks" / number, number) for number, rank in enumerate(entry.ranks))
    trace = Trace(plan_name=entry.plan.name, plan_sha256=entry.plan.sha256, scale=entry.scale, ranks=ranks)
    for rank in ranks:
        steps = tuple(step.step for step in rank.steps)
        if steps != trace.steps or list(steps) != sorted(set(steps)):
            expected = f"the steps of rank 0, {list(trace.steps)}" if rank.rank else "ascending numbers"
            raise (location / "ranks" / rank.rank / "steps").refuse(str(list(steps)), expected)
    if not trace.steps:
        raise (location / "ranks" / 0 / "steps").refuse("none", "one recorded step or more")
    return trace


def _rank_trace(entry: _RankEntry, parse: Callable[[str], Op], location: Location, number: int) -> RankTrace:
    if entry.rank != number:
        raise (location / "rank").refuse(str(entry.rank), f"{number}, the ranks in order")
    compute = read_tokens(parse, entry.compute, location / "compute")
    channels = tuple(
        Channel(
            name=channel.name,
            peer=channel.peer,
            transfers=read_tokens(parse, channel.transfers, location / "channels" / at / "transfers"),
        )
        for at, channel in enumerate(entry.channels)
    )
    sizes = [len(channel.transfers) for channel in channels]
    steps = []
    for at, step in enumerate(entry.steps):
        place = location / "steps" / at
        for name in ("asked_ns", "begun_ns", "ended_ns"):
            if len(getattr(step, name)) != len(compute):
                raise (place / name).refuse(f"{len(getattr(step, name))} times", f"{len(compute)}, one for each op")
        if list(map(len, step.channels_ns)) != sizes:
            found = f"lists of {list(map(len, step.channels_ns))} times"
            raise (place / "channels_ns").refuse(found, f"{sizes}, one for each transfer")
        steps.append(StepTrace(**structs.asdict(step)))
    return RankTrace(**structs.asdict(entry) | {"compute": compute, "channels": channels, "steps": tuple(steps)})
