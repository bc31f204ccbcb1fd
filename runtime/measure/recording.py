"""Recording steps: a Recorder listens to a pipe on each rank, and all ranks together write what they heard as one trace file.

    recorder = Recorder(steps=10, skip=3)
    with schedc.runtime.load(plan, stages=stages, observe=recorder) as pipe:
        ...  # train
        write_trace(recorder, plan, group, "trace.json")  # all ranks, between two steps

`Recorder.record` gives what one rank heard as plain data, and `trace_of` makes the Trace of all ranks' data, however they came
together; `write_trace` brings them together over a process group.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from schedc.errors import InvalidInput, SchedcError
from schedc.formats.plan.plan_file import plan_sha256
from schedc.formats.trace_file import write_trace_file
from schedc.ir import Op, Plan, RankTrace, StepTrace, Trace, token
from schedc.runtime.common.failure import TransferFailed
from schedc.runtime.common.groups import share
from schedc.runtime.common.hooks import Observer, OpTimes, observers_in
from schedc.runtime.measure.clocks import ClockOffset, clock_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import torch.distributed as dist


T = TypeVar("T")
NOT_ENDED = -1
"""The end of a step that still runs, or has failed."""


class TransferTime(NamedTuple):
    """When one end of a transfer was passed."""

    transfer: Op
    peer: int
    now_ns: int


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """What one rank heard of one step, on its own clock; it grows while the step runs."""

    step: int
    begin_ns: int
    end_ns: int = NOT_ENDED
    ops: list[OpTimes] = field(default_factory=list)
    sent: list[TransferTime] = field(default_factory=list)
    taken: list[TransferTime] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """What one rank heard; it can be pickled."""

    rank: int
    steps: tuple[StepRecord, ...]


class Recorder(Observer):
    """Keeps the times of a few steps of one rank; everything else is let go at once, so its memory is bounded.

    A step that did not end, because something in it failed, is not kept.
    """

    def __init__(self, steps: int = 10, *, skip: int = 2, keep: Literal["first", "last"] = "last") -> None:
        """Listen to a pipe.

        Args:
            steps: how many steps are kept.
            skip: this many steps at the beginning are not kept: the first has shapes to exchange and caches to fill.
            keep: of the steps after them, the first ones or the last ones.

        Raises:
            ValueError: no step would be kept.
        """
        if steps < 1 or skip < 0:
            raise ValueError(f"steps must be at least 1 and skip at least 0, got {steps} and {skip}")
        self._most = steps
        self._skip = skip
        self._first = keep == "first"
        self._begun = 0
        self._kept: deque[StepRecord] = deque(maxlen=steps)
        self._now: StepRecord | None = None

    def begin_step(self, step: int, now_ns: int) -> None:
        """Begin to listen, unless the step is skipped or enough are kept."""
        self._close()
        self._begun += 1
        if self._begun > self._skip and not (self._first and len(self._kept) == self._most):
            self._now = StepRecord(step=step, begin_ns=now_ns)

    def op(self, times: OpTimes) -> None:
        """Take note of an op."""
        if self._now is not None:
            self._now.ops.append(times)

    def sent(self, transfer: Op, peer: int, now_ns: int) -> None:
        """Take note of a send."""
        if self._now is not None:
            self._now.sent.append(TransferTime(transfer, peer, now_ns))

    def taken(self, transfer: Op, peer: int, now_ns: int) -> None:
        """Take note of a take."""
        if self._now is not None:
            self._now.taken.append(TransferTime(transfer, peer, now_ns))

    def end_step(self, step: int, now_ns: int) -> None:
        """Take note of the end; ops may still be reported after it."""
        if self._now is not None:
            self._now.end_ns = now_ns

    def record(self, rank: int) -> RankRecord:
        """What this process, which is this rank of the plan, has heard, between two steps."""
        self._close()
        return RankRecord(rank=rank, steps=tuple(self._kept))

    def swapped(self, plan: Plan) -> None:
        """Begin again: what has been recorded is of another plan."""
        self.clear()

    def clear(self) -> None:
        """Forget everything and skip again, as after a change of plan."""
        self._kept.clear()
        self._now = None
        self._begun = 0

    def _close(self) -> None:
        """Keep the step that has ended; let go of one that has not."""
        if self._now is not None and self._now.end_ns != NOT_ENDED:
            self._kept.append(self._now)
        self._now = None


def trace_of(
    plan: Plan, records: Sequence[RankRecord], offsets: Sequence[ClockOffset] | None = None, *, scale: float = 1.0
) -> Trace:
    """The trace of what all ranks heard.

    Args:
        plan: what they ran.
        records: by rank.
        offsets: by rank, from its clock to rank 0's; None: one clock for all, as on one host.
        scale: how much slower than the plan's costs the run was made to be; all times are divided by it.

    Raises:
        InvalidInput: a rank is missing or heard other steps than rank 0, or a step is not the plan's.
    """
    if [record.rank for record in records] != [entry.rank for entry in plan.ranks]:
        found = ", ".join(str(record.rank) for record in records)
        raise InvalidInput(f"the recording is of the ranks {found}, expected the plan's, 0 to {len(plan.ranks) - 1}")
    numbers = [[step.step for step in record.steps] for record in records]
    for rank, steps in enumerate(numbers):
        if not steps:
            raise InvalidInput(f"rank {rank} has recorded no step; run more steps than the recorder skips before writing the trace")
        if steps != numbers[0]:
            raise InvalidInput(
                f"rank {rank} has recorded the steps {steps}, rank 0 {numbers[0]}; give all ranks the same recorder, and write"
                " between two steps"
            )
    clocks = offsets or [ClockOffset(0, 0)] * len(records)
    origin_ns = min(record.steps[0].begin_ns + clock.offset_ns for record, clock in zip(records, clocks, strict=True))
    return Trace(
        plan_name=plan.name,
        plan_sha256=plan_sha256(plan),
        scale=scale,
        ranks=tuple(_rank_trace(plan, record, clock, origin_ns, scale) for record, clock in zip(records, clocks, strict=True)),
    )


def _rank_trace(plan: Plan, record: RankRecord, clock: ClockOffset, origin_ns: int, scale: float) -> RankTrace:
    entry = plan.ranks[record.rank]
    channels = tuple(replace(channel, post_before=()) for channel in entry.channels)

    def on_trace(time_ns: int) -> int:
        return max(0, round((time_ns + clock.offset_ns - origin_ns) / scale))  # below 0 only by what the clocks' offset is wrong

    steps = []
    for step in record.steps:
        where = f"step {step.step} of rank {record.rank}"
        _check_ops(entry.compute, [times.op for times in step.ops], where)
        sent, taken = _by_name(step.sent, where, "sent"), _by_name(step.taken, where, "taken")
        channels_ns = tuple(
            tuple(
                None
                if (time_ns := (taken if channel.receives else sent).pop((op, channel.peer), None)) is None
                else on_trace(time_ns)
                for op in channel.transfers
            )
            for channel in channels
        )
        for transfer, peer in (*sent, *taken):
            raise InvalidInput(f"{where} moved {token(transfer)} with rank {peer}, which the plan does not; it is not of this plan")
        steps.append(
            StepTrace(
                step=step.step,
                step_begin_ns=on_trace(step.begin_ns),
                step_end_ns=on_trace(step.end_ns),
                asked_ns=tuple(on_trace(times.asked_ns) for times in step.ops),
                begun_ns=tuple(on_trace(times.begun_ns) for times in step.ops),
                ended_ns=tuple(on_trace(times.ended_ns) for times in step.ops),
                channels_ns=channels_ns,
            )
        )
    return RankTrace(
        rank=record.rank,
        clock_offset_ns=clock.offset_ns,
        clock_error_ns=clock.error_ns,
        compute=entry.compute,
        channels=channels,
        steps=tuple(steps),
    )


def _check_ops(expected: Sequence[Op], found: Sequence[Op], where: str) -> None:
    if list(found) == list(expected):
        return
    at = next((at for at, (one, other) in enumerate(zip(found, expected, strict=False)) if one != other), len(found))
    ran = f"ran {token(found[at])} as op {at}" if at < len(found) else f"ended after {len(found)} ops"
    planned = f"expected {token(expected[at])}" if at < len(expected) else f"expected {len(expected)} ops"
    raise InvalidInput(f"{where} {ran}, {planned}; it is not of this plan (clear the recorder when the plan changes)")


def _by_name(times: Iterable[TransferTime], where: str, what: str) -> dict[tuple[Op, int], int]:
    found: dict[tuple[Op, int], int] = {}
    for transfer, peer, now_ns in times:
        if (transfer, peer) in found:
            raise InvalidInput(f"{where} says twice when {token(transfer)} was {what}, with rank {peer}")
        found[transfer, peer] = now_ns
    return found


def recorder_of(observer: Observer | None) -> Recorder:
    """The observer of a pipe, which must be a recorder.

    Raises:
        InvalidInput: it is none.
    """
    found = next((one for one in observers_in(observer) if isinstance(one, Recorder)), None)
    if found is None:
        raise InvalidInput("there is nothing recorded to write; give load observe=schedc.runtime.measure.recording.Recorder()")
    return found


def write_trace(recorder: Recorder, plan: Plan, group: dist.ProcessGroup, path: Path | str) -> None:
    """Write what all ranks have recorded as one trace file, on rank 0. All ranks call it together, between two steps.

    The clocks are compared now, so write soon after the recorded steps: clocks of two hosts run apart by some microseconds a
    second.

    Args:
        recorder: this rank's.
        plan: what was run.
        group: over gloo, of the plan's ranks in their order.
        path: the file; looked at on rank 0 only.

    Raises:
        InvalidInput: on all ranks: the steps are not the plan's, or the file cannot be written.
        TransferFailed: another rank has ended or does not answer.
    """
    with_trace(recorder, plan, group, lambda trace: write_trace_file(trace, path), "writes the trace")


def with_trace(recorder: Recorder, plan: Plan, group: dist.ProcessGroup, work: Callable[[Trace], T], doing: str) -> T:
    """What rank 0 makes of the trace of all ranks, on all of them; as `write_trace`. `doing` says so, for messages."""
    rank, size = group.rank(), group.size()
    if size != len(plan.ranks):
        raise InvalidInput(f"the group has {size} ranks, expected the {len(plan.ranks)} of the plan")
    made: list[T] = []
    refusal: SchedcError | None = None
    try:
        offsets = clock_offsets(group)
        records = share(group, recorder.record(rank))
        if rank == 0:
            try:
                made.append(work(trace_of(plan, records, offsets)))
            except SchedcError as error:
                refusal = error
        refusal, made = share(group, (refusal, made))[0]
    except RuntimeError as error:
        raise TransferFailed(
            f"rank {rank} {doing} with the others: another rank has ended or failed, and its own message says why"
        ) from error
    if refusal is not None:
        raise refusal
    return made[0]
