"""Steps of a plan in traces of `torch.profiler`, one of each rank, as one Trace; for `schedc compare`.

The runtime writes a span for each step and, in it, one for each op, named by its token, and marks of transfers (`schedc.step 4 1
…`, `F3.2`, `schedc.sent F3.2 1`). On a GPU an op is from the start of the first to the end of the last kernel that its span
launched. Times are those of the hosts' clocks, which the profiler writes down: between hosts they are as good as these agree.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from schedc.errors import InvalidInput
from schedc.formats.plan.plan_structs import parse_plan_op
from schedc.formats.torch_profiler import Event, begin_of, chrome_trace, device_work, kernels_of, thread_of
from schedc.ir import Channel, Op, Plan, RankTrace, StepTrace, Trace, token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_STEP = re.compile(r"schedc\.step (\d+) (\d+) ([0-9a-f]{64})")
_MARK = re.compile(r"schedc\.(sent|taken) (\S+) (\d+)")


class _Profile(NamedTuple):
    """What one rank's trace has."""

    path: Path
    rank: int
    plan_sha256: str
    steps: Mapping[int, tuple[int, int, list[tuple[Op, int, int]], dict[tuple[str, Op, int], int]]]
    """By number: begin and end, the ops with theirs, and when transfers were sent or taken with which peer; in ns of the host."""


def trace_of_profiles(plan: Plan, paths: Sequence[Path]) -> Trace:
    """The trace of all ranks.

    Raises:
        InvalidInput: a file is no profiler's trace of a run by the runtime, ranks are missing, or no step is whole on all of them.
    """
    profiles = sorted(map(_read, paths), key=lambda one: one.rank)
    ranks = [one.rank for one in profiles]
    if ranks != [*range(plan.problem.ranks)]:
        raise InvalidInput(
            f"{paths[0]}: found profiler traces of the ranks {ranks}, expected 0 to {plan.problem.ranks - 1}, each once"
        )
    other = next((one for one in profiles if one.plan_sha256 != profiles[0].plan_sha256), None)
    if other is not None:
        raise InvalidInput(f"{other.path}: is of another plan than {profiles[0].path}, expected one of the same run")
    whole = [
        {number for number, step in one.steps.items() if len(step[2]) == len(plan.ranks[one.rank].compute)} for one in profiles
    ]
    common = sorted(set.intersection(*whole))
    if not common:
        raise InvalidInput(f"{paths[0]}: found no step that is whole on all ranks, expected one; profile at least one whole step")
    origin_ns = min(one.steps[common[0]][0] for one in profiles)
    return Trace(
        plan_name=plan.name,
        plan_sha256=profiles[0].plan_sha256,
        ranks=tuple(_rank_trace(plan, one, common, origin_ns) for one in profiles),
    )


def _rank_trace(plan: Plan, profile: _Profile, numbers: Sequence[int], origin_ns: int) -> RankTrace:
    own, steps = plan.ranks[profile.rank], []
    for number in numbers:
        begin_ns, end_ns, ops, moved = profile.steps[number]
        if (found := [op for op, _, _ in ops]) != [*own.compute]:
            at = next(at for at, (one, other) in enumerate(zip(found, own.compute, strict=True)) if one != other)
            expected = f"expected {token(own.compute[at])}; it is not of this plan, or ranks chose inside the step"
            raise InvalidInput(f"{profile.path}: step {number} ran {token(found[at])} as op {at}, {expected}")
        ended = [end for _, _, end in ops]
        steps.append(
            StepTrace(
                step=number,
                step_begin_ns=begin_ns - origin_ns,
                step_end_ns=max(end_ns, *ended) - origin_ns,
                asked_ns=tuple(each - origin_ns for each in [begin_ns, *ended[:-1]]),
                begun_ns=tuple(begin - origin_ns for _, begin, _ in ops),
                ended_ns=tuple(end - origin_ns for end in ended),
                channels_ns=tuple(
                    tuple(
                        None
                        if (time := moved.get(("taken" if channel.receives else "sent", op, channel.peer))) is None
                        else max(0, time - origin_ns)
                        for op in channel.transfers
                    )
                    for channel in own.channels
                ),
            )
        )
    channels = tuple(Channel(name=one.name, peer=one.peer, transfers=one.transfers) for one in own.channels)
    return RankTrace(
        rank=profile.rank, clock_offset_ns=0, clock_error_ns=0, compute=own.compute, channels=channels, steps=tuple(steps)
    )


def _read(path: Path) -> _Profile:
    """One rank's steps."""
    events, base_ns = chrome_trace(path)
    complete = [event for event in events if event.get("ph") == "X" and "dur" in event]
    marks = [event for event in complete if event.get("cat") == "user_annotation"]
    spans = [(match, event) for event in marks if (match := _STEP.fullmatch(str(event.get("name"))))]
    if not spans:
        raise InvalidInput(
            f"{path}: found no steps of the runtime, expected a trace file, or what torch.profiler wrote around its steps"
        )

    def time(at_us: float) -> int:
        return base_ns + round(at_us * 1000)

    by_thread: defaultdict[tuple[object, object], list[Event]] = defaultdict(list)
    for event in marks:
        by_thread[thread_of(event)].append(event)
    for own in by_thread.values():
        own.sort(key=begin_of)
    found = []
    for match, span in sorted(spans, key=lambda each: begin_of(each[1])):
        own, (first, last) = by_thread[thread_of(span)], _bounds(span)
        inside = own[bisect_left(own, first, key=begin_of) : bisect_right(own, last, key=begin_of)]
        ops = [(op, event) for event in inside if (op := _op(str(event.get("name")))) is not None]
        moved = {
            (mark[1], op, int(mark[3])): time(begin_of(event))
            for event in inside
            if (mark := _MARK.fullmatch(str(event.get("name")))) and (op := _op(mark[2])) is not None
        }
        found.append((int(match[1]), first, last, ops, moved))
    hosts = [_bounds(event) for *_, ops, _ in found for _, event in ops]
    times, steps = zip(hosts, kernels_of(hosts, device_work(complete)), strict=True), {}
    for number, first, last, ops, moved in found:  # of a step that ran again, the last counts
        timed, until = [], first
        for (op, _), (host, device) in zip(ops, islice(times, len(ops)), strict=True):
            begin, end = (max(at, until) for at in device or host)
            until = end
            timed.append((op, time(begin), time(end)))
        steps[number] = time(first), time(max(last, until)), timed, moved
    return _Profile(path, int(spans[0][0][2]), spans[0][0][3], steps)


def _bounds(event: Event) -> tuple[float, float]:
    return begin_of(event), begin_of(event) + float(event["dur"])


def _op(name: str) -> Op | None:
    try:
        return parse_plan_op(name)
    except ValueError:
        return None
