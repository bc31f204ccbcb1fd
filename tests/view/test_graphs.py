"""Graphs and slices in what people see: edges, names of slices, and every view of random plans."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.graphs import graph_problem, random_order
from inputs.plans import plan_of
from inputs.tiny_problems import random_parts
from inputs.traces import slower_stage, trace_of_timelines

from schedc.analysis.comparison.compare import compare
from schedc.analysis.difference.plans import diff_plans
from schedc.analysis.simulation.simulate import simulate
from schedc.ir import Kind, Schedule
from schedc.study.explain.explain import explain_plan
from schedc.verify.plan.checks import verify_plan
from schedc.verify.schedule.checks import verify_schedule
from schedc.view.document import size
from schedc.view.perfetto import perfetto_of_comparison, perfetto_of_plan
from schedc.view.report.figures import Measured
from schedc.view.report.page import report_html
from schedc.view.terminal.comparison import shown_comparison
from schedc.view.terminal.difference import difference_lines
from schedc.view.terminal.edges import edge_rows
from schedc.view.terminal.explanation import shown_explanation
from schedc.view.terminal.gantt import counts_of
from schedc.view.terminal.plan import shown_plan
from schedc.view.terminal.show import console, show

if TYPE_CHECKING:
    from schedc.ir import Plan, Problem
    from schedc.view.document import Document


def plan_for(seed: int, **options: object) -> Plan:
    random = Random(seed)
    while True:
        problem = graph_problem(random, may_be_odd=True, **options)  # type: ignore[arg-type]
        schedule = random_order(random, problem, random_parts(random, problem), limited=True)
        if schedule is not None:
            plan = plan_of(problem, schedule)
            if not verify_plan(plan):  # values that wait may be over a limit
                return plan


def text_of(document: Document, width: int) -> str:
    out = console(width=width)
    out.file = io.StringIO()
    show(document, out)
    return str(out.file.getvalue())


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_every_view_of_any_plan(first: int) -> None:
    """Nothing is wider than the terminal; ops are named by slice, and times are the simulator's."""
    for seed in range(first, first + 20):
        plan = plan_for(seed)
        problem, schedule, sliced = plan.problem, plan.schedule(), bool(plan.problem.slices)
        timeline = simulate(problem, schedule)
        slower = slower_stage(problem, seed % len(problem.stages), Kind.F, 7)
        trace = trace_of_timelines(plan, [simulate(slower, schedule)])
        comparison = compare(plan, timeline, trace)
        explained = explain_plan(plan, time_limit_s=60, most=seed % 5 == 0)
        width = 80 + 50 * (seed % 2)
        texts = [
            text_of(shown_plan(plan, timeline, (0, max(1, timeline.makespan_ns))), width),
            text_of(shown_comparison(plan, trace, comparison, []), width),
            text_of(shown_explanation(plan, explained), 100),
        ]
        assert max(len(line) for line in (*texts[0].splitlines(), *texts[1].splitlines())) <= width
        for name in re.findall(r"\b(?:F|B|W|BW)\d+\.\d+[:/>\d]*", "\n".join(texts)):
            assert (":" in name) == sliced
        assert sum(segment.length_ns for segment in explained.path) == timeline.makespan_ns
        page = report_html(plan, timeline, Measured(trace, comparison)).decode()
        assert ("Edges of the graph" in page) == bool(problem.edges)
        drawn = json.loads(perfetto_of_plan(plan, timeline))["traceEvents"]
        ops = {(event["name"], event["ts"]) for event in drawn if event["ph"] == "X" and "stage" in event.get("args", {})}
        starts = zip(timeline.named_ops, timeline.starts_ns.tolist(), strict=True)
        assert ops == {(problem.token(op), start_ns / 1000) for op, start_ns in starts}
        names = {problem.token(each.op) for each in timeline.transfers}
        assert {event["name"] for event in drawn if event.get("cat") == "transfer" and event["ph"] == "X"} >= names
        assert json.loads(perfetto_of_comparison(plan, trace, comparison))["traceEvents"]
        other = plan_for(seed + 1)
        assert difference_lines(diff_plans(plan, plan), "plan") == ["plan: the plans are equal"]
        assert len(difference_lines(diff_plans(plan, other), "plan", len(problem.slices))) > 1


