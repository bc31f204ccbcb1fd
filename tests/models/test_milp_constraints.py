"""Every constraint of the MILP alone, on times fixed by hand: open, broken and met."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import pulp
import pytest
from inputs.fused_problems import with_fused
from inputs.problems import make_problem

from schedc.ir.ops import Kind, Op
from schedc.ir.problem import DataParallel, Objective
from schedc.ir.resource import Resource
from schedc.models.blocks import TimeGrid, blocks_of
from schedc.models.milp import model as milp
from schedc.models.milp.memory import add_memory_limit
from schedc.models.milp.order import OrderedTask, add_no_overlap
from schedc.models.milp.variables import Graph, MilpVariables, graph_of, op_name
from schedc.models.start_windows import Windows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schedc.ir.problem import Problem

END = 1000
Starts = dict[Op, int]


def f(stage: int, microbatch: int) -> Op:
    return Op(Kind.F, stage, microbatch)


def b(stage: int, microbatch: int) -> Op:
    return Op(Kind.B, stage, microbatch)


def w(stage: int, microbatch: int) -> Op:
    return Op(Kind.W, stage, microbatch)


def bare(problem: Problem) -> tuple[MilpVariables, Graph, Windows]:
    """Variables without constraints, between 0 and `END` whatever needs what."""
    blocks = blocks_of(problem, TimeGrid(1, True))
    ops = list(blocks.duration)
    model = pulp.LpProblem("test")
    start = {op: model.add_variable(op_name(op), 0, END) for op in ops}
    variables = MilpVariables(model, blocks, start, model.add_variable("objective", 0, END))
    variables.fused |= {op: model.add_variable(f"fused:{op_name(op)}", cat=pulp.LpBinary) for op in blocks.fused}
    windows = Windows(
        earliest=dict.fromkeys(ops, 0),
        latest=dict.fromkeys(ops, END),
        tail=dict.fromkeys(ops, 0),
        end=END,
        origin=dict.fromkeys(range(problem.ranks), 0),
        firsts={},
        least=0,
    )
    return variables, graph_of(blocks), windows


def best(variables: MilpVariables, times: Mapping[Op, int], sends: Mapping[Op, int] | None = None) -> int | None:
    """The least objective where these ops and sends start then; None if that is infeasible."""
    fixed = [(variables.start[op], time) for op, time in times.items()]
    fixed += [(variables.send[op], time) for op, time in (sends or {}).items()]
    for variable, time in fixed:
        variable.lowBound = variable.upBound = time
    if variables.model.objective is None:
        variables.model += variables.objective
    status = variables.model.solve(pulp.HiGHS(msg=False))
    assert status in (pulp.LpStatusOptimal, pulp.LpStatusInfeasible)
    return round(pulp.value(variables.objective) or 0) if status == pulp.LpStatusOptimal else None


PAIR = make_problem(2, 2, links={(0, 1): (3, 5), (1, 0): (3, 5)})
"""Two ranks, two microbatches, all blocks 10 long."""


@pytest.mark.parametrize(
    ("times", "feasible"),
    [({}, True), ({f(0, 0): 0, b(0, 0): 9}, False), ({f(0, 0): 0, b(0, 0): 10}, True), ({b(1, 1): 4, w(1, 1): 13}, False)],
)
def test_precedences(times: Starts, feasible: bool) -> None:
    variables, _, _ = bare(PAIR)
    milp.add_precedences(variables)
    assert (best(variables, times) is not None) == feasible


@pytest.mark.parametrize(
    ("times", "feasible"),
    [
        ({}, True),
        ({f(0, 1): 50, w(0, 0): 55}, False),
        ({f(0, 1): 50, w(0, 0): 41}, False),
        ({f(0, 1): 50, w(0, 0): 60}, True),
        ({f(0, 1): 50, w(0, 0): 40}, True),
        ({f(0, 1): 50, w(1, 0): 55}, True),
    ],
)
def test_rank_no_overlap(times: Starts, feasible: bool) -> None:
    variables, graph, windows = bare(PAIR)
    milp.add_rank_no_overlap(variables, PAIR, graph, windows)
    assert (best(variables, times) is not None) == feasible


@pytest.mark.parametrize(
    ("times", "sends", "feasible"),
    [
        ({}, {}, True),
        ({f(0, 0): 0, f(1, 0): 17}, {}, False),
        ({f(0, 0): 0, f(1, 0): 18}, {}, True),
        ({f(0, 0): 0}, {f(0, 0): 9}, False),
        ({}, {f(0, 0): 20, f(0, 1): 24}, False),
        ({}, {f(0, 0): 20, f(0, 1): 25}, True),
        ({}, {f(0, 0): 20, b(1, 1): 21}, True),
    ],
)
def test_transfers(times: Starts, sends: Starts, feasible: bool) -> None:
    variables, _, windows = bare(PAIR)
    milp.add_transfers(variables, windows, defaultdict(list))
    assert (best(variables, times, sends) is not None) == feasible


@pytest.mark.parametrize(
    ("sends", "feasible"),
    [({}, True), ({f(0, 1): 20, b(1, 0): 24}, False), ({f(0, 1): 20, b(1, 0): 25}, True), ({f(0, 1): 20, b(1, 0): 15}, True)],
)
def test_trunk_no_overlap(sends: Starts, feasible: bool) -> None:
    problem = make_problem(2, 2, links={(0, 1): (3, 5), (1, 0): (3, 5)}, trunks={(0, 1): "t", (1, 0): "t"})
    variables, graph, windows = bare(problem)
    shared: dict[Resource, list[OrderedTask]] = defaultdict(list)
    milp.add_transfers(variables, windows, shared)
    add_no_overlap(variables, shared[Resource.of_link(problem.links[0])], graph)
    assert (best(variables, {}, sends) is not None) == feasible


@pytest.mark.parametrize(
    ("times", "feasible"),
    [({}, True), ({f(0, 0): 10, f(0, 1): 0}, False), ({b(1, 0): 0, b(1, 1): 9}, False), ({f(0, 1): 10}, True)],
)
def test_microbatch_order(times: Starts, feasible: bool) -> None:
    variables, _, _ = bare(PAIR)
    milp.add_microbatch_order(variables)
    assert (best(variables, times) is not None) == feasible


@pytest.mark.parametrize(
    ("limit", "times", "feasible"),
    [
        (3, {}, True),
        (1, {}, False),
        (3, {f(0, 1): 20, b(0, 0): 30}, False),
        (3, {f(0, 0): 0, b(0, 0): 10, f(0, 1): 20, w(0, 0): 30}, True),
        (2, {f(0, 0): 0, b(0, 0): 10, f(0, 1): 20, w(0, 0): 30}, False),
        (2, {f(0, 0): 0, b(0, 0): 10, f(0, 1): 30, w(0, 0): 20}, True),
        (4, {f(0, 1): 20, b(0, 0): 30}, True),
    ],
)
def test_memory_limit(limit: int, times: Starts, feasible: bool) -> None:
    problem = replace(PAIR, memory_limit_bytes=(limit, None))
    variables, graph, windows = bare(problem)
    milp.add_rank_no_overlap(variables, problem, graph, windows)
    add_memory_limit(variables, problem)
    assert (best(variables, times) is not None) == feasible


@pytest.mark.parametrize(
    ("times", "feasible"),
    [
        ({}, True),
        ({f(0, 0): 0, f(1, 0): 10, f(0, 1): 20, b(1, 0): 30, w(1, 0): 40}, False),
        ({f(0, 0): 0, f(1, 0): 10, b(1, 0): 20, w(1, 0): 30, f(0, 1): 40}, True),
        ({f(0, 0): 0, f(1, 0): 10, b(1, 0): 20, w(1, 0): 30, f(0, 1): 40, f(1, 1): 50}, False),
        ({f(0, 0): 0, f(1, 0): 10, f(0, 1): 60, b(1, 0): 20, b(0, 0): 30, w(1, 0): 40, w(0, 0): 50}, True),
    ],
)
def test_memory_limit_of_several_stages(times: Starts, feasible: bool) -> None:
    """One rank with two stages of 2 and 3 bytes that keep 1 and 2 of them for W: both fit, and nothing beside them."""
    problem = make_problem(1, 2, placement=[0, 0], activation=[(2, 1), (3, 2)], memory_limit_bytes=[5])
    variables, graph, windows = bare(problem)
    milp.add_rank_no_overlap(variables, problem, graph, windows)
    add_memory_limit(variables, problem)
    assert (best(variables, times) is not None) == feasible


@pytest.mark.parametrize(
    ("times", "expected"),
    [({}, 18), ({f(0, 0): 3}, None), ({f(0, 0): 4}, 18), ({f(1, 0): 5}, None), ({f(1, 0): 6}, 18), ({w(1, 1): 50}, 68)],
)
def test_collectives(times: Starts, expected: int | None) -> None:
    parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(7, 8), all_gather_ns=(4, 6))
    problem = replace(PAIR, data_parallel=parallel)
    variables, _, windows = bare(problem)
    milp.add_collectives(variables, problem, windows, defaultdict(list))
    assert best(variables, times) == expected


def test_collectives_share_a_trunk() -> None:
    parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(7, 8), all_gather_ns=(4, 6), trunk="t")
    problem = replace(PAIR, data_parallel=parallel)
    for first_forwards, feasible in ((9, False), (10, True)):
        variables, graph, windows = bare(problem)
        shared: dict[Resource, list[OrderedTask]] = defaultdict(list)
        milp.add_collectives(variables, problem, windows, shared)
        add_no_overlap(variables, shared[Resource.of_collectives(parallel, 0)], graph)
        assert (best(variables, {f(0, 0): first_forwards, f(1, 0): first_forwards}) is not None) == feasible


@pytest.mark.parametrize(("objective", "expected"), [(Objective.MAKESPAN, 70), (Objective.STAGE_SPAN, 55)])
def test_objective(objective: Objective, expected: int) -> None:
    """From 0, or from the rank's first forward, which starts at 15."""
    problem = replace(PAIR, objective=objective)
    variables, _, windows = bare(problem)
    if objective is Objective.STAGE_SPAN:
        windows = replace(windows, origin={0: None, 1: None})
    milp.add_objective(variables, problem, windows)
    assert best(variables, {f(1, 0): 15, w(1, 1): 60, f(0, 0): 0, f(0, 1): 20, b(0, 1): 30, w(0, 1): 40}) == expected


