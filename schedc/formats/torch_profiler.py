"""PyTorch's profiler: when the actions of a pipeline schedule computed, and what they sent; and a profile of one layer per stage.

Takes Chrome traces (`torch.profiler.profile(...).export_chrome_trace(path)`, plain or gzipped), each of one rank on which a
`torch.distributed.pipelining` schedule ran; each action of it is a span `PP:<action>`, `PP:1F0` say (torch 2.13, `schedules.py`,
`_get_profiler_function_name`). Gives the time that each F, I, W and B took to compute:

- An action of F, I or B begins with waiting for its message, *inside* its span. On a CPU its work is taken to begin with the first
  operator in the span, and to end with the span.
- On a GPU a span only launches. Its work is from the start of the first to the end of the last of the kernels that were launched
  within it, by whichever thread, on the stream that computes most; NCCL's do not count. The trace's own `gpu_user_annotation`
  events are no use here: they miss what autograd's threads launch, which is all of the backward (pytorch/kineto#1022).
- An action without operators or kernels does nothing, as torch's I of the first stage: 0.

The profile has medians, the first step left out as warm-up, and notes on what to know of them. Memory is not in a trace; messages
are where shapes were recorded.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from schedc.analysis.comparison.times import LARGE_SPREAD, SampledTimes
from schedc.errors import InvalidInput
from schedc.formats.profile_file import LayerEntry, SpreadEntry
from schedc.io.input_file import MOST_BYTES, read_bytes, without_mark
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

Event = dict[str, Any]

_ACTION = re.compile(r"PP:(\d+)(F|I|W|B|SEND_F|SEND_B)(\d+)")
_ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver"}
_TYPE_BYTES = {
    **dict.fromkeys(("double", "long", "long int", "int64", "complex<float>"), 8),
    **dict.fromkeys(("float", "int", "int32"), 4),
    **dict.fromkeys(("c10::bfloat16", "c10::half", "bfloat16", "half", "short", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "unsigned char", "signed char", "c10::float8_e4m3fn", "c10::float8_e5m2"), 1),
}


@dataclass(frozen=True, slots=True)
class RecordedAction:
    """One compute action that ran."""

    kind: str
    """`F`, `I` (backward of the input), `W` or `B` (both)."""
    stage: int
    microbatch: int
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchTrace:
    """What one rank's trace tells."""

    path: str
    actions: tuple[RecordedAction, ...]
    """In the order in which they ran, all steps one after another."""
    message_bytes: Mapping[int, int]
    """By stage, what it sends forward, where the trace says so (`record_shapes=True`, or NCCL)."""
    on_gpu: bool
    waits_included: bool
    """No operators were recorded, so the times are whole spans, waiting for messages included."""
    overlapped: int
    """`OVERLAP_F_B` actions, whose parts cannot be separated; they are not in `actions`."""


@dataclass(frozen=True, slots=True)
class _Span:
    kind: str
    stage: int
    microbatch: int
    begin: float
    end: float


def read_torch_trace(path: Path) -> TorchTrace:
    """Read one rank's trace.

    Raises:
        InvalidInput: the file cannot be read, is no trace, or has no `PP:` spans of compute actions.
    """
    events, _ = chrome_trace(path)
    complete = [event for event in events if event.get("ph") == "X" and "dur" in event]
    marks = [event for event in complete if event.get("cat") == "user_annotation" and str(event.get("name")).startswith("PP:")]
    if not marks:
        raise InvalidInput(
            f"{path}: found no PP: spans, expected the trace of a run under torch's _PipelineScheduleRuntime (ZB-V, interleaved,"
            " DualPipe-V, or a CSV); its single-stage schedules, GPipe and 1F1B, record none"
        )
    thread = max({thread_of(mark) for mark in marks}, key=[thread_of(mark) for mark in marks].count)
    spans = []
    for mark in marks:
        match = _ACTION.fullmatch(str(mark["name"]))
        if match is not None and thread_of(mark) == thread:
            spans.append(_Span(match[2], int(match[1]), int(match[3]), begin_of(mark), begin_of(mark) + float(mark["dur"])))
    spans.sort(key=lambda span: span.begin)
    compute = [span for span in spans if span.kind in "FIWB"]
    overlapped = sum("OVERLAP_F_B" in str(mark["name"]) for mark in marks)
    if not compute:
        raise InvalidInput(
            f"{path}: found {len(marks)} PP: spans, none of them an F, I, W or B of its own ({overlapped} OVERLAP_F_B)"
        )
    on_device = device_work(complete)
    operators = sorted(begin_of(event) for event in complete if event.get("cat") == "cpu_op" and thread_of(event) == thread)
    if on_device:
        bounds = [(span.begin, span.end) for span in compute]
        durations = [bound[1] - bound[0] if bound else 0.0 for bound in kernels_of(bounds, on_device)]
    elif operators:
        durations = [_by_operators(span, operators) for span in compute]
    else:
        durations = [span.end - span.begin for span in compute]
    return TorchTrace(
        path=str(path),
        actions=tuple(
            RecordedAction(span.kind, span.stage, span.microbatch, round(duration * 1000))
            for span, duration in zip(compute, durations, strict=True)
        ),
        message_bytes=_messages([span for span in spans if span.kind == "SEND_F"], complete, thread),
        on_gpu=bool(on_device),
        waits_included=not on_device and not operators,
        overlapped=overlapped,
    )


