"""What a run shows: ops as spans of a profiler's trace, which `compare` reads, several observers, and a line at its end."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from inputs.few_plans import few_plan
from runs import profiled_runs

from schedc.analysis.comparison.compare import compare
from schedc.analysis.comparison.line import in_a_line
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import InvalidInput
from schedc.formats.plan.plan_file import plan_sha256
from schedc.formats.profiler_steps import trace_of_profiles
from schedc.formats.trace_file import read_trace, trace_unless_profile
from schedc.ir import token
from schedc.runtime import Observer, load

if TYPE_CHECKING:
    from pathlib import Path

    from runs.processes import Ranks


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "bidirectional"])
def test_a_profilers_trace_is_that_of_the_plan(two: Ranks, tmp_path: Path, name: str) -> None:
    """It has the steps, ops and transfers that a recorder heard, each op after the one before it."""
    plan = few_plan(name)
    for rank, (steps, line, tokens) in enumerate(two.run(profiled_runs.profiled, plan, tmp_path)):
        own = [token(op) for op in plan.ranks[rank].compute]
        assert steps == [own] * 4
        assert tokens == sorted(2 * own)
        assert re.fullmatch(rf"{plan.name}: [\d.]+ \w+ over 3 steps, planned [\d.]+ ns \(\+[\d.]+%\); most by .+", line), line
    paths = [tmp_path / f"{rank}.json" for rank in (1, 0)]
    assert trace_unless_profile(paths[0]) is None and trace_unless_profile(tmp_path / "trace.json") is not None
    found, recorded = trace_of_profiles(plan, paths), read_trace(tmp_path / "trace.json")
    assert (found.steps, found.plan_sha256) == ((1, 2), plan_sha256(plan))
    for one, other in zip(found.ranks, recorded.ranks, strict=True):
        assert (one.compute, one.channels) == (other.compute, other.channels)
        for step, same in zip(one.steps, other.steps[:2], strict=True):
            assert [[at is None for at in channel] for channel in step.channels_ns] == [
                [at is None for at in channel] for channel in same.channels_ns
            ]
            times = [*zip(step.asked_ns, step.begun_ns, step.ended_ns, strict=True)]
            flat = [step.step_begin_ns, *(at for each in times for at in each), step.step_end_ns]
            assert flat == sorted(flat)
            marks = [at for channel in step.channels_ns for at in channel if at is not None]
            assert all(step.step_begin_ns <= at <= step.step_end_ns for at in marks)
    comparison = compare(plan, simulate(plan.problem, plan.schedule()), found)
    assert comparison.shown_step in (1, 2)
    assert in_a_line(plan, comparison, [None, plan.certificate.peak_activation_bytes[1] + 10]).rpartition("; memory: rank 1 ")[2]


@pytest.mark.parametrize("given", [5, [Observer(), 5]])
def test_what_is_no_observer(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"load was given observe=.*5.*, expected a schedc\.runtime\.Observer, or a list"):
        load(few_plan("1f1b"), stages={}, observe=given)


def test_what_is_no_profile_of_a_plan(tmp_path: Path) -> None:
    plan, path = few_plan("1f1b"), tmp_path / "0.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 5, "traceEvents": []}))
    with pytest.raises(InvalidInput, match="found no steps of the runtime, expected a trace file, or"):
        trace_of_profiles(plan, [path])
    span = {"ph": "X", "cat": "user_annotation", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 1}
    path.write_text(json.dumps({"traceEvents": [{**span, "name": f"schedc.step 0 0 {plan_sha256(plan)}"}]}))
    with pytest.raises(InvalidInput, match=r"found profiler traces of the ranks \[0\], expected 0 to 1, each once"):
        trace_of_profiles(plan, [path])
    other = tmp_path / "1.json"
    other.write_text(json.dumps({"traceEvents": [{**span, "name": f"schedc.step 0 1 {plan_sha256(plan)}"}]}))
    with pytest.raises(InvalidInput, match="found no step that is whole on all ranks"):
        trace_of_profiles(plan, [path, other])


def test_a_profile_of_a_gpu(tmp_path: Path) -> None:
    """An op is from its first kernel to its last, also of a second step; one that launches none is where its host was."""
    plan = few_plan("1f1b")
    paths = [tmp_path / f"{own.rank}.json" for own in plan.ranks]
    for own, path in zip(plan.ranks, paths, strict=True):
        events, correlation = list[dict[str, object]](), 0
        for number in range(2):
            start = 1000.0 * number
            name = f"schedc.step {number} {own.rank} {plan_sha256(plan)}"
            events.append({"cat": "user_annotation", "name": name, "ts": start, "dur": 900.0, "tid": 1})
            for at, op in enumerate(own.compute):
                begin = start + 10 * (at + 1)
                events.append({"cat": "user_annotation", "name": token(op), "ts": begin, "dur": 5.0, "tid": 1})
                for kernel in range(2 if at else 0):
                    correlation += 1
                    arguments = {"correlation": correlation}
                    events.append(
                        {"cat": "cuda_runtime", "name": "launch", "ts": begin + 1 + kernel, "dur": 0.5, "args": arguments}
                    )
                    device = {"cat": "kernel", "name": "gemm", "ts": begin + 100 + 4 * kernel, "dur": 3.0, "tid": 7}
                    events.append({**device, "args": arguments})
        path.write_text(json.dumps({"baseTimeNanoseconds": 5, "traceEvents": [{"ph": "X", "pid": 1, **one} for one in events]}))
    for one in trace_of_profiles(plan, paths).ranks:
        for number, step in enumerate(one.steps):
            starts = [1_000_000 * number + 10_000 * (at + 1) for at in range(len(one.compute))]
            assert step.begun_ns == (starts[0], *(start + 100_000 for start in starts[1:]))
            assert step.ended_ns == (starts[0] + 5_000, *(start + 107_000 for start in starts[1:]))
