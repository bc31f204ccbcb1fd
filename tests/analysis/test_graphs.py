"""Graphs and slices: when everything happens and what ranks hold, as a slow simulation that knows nothing of arrays finds it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from inputs.graphs import graph_problem, random_order
from inputs.plans import plan_of
from inputs.tiny_problems import random_parts
from oracles.slow_simulation import slow_simulation

from schedc.analysis.attribution.tolerance import slackness_of
from schedc.analysis.simulation.flow import flow_of
from schedc.analysis.simulation.memory import memory_curve, peak_bytes
from schedc.analysis.simulation.simulate import event_loop, simulate
from schedc.compiled.compiler import compiled
from schedc.verify.plan.checks import verify_plan

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


def case(seed: int, *, limited: bool = False, may_be_odd: bool = False) -> tuple[Problem, Schedule]:
    """A random graph, slices or both, with a random order."""
    random = Random(seed)
    while True:
        least_ns = random.choice([0, 0, 1])
        problem = graph_problem(random, collectives=True, least_ns=least_ns, may_be_odd=may_be_odd)
        schedule = random_order(random, problem, random_parts(random, problem), limited=limited)
        if schedule is not None:
            return problem, schedule


@pytest.mark.parametrize("first", range(0, 600, 150))
def test_times_and_peaks_are_those_of_a_slow_simulation(first: int) -> None:
    several = shared = 0
    for seed in range(first, first + 150):
        problem, schedule = case(seed)
        found, timeline = slow_simulation(problem, schedule), simulate(problem, schedule)
        assert found is not None
        spans = zip(timeline.starts_ns.tolist(), timeline.ends_ns.tolist(), strict=True)
        assert dict(zip(timeline.named_ops, spans, strict=True)) == found.spans
        assert {each.op: each[1:] for each in timeline.transfers} == found.transfers
        collectives = {(each.collective.kind, each.collective.stage): each[3:] for each in timeline.collectives}
        assert collectives == found.collectives
        assert list(peak_bytes(problem, schedule)) == list(peak_bytes(problem, schedule, timeline)) == found.peaks
        several += int((np.diff(timeline.sender) == 0).any())
        shared += len(timeline.taken) > len(timeline.sender)
    assert several > 20 and shared > 5


def test_the_compiled_loop_gives_the_same() -> None:
    for seed in range(40):
        flow = flow_of(*case(seed))
        columns = (
            *(flow.begin, flow.duration_ns, *flow.gates, flow.receives, flow.takings, flow.taken, flow.taker, flow.rank_of),
            *(flow.resource, flow.occupancy_ns, flow.latency_ns, flow.collective_after, flow.collective_next),
            *(flow.collective_taker, flow.collective_resource, flow.collective_ns),
            *flow.free,
        )
        sizes = (len(flow.ops), len(flow.sender), len(flow.sender), len(flow.collectives))
        plain = [[0] * size for size in sizes]
        arrays = [np.zeros(size, np.int64) for size in sizes]
        ended = event_loop(*(column.tolist() for column in columns), *plain)
        assert ended == compiled(event_loop)(*(column.copy() for column in columns), *arrays) == len(flow.ops)
        assert [array.tolist() for array in arrays] == plain


def test_plans_are_verified() -> None:
    """Channels, receives, times and peaks are those that the verifier finds; values that wait may be over a limit."""
    for seed in range(150):
        problem, schedule = case(seed, limited=True, may_be_odd=True)
        assert {each.rule for each in verify_plan(plan_of(problem, schedule))} <= {"memory-limit"}


def test_a_curve_ends_with_nothing_and_is_never_above_the_peak() -> None:
    for seed in range(100):
        problem, schedule = case(seed)
        timeline = simulate(problem, schedule)
        for rank, peak in enumerate(peak_bytes(problem, schedule, timeline)):
            times_ns, held = zip(*memory_curve(problem, schedule, timeline, rank), strict=True)
            assert held[-1] == 0 <= min(held) and max(held) <= peak
            assert list(times_ns) == sorted(set(times_ns))
            if (timeline.starts_ns < timeline.ends_ns).all():
                assert max(held) == peak


def test_a_value_that_several_stages_take_is_taken_by_the_first_of_their_ops() -> None:
    """Which need not be that of the stage in its name."""
    other = 0
    for seed in range(200):
        timeline = simulate(*case(seed))
        takers = [timeline.ops[timeline.taker[timeline.taken == transfer]] for transfer in range(len(timeline.sender))]
        for first, ops, to in zip(timeline.ops[timeline.first_taker].tolist(), takers, timeline.to_stage.tolist(), strict=True):
            order = [op.tolist() for op in timeline.ops]
            assert first == min(ops.tolist(), key=order.index)
            other += to >= 0 and first[1] != to
    assert other > 5


def test_the_rule_for_neighbouring_stages_is_of_chains_of_whole_microbatches() -> None:
    assert all(not slackness_of(*case(seed)) for seed in range(60))
