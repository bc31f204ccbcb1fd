"""Workload + Layout → Problem, beside the cost model's words written down once more, slowly, op by op."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.random_schedules import random_schedules
from inputs.workloads import random_workload

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.frontend.job import load_job
from schedc.ir.costs import FREE
from schedc.ir.layout import Layout
from schedc.ir.network import Link, Network
from schedc.ir.ops import BLOCKS, Kind
from schedc.ir.problem import DataParallel
from schedc.ir.workload import Device, Layer, Semantics, TiedWeight, Workload
from schedc.lower.problem import problem_of, static_bytes
from schedc.verify.layout import verify_layout
from schedc.verify.problem import verify_problem
from schedc.verify.workload import verify_workload

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

EXAMPLES = Path(__file__).parents[2] / "examples"


def value(values: tuple[int, ...], index: int) -> int:
    """Of one value for all, or one for each."""
    return values[0] if len(values) == 1 else values[index]


def own_layers(workload: Workload, layout: Layout, stage: int) -> list[Layer]:
    first, last = layout.layers_of_stage[stage]
    return [workload.layers[layer] for layer in range(first, last)]


def durations_ns(workload: Workload, layout: Layout, stage: int, microbatch: int) -> dict[Kind, int]:
    """What a stage's blocks take: all that its layers take, and in torch on the first stage B nothing and W the whole backward.

    Where it recomputes, a B or BW takes the layers' forwards, too. All is divided by the device's speed, to the nearest nanosecond.
    """
    own = own_layers(workload, layout, stage)
    found = {kind: sum(value(layer.durations_ns(kind), microbatch) for layer in own) for kind in BLOCKS}
    for layer in own if stage in layout.recomputed else ():
        for kind in (Kind.B, Kind.BW):
            found[kind] += value(layer.forward_again_ns or layer.forward_ns, microbatch)
    for kind in BLOCKS:
        exact = found[kind] / workload.devices[layout.rank_of_stage[stage]].speed
        below = exact.numerator // exact.denominator
        above = exact - below
        found[kind] = below + (above > Fraction(1, 2) or (above == Fraction(1, 2) and below % 2 == 1))
    if workload.semantics is Semantics.TORCH and stage == layout.paths[0][0]:
        found |= {Kind.B: 0, Kind.W: found[Kind.BW]}
    return found


def stages_cost_what_their_layers_cost(workload: Workload, layout: Layout, problem: Problem) -> None:
    assert [stage.rank for stage in problem.stages] == list(layout.rank_of_stage)
    for stage in range(len(layout.rank_of_stage)):
        for microbatch in range(workload.microbatches):
            found = {kind: problem.duration_ns(kind, stage, microbatch) for kind in BLOCKS}
            assert found == durations_ns(workload, layout, stage, microbatch)


def held(workload: Workload, layout: Layout, stage: int) -> tuple[int, int, int]:
    """The bytes that a block of a stage holds from F, those after B, and those that a backward takes besides."""
    own = own_layers(workload, layout, stage)
    whole = sum(layer.activation_bytes for layer in own)
    after = whole if workload.semantics is Semantics.TORCH else sum(layer.activation_after_input_bytes for layer in own)
    if stage not in layout.recomputed:
        return whole, after, 0
    (path,) = (path for path in layout.paths if stage in path)
    of_input = own_layers(workload, layout, path[path.index(stage) - 1])[-1].message_bytes if stage != path[0] else 0
    return of_input, after, whole


def sizes(workload: Workload, layout: Layout, problem: Problem) -> None:
    for index, stage in enumerate(problem.stages):
        own = own_layers(workload, layout, index)
        found = stage.activation_bytes, stage.activation_after_input_bytes, stage.recomputed_bytes
        assert found == held(workload, layout, index)
        assert stage.recompute == (index in layout.recomputed)
        assert stage.message_bytes == own[-1].message_bytes
        assert stage.gradient_message_bytes == own[-1].gradient_message_bytes
        known = own[0].position, own[-1].position
        assert stage.layers == (known[0] and known[1] and (known[0][0], known[1][1]))


def links_are_those_that_the_paths_cross(workload: Workload, layout: Layout, problem: Problem) -> None:
    """What is said of two ranks wins over what is said of their sites, and that over `between`."""
    network = workload.network
    expected = {}
    for path in layout.paths:
        for before, after in pairwise(path):
            for pair in ((before, after), (after, before)):
                source, destination = (layout.rank_of_stage[stage] for stage in pair)
                if source == destination:
                    continue
                here, there = network.site_of_rank[source], network.site_of_rank[destination]
                cost = network.within if here == there else network.between
                trunk = None if here == there else f"site{here}>site{there}"
                for sites in network.site_links:
                    if (sites.source, sites.destination) == (here, there):
                        cost = sites.cost
                for link in network.links:
                    if (link.source, link.destination) == (source, destination):
                        cost, trunk = link, link.trunk
                assert cost is not None
                expected[source, destination] = (cost.latency_ns, cost.transfer_ns, cost.bytes_per_second, trunk)
    found = {
        (link.source, link.destination): (link.latency_ns, link.transfer_ns, link.bytes_per_second, link.trunk)
        for link in problem.links
    }
    assert list(found.items()) == sorted(expected.items())


def memory_limits(workload: Workload, layout: Layout, problem: Problem) -> None:
    stages = list(enumerate(layout.rank_of_stage))
    static = [0] * workload.ranks
    for stage, rank in stages:
        static[rank] += value(workload.static_bytes, stage)
        static[rank] += sum(layer.static_bytes for layer in own_layers(workload, layout, stage))
    assert static_bytes(workload, layout) == tuple(static)
    assert all((each.static_bytes is None) == (workload.devices[each.rank].capacity_bytes is None) for each in problem.stages)
    for rank, limit in enumerate(problem.memory_limit_bytes):
        device = workload.devices[rank]
        again = max(held(workload, layout, stage)[2] for stage, own_rank in stages if own_rank == rank)
        if device == Device(speed=device.speed):
            assert limit is None
        elif device.capacity_bytes is not None:
            assert limit == device.capacity_bytes - static[rank]
            assert limit + sum(each.static_bytes or 0 for each in problem.stages if each.rank == rank) == device.capacity_bytes
        elif device.limit_bytes is not None:
            assert limit == device.limit_bytes
        else:
            most = 2 if workload.split_backward else 1  # what waits for W counts where it may wait
            of_paths = [
                sum(max(held(workload, layout, stage)[:most]) for stage in path if stages[stage][1] == rank)
                for path in layout.paths
            ]
            assert limit == (device.in_flight or 0) * max(of_paths) + again


def all_the_rest(workload: Workload, layout: Layout, problem: Problem) -> None:
    parallel = workload.data_parallel
    assert (problem.name, problem.ranks, problem.microbatches) == (workload.name, len(workload.devices), workload.microbatches)
    assert (problem.paths, problem.placement) == (layout.paths, layout.placement)
    assert problem.layout == layout
    assert problem.origin is not None and problem.origin.network is workload.network
    assert list(problem.path_of) == [microbatch % len(layout.paths) for microbatch in range(workload.microbatches)]
    assert (problem.split_backward, problem.objective) == (workload.split_backward, workload.objective)
    assert problem.cut_blocks == (workload.semantics is not Semantics.TORCH)
    differs = any(
        problem.duration_ns(kind, stage, one) != problem.duration_ns(kind, stage, other)
        for kind in BLOCKS
        for one, other in combinations(range(problem.microbatches), 2)
        for stage in set(problem.path(one)) & set(problem.path(other))
    )
    assert problem.in_order == (workload.in_order and differs)
    made, stages = problem.data_parallel, range(len(layout.rank_of_stage))
    sums_ns = [0 for _ in stages]
    for tie in workload.ties:
        ends = [stage for stage in stages for layer in tie.layers if layer in range(*layout.layers_of_stage[stage])]
        ranks = [layout.rank_of_stage[stage] for stage in ends]
        if ranks[0] != ranks[1]:
            both = [workload.network.link(*each) for each in (ranks, reversed(ranks))]
            sums_ns[ends[0]] = sums_ns[ends[1]] = max(
                link.occupancy_ns(tie.gradient_bytes) + link.latency_ns for link in both if link
            )
    if parallel is None:
        assert made == (DataParallel(size=1, zero_stage=0, reduce_scatter_ns=tuple(sums_ns)) if any(sums_ns) else None)
        return
    assert made is not None and (made.size, made.zero_stage, made.trunk) == (parallel.size, parallel.zero_stage, parallel.trunk)
    assert list(made.reduce_scatter_ns) == [value(parallel.reduce_scatter_ns, stage) + sums_ns[stage] for stage in stages]
    assert list(made.all_gather_ns) == [value(parallel.all_gather_ns, stage) for stage in stages if parallel.zero_stage]


@given(seed=st.integers(0, 2**32))
def test_random_problems(seed: int) -> None:
    workload, layout = random_workload(Random(seed))
    assert verify_workload(workload) == verify_layout(workload, layout) == ()
    problem = problem_of(workload, layout)
    assert verify_problem(problem) == ()
    for hold in (stages_cost_what_their_layers_cost, sizes, links_are_those_that_the_paths_cross, memory_limits, all_the_rest):
        hold(workload, layout, problem)


def test_by_hand() -> None:
    """Four layers in three stages on two ranks of two sites."""
    costs = [(1, 2, 3), (10, 20, 30), (100, 200, 300), (1000, 2000, 3000)]
    workload = Workload(
        name="by hand",
        microbatches=2,
        layers=tuple(
            Layer(
                forward_ns=(f, 5 * f),
                backward_input_ns=(b,),
                backward_weight_ns=(w,),
                backward_ns=(b + w,),
                activation_bytes=f,
                static_bytes=w,
            )
            for f, b, w in costs
        ),
        devices=(Device(capacity_bytes=10_000), Device(in_flight=3)),
        network=Network(site_of_rank=(0, 1), between=replace(FREE, latency_ns=7)),
        static_bytes=(50,),
        data_parallel=DataParallel(size=2, zero_stage=0, reduce_scatter_ns=(4,)),
    )
    layout = Layout(layers_of_stage=((0, 1), (1, 3), (3, 4)), rank_of_stage=(0, 1, 0), paths=((0, 1, 2),))
    problem = problem_of(workload, layout)
    assert [stage.forward_ns for stage in problem.stages] == [(1, 5), (110, 550), (1000, 5000)]
    assert [stage.backward_ns for stage in problem.stages] == [(5,), (550,), (5000,)]
    assert problem.memory_limit_bytes == (10_000 - (50 + 3) - (50 + 3000), 330)
    assert [stage.static_bytes for stage in problem.stages] == [50 + 3, None, 50 + 3000]
    assert problem.links == (
        Link(source=0, destination=1, latency_ns=7, trunk="site0>site1"),
        Link(source=1, destination=0, latency_ns=7, trunk="site1>site0"),
    )
    assert problem.data_parallel == DataParallel(size=2, zero_stage=0, reduce_scatter_ns=(4, 4, 4))


@given(data=st.data(), sum_ns=st.integers(1, 60), order=st.permutations([0, 1, 2]))
def test_a_step_ends_when_both_gradients_of_a_tied_weight_are_summed(data: st.DataObject, sum_ns: int, order: list[int]) -> None:
    """That is one message each way after both stages have ended their backwards; the bounds know it."""
    layers = tuple(
        Layer(forward_ns=(f,), backward_input_ns=(2 * f,), backward_weight_ns=(f,), backward_ns=(3 * f,)) for f in (3, 5, 4)
    )
    plain = Workload(
        name="tied",
        microbatches=3,
        layers=layers,
        devices=(Device(),) * 3,
        network=Network(site_of_rank=(0, 0, 0), within=replace(FREE, bytes_per_second=10**9)),
    )
    layout = Layout(layers_of_stage=((0, 1), (1, 2), (2, 3)), rank_of_stage=tuple(order), paths=((0, 1, 2),))
    ends = tuple(sorted(data.draw(st.permutations([0, 1, 2]))[:2]))
    tied = problem_of(replace(plain, ties=(TiedWeight(layers=(ends[0], ends[1]), gradient_bytes=sum_ns),)), layout)
    problem = problem_of(plain, layout)
    schedule = data.draw(random_schedules(problem))
    timeline = simulate(problem, schedule)
    last_ns = [
        max(
            end_ns for (_, stage, *_), end_ns in zip(timeline.ops.tolist(), timeline.ends_ns.tolist(), strict=True) if stage == each
        )
        for each in ends
    ]
    assert simulate(tied, schedule).makespan_ns == max(timeline.makespan_ns, max(last_ns) + sum_ns)
    assert best_bound(tied).value_ns <= simulate(tied, schedule).makespan_ns


def test_ranks_that_nothing_connects() -> None:
    layer = Layer(forward_ns=(1,), backward_input_ns=(1,), backward_weight_ns=(1,), backward_ns=(2,))
    workload = Workload(
        name="apart", microbatches=1, layers=(layer, layer), devices=(Device(),) * 2, network=Network(site_of_rank=(0, 1))
    )
    with pytest.raises(ValueError, match="nothing connects rank 0 to rank 1"):
        problem_of(workload, Layout(layers_of_stage=((0, 1), (1, 2)), rank_of_stage=(0, 1), paths=((0, 1),)))


JOBS = sorted(path for path in EXAMPLES.rglob("*.toml") if path.name not in ("links.toml", "sweep.toml", "tune.toml"))


@pytest.mark.parametrize("example", JOBS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_examples(example: Path) -> None:
    job = load_job(example)
    assert verify_workload(job.workload) == ()
    if job.open_layout is None:
        assert verify_layout(job.workload, job.layout) == ()
        assert problem_of(job.workload, job.layout) == job.problem