def chrome_trace(path: Path) -> tuple[list[Event], int]:
    """The events of a trace, and the time of the host's clock in ns from which theirs are counted.

    Raises:
        InvalidInput: the file cannot be read, or is no trace.
    """
    content = read_bytes(path, MOST_BYTES)
    try:
        if content[:2] == b"\x1f\x8b":
            with gzip.open(BytesIO(content)) as unpacked:
                content = unpacked.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path}: found a gzip file that cannot be unpacked ({error}), expected a trace") from error
    if len(content) > MOST_BYTES:
        raise InvalidInput(f"{path}: found more than {format_bytes(MOST_BYTES)} when unpacked, expected a trace of a few steps")
    try:
        trace = json.loads(without_mark(content))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path}: found text that is not JSON ({error}), expected a Chrome trace") from error
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        raise InvalidInput(f"{path}: found JSON without traceEvents, expected a Chrome trace as export_chrome_trace writes it")
    base_ns = trace.get("baseTimeNanoseconds", 0) if isinstance(trace, dict) else 0
    return [event for event in events if isinstance(event, dict)], base_ns if isinstance(base_ns, int) else 0


def begin_of(event: Event) -> float:
    """When an event began, in microseconds."""
    return float(event["ts"])


def thread_of(event: Event) -> tuple[object, object]:
    """The process and thread of an event, or the device and stream."""
    return event.get("pid"), event.get("tid")


