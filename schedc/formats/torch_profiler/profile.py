"""A profile of one layer per stage from the traces of all ranks of a torch pipeline.

Takes what `torch_profiler.trace` has read; gives medians, the first step left out as warm-up, and what to know of them. Memory
is not in a trace; messages are where shapes were recorded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from schedc.analysis.comparison.times import LARGE_SPREAD, SampledTimes
from schedc.errors import InvalidInput
from schedc.formats.profile_file import LayerEntry, SpreadEntry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from schedc.formats.torch_profiler.trace import TorchTrace

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
    """One layer for each stage, and notes for people.

    Args:
        traces: of all ranks.
        times: `stage_times` of them.

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
