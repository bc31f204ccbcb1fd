"""Bounds, CP-SAT, MILP and brute force on tiny graphs and slices; `benchmarks/compiler/graphs.py` does it for hundreds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from inputs.graphs import graph_problem
from inputs.problems import make_problem
from oracles.brute_force import best_schedule
from oracles.graph_checks import check_graph, small_graph
from ortools.sat.python import cp_model

from schedc.analysis.simulation.simulate import simulate
from schedc.ir import DURATIONS, Kind, Op, groups_of, sent_to
from schedc.ir.graph import Edge
from schedc.ir.problem import Objective, Problem
from schedc.models.blocks import TimeGrid, blocks_of, entries_of, followers_of, grid_of
from schedc.models.cpsat.model import build
from schedc.models.start_windows import windows_of
from schedc.solvers.common.base import NO_LIMITS, Limits
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.exact.milp import solve_milp
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from schedc.ir import Stage

NANOSECONDS = TimeGrid(1, True)


def assert_agree(numbers: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    assert [(number, finding) for number in numbers for finding in check_graph(number, counts)] == []
    return counts


def test_bounds_and_solvers_agree_with_brute_force() -> None:
    counts = assert_agree(range(60))
    assert counts["compared with brute force"] >= 55
    assert counts["cpsat proves the optimum"] >= 52
    assert counts["milp ends with its relaxed model"] and counts["cpsat ends with its relaxed model"]
    assert counts["  graphs"] and counts["  graphs in slices"] and counts["  chains in slices"]


@pytest.mark.slow
def test_they_agree_on_more() -> None:
    counts = assert_agree(range(60, 130))
    assert counts["cpsat proves the optimum"] >= 58


@pytest.mark.parametrize(
    ("seed", "most_ops", "why"),
    [
        (274, 22, "rank 0 begins as the second message of one op arrives, which queues behind the first"),
        (1063, 22, "a message of 0 bytes queues behind another one, and a rank begins as it arrives"),
        (2196, 26, "a fused backward's gradient comes later than that of B and W at once, and waits less"),
    ],
)
def test_what_models_once_called_impossible(seed: int, most_ops: int, why: str) -> None:
    problem = graph_problem(Random(seed), most_ops=most_ops, most_stages=5, collectives=seed % 3 == 0)
    least_ns, best = best_schedule(problem)
    assert least_ns is not None and best is not None, why
    assert solve_cpsat(problem, best, limits=Limits(workers=1)).lower_bound_ns <= least_ns, why
    assert solve_milp(problem, best, limits=NO_LIMITS).lower_bound_ns <= least_ns, why


def sliced(durations_ns: tuple[int, ...]) -> Problem:
    """Two microbatches of two slices on two ranks, F as given."""
    problem = make_problem(2, 4, costs_ns=(2, 2, 2))
    return replace(problem, slices=(1, 1), stages=tuple(replace(stage, forward_ns=durations_ns) for stage in problem.stages))


def test_slices_are_alike_where_their_microbatches_are() -> None:
    assert groups_of(sliced((2, 3, 2, 3))) == (0, 1, 0, 1)
    assert groups_of(sliced((2, 3, 2, 4))) == (0, 1, 2, 3)  # the first ones alone cost the same; their order decides for the others


@pytest.mark.parametrize("durations_ns", [(1, 6, 1, 1), (6, 1, 1, 1)])
def test_slices_that_cost_the_same_may_be_in_any_order_where_their_microbatches_do_not(durations_ns: tuple[int, ...]) -> None:
    """The second microbatch goes first; with its slices in order with those of the first that cost as much, that is impossible."""
    problem = sliced(durations_ns)
    least_ns, best = best_schedule(problem)
    assert best is not None
    found = solve_cpsat(problem, best, limits=Limits(workers=1))
    assert found.lower_bound_ns == found.objective_ns == least_ns


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 100))])
def test_the_order_of_alike_microbatches_loses_nothing(seed: int) -> None:
    """The models with that order and without have the same optimum: with limits, gradients of states, and sources in order, too."""
    random = Random(seed)
    problem = graph_problem(random, most_ops=26, most_stages=4)
    slices = len(problem.slices) or 1
    if problem.microbatches == slices:
        return
    alike = tuple(replace(stage, **durations_of_first(stage, problem.microbatches, slices)) for stage in problem.stages)
    problem = replace(problem, stages=alike, objective=Objective.MAKESPAN)
    blocks = blocks_of(problem, NANOSECONDS)
    entries = entries_of(problem)
    enter = [chain for chain in blocks.chains if problem.in_order and chain[0].kind is Kind.F and chain[0].stage in entries[0]]
    alone = tuple((op,) for chain in blocks.chains if chain not in enter for op in chain)
    assert any(len(chain) > 1 for chain in blocks.chains)
    found = []
    for each in (blocks, replace(blocks, chains=(*enter, *alone))):
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        status = solver.solve(build(problem, each, windows_of(problem, each, 400), 0, 400).model)
        found.append((status, round(solver.objective_value)))
    assert found[0] == found[1]
    assert found[0][0] in (cp_model.OPTIMAL, cp_model.INFEASIBLE)


def durations_of_first(stage: Stage, microbatches: int, slices: int) -> dict[str, Any]:
    """The stage's durations, of all microbatches those of the first one."""
    each = {name: getattr(stage, name) for name in DURATIONS.values()}
    return {name: values if len(values) == 1 else values[:slices] * (microbatches // slices) for name, values in each.items()}


def two_heads(values: tuple[int, int]) -> Problem:
    edges = tuple(
        Edge(source=0, destination=to, message_bytes=4, gradient_message_bytes=None, value=value)
        for to, value in zip((1, 2), values, strict=True)
    )
    return replace(make_problem(2, 1, placement=[0, 1, 1], links={(0, 1): (5, 7), (1, 0): (0, 0)}), edges=edges)


def test_an_equal_value_is_one_transfer_with_two_consumers() -> None:
    producer, consumers = Op(Kind.F, 0, 0), (Op(Kind.F, 1, 0), Op(Kind.F, 2, 0))
    (once,) = blocks_of(two_heads((0, 0)), NANOSECONDS).transfers
    assert (once.name, once.producer, once.consumers) == (sent_to(producer, 1), producer, consumers)
    twice = blocks_of(two_heads((0, 1)), NANOSECONDS)
    assert [(move.name, move.consumers) for move in twice.transfers] == [(sent_to(producer, op.stage), (op,)) for op in consumers]
    assert [gap for op, gap in followers_of(twice)[producer] if op in consumers] == [12, 19]  # the second one behind the first


def test_ticks_divide_the_messages_of_edges_and_of_slices() -> None:
    problem = make_problem(2, 2, costs_ns=(12, 12, 12))
    links = tuple(replace(link, transfer_ns=None, bytes_per_second=10**9) for link in problem.links)
    whole = replace(
        problem, links=links, stages=tuple(replace(stage, message_bytes=12, gradient_message_bytes=12) for stage in problem.stages)
    )
    assert grid_of(whole, 1000).tick_ns == 12
    assert grid_of(replace(whole, slices=(1, 2)), 1000).tick_ns == 4
    edge = Edge(source=0, destination=1, message_bytes=6, gradient_message_bytes=None)
    assert grid_of(replace(whole, edges=(edge,)), 1000).tick_ns == 6


@pytest.mark.parametrize("objective", list(Objective))
def test_a_chain_as_a_graph_has_the_same_optimum(objective: Objective) -> None:
    chain = replace(make_problem(2, 3, in_flight=2, links={(0, 1): (3, 4), (1, 0): (2, 1)}), objective=objective)
    same = replace(chain, edges=chain.edges_of(0))
    assert verify_problem(same) == ()
    _, best = best_schedule(chain)
    assert best is not None
    one, other = (solve_cpsat(each, best, limits=Limits(workers=1)) for each in (chain, same))
    assert one.lower_bound_ns == other.lower_bound_ns == simulate(same, best).objective_ns(objective)
    assert solve_milp(same, best, limits=NO_LIMITS).lower_bound_ns == one.lower_bound_ns


@pytest.mark.parametrize("number", [43, 285])
def test_values_that_wait_take_memory_in_cpsat_and_none_in_milp(number: int) -> None:
    problem = small_graph(number)
    least_ns, best = best_schedule(problem)
    assert best is not None and least_ns is not None
    one, other = solve_cpsat(problem, best, limits=Limits(workers=1)), solve_milp(problem, best, limits=NO_LIMITS)
    assert other.lower_bound_ns < one.lower_bound_ns < least_ns == one.objective_ns == other.objective_ns
