"""Stages that are a graph: losses and gradients are those of one process, in float64."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.graphs import graph_problem, random_order
from inputs.jobs import write_job
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import graph_runs

import schedc.runtime
from schedc.errors import InvalidInput
from schedc.frontend.job import load_job
from schedc.ir.graph import Edge
from schedc.ir.network import Link
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runs.processes import Ranks

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

pytestmark = pytest.mark.slow

EXACT = 1e-12
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
        if problem.ranks == ranks and max(takers.values(), default=0) > 1:
            return random, problem


def some_plan(random: Random, problem: Problem) -> Plan:
    """A plan in any order."""
    schedule = random_order(random, problem, limited=False)
    assert schedule is not None
    return plan_of(problem, schedule)


def check(ranks: Ranks, plans: Sequence[Plan], **options: Any) -> None:
    """The errors of all ranks are those of float64."""
    for error in ranks.run(graph_runs.errors_of, plans, **options):
        assert isinstance(error, float) and error < EXACT, (error, getattr(error, "notes", ()))


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("split", [False, True])
def test_graphs(two: Ranks, name: str, *, split: bool) -> None:
    """A plan takes over from another; with B and W apart and not, and recomputed."""
    problem = graph(name, 2, split=split)
    plans = [plan_of(problem, constructive("greedy")(problem)), some_plan(Random(7), problem)]
    check(two, plans)
    check(two, plans[1:], recompute={1, 2})


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_on_four_ranks(four: Ranks, name: str) -> None:
    problem = graph(name, 4)
    check(four, [plan_of(problem, constructive("greedy")(problem)), some_plan(Random(3), problem)])


@pytest.mark.parametrize("seed", range(8))
def test_any_graph(two: Ranks, seed: int) -> None:
    random, problem = some_graph(seed, 2)
    check(two, [some_plan(random, problem), some_plan(random, problem)])


@pytest.mark.parametrize("seed", range(100, 106))
def test_any_graph_on_four_ranks(four: Ranks, seed: int) -> None:
    random, problem = some_graph(seed, 4)
    check(four, [some_plan(random, problem)], recompute=bool(seed % 2))


@pytest.mark.parametrize("tied", [(2, 4), (0, 1, 2, 5)])
def test_tied_weights(two: Ranks, tied: tuple[int, ...]) -> None:
    """A weight that stages of one rank, of several, or of both have."""
    problem = graph("vision encoder beside a decoder", 2)
    check(two, [some_plan(Random(1), problem), some_plan(Random(2), problem)], tied=tied)


LOSSES = "two losses and a skip edge"
MISTAKES = [
    ("a loss without a function", LOSSES, "rank 0 has the loss 4 of stage 4, but was given no loss_fn of this name"),
    (
        "a batch without a name",
        LOSSES,
        "rank 0: step needs the inputs of stage 0 on this rank; pass the batch, or a list of 4 microbatches",
    ),
    ("ranks that choose", LOSSES, "its stages are a graph, which ranks that choose inside a step does not support"),
    ("a module for two losses", LOSSES, "the losses 2 and 4 have one module with weights as loss_fn; give each its own"),
    (
        "a value that is missing",
        LOSSES,
        "stage 1 gives a dict with [5], expected a dict with [0]: its values by number, as edges have them",
    ),
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


JOB = """
[pipeline]
ranks = {ranks}
microbatches = {microbatches}
placement = {placement}
partition = {partition}
split_backward = {split}
[profile]
path = "profile.json"
[topology.within]
bandwidth = "1 GB/s"
"""


def plan_of_job(directory: Path, method: str, **keys: Any) -> Plan:
    """The plan of the vision-language model, from a job and a profile.json."""
    layer = {"forward": "2 us", "backward_input": "2 us", "backward_weight": "1 us", "message": "1 KB"}
    profile = {"format": "schedc.profile", "version": 1, "layers": [{**layer, "repeat": 9}]}
    (directory / "profile.json").write_text(json.dumps({**profile, "modules": graph_runs.MODULES, "edges": graph_runs.EDGES}))
    problem = load_job(write_job(directory, JOB.format(**keys))).problem
    return plan_of(problem, constructive(method)(problem))


@pytest.mark.parametrize(
    ("placement", "partition"),
    [
        ([0, 1, 0, 1, 0, 1], [1, 1, 1, 3, 1, 2]),
        ([1, 0, 1, 0], [2, 2, 3, 2]),
        ([0, 1], [4, 5]),  # a chain of stages, two values go together, the second stage has both losses
        ([1, 0], [2, 7]),  # so has this one, which begins with a batch, too
    ],
)
@pytest.mark.parametrize("split", ["false", "true"])
def test_a_model_of_modules(two: Ranks, tmp_path: Path, placement: list[int], partition: list[int], split: str) -> None:
    """Its stages are made of layers, whose graph a profile.json says; weights of several layers are tied."""
    keys = {"ranks": 2, "placement": placement, "partition": partition, "split": split}
    plans = [plan_of_job(tmp_path, "greedy", microbatches=4, **keys), plan_of_job(tmp_path, "gpipe", microbatches=6, **keys)]
    for error in two.run(graph_runs.vision_errors, plans, recompute=[0] if split == "true" else ()):
        assert isinstance(error, float) and error < EXACT, (error, getattr(error, "notes", ()))


def test_a_model_of_modules_on_four_ranks(four: Ranks, tmp_path: Path) -> None:
    keys = {"ranks": 4, "placement": [0, 1, 2, 3, 0, 1], "partition": [2, 1, 1, 2, 1, 2], "split": "true"}
    for error in four.run(graph_runs.vision_errors, [plan_of_job(tmp_path, "greedy", microbatches=4, **keys)]):
        assert isinstance(error, float) and error < EXACT, (error, getattr(error, "notes", ()))


def test_other_modules_than_the_plans_are_refused(tmp_path: Path) -> None:
    plan = plan_of_job(tmp_path, "greedy", microbatches=4, ranks=2, placement=[0, 1, 0], partition=[2, 2, 5], split="true")
    layers = graph_runs.vision_layers()
    says = (
        "its stages take of each other 0→1, 1→2, by the modules and edges given they do so 0→1, 0→2, 1→2; give build_stages those"
    )
    inputs = [{**module, "inputs": ["text", "vision"]} if module["name"] == "near" else module for module in graph_runs.MODULES]
    with pytest.raises(InvalidInput, match=says):
        schedc.runtime.build_stages(layers, plan, 0, modules=inputs)
    with pytest.raises(InvalidInput, match=r"^modules of the model: found 3 layers in all, expected 9"):
        schedc.runtime.build_stages(layers, plan, 0, modules=[{"name": "vision", "layers": 3}])
    with pytest.raises(InvalidInput, match=r"^edges of the model: \[0\]\.source: found \"word\", expected one of .* did you mean"):
        schedc.runtime.build_stages(layers, plan, 0, modules=graph_runs.MODULES, edges=[{"source": "word", "destination": "near"}])
    stages = schedc.runtime.build_stages(layers, plan, 1, modules=graph_runs.MODULES, edges=graph_runs.EDGES)
    ids, images = {"words": (torch.zeros(1, 3, dtype=torch.long),)}, (torch.zeros(1, 2, 6, dtype=torch.float64),)
    assert [len(tensors) for tensors in stages[1](images, inputs=ids).values()] == [2]
    stages[1][0].register_forward_hook(lambda _module, _inputs, given: {**given, "ids": (given["ids"], given["ids"])})
    with pytest.raises(InvalidInput, match="value 'ids' of layer 2 is 2 tensors; expected one, as these go to a stage together:"):
        stages[1](images, inputs=ids)
    stages[1][0].register_forward_hook(lambda _module, _inputs, given: given["output"])
    with pytest.raises(
        InvalidInput, match=r"layer 2 gives a Tensor, expected a dict with \['output', 'ids'\], the values of its edges"
    ):
        stages[1](images, inputs=ids)
