"""The trace file: what is written reads back equal, viewers find sound events in it, and what is no trace is refused."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from inputs.plans import plans, small_plan
from inputs.traces import slower_block, trace_of_timelines
from suite.example_counts import examples

from schedc.analysis.comparison.compare import compare
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import InvalidInput
from schedc.formats.plan.plan_file import plan_json
from schedc.formats.trace_file import parse_trace, read_trace, trace_json, write_trace_file
from schedc.ir.ops import Kind, Op, token
from schedc.view.perfetto import perfetto_of_comparison

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan
    from schedc.ir.trace import Trace


def recorded(plan: Plan, steps: int = 2) -> Trace:
    timelines = [simulate(plan.problem, plan.schedule())] * steps
    return trace_of_timelines(plan, timelines, first_step=3)


@examples(50)
@given(plan=plans())
def test_round_trip_of_any_plan(plan: Plan) -> None:
    trace = recorded(plan)
    assert parse_trace(trace_json(trace), "trace.json") == trace
    assert_sound(json.loads(trace_json(trace))["traceEvents"])


def test_what_was_not_transferred_and_the_clocks_come_back(tmp_path: Path) -> None:
    trace = recorded(small_plan(), steps=1)
    first = trace.ranks[0]
    step = replace(first.steps[0], channels_ns=tuple((None, *times_ns[1:]) for times_ns in first.steps[0].channels_ns))
    changed = replace(first, clock_offset_ns=-(2**60), clock_error_ns=20_000, steps=(step,))
    trace = replace(trace, scale=2.5, ranks=(changed, *trace.ranks[1:]))
    write_trace_file(trace, tmp_path / "trace.json")
    assert read_trace(tmp_path / "trace.json") == trace


def lanes(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def assert_sound(events: list[dict[str, Any]]) -> None:
    """Lanes without overlap, and arrows that begin and end within a slice of the right transfer."""
    by_lane = lanes(events)
    for slices in by_lane.values():
        ordered = sorted(slices, key=lambda event: event["ts"])
        for before, after in pairwise(ordered):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    ends: dict[int, dict[str, str]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            around = [
                one["name"]
                for one in by_lane[event["pid"], event["tid"]]
                if one["ts"] - 1e-6 <= event["ts"] < one["ts"] + one["dur"] - 1e-6
            ]
            assert len(around) == 1
            assert event["ph"] not in ends[event["id"]]
            ends[event["id"]][event["ph"]] = around[0]
    for names in ends.values():
        assert names["s"] == names["f"]


def test_viewers_find_every_op_and_an_arrow_for_every_transfer() -> None:
    plan = small_plan(data_parallel=None)
    events = json.loads(trace_json(recorded(plan)))["traceEvents"]
    assert_sound(events)
    names = {(event["pid"], event["args"]["name"]) for event in events if event["name"] == "process_name"}
    assert names == {(1, "rank 0"), (2, "rank 1"), (3, "rank 2")}
    for rank in plan.ranks:
        compute = [event["name"] for event in lanes(events)[1 + rank.rank, 1]]
        assert compute == [token(op) for op in rank.compute] * 2
    taken_ns = [
        time_ns
        for rank in recorded(plan).ranks
        for step in rank.steps
        for channel, times_ns in zip(rank.channels, step.channels_ns, strict=True)
        for time_ns in times_ns
        if channel.receives and time_ns is not None
    ]
    assert sorted(event["ts"] for event in events if event["ph"] == "f") == sorted((time_ns - 1) / 1000 for time_ns in taken_ns)
    transfers = sum(len(channel.transfers) for rank in plan.ranks for channel in rank.channels if channel.receives)
    assert len({event["id"] for event in events if event["ph"] == "f"}) == 2 * transfers
    first = next(event for event in events if event["name"] == "F1.0" and event["cat"] == "F")
    timeline = simulate(plan.problem, plan.schedule())
    assert (first["ts"], first["dur"]) == (timeline.start_ns(1)[0] / 1000, 0.01)


def test_planned_and_measured_lanes_in_one_file() -> None:
    plan = small_plan(data_parallel=None)
    slow = slower_block(plan.problem, Op(Kind.F, 1, 2), 25)
    trace = trace_of_timelines(plan, [simulate(slow, plan.schedule())], first_step=3)
    comparison = compare(plan, simulate(plan.problem, plan.schedule()), trace)
    events = json.loads(perfetto_of_comparison(plan, trace, comparison))["traceEvents"]
    assert_sound(events)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert sorted(names) == sorted(
        [f"rank {rank}, {which}" for rank in range(3) for which in ("planned", "measured")] + ["links, planned"]
    )
    pid = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    slices = lanes(events)
    took = {
        which: next(event["dur"] for event in slices[pid[f"rank 1, {which}"], 1] if event["name"] == "F1.2")
        for which in ("planned", "measured")
    }
    assert took == {"planned": 0.01, "measured": 0.035}
    held = [event["args"]["bytes"] for event in events if event["ph"] == "C" and event["pid"] == pid["rank 0, measured"]]
    assert max(held) == plan.certificate.peak_activation_bytes[0]
    occupied = [event for (process, _), lane in slices.items() if process == pid["links, planned"] for event in lane]
    assert len(occupied) == sum(len(channel.transfers) for rank in plan.ranks for channel in rank.channels if channel.receives)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda trace: trace.update(format="x"), r'schedc\.format: found "x", expected "schedc\.trace"'),
        (lambda trace: trace.update(version=2), r"schedc\.version: found 2, expected 1; another version of schedc"),
        (lambda trace: trace.update(more=1), r"schedc\.more: found an unknown key"),
        (lambda trace: trace.update(ranks=[]), r"schedc\.ranks: found \[\], expected a list of at least 1"),
        (lambda trace: trace["ranks"].reverse(), r"schedc\.ranks\[0\]\.rank: found 2, expected 0"),
        (lambda trace: trace["ranks"][1]["steps"].pop(), r"\[1\]\.steps: found \[3\], expected the steps of rank 0, \[3, 4\]"),
        (lambda trace: trace["ranks"][0]["steps"].reverse(), r"\[0\]\.steps: found \[4, 3\], expected ascending numbers"),
        (lambda trace: [rank.update(steps=[]) for rank in trace["ranks"]], "found none, expected one recorded step or more"),
        (lambda trace: step(trace)["asked_ns"].pop(), r"ranks\[0\]\.steps\[1\]\.asked_ns: found 7 times, expected 8"),
        (lambda trace: step(trace)["channels_ns"].pop(), r"\.channels_ns: found lists of \[4\] times, expected \[4, 4\]"),
        (lambda trace: trace["ranks"][0].update(compute=["F0.0 X"]), r"ranks\[0\]\.compute\[0\]: found 'X'|'X' is not an op"),
        (lambda trace: step(trace)["begun_ns"].insert(0, -1), r"begun_ns\[0\]: found -1, expected a whole number from 0"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_place(change: Any, message: str) -> None:
    file = json.loads(trace_json(recorded(small_plan())))
    change(file["schedc"])
    with pytest.raises(InvalidInput, match=f"^trace.json: .*({message})") as refused:
        parse_trace(json.dumps(file).encode(), "trace.json")
    assert "\n" not in str(refused.value)


def step(trace: dict[str, Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = trace["ranks"][0]["steps"][1]
    return found


def test_other_files_are_refused(tmp_path: Path) -> None:
    for content in (plan_json(small_plan()), b"", b"[1]", b"\xff{}", b'{"schedc": ' + b"[" * 100_000):
        with pytest.raises(InvalidInput, match=r"expected (a|JSON|UTF-8)"):
            parse_trace(content, "trace.json")
    with pytest.raises(InvalidInput, match=r"found no readable file \(no such file or directory\), expected a file"):
        read_trace(tmp_path / "trace.json")
