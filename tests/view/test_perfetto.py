"""A plan as Trace Events: their shape, as viewers need it, and what they say beside the plan."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import given
from inputs.graphs import graph_cases
from inputs.plans import plan_of, plans
from inputs.problems import make_problem
from inputs.random_schedules import cases
from suite.command_line import schedc
from suite.example_counts import examples

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.formats.plan.plan_file import write_plan
from schedc.solvers.heuristics.greedy import Greedy
from schedc.view.perfetto import perfetto_of_plan

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.analysis.simulation.timeline import Transfer
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

Event = dict[str, Any]


def events_of(plan: Plan) -> list[Event]:
    file = json.loads(perfetto_of_plan(plan, simulate(plan.problem, plan.schedule())))
    assert set(file) == {"traceEvents", "displayTimeUnit"}
    events: list[Event] = file["traceEvents"]
    return events


@examples(25)
@given(plans() | graph_cases().map(lambda case: plan_of(*case)))
def test_viewers_can_draw_it(plan: Plan) -> None:
    events = events_of(plan)
    assert {event["ph"] for event in events} <= {"M", "X", "C", "s", "f"}
    slices: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        assert event["pid"] > 0
        assert event["ph"] == "M" or event["ts"] >= 0
        if event["ph"] == "X":
            slices.setdefault((event["pid"], event["tid"]), []).append(event)
    for lane in slices.values():
        lane.sort(key=lambda event: (event["ts"], event["dur"]))
        assert all(before["ts"] + before["dur"] <= after["ts"] + 1e-6 for before, after in pairwise(lane))
    curves: dict[tuple[int, str], list[Event]] = {}
    for event in events:
        if event["ph"] == "C":
            curves.setdefault((event["pid"], event["name"]), []).append(event)
    for curve in curves.values():
        assert [event["ts"] for event in curve] == sorted(event["ts"] for event in curve)
        values = [next(iter(event["args"].values())) for event in curve]
        assert values[-1] == 0
        assert min(values) >= 0
    tails, heads = ({event["id"]: event for event in events if event["ph"] == end} for end in "sf")
    assert set(tails) == set(heads)
    assert len(tails) == sum(event["ph"] == "s" for event in events)
    for arrow, tail in tails.items():
        assert tail["ts"] <= heads[arrow]["ts"] + 0.001
        for end in (tail, heads[arrow]):
            lane = slices[end["pid"], end["tid"]]
            assert any(event["ts"] <= end["ts"] <= event["ts"] + event["dur"] for event in lane)


@examples(15)
@given(cases(collectives=False) | graph_cases())
def test_it_has_every_op_and_what_ranks_hold(case: tuple[Problem, Schedule]) -> None:
    plan = plan_of(*case)
    timeline = simulate(*case)
    events = events_of(plan)
    for rank, order in enumerate(plan.schedule().orders):
        here = [event for event in events if event["pid"] == 1 + rank]
        drawn = [(event["name"], event["ts"], event["dur"]) for event in here if event["ph"] == "X" and event["tid"] == 1]
        planned = zip(order, timeline.start_ns(rank), timeline.end_ns(rank), strict=True)
        expected = [(plan.problem.token(op), start / 1000, (end - start) / 1000) for op, start, end in planned]
        assert drawn == expected
        held = [event["args"]["bytes"] for event in here if event["ph"] == "C"]
        assert max(held) == peak_bytes(*case)[rank]
    curves: dict[str, list[tuple[float, int]]] = {}
    for event in events:
        if event["ph"] == "C" and event["name"].endswith(", messages"):
            curves.setdefault(event["name"], []).append((event["ts"], event["args"]["messages"]))
    transfers: dict[str, list[Transfer]] = {
        f"under way {transfer.source}>{transfer.destination}, messages": [] for transfer in timeline.transfers
    }
    for transfer in timeline.transfers:
        transfers[f"under way {transfer.source}>{transfer.destination}, messages"].append(transfer)
    assert set(curves) == set(transfers)
    for name, curve in curves.items():
        for ts, count in curve:
            assert count == sum(each.start_ns <= round(ts * 1000) < each.arrival_ns for each in transfers[name])


def test_the_command_writes_it(tmp_path: Path) -> None:
    problem = make_problem(2, 3, links={(0, 1): (5, 2), (1, 0): (5, 2)})
    plan = plan_of(problem, Greedy()(problem))
    write_plan(plan, tmp_path / "plan.json")
    done = schedc("export", "perfetto", tmp_path / "plan.json", "-o", tmp_path / "out.json", width=400)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"written to {tmp_path / 'out.json'}; open it in https://ui.perfetto.dev\n"
    written = (tmp_path / "out.json").read_bytes()
    assert written == perfetto_of_plan(plan, simulate(problem, plan.schedule()))
    refused = schedc("export", "perfetto", tmp_path / "plan.json", "-o", tmp_path / "plan.json", width=400)
    assert refused.returncode == 2
    assert "this command reads it" in refused.stderr
