"""A layout's value: what the simulator says of the schedule of the Problem that the layout makes."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.graphs import graph_of_layers
from inputs.workloads import random_workload

from schedc.analysis.bounds.residency import minimum_limit_bytes
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.costs import MessageCost
from schedc.ir.graph import Edge
from schedc.ir.network import Network
from schedc.ir.ops import Kind
from schedc.ir.resource import Resource
from schedc.ir.workload import Device, Semantics
from schedc.lower.problem import problem_of
from schedc.solvers.kernel.scheduler_state import scheduler_of
from schedc.solvers.kernel.tables import NEVER
from schedc.solvers.layout.evaluation.evaluate import LayoutEvaluator
from schedc.solvers.layout.layout_arrays import layout_arrays_of
from schedc.verify.layout import verify_layout
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


def shares_a_trunk(problem: Problem) -> bool:
    """Whether transfers of several ranks queue on one trunk, which serves them in the order of starts while a rule runs."""
    users = {(Resource.of_link(link), link.source) for link in problem.links}
    users |= {(Resource.of_collectives(problem.data_parallel, rank), rank) for rank in range(problem.ranks)}
    return len({resource for resource, _ in users}) < len(users)


def agree(seed: int, *, plain: bool) -> bool:
    """Whether the layout of this seed has a schedule; what is said of it is checked."""
    random = Random(seed)
    workload, layout = random_workload(random)
    while len(layout.paths) > 1:
        workload, layout = random_workload(random)
    if workload.semantics is not Semantics.TORCH and random.random() < 0.4:  # some recompute, in what that needs or hardly more
        recomputed = frozenset(stage for stage in range(len(layout.rank_of_stage)) if random.random() < 0.6)
        layout = replace(layout, recomputed=recomputed)
        least = minimum_limit_bytes(problem_of(workload, layout))
        limits = [size + random.choice((-1, 0, 0, 1, 2)) for size in least]
        devices = (
            Device(speed=device.speed, limit_bytes=max(0, size)) for device, size in zip(workload.devices, limits, strict=True)
        )
        workload = replace(workload, devices=tuple(devices))
    evaluator, draft = LayoutEvaluator(workload, plain=plain), layout_arrays_of(layout)
    assert draft.layout(layout.placement) == layout
    rules = random.sample(range(len(evaluator.rules)), 4)
    evaluator.value(draft._replace(ranks=draft.ranks[::-1]), rules)  # whose traces must not count
    value = evaluator.value(draft, rules)
    assert evaluator.evaluated == 2
    problem = problem_of(workload, layout)
    needed = zip(minimum_limit_bytes(problem), problem.memory_limit_bytes, strict=True)
    fits = all(limit is None or own <= limit for own, limit in needed)
    assert (evaluator.bound_ns < NEVER) == fits
    assert (value < NEVER) == fits  # with reserves no rule strands itself
    if value == NEVER:
        assert evaluator.rule == -1
        return False
    assert evaluator.rule in rules
    assert evaluator.bound_ns <= value
    assert evaluator.value(draft, rules, refuse_ns=evaluator.bound_ns) == NEVER
    assert not verify_layout(workload, layout)
    assert evaluator.value(draft, rules) == value
    schedule = evaluator.schedule(draft, evaluator.rule)
    for order in schedule.orders:
        assert problem.split_backward or not any(op.kind in (Kind.B, Kind.W) for op in order)
    found = simulate(problem, schedule).objective_ns(problem.objective)
    assert found == value or shares_a_trunk(problem)
    assert found >= evaluator.bound_ns
    peaks = zip(peak_bytes(problem, schedule), problem.memory_limit_bytes, strict=True)
    assert all(limit is None or peak <= limit for peak, limit in peaks)
    return True


def agree_of_graph(seed: int, *, plain: bool) -> bool:
    """The same of layers that are a graph, some with a split head."""
    random = Random(seed)
    workload, layout = random_workload(random)
    while len(layout.paths) > 1 or workload.semantics is Semantics.TORCH or len(workload.layers) < 3:
        workload, layout = random_workload(random)
    cost = MessageCost(latency_ns=2, bytes_per_second=random.choice([3 * 10**8, 10**9]), setup_ns=random.randint(0, 3))
    joined = Network(site_of_rank=(0,) * workload.ranks, within=cost)
    workload = graph_of_layers(random, replace(workload, network=random.choice([workload.network, joined])))
    recomputed = frozenset(stage for stage in range(len(layout.rank_of_stage)) if random.random() < 0.3)
    layout = replace(layout, recomputed=recomputed)
    if random.random() < 0.3:
        head = replace(workload.layers[-1], activation_bytes=90, split_message_bytes=2)
        end = len(workload.layers)
        edge = Edge(source=end - 1, destination=end, message_bytes=workload.layers[-1].message_bytes)
        layers = tuple(replace(layer, position=None) for layer in (*workload.layers, head))
        workload = replace(workload, layers=layers, edges=(*workload.edges, edge))
        layout = replace(layout, split_head=True)
    if verify_layout(workload, layout):
        return False
    problem, draft = problem_of(workload, layout), layout_arrays_of(layout)
    evaluator = LayoutEvaluator(workload, plain=plain, split_head=layout.split_head)
    rules = random.sample(range(len(evaluator.rules)), 4)
    evaluator.value(draft._replace(ranks=draft.ranks[::-1]), rules)
    value = evaluator.value(draft, rules)
    try:
        scheduler_of(problem)
    except Unsupported:
        assert value == evaluator.bound_ns == NEVER
        return False
    if value == NEVER:  # of a chain after all, one microbatch may be held at once
        assert problem.is_chain
        return False
    schedule = evaluator.schedule(draft, evaluator.rule)
    assert not verify_schedule(problem, schedule)
    found = simulate(problem, schedule).objective_ns(problem.objective)
    assert found == value or shares_a_trunk(problem)
    assert evaluator.bound_ns <= found
    return True


def test_the_value_of_a_graph_is_what_the_simulator_says() -> None:
    assert sum(agree_of_graph(seed, plain=True) for seed in range(150)) > 60


def test_the_value_is_what_the_simulator_says() -> None:
    assert sum(agree(seed, plain=True) for seed in range(100)) > 50


@pytest.mark.slow
def test_compiled_it_is_the_same() -> None:
    assert sum(agree(seed, plain=False) for seed in range(150)) > 75
    assert sum(agree_of_graph(seed, plain=False) for seed in range(150)) > 60
