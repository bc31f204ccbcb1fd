"""Bounds of graphs and slices: never above the exact optimum of hundreds of tiny problems, and equal to it where they should be."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from inputs.all_layouts import best_of_all, tiny_workload
from inputs.graphs import graph_problem
from inputs.problems import make_problem
from inputs.tiny_problems import random_parts
from oracles.bounds import bound_of
from oracles.brute_force import SearchTooLarge, optimum

from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.bounds.lower_bounds import best_bound, lower_bounds
from schedc.analysis.bounds.residency import minimum_limit_bytes, rank_without_room
from schedc.errors import Infeasible
from schedc.ir.graph import Edge
from schedc.ir.layout import OpenLayout
from schedc.ir.network import Link
from schedc.ir.problem import DataParallel, Objective, Problem

FAR = {(0, 1): (5, 0), (1, 0): (5, 0)}


def check_against_optimum(seed: int, most_ops: int, *, cut: bool = False) -> None:
    random = Random(seed)
    problem = graph_problem(random, most_ops=most_ops, most_stages=5, collectives=seed % 3 == 0)
    try:
        least = optimum(problem, random_parts(random, problem) if cut else (), most_states=8_000)
    except SearchTooLarge:
        return
    for bound in lower_bounds(problem):
        assert least is None or bound.value_ns <= least, (bound, problem)
    if least is not None:
        assert rank_without_room(problem) is None


@pytest.mark.parametrize("seed", [*range(80), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(80, 300))])
def test_no_bound_exceeds_the_optimum(seed: int) -> None:
    check_against_optimum(seed, 22 if seed % 4 else 30)


@pytest.mark.parametrize("seed", range(1000, 1040))
def test_no_bound_exceeds_the_optimum_with_blocks_cut_into_parts(seed: int) -> None:
    check_against_optimum(seed, 14, cut=True)


def graph(problem: Problem, *pairs: tuple[int, int], latency_ns: int = 0, transfer_ns: int = 0, several: bool = False) -> Problem:
    """The problem with these edges, each with a gradient, and links between all ranks; `several`: each has a value of its own."""
    return replace(
        problem,
        edges=tuple(Edge(source=a, destination=b, value=at if several else 0) for at, (a, b) in enumerate(pairs)),
        links=tuple(
            Link(source=a, destination=b, latency_ns=latency_ns, transfer_ns=transfer_ns)
            for a in range(problem.ranks)
            for b in range(problem.ranks)
            if a != b
        ),
    )


ENCODER = make_problem(2, 2, placement=[0, 1, 1], costs_ns=(2, 2, 2))
ONE_AT_A_TIME = replace(make_problem(2, 3, placement=[0, 1, 1], costs_ns=(2, 2, 2)), memory_limit_bytes=(2, None))
DIAMOND = make_problem(4, 1, costs_ns=[(2, 2, 2), (3, 4, 1), (2, 3, 2), (2, 2, 2)])
SLICED = replace(make_problem(2, 4, costs_ns=(2, 2, 2), links=FAR), slices=(1, 1))
UNEQUAL = replace(
    SLICED,
    slices=(1, 3),
    stages=tuple(
        replace(each, forward_ns=(1, 6) * 2, backward_input_ns=(1, 8) * 2, backward_ns=(3, 10) * 2) for each in SLICED.stages
    ),
)
TIGHT = [
    # An encoder of one rank beside one of the other, with the decoder behind it: the other rank has a gap in which it waits.
    ("work", graph(ENCODER, (0, 2), (1, 2), latency_ns=5), 27),
    # Two values to two heads on one rank, one after the other; each gradient comes back by itself.
    ("link", graph(ENCODER, (0, 1), (0, 2), transfer_ns=9, several=True), 55),
    # Through the longer of two branches, there and back.
    ("path", graph(DIAMOND, (0, 1), (0, 2), (1, 3), (2, 3), latency_ns=5), 37),
    # The encoder's rank has room for one microbatch, which is away for as long as the decoder takes.
    ("residency", graph(ONE_AT_A_TIME, (0, 2), (1, 2), latency_ns=5), 60),
    # Both slices there and, in reverse, back; a stage begins its backwards with the last slice.
    ("path", replace(SLICED, microbatches=2, path_of=(0, 0), split_backward=False), 28),
    ("work", replace(SLICED, microbatches=2, path_of=(0, 0)), 26),
]


@pytest.mark.parametrize(("name", "problem", "value_ns"), TIGHT)
def test_a_bound_is_the_optimum(name: str, problem: Problem, value_ns: int) -> None:
    assert optimum(problem, most_states=400_000) == value_ns
    assert bound_of(name, problem).value_ns == value_ns
    assert best_bound(problem).value_ns == value_ns


ALONE = {
    "work": UNEQUAL,
    # The reduce-scatters of two stages, one after the other on one rank.
    "link": replace(
        graph(ENCODER, (0, 1), (0, 2)), data_parallel=DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(0, 30, 30))
    ),
    # Microbatches that differ, each counted with its own time away.
    "residency": graph(
        replace(ONE_AT_A_TIME, stages=tuple(replace(each, forward_ns=(1, 6, 2)) for each in ONE_AT_A_TIME.stages)),
        *((0, 2), (1, 2)),
        latency_ns=5,
    ),
    # Memory for one microbatch, each of whose slices is away for long: as for microbatches of half its size.
    "idle-gaps": replace(make_problem(2, 4, costs_ns=(2, 2, 2), activation=(4, 2), links=FAR, in_flight=1), slices=(1, 1)),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_bound_is_the_largest_alone_in_some_case(name: str) -> None:
    values = {bound.name: bound.value_ns for bound in lower_bounds(ALONE[name])}
    assert values.pop(name) > max(values.values())  # type: ignore[call-overload]


def test_what_a_chain_idles_a_graph_idles_too() -> None:
    """A chain with 1F1B's memory, and with ids that its last stage takes from the first besides."""
    chain = make_problem(4, 8, costs_ns=(10, 12, 7), in_flight=4)
    edges = [Edge(source=at, destination=at + 1, message_bytes=0, gradient_message_bytes=0) for at in range(3)]
    edges.append(Edge(source=0, destination=3, message_bytes=0, gradient_message_bytes=None, value=1))
    graph = replace(chain, edges=tuple(edges), links=(*chain.links, Link(source=0, destination=3, latency_ns=0, transfer_ns=0)))
    own, same = ({str(bound.name): bound.value_ns for bound in lower_bounds(problem)} for problem in (chain, graph))
    assert same["warm-up"] >= own["warm-up"] > own["work"]
    assert same["idle-gaps"] == own["idle-gaps"] > own["warm-up"]