@pytest.mark.parametrize(
    ("times", "split", "fused"),
    [
        ({}, True, True),
        ({b(0, 0): 50, f(0, 1): 60}, True, False),
        ({b(0, 0): 50, f(0, 1): 66}, True, False),
        ({b(0, 0): 50, f(0, 1): 67}, True, True),
        ({b(0, 0): 50, w(0, 1): 66}, True, True),
        ({w(0, 0): 50, f(0, 1): 55}, False, True),
        ({w(0, 0): 50, f(0, 1): 45}, False, True),
    ],
)
def test_a_fused_backward_takes_its_own_time_and_its_w_none(times: Starts, split: bool, fused: bool) -> None:
    """BW of 17 in the place of B; the other microbatch's backward may be either."""
    for value, feasible in ((0, split), (1, fused)):
        problem = with_fused(PAIR, 17)
        variables, graph, windows = bare(problem)
        milp.add_rank_no_overlap(variables, problem, graph, windows)
        variables.fused[b(0, 0)].lowBound = variables.fused[b(0, 0)].upBound = value
        assert (best(variables, times) is not None) == feasible


@pytest.mark.parametrize(
    ("times", "split", "fused"),
    [
        ({f(0, 1): 20, b(0, 0): 30}, False, False),
        ({b(0, 0): 30, f(0, 1): 50, w(0, 0): 80}, False, True),
        ({b(0, 0): 30, w(0, 0): 40, f(0, 1): 50}, True, True),
    ],
)
def test_memory_where_a_backward_may_be_fused(times: Starts, split: bool, fused: bool) -> None:
    """Room for one activation of 2 bytes, 1 of them held until W; BW of 17 releases both."""
    for value, feasible in ((0, split), (1, fused)):
        problem = with_fused(replace(PAIR, memory_limit_bytes=(2, None)), 17)
        variables, graph, windows = bare(problem)
        milp.add_rank_no_overlap(variables, problem, graph, windows)
        add_memory_limit(variables, problem)
        variables.fused[b(0, 0)].lowBound = variables.fused[b(0, 0)].upBound = value
        assert (best(variables, {f(0, 0): 0} | times) is not None) == feasible
