"""Stages that are a graph: losses and gradients are those of one process, in float64."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from inputs.graphs import graph_problem, plan_in_any_order
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import graph_runs
from runs.harness import assert_exact

from schedc.formats.trace_file import read_trace
from schedc.ir.graph import Edge
from schedc.ir.network import Link
from schedc.runtime.emulation.emulate import emulate
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runs.processes import Ranks

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

pytestmark = pytest.mark.slow

GRAPHS: dict[str, list[tuple[int, int, int, bool]]] = {
    "vision encoder beside a decoder": [(0, 1, 0, True), (1, 3, 0, True), (2, 3, 0, True), (3, 4, 0, True), (4, 5, 0, True)],
    "two losses and a skip edge": [(0, 1, 0, True), (1, 2, 0, True), (1, 3, 0, True), (0, 4, 0, True), (3, 4, 0, True)],
    "ids for all": [
        (0, 1, 0, False),
        (0, 2, 0, False),
        (0, 3, 0, False),
        (1, 2, 0, True),
        (2, 3, 0, True),
        (0, 4, 0, False),
        (3, 4, 0, True),
    ],
    "ids for three": [(0, 1, 0, True), (1, 2, 0, False), (1, 3, 0, False), (0, 2, 0, True), (2, 3, 0, True)],
    "equal values": [
        (0, 1, 0, True),
        (0, 2, 0, True),
        (0, 3, 0, True),
        (0, 4, 0, True),
        (1, 5, 0, True),
        (2, 5, 0, True),
        (3, 5, 1, True),
        (4, 5, 0, True),
    ],
}
"""By name, the edges: from, to, value, whether it has a gradient."""


def graph(name: str, ranks: int, *, split: bool = True, microbatches: int = 4) -> Problem:
    """One of them, its stages dealt to the ranks in turn; so several are on one."""
    edges = tuple(
        Edge(source=a, destination=b, value=value, message_bytes=1, gradient_message_bytes=1 if back else None)
        for a, b, value, back in GRAPHS[name]
    )
    stages = 1 + max(edge.destination for edge in edges)
    made = make_problem(ranks, microbatches, placement=[stage % ranks for stage in range(stages)], split_backward=split)
    links = tuple(Link(source=a, destination=b, transfer_ns=1) for a in range(ranks) for b in range(ranks) if a != b)
    return graph_runs.with_edges(made, edges, links)


def some_graph(seed: int, ranks: int) -> tuple[Random, Problem]:
    """A graph on this many ranks, in which a stage gives one value to several; and what has drawn it."""
    random = Random(seed)
    while True:
        problem = graph_problem(random, most_ranks=ranks, most_stages=ranks + 3, edges=True, slices=False, memory=False)
        takers = Counter((edge.source, edge.value) for edge in problem.edges if edge.has_gradient)
        values = {(edge.source, edge.value, edge.has_gradient) for edge in problem.edges}
        is_one = len(values) == len({value[:2] for value in values})  # none has a gradient over some of its edges alone
        if problem.ranks == ranks and max(takers.values(), default=0) > 1 and is_one:
            return random, problem


def check(ranks: Ranks, plans: Sequence[Plan], **options: Any) -> None:
    """The errors of all ranks are those of float64."""
    assert_exact(ranks.run(graph_runs.errors_of, plans, **options))


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("split", [False, True])
def test_graphs(two: Ranks, name: str, *, split: bool) -> None:
    """A plan takes over from another; with B and W apart and not, and recomputed."""
    problem = graph(name, 2, split=split)
    plans = [plan_of(problem, constructive("greedy")(problem)), plan_in_any_order(Random(7), problem)]
    check(two, plans)
    check(two, plans[1:], recompute={1, 2})


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_on_four_ranks(four: Ranks, name: str) -> None:
    problem = graph(name, 4)
    check(four, [plan_of(problem, constructive("greedy")(problem)), plan_in_any_order(Random(3), problem)])


@pytest.mark.parametrize("seed", range(8))
def test_any_graph(two: Ranks, seed: int) -> None:
    random, problem = some_graph(seed, 2)
    check(two, [plan_in_any_order(random, problem), plan_in_any_order(random, problem)])


@pytest.mark.parametrize("seed", range(100, 106))
def test_any_graph_on_four_ranks(four: Ranks, seed: int) -> None:
    random, problem = some_graph(seed, 4)
    check(four, [plan_in_any_order(random, problem)], recompute=bool(seed % 2))


@pytest.mark.parametrize("tied", [(2, 4), (0, 1, 2, 5)])
def test_tied_weights(two: Ranks, tied: tuple[int, ...]) -> None:
    """A weight that stages of one rank, of several, or of both have."""
    problem = graph("vision encoder beside a decoder", 2)
    check(two, [plan_in_any_order(Random(1), problem), plan_in_any_order(Random(2), problem)], tied=tied)


def test_two_pipelines(four: Ranks) -> None:
    problem = graph("equal values", 2)
    assert_exact(four.run(graph_runs.replicated, plan_of(problem, constructive("greedy")(problem))))


def test_a_step_that_runs_again_and_is_recorded(two: Ranks, tmp_path: Path) -> None:
    """The trace has all transfers by their edges."""
    problem = graph("two losses and a skip edge", 2)
    plan = plan_of(problem, constructive("greedy")(problem))
    assert_exact(two.run(graph_runs.again, plan, tmp_path / "trace.json"))
    found = read_trace(tmp_path / "trace.json")
    assert [rank.compute for rank in found.ranks] == [rank.compute for rank in plan.ranks]


def test_an_emulation() -> None:
    """It takes no less than the plan says, at a scale at which waiting is exact enough."""
    problem = graph("vision encoder beside a decoder", 2)
    times: Any = dict.fromkeys(("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns"), (4_000_000,))
    slow = replace(problem, stages=tuple(replace(stage, **times) for stage in problem.stages))
    plan = plan_of(slow, constructive("greedy")(slow))
    emulation = emulate(plan, runs=2)
    assert all(plan.certificate.makespan_ns <= run_ns < 2 * plan.certificate.makespan_ns for run_ns in emulation.runs_ns)


LOSSES = "two losses and a skip edge"
MISTAKES = [
    ("a loss without a function", LOSSES, "rank 0 has the loss 4 of stage 4, but was given no loss_fn of this name"),
    (
        "a batch without a name",
        LOSSES,
        "rank 0: step needs the inputs of stage 0 on this rank; pass the batch, or a list of 4 microbatches",
    ),
    ("ranks that choose", LOSSES, "its stages are a graph, which ranks that choose inside a step does not support"),
    (
        "ranks that adapt",
        LOSSES,
        "its stages are a graph, which adapting while training does not support; expected a chain",
    ),
    ("a module for two losses", LOSSES, "the losses 2 and 4 have one module with weights as loss_fn; give each its own"),
    (
        "a value that is missing",
        LOSSES,
        "stage 1 gives a dict with [5], expected a dict with [0]: its values by number, as edges have them",
    ),
    ("integers", LOSSES, "no tensor that can have a gradient over an edge with one; give the edge none (gradient = false)"),
    (
        "a value that requires grad",
        "ids for three",
        "stage 1 gives stage 2 a tensor that requires grad over an edge without gradient; detach",
    ),
    (
        "an input changed in place",
        "ids for three",
        "stage 2 changes what it takes in place, which other stages may take, too; let it copy",
    ),
]


@pytest.mark.parametrize(("mistake", "name", "says"), MISTAKES)
def test_mistakes(two: Ranks, mistake: str, name: str, says: str) -> None:
    """All ranks say in one line what is wrong, or that another has failed."""
    problem = graph(name, 2)
    found = two.run(graph_runs.refused, plan_of(problem, constructive("greedy")(problem)), mistake)
    assert any(says in one for one in found), found
    assert all(says in one or one.startswith("TransferFailed") for one in found), found
    assert all("\n" not in one for one in found)


def test_a_batch_that_does_not_fit(two: Ranks) -> None:
    """All ranks refuse it, nothing has run, and the next step does."""
    problem = graph("ids for three", 2)
    first, second = two.run(graph_runs.smaller, plan_of(problem, constructive("greedy")(problem)))
    assert first == second
    says = "BatchRefused: rank 1: the targets of stage 3 have the shape [7, 3]; dimension 0 must be a multiple of the plan's 4"
    assert first[0] == f"{says} microbatches"
    assert float(first[1]) > 0
