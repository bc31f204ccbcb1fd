"""Layers that are a graph, in slices, made into stages: beside what docs/graphs.md says, written down once more, edge by edge."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from schedc.ir import Edge, Layer, Layout, Network, Workload, share_bytes
from schedc.ir.costs import MessageCost
from schedc.ir.ops import Kind, Op, sent_to
from schedc.ir.workload import Device
from schedc.lower.problem import problem_of
from schedc.verify.layout import verify_layout
from schedc.verify.problem import verify_problem
from schedc.verify.workload import verify_workload


def random_graph(random: Random) -> tuple[Workload, Layout]:
    count, ranks = random.randint(3, 9), random.randint(1, 3)
    sizes = {(layer, value): random.randint(0, 99) for layer in range(count) for value in range(2)}
    pairs = {(random.randint(0, layer - 1), layer) for layer in range(1, count)}  # one component
    pairs |= {(a, b) for a in range(count) for b in range(a + 1, count) if random.random() < 0.3}
    edges = []
    for source, destination in sorted(pairs):
        value = random.randint(0, 1)
        back = random.choice([None, 0, sizes[source, value], random.randint(0, 99)])
        edges.append(
            Edge(
                source=source,
                destination=destination,
                message_bytes=sizes[source, value],
                gradient_message_bytes=back,
                value=value,
            )
        )
    random.shuffle(edges)
    stages = random.randint(ranks, count)
    cuts = [0, *sorted(random.sample(range(1, count), stages - 1)), count]
    slices = tuple(random.randint(1, 5) for _ in range(random.choice([0, 2, 3])))
    units = 2 * (len(slices) or 1)
    workload = Workload(
        name="graph",
        microbatches=units,
        layers=tuple(
            Layer(
                forward_ns=tuple(random.randint(0, 9) for _ in range(units)),
                backward_input_ns=(1,),
                backward_weight_ns=(1,),
                backward_ns=(2,),
                activation_bytes=random.randint(0, 9),
                state_gradient_bytes=random.randint(0, 9) if slices else 0,
            )
            for _ in range(count)
        ),
        devices=(Device(),) * ranks,
        network=Network(site_of_rank=(0,) * ranks, within=MessageCost(latency_ns=3)),
        edges=tuple(edges),
        slices=slices,
    )
    layout = Layout(
        rank_of_stage=(*range(ranks), *(random.randrange(ranks) for _ in range(stages - ranks))),
        paths=(tuple(range(stages)),),
        layers_of_stage=tuple(pairwise(cuts)),
        recomputed=frozenset(stage for stage in range(stages) if random.random() < 0.3),
    )
    return workload, layout


@pytest.mark.parametrize("seed", range(300))
def test_stages_take_what_their_layers_take(seed: int) -> None:
    workload, layout = random_graph(Random(seed))
    problem = problem_of(workload, layout)
    assert verify_problem(problem) == ()
    stages = range(len(layout.layers_of_stage))
    inside = [set(range(*layers)) for layers in layout.layers_of_stage]
    found = {(edge.source, edge.destination): edge for edge in problem.edges_of(0)}
    input_bytes = dict.fromkeys(stages, 0)
    for pair in ((a, b) for a in stages for b in stages if a != b):
        crossing = [e for e in workload.edges if e.source in inside[pair[0]] and e.destination in inside[pair[1]]]
        if not crossing:
            assert pair not in found
            continue
        edge = found[pair]
        values = {(e.source, e.value): e.message_bytes for e in crossing}
        assert edge.message_bytes == sum(values.values())
        input_bytes[pair[1]] += edge.message_bytes
        back = [
            max(sizes)
            for value in values
            if (sizes := [e.gradient_message_bytes or 0 for e in crossing if (e.source, e.value) == value and e.has_gradient])
        ]
        assert edge.gradient_message_bytes == (sum(back) if back else None)
        for other in (e for e in problem.edges if e.source == edge.source):
            theirs = [e for e in workload.edges if e.source in inside[pair[0]] and e.destination in inside[other.destination]]
            assert (other.value == edge.value) == ({(e.source, e.value) for e in theirs} == values.keys())
    crossed = {(e.source, e.destination) for e in found.values()} | {
        (e.destination, e.source) for e in found.values() if e.has_gradient
    }
    ranks = {(layout.rank_of_stage[a], layout.rank_of_stage[b]) for a, b in crossed}
    assert {(link.source, link.destination) for link in problem.links} == {(a, b) for a, b in ranks if a != b}
    for index, (first, last) in enumerate(layout.layers_of_stage):
        stage, own = problem.stages[index], workload.layers[first:last]
        held = sum(layer.activation_bytes for layer in own)
        assert stage.activation_bytes == (input_bytes[index] if index in layout.recomputed else held)
        assert stage.state_gradient_bytes == sum(layer.state_gradient_bytes for layer in own)


def test_what_is_a_chain_is_one() -> None:
    """An encoder behind whose last layer the decoder goes on, with a skip inside of a stage."""
    workload, _ = random_graph(Random(0))
    layers = workload.layers[:3]
    along = (
        Edge(source=0, destination=1, message_bytes=5, gradient_message_bytes=6),
        Edge(source=0, destination=2, message_bytes=5, gradient_message_bytes=None),
        Edge(source=1, destination=2, message_bytes=7, gradient_message_bytes=8, value=1),
    )
    workload = replace(workload, layers=layers, edges=along, devices=(Device(),) * 2)
    workload = replace(workload, network=Network(site_of_rank=(0, 0), within=MessageCost()))
    cut = Layout(rank_of_stage=(0, 1), paths=((0, 1),), layers_of_stage=((0, 1), (1, 3)))
    problem = problem_of(workload, cut)
    assert problem.is_chain
    assert (problem.stages[0].message_bytes, problem.stages[0].gradient_message_bytes) == (5, 6)
    problem = problem_of(workload, replace(cut, layers_of_stage=((0, 2), (2, 3))))
    assert problem.is_chain  # the two values go together
    assert (problem.stages[0].message_bytes, problem.stages[0].gradient_message_bytes) == (12, 8)


def test_a_slice_has_its_share() -> None:
    workload, layout = next(pair for seed in range(99) if (pair := random_graph(Random(seed)))[0].slices and pair[0].ranks > 1)
    problem = problem_of(workload, layout)
    edge = problem.edges_of(0)[0]
    for unit in range(problem.microbatches):
        name = Op(Kind.F, edge.source, unit)
        name = sent_to(name, edge.destination) if problem.edges else name
        lengths = workload.slices
        assert problem.message_bytes(name) == share_bytes(edge.message_bytes, lengths, unit % len(lengths))


@pytest.mark.parametrize("seed", range(60))
def test_a_head_in_parts(seed: int) -> None:
    """On each rank a part, and one join; the parts add up to no less than the head, and all take what it took."""
    random = Random(seed)
    workload, _ = random_graph(random)
    if seed % 2:  # a chain
        workload = replace(workload, edges=())
    head = replace(
        workload.layers[-1],
        backward_ns=(random.randint(0, 99),),
        activation_bytes=random.randint(0, 99),
        split_message_bytes=7,
    )
    workload = replace(workload, layers=(*workload.layers[:-1], head))
    base, ranks = len(workload.layers) - 1, workload.ranks
    stages = random.randint(ranks, base) if ranks <= base else 0
    if not stages:
        return
    cuts = [0, *sorted(random.sample(range(1, base), stages - 1)), base]
    layout = Layout(
        rank_of_stage=tuple(stage % ranks for stage in range(stages)),
        paths=(tuple(range(stages)),),
        layers_of_stage=tuple(pairwise(cuts)),
        split_head=True,
    )
    assert verify_workload(workload) == verify_layout(workload, layout) == ()
    problem = problem_of(workload, layout)
    assert (problem.layout, problem.placement) == (replace(layout, slices=workload.slices), "explicit + split head")
    assert verify_problem(problem) == ()
    parts, join = problem.stages[stages:-1], problem.stages[-1]
    assert [part.rank for part in parts] == list(range(ranks)) and join.rank == layout.rank_of_stage[-1]
    for name in ("backward_ns", "forward_ns"):
        whole = getattr(head, name)
        for at, value in enumerate(whole):
            assert 0 <= sum(getattr(part, name)[at if len(whole) > 1 else 0] for part in parts) - value < ranks
    states = min(head.activation_bytes, workload.layers[-2].message_bytes)
    for part in parts:
        assert states <= part.activation_bytes <= head.activation_bytes
        assert 0 <= ranks * (part.activation_bytes - states) - (head.activation_bytes - states) < ranks
    into = {edge.source for edge in problem_of(workload, plain_layout(cuts, ranks)).edges_of(0) if edge.destination == stages}
    for part_at in range(stages, stages + ranks):
        assert {edge.source for edge in problem.edges_of(0) if edge.destination == part_at} == into
        assert [(e.destination, e.message_bytes) for e in problem.edges_of(0) if e.source == part_at] == [(stages + ranks, 7)]


def plain_layout(cuts: list[int], ranks: int) -> Layout:
    """The same cuts with the whole head as a stage of its own."""
    layers = (*pairwise(cuts), (cuts[-1], cuts[-1] + 1))
    return Layout(
        rank_of_stage=tuple(stage % ranks for stage in range(len(layers))),
        paths=(tuple(range(len(layers))),),
        layers_of_stage=layers,
    )