def test_a_chain_as_a_graph_has_the_bounds_of_the_chain() -> None:
    for objective in Objective:
        chain = replace(make_problem(3, 3, in_flight=2, links={(0, 1): (3, 4), (1, 0): (2, 1)}), objective=objective)
        same = replace(chain, edges=chain.edges_of(0))
        assert lower_bounds(same) == lower_bounds(chain)
        assert minimum_limit_bytes(same) == minimum_limit_bytes(chain)


def test_equal_values_bind_a_link_less() -> None:
    found = [graph(ENCODER, (0, 1), (0, 2), transfer_ns=90, several=each) for each in (False, True)]
    ids = [replace(each, edges=tuple(replace(edge, gradient_message_bytes=None) for edge in each.edges)) for each in found]
    assert [bound_of("link", each).value_ns for each in ids] == [2 + 2 * 90 + 6, 2 + 4 * 90 + 6]


def test_a_limit_holds_all_slices_and_the_gradients_of_their_states() -> None:
    stages = tuple(replace(each, activation_bytes=10, state_gradient_bytes=5) for each in SLICED.stages)
    problem = replace(SLICED, stages=stages, slices=(1, 4))
    assert minimum_limit_bytes(problem) == (11, 11)  # 2 + 8 of activations, and 1 for the state of the first slice
    for limit, fits in ((10, False), (11, True)):
        limited = replace(problem, memory_limit_bytes=(limit, None))
        assert (optimum(limited, most_states=400_000) is not None) is fits
        assert (rank_without_room(limited) is None) is fits


@pytest.mark.parametrize("seed", range(60))
def test_the_bound_over_layouts_is_not_above_the_best_of_all(seed: int) -> None:
    """Of layers that are a graph, in slices, or both."""
    random = Random(seed)
    layers, sliced = random.randint(2, 3), seed % 3 > 0
    workload = tiny_workload(random, layers=layers, ranks=2, microbatches=2, differ=True)
    pairs = [(a, b) for a in range(layers) for b in range(a + 1, layers) if b == a + 1 or random.random() < 0.5]
    edges = tuple(Edge(source=a, destination=b, gradient_message_bytes=random.choice([0, None])) for a, b in pairs)
    slices = random.choice([(1, 1), (1, 3)]) if sliced else ()
    workload = replace(workload, edges=edges if seed % 3 < 2 else (), slices=slices)
    open_layout = OpenLayout(chunks=random.choice([1, 2]))
    best_ns = best_of_all(workload, open_layout, optimum)
    try:
        assert best_ns is None or layout_bound(workload, open_layout).value_ns <= best_ns
    except Infeasible:
        assert best_ns is None
