"""The bound over layouts: beside the best of all layouts by brute force, where its value is known, and which ranks are alike."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from inputs.all_layouts import all_layouts, best_of_all, tiny_workload
from oracles.brute_force import optimum

from schedc.analysis.bounds.clock import never
from schedc.analysis.bounds.layouts import one_stage, pieces, two_stages
from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.bounds.layouts.pieces import rank_kinds
from schedc.analysis.bounds.layouts.share_values import SIZE_OF
from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Infeasible
from schedc.ir.costs import MessageCost
from schedc.ir.layout import Layout, OpenLayout, Placement
from schedc.ir.network import Link, Network
from schedc.ir.problem import Objective
from schedc.ir.workload import Device, Layer, Semantics, Workload
from schedc.lower.placement import place
from schedc.lower.problem import problem_of
from schedc.solvers.heuristics.greedy import Greedy

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


def equal_layers(layers: int, ranks: int, microbatches: int, device: Device, after_bytes: int = 1) -> Workload:
    layer = Layer(
        forward_ns=(10,),
        backward_input_ns=(12,),
        backward_weight_ns=(7,),
        backward_ns=(19,),
        activation_bytes=3,
        activation_after_input_bytes=after_bytes,
    )
    network = Network(site_of_rank=(0,) * ranks)
    return Workload(name="equal", microbatches=microbatches, layers=(layer,) * layers, devices=(device,) * ranks, network=network)


def opened(random: Random, workload: Workload) -> OpenLayout:
    """Something that is open: mostly everything; else the partition or the placement is given, of some layout."""
    found = OpenLayout(chunks=random.choice([1, 1, 2]), recompute=random.choice([(False,), (False,), (True,)]))
    layouts = list(all_layouts(workload, found))
    given = random.choice(["nothing", "nothing", "partition", "placement"])
    if given == "nothing" or not layouts:
        return found
    layout = random.choice(layouts)
    if given == "partition":
        return replace(found, layers_of_stage=layout.layers_of_stage)
    return replace(found, placement=Placement(rank_of_stage=layout.rank_of_stage, paths=layout.paths))


def bound_ns_of(workload: Workload, open_layout: OpenLayout) -> int | None:
    """None: no layout has room on its ranks."""
    try:
        return layout_bound(workload, open_layout).value_ns
    except Infeasible:
        return None


def is_sound(seed: int, *, layers: int, microbatches: int) -> bool:
    """Whether the bound is not above the best of all layouts, nor any analytic bound of all of them below what it says."""
    random = Random(seed)
    size = random.randint(2, layers)
    workload = tiny_workload(random, layers=size, ranks=2, microbatches=microbatches, differ=True, parallel=True)
    open_layout = opened(random, workload)
    if workload.data_parallel is not None:  # the brute force has collectives only with one stage on each rank
        open_layout = OpenLayout(chunks=1)
    bound_ns, best = bound_ns_of(workload, open_layout), best_of_all(workload, open_layout, optimum)
    return best is None or (bound_ns is not None and bound_ns <= best)


@pytest.mark.parametrize("seed", range(56))
def test_bound_is_not_above_the_best_of_all_layouts(seed: int) -> None:
    assert is_sound(seed, layers=3, microbatches=1 + seed % 2)


@pytest.mark.parametrize("seed", range(40))
def test_bound_is_not_above_the_best_of_all_layouts_whichever_stages_recompute(seed: int) -> None:
    random = Random(seed)
    workload = tiny_workload(random, layers=random.randint(2, 3), ranks=2, microbatches=1 + seed % 2)
    open_layout = OpenLayout(chunks=2 - seed % 2, recompute_is_open=True)
    bound_ns, best = bound_ns_of(workload, open_layout), best_of_all(workload, open_layout, optimum)
    assert best is None or (bound_ns is not None and bound_ns <= best)
    given_ns = bound_ns_of(workload, replace(open_layout, recompute_is_open=False))
    assert given_ns is None or (bound_ns is not None and bound_ns <= given_ns)


@pytest.mark.parametrize(
    ("recompute", "device"), [((True, False, True), Device(limit_bytes=4)), ((True,), Device(capacity_bytes=6))]
)
def test_bound_is_not_above_the_best_of_layouts_some_of_whose_stages_recompute(recompute: tuple[bool, ...], device: Device) -> None:
    """What stages hold that recompute, and whether ranks with two of them have room for both, is not known of a share."""
    workload = equal_layers(3, 2, 1, device)
    workload = replace(workload, layers=tuple(replace(layer, message_bytes=1) for layer in workload.layers))
    open_layout = OpenLayout(chunks=2, recompute=recompute, layers_of_stage=((0, 1), (1, 2), (2, 3)))
    bound_ns, best = bound_ns_of(workload, open_layout), best_of_all(workload, open_layout, optimum)
    assert bound_ns is not None and best is not None and bound_ns <= best


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1012))
def test_bound_is_not_above_the_best_of_all_larger_layouts(seed: int) -> None:
    assert is_sound(seed, layers=4, microbatches=1 + (seed % 8 == 0))


@pytest.mark.parametrize("seed", range(30))
def test_bound_is_not_above_a_known_schedule_of_torch(seed: int) -> None:
    random = Random(seed)
    workload = tiny_workload(random, layers=4, ranks=2, microbatches=3)
    workload = replace(workload, semantics=Semantics.TORCH, objective=Objective.MAKESPAN)
    open_layout = OpenLayout(chunks=random.choice([1, 2]))
    problems = [problem_of(workload, layout) for layout in all_layouts(workload, open_layout)]
    bound_ns = bound_ns_of(workload, open_layout)
    assert not problems or bound_ns is not None
    assert all(bound_ns is not None and bound_ns <= one_by_one_ns(problem) for problem in problems)


def one_by_one_ns(problem: Problem) -> int:
    """The makespan of one microbatch after another, with nothing at once."""
    path_ns = sum(stage.forward_ns[0] + stage.backward_ns[0] for stage in problem.stages)
    for before, after in zip(problem.stages, problem.stages[1:], strict=False):
        if before.rank != after.rank:
            forth, back = problem.link(before.rank, after.rank), problem.link(after.rank, before.rank)
            path_ns += forth.latency_ns + forth.occupancy_ns(before.message_bytes)
            path_ns += back.latency_ns + back.occupancy_ns(before.gradient_message_bytes)
    collectives = problem.data_parallel
    sums_ns = 0 if collectives is None else sum(collectives.reduce_scatter_ns) + sum(collectives.all_gather_ns)
    return problem.microbatches * path_ns + sums_ns


def test_one_stage_on_each_rank_is_bounded_nearly_as_each_layout_is() -> None:
    """The arguments are those about single layouts, so they say nearly as much as the least of these does."""
    bounds_ns = single_ns = 0
    for seed in range(8):
        workload = tiny_workload(Random(seed), layers=4, ranks=3, microbatches=4)
        problems = [problem_of(workload, layout) for layout in all_layouts(workload, OpenLayout(chunks=1))]
        runnable = [problem for problem in problems if has_room(problem)]
        bound_ns = bound_ns_of(workload, OpenLayout(chunks=1))
        assert (bound_ns is None) == (not runnable)
        if bound_ns is not None:
            bounds_ns += bound_ns
            single_ns += min(best_bound(problem).value_ns for problem in runnable)
    assert 0.95 * single_ns <= bounds_ns <= single_ns


def has_room(problem: Problem) -> bool:
    held = [0] * problem.ranks
    for stage in problem.stages:
        held[stage.rank] += stage.activation_bytes
    return all(limit is None or size <= limit for size, limit in zip(held, problem.memory_limit_bytes, strict=True))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_equal_stages_with_the_memory_of_1f1b_are_bounded_by_zb_h1(ranks: int) -> None:
    workload = equal_layers(2 * ranks, ranks, 3 * ranks, Device(limit_bytes=3 * 2 * ranks), after_bytes=3)
    bound_ns = bound_ns_of(workload, OpenLayout(chunks=1))
    assert bound_ns == 3 * ranks * 2 * (10 + 12 + 7) + (ranks - 1) * 2 * (10 + 12 - 7)


def test_more_stages_on_a_rank_wait_less() -> None:
    workload = equal_layers(8, 4, 8, Device())
    bound_ns = bound_ns_of(workload, OpenLayout(chunks=2))
    assert bound_ns == 8 * 2 * 29 + 10 * 3  # two layers for each, and the last rank waits for three at least
    bound_ns = bound_ns_of(workload, OpenLayout(chunks=4))
    assert bound_ns == 8 * 2 * 29 + -(-(10 * (0 + 1 + 2 + 3)) // 4)  # the n-th rank waits for n layers at least


def test_without_room_there_is_no_bound() -> None:
    assert bound_ns_of(equal_layers(4, 2, 4, Device(limit_bytes=5)), OpenLayout(chunks=1)) is None
    assert bound_ns_of(equal_layers(4, 2, 4, Device(limit_bytes=6)), OpenLayout(chunks=1)) is not None


def test_slow_links_are_crossed_where_they_are_cheapest() -> None:
    fast, slow = MessageCost(latency_ns=1, transfer_ns=0), MessageCost(latency_ns=0, transfer_ns=1000)
    workload = equal_layers(4, 4, 2, Device())
    network = Network(site_of_rank=(0, 1, 0, 1), within=fast, between=slow)
    open_bound = bound_ns_of(replace(workload, network=network), OpenLayout(chunks=1))
    in_order = OpenLayout(placement=place("unidirectional", 4))
    given_bound = bound_ns_of(replace(workload, network=network), in_order)
    path_ns = 4 * (10 + 12)
    assert open_bound == path_ns + 2 * (1000 + 2 * 1) + 1000  # 0, 2, 1, 3: once there and back, two messages one after another
    assert given_bound == path_ns + 3 * 2 * 1000 + 1000


@pytest.mark.parametrize(("message_bytes", "gradient_message_bytes"), [(0, 100), (100, 0)])
def test_a_crossing_that_costs_one_way_alone_counts_once(message_bytes: int, gradient_message_bytes: int) -> None:
    workload = equal_layers(3, 2, 1, Device())
    layers = tuple(
        replace(each, message_bytes=message_bytes, gradient_message_bytes=gradient_message_bytes) for each in workload.layers
    )
    network = Network(site_of_rank=(0, 1), between=MessageCost(bytes_per_second=1_000_000_000))
    workload, open_layout = replace(workload, layers=layers, network=network), OpenLayout(chunks=2)
    assert bound_ns_of(workload, open_layout) == best_of_all(workload, open_layout, optimum) == 3 * (10 + 12) + 100 + 7


def test_microbatches_come_as_far_apart_as_what_all_of_them_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(site_of_rank=(0, 0, 1, 1), between=MessageCost(latency_ns=20, transfer_ns=40))
    workload = replace(equal_layers(8, 4, 16, Device()), network=network)
    bound_ns = bound_ns_of(workload, OpenLayout(chunks=2))
    wave = place("wave", 4, 2)
    layout = Layout(rank_of_stage=wave.rank_of_stage, paths=wave.paths, layers_of_stage=tuple((n, n + 1) for n in range(8)))
    problem = problem_of(workload, layout)
    monkeypatch.setattr(two_stages, "MOST_WORK_APART", 0)
    without_ns = bound_ns_of(workload, OpenLayout(chunks=2))
    assert bound_ns is not None
    assert without_ns is not None
    assert without_ns < bound_ns <= simulate(problem, Greedy(n_sub=1)(problem)).makespan_ns


@pytest.mark.parametrize("seed", range(60))
def test_what_ranks_have_in_known_schedules_is_no_share_that_is_refuted(seed: int) -> None:
    random = Random(seed)
    ranks = random.randint(2, 4)
    workload = tiny_workload(random, layers=random.randint(ranks, 5), ranks=ranks, microbatches=random.choice([4, 9, 14]))
    sites = tuple(random.randint(0, 1) for _ in range(ranks))
    between = MessageCost(latency_ns=random.choice([0, 9]), transfer_ns=random.choice([0, 5, 11]))
    workload = replace(workload, objective=Objective.MAKESPAN, network=Network(site_of_rank=sites, between=between))
    layers, chains = len(workload.layers), [layer.forward_ns[0] for layer in workload.layers]
    layouts = [each for each in all_layouts(workload, OpenLayout(chunks=2)) if has_room(problem_of(workload, each))]
    for layout in random.sample(layouts, min(3, len(layouts))):
        path, bounds = layout.rank_of_stage, layout.layers_of_stage
        if any(a == b for a, b in pairwise(path)):
            continue
        problem = problem_of(workload, layout)
        most_ns = simulate(problem, Greedy(n_sub=1)(problem)).makespan_ns
        inside = tuple(rank for rank in range(ranks) if sites[rank] == sites[path[0]])
        crossed = tuple(bounds[at + 1][0] for at, (a, b) in enumerate(pairwise(path)) if sites[a] != sites[b])
        part = max(sum(chains[first:last]) for first, last in bounds) / sum(chains)
        size = max(at for at, each in enumerate(SIZE_OF) if each <= part)
        covers = two_stages._Covers(workload, OpenLayout(chunks=2), never)
        covers.begin(are_apart=True)
        for sizes in ((size, min(size + 1, len(SIZE_OF) - 1)), (0, len(SIZE_OF) - 1)):
            crossings = two_stages._Crossings(inside, crossed, crossed, sizes=sizes)
            for rank in set(path):
                cuts = covers._shares(most_ns, workload.devices[rank], crossings, int(rank not in inside))
                has = np.zeros((cuts.shape[1], layers), bool)
                for share, (first, last, again, end) in enumerate(cuts.T):
                    has[share, first:last] = has[share, again:end] = True
                own = [layer for at, each in enumerate(path) if each == rank for layer in range(*bounds[at])]
                assert has[:, own].all(axis=1).any()


def test_too_many_kinds_of_ranks_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(5)
    for _ in range(8):
        workload = tiny_workload(random, layers=5, ranks=3, microbatches=3)
        exact_ns = bound_ns_of(workload, OpenLayout(chunks=1))
        with monkeypatch.context() as patch:
            patch.setattr(one_stage, "MOST_NODES", 0)
            patch.setattr(pieces, "MOST_CELLS", 0)
            relaxed_ns = bound_ns_of(workload, OpenLayout(chunks=1))
        assert exact_ns is None or (relaxed_ns is not None and relaxed_ns <= exact_ns)


def test_ranks_of_a_kind() -> None:
    workload = equal_layers(4, 4, 2, Device())
    assert rank_kinds(workload) == ((0, 1, 2, 3),)
    devices = (Device(), Device(speed=Fraction(2)), Device(), Device(speed=Fraction(2)))
    assert rank_kinds(replace(workload, devices=devices)) == ((0, 2), (1, 3))
    between = MessageCost(latency_ns=5)
    assert rank_kinds(replace(workload, network=Network(site_of_rank=(0, 0, 1, 1), between=between))) == ((0, 1), (2, 3))
    one_way = Network(site_of_rank=(0,) * 4, links=(Link(source=0, destination=1, latency_ns=1),))
    assert rank_kinds(replace(workload, network=one_way)) == ((0,), (1,), (2, 3))


@pytest.mark.parametrize("seed", range(20))
def test_ranks_of_a_kind_may_be_swapped(seed: int) -> None:
    random = Random(seed)
    workload = tiny_workload(random, layers=3, ranks=3, microbatches=1)
    sites = tuple(random.randint(0, 1) for _ in range(3))
    network = Network(site_of_rank=sites, between=MessageCost(latency_ns=3, transfer_ns=2), links=workload.network.links[:2])
    workload = replace(workload, network=network, devices=(workload.devices[0],) * 3)
    layouts = list(all_layouts(workload, OpenLayout(chunks=1)))
    for kind in rank_kinds(workload):
        for other in kind[1:]:
            name = {kind[0]: other, other: kind[0]}
            for layout in layouts:
                swapped = replace(layout, rank_of_stage=tuple(name.get(rank, rank) for rank in layout.rank_of_stage))
                assert optimum(problem_of(workload, layout)) == optimum(problem_of(workload, swapped))


def test_an_open_layout_is_for_one_number_of_stages() -> None:
    with pytest.raises(ValueError, match="different numbers of stages"):
        OpenLayout(placement=place("unidirectional", 4), layers_of_stage=((0, 1), (1, 2)))
    with pytest.raises(ValueError, match="one path"):
        OpenLayout(placement=place("bidirectional", 2))
    with pytest.raises(ValueError, match="chunks"):
        OpenLayout(chunks=0)
    with pytest.raises(ValueError, match="open, but given"):
        OpenLayout(recompute=(True,), recompute_is_open=True)
    assert OpenLayout(recompute=(True, False)).stages == 2