def _arguments(event: Event) -> dict[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def device_work(events: Sequence[Event]) -> list[tuple[float, Event]]:
    """The kernels and copies, but NCCL's, by the time of their launch."""
    launched = {
        _arguments(event)["correlation"]: begin_of(event)
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in _arguments(event)
    }
    work = [
        (launched[correlation], event)
        for event in events
        if event.get("cat") in _ON_DEVICE
        and not str(event.get("name")).startswith("nccl")
        and (correlation := _arguments(event).get("correlation")) in launched
    ]
    return sorted(work, key=lambda pair: pair[0])


def kernels_of(spans: Sequence[tuple[float, float]], work: Sequence[tuple[float, Event]]) -> list[tuple[float, float] | None]:
    """Of each span, by begin and end, when its work began and ended on the stream that computes; None: it has launched none.

    `work` is `device_work`; times are the trace's, in microseconds.
    """
    begins = [begin for begin, _ in spans]
    of_span: list[list[Event]] = [[] for _ in spans]
    busy: defaultdict[tuple[object, object], float] = defaultdict(float)
    for launch, event in work:
        at = bisect_right(begins, launch) - 1
        if at >= 0 and launch <= spans[at][1]:
            of_span[at].append(event)
            busy[thread_of(event)] += float(event["dur"])
    stream = max(busy, key=busy.__getitem__, default=None)
    mine = [[event for event in events if thread_of(event) == stream] for events in of_span]
    return [
        (min(map(begin_of, events)), max(begin_of(event) + float(event["dur"]) for event in events)) if events else None
        for events in mine
    ]


def _by_operators(span: _Span, operators: Sequence[float]) -> float:
    """From the first operator within the span to its end."""
    at = bisect_right(operators, span.begin)
    return span.end - operators[at] if at < len(operators) and operators[at] < span.end else 0.0


def _messages(sends: Sequence[_Span], events: Sequence[Event], thread: tuple[object, object]) -> dict[int, int]:
    """By stage, the bytes of what its sends carry, the most of its microbatches."""
    begins = [span.begin for span in sends]
    of_send: defaultdict[int, int] = defaultdict(int)
    for event in events:
        at = bisect_right(begins, begin_of(event)) - 1
        if at >= 0 and begin_of(event) <= sends[at].end and thread_of(event) == thread:
            of_send[at] += _sent_bytes(event)
    found: dict[int, int] = {}
    for at, size in of_send.items():
        if size:
            found[sends[at].stage] = max(size, found.get(sends[at].stage, 0))
    return found


def _sent_bytes(event: Event) -> int:
    """What an event of a send says of its tensor: gloo's annotation its dimensions, NCCL's parameters its elements."""
    arguments = _arguments(event)
    if event.get("name") == "gloo:send" and arguments.get("Input Dims") and arguments.get("Input type"):
        elements = 1
        for size in arguments["Input Dims"][0]:
            elements *= int(size)
        return elements * _TYPE_BYTES.get(str(arguments["Input type"][0]).lower(), 0)
    if event.get("name") == "record_param_comms" and arguments.get("Collective name") == "send":
        return int(arguments.get("In msg nelems", 0)) * _TYPE_BYTES.get(str(arguments.get("dtype")).lower(), 0)
    return 0


PHASES = {"F": "forward", "I": "backward_input", "W": "backward_weight", "B": "backward"}
"""The kinds of action, and what they are in a profile."""

StageTimes = dict[str, SampledTimes]
"""By kind of action (`F`, `I`, `W`, `B`), the times of one stage that count."""


def stage_times(traces: Sequence[TorchTrace]) -> dict[int, StageTimes]:
    """The times of all stages, without those of the warm-up.

    The first time that an action occurs in a trace is in its first step. It does not count where there is a second one; where there
    is none, the first microbatch of each stage and kind does not, if it has others.

    Raises:
        InvalidInput: a stage is in none of the traces.
    """
    samples: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for trace in traces:
        names = [(action.kind, action.stage, action.microbatch) for action in trace.actions]
        once = max(Counter(names).values()) == 1
        seen: set[object] = set()
        held_back: dict[tuple[int, str], int] = {}
        for action in trace.actions:
            of = action.stage, action.kind
            name = of if once else (*of, action.microbatch)
            if name in seen:
                samples[of].append(action.duration_ns)
            else:
                held_back.setdefault(of, action.duration_ns)
            seen.add(name)
        for of, duration_ns in held_back.items():
            if not samples[of]:  # the only one there is
                samples[of].append(duration_ns)
    stages = sorted({stage for stage, _ in samples})
    missing = set(range(stages[-1] + 1)) - set(stages)
    if missing:
        raise InvalidInput(
            f"--from-trace: found the stages {_numbers(stages)}, expected stage {min(missing)} too; give the traces of all ranks"
        )
    return {stage: {kind: SampledTimes(tuple(found)) for (of, kind), found in samples.items() if of == stage} for stage in stages}


def stages_profile(traces: Sequence[TorchTrace], times: Mapping[int, StageTimes]) -> tuple[tuple[LayerEntry, ...], tuple[str, ...]]:
    """One layer for each stage, and notes for people; of the traces of all ranks, and their `stage_times`.

    Raises:
        InvalidInput: a stage has no forward or no backward.
    """
    messages = {stage: size for trace in traces for stage, size in trace.message_bytes.items()}
    layers = tuple(_layer(stage, kinds, messages.get(stage)) for stage, kinds in times.items())
    return layers, tuple(_notes(traces, times, layers))


def _layer(stage: int, times: StageTimes, message_bytes: int | None) -> LayerEntry:
    median = {kind: found.median_ns for kind, found in times.items()}
    if "F" not in median or not median.keys() & {"B", "W"}:
        raise InvalidInput(f"--from-trace: stage {stage} has only {', '.join(sorted(median))}, expected F, and B or I and W")
    split = "W" in median  # else B and W are not known apart
    return LayerEntry(
        name=f"stage {stage}",
        forward_ns=median["F"],
        backward_input_ns=median.get("I", 0) if split else None,
        backward_weight_ns=median.get("W"),
        backward_ns=median.get("B"),
        message_bytes=message_bytes,
        spread=SpreadEntry(**{PHASES[kind]: found.spread for kind, found in times.items()}),
    )


def _notes(traces: Sequence[TorchTrace], times: Mapping[int, StageTimes], layers: Sequence[LayerEntry]) -> Iterator[str]:
    for stage, kinds in times.items():
        for kind, found in kinds.items():
            if found.spread > LARGE_SPREAD and found.median_ns * 20 > kinds["F"].median_ns:
                yield f"stage {stage}: {kind} spreads by {found.spread:.0%} of its median"
    fused = [stage for stage, kinds in times.items() if "W" not in kinds]
    if fused:
        yield (
            f"stages {_numbers(fused)} ran only whole backwards, B and W are not known apart: compile with split_backward = false"
        )
    if "W" in times[0] and layers[0].parts_ns[0] * 20 < layers[0].parts_ns[1]:
        yield "torch does not split the backward of stage 0: its I does nothing and its W is all; schedc's runtime would split it"
    for trace in traces:
        if trace.waits_included:
            yield f"{trace.path}: no operators were recorded, so waiting for messages is in the times"
        if trace.overlapped:
            yield f"{trace.path}: {trace.overlapped} OVERLAP_F_B left out; their parts have no spans of their own"
    silent = [stage for stage in list(times)[:-1] if layers[stage].message_bytes is None]
    if silent:
        yield f"the traces do not say what stages {_numbers(silent)} send; record with record_shapes=True, or add message by hand"
    yield "a trace has no activations: add activation and activation_after_input by hand, or measure with --model"


def _numbers(stages: Sequence[int]) -> str:
    return ", ".join(map(str, stages))