def numbers(text: str) -> list[int]:
    ends = [part.split("-") for part in text.split(", ")]
    return [each for end in ends for each in range(int(end[0]), int(end[-1]) + 1)]


def test_each_edge_is_in_the_table_with_its_transfer() -> None:
    runs = 0
    for seed in range(150):
        problem = graph_problem(Random(seed), edges=True, most_stages=9, most_ranks=4, most_ops=200)
        rank_of, rows, found, named = [stage.rank for stage in problem.stages], edge_rows(problem), [], set[str]()
        for source, to, forward, gradient, transfers in rows:
            sources, ends = numbers(source), numbers(to)
            runs += len(sources) > 1
            each = max(len(sources), len(ends))
            assert min(len(sources), len(ends)) in (1, each)
            pairs = zip(sources * (each // len(sources)), ends * (each // len(ends)), strict=True)
            found += [(a, b, forward, gradient, transfers != "–") for a, b in pairs]
            named |= set(re.findall(r"F\d+\.[\d:]+>\d+", transfers)) if " to " not in transfers else set()
        assert sorted(found) == sorted(
            (
                *(edge.source, edge.destination, size(edge.message_bytes)),
                "none" if edge.gradient_message_bytes is None else size(edge.gradient_message_bytes),
                rank_of[edge.source] != rank_of[edge.destination],
            )
            for edge in problem.edges
        )
        names = {problem.token(each.op) for each in simulate(problem, order_of(problem)).transfers if each.op.kind is Kind.F}
        assert named <= names
        of_first = {name for name in names if re.search(r"F\d+\.0(:0)?>", name)}
        assert any(" to " in row[4] for row in rows) or named == of_first
    assert runs


def order_of(problem: Problem) -> Schedule:
    schedule = random_order(Random(0), problem, limited=False)
    assert schedule is not None
    return schedule


def test_edges_that_differ_are_named() -> None:
    plan = next(plan for plan in map(plan_for, range(50)) if len(plan.problem.edges) > 3 and not plan.problem.slices)
    first, *others = plan.problem.edges
    less = replace(plan, problem=replace(plan.problem, edges=tuple(others)))
    name = f"{first.source}>{first.destination}"
    assert f"  edges: {name} removed" in difference_lines(diff_plans(plan, less), "plan")
    assert f"  edges: {name} added" in difference_lines(diff_plans(less, plan), "plan")
    larger = replace(first, message_bytes=2**20, gradient_message_bytes=None)
    more = replace(plan, problem=replace(plan.problem, edges=(larger, *others)))
    lines = difference_lines(diff_plans(plan, more), "plan")
    assert any(re.fullmatch(rf"  message of edge {name}: .* → 1 MiB", line) for line in lines)


def test_the_verifier_names_slices() -> None:
    plan = next(plan for plan in (plan_for(seed, slices=True) for seed in range(50)) if len(plan.ranks[0].compute) > 3)
    order = plan.ranks[0].compute
    orders = (order[1:], *(rank.compute for rank in plan.ranks[1:]))
    messages = [each.message for each in verify_schedule(plan.problem, Schedule(orders=orders, parts=plan.parts))]
    assert any(re.match(r"F\d+\.\d+:\d+", message) for message in messages), messages


def test_unequal_slices_are_told_by_their_lengths() -> None:
    problem = next(plan.problem for plan in (plan_for(seed, slices=True) for seed in range(50)))
    said = {
        (1, 1): "in 2 slices",
        (3, 1): "in 2 slices of 3, 1 tokens",
        (1, *(2,) * 9): "in 10 slices of 1 to 2 tokens",
    }
    for lengths, words in said.items():
        assert counts_of(replace(problem, slices=lengths, microbatches=2 * len(lengths))).endswith(f"2 microbatches {words}")
