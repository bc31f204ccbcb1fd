"""The bound over layouts: beside the best of all layouts by brute force, where its value is known, and which ranks are alike."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.all_layouts import all_layouts, best_of_all, tiny_workload
from oracles.brute_force import optimum

from schedc.analysis.bounds.layouts import one_stage, pieces
from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.bounds.layouts.pieces import rank_kinds
from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.errors import Infeasible
from schedc.ir.costs import MessageCost
from schedc.ir.layout import OpenLayout, Placement
from schedc.ir.network import Link, Network
from schedc.ir.problem import Objective
from schedc.ir.workload import Device, Layer, Semantics, Workload
from schedc.lower.placement import place
from schedc.lower.problem import problem_of

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
