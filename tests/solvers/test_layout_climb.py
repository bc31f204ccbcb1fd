"""The baselines and the search over layouts: sound, within what is open, repeatable, never worse than what it starts with."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.all_layouts import tiny_workload

from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.bounds.residency import minimum_limit_bytes
from schedc.ir.costs import MessageCost
from schedc.ir.layout import OpenLayout
from schedc.ir.network import Network
from schedc.ir.workload import Device, Layer, Workload
from schedc.lower.placement import place
from schedc.lower.problem import problem_of
from schedc.solvers.heuristics import rule_table
from schedc.solvers.layout.baselines import MIST_LIKE, baselines, named_layouts
from schedc.solvers.layout.climb import LayoutClimb
from schedc.solvers.layout.layout_arrays import LayoutArrays
from schedc.verify.layout import verify_layout

if TYPE_CHECKING:
    from schedc.solvers.layout.layout_arrays import KeptArrays, ScheduledLayout


def chain(forward_ns: list[int], ranks: int, capacity_bytes: int | None = None) -> Workload:
    layers = tuple(
        Layer(
            forward_ns=(each,),
            backward_input_ns=(each,),
            backward_weight_ns=(each,),
            backward_ns=(2 * each,),
            activation_bytes=10,
            activation_after_input_bytes=4,
            static_bytes=10,
        )
        for each in forward_ns
    )
    network = Network(site_of_rank=(0,) * ranks, within=MessageCost(latency_ns=1))
    devices = (Device(capacity_bytes=capacity_bytes),) * ranks
    return Workload(name="chain", microbatches=8, layers=layers, devices=devices, network=network)


HEADED = chain([20, 20, 20, 20, 20, 20, 20, 20, 90], 4)
UNEVEN = chain([12, 50, 20, 35, 20, 60, 20, 15, 40, 25], 3)


@pytest.fixture(autouse=True)
def _few_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_table, "TABLE_OPS", 1000)


def test_the_baselines_have_names() -> None:
    found = baselines(HEADED, OpenLayout(chunks=2))
    names = [each.name for each in found]
    assert len(set(names)) == len(names)
    assert f"mist-like ({MIST_LIKE})" in names
    assert {
        "even unidirectional 1f1b",
        "balanced unidirectional zb-h1",
        "even loop 2 interleaved",
        "balanced wave 2 hanayo",
    } <= set(names)
    assert [each.objective_ns for each in found] == sorted(each.objective_ns for each in found)
    by_name = {each.name: each.objective_ns for each in found}
    assert by_name[f"mist-like ({MIST_LIKE})"] < by_name["even unidirectional 1f1b"]


def test_a_given_placement_or_partition_is_kept() -> None:
    placed = place([0, 1, 3, 2, 0], 4)
    assert {layout.rank_of_stage for layout in named_layouts(HEADED, OpenLayout(placement=placed)).values()} == {(0, 1, 3, 2, 0)}
    bounds = ((0, 2), (2, 4), (4, 6), (6, 9))
    assert {layout.layers_of_stage for layout in named_layouts(HEADED, OpenLayout(layers_of_stage=bounds)).values()} == {bounds}


def test_where_memory_is_short_the_named_layouts_recompute_too() -> None:
    wanted = OpenLayout(chunks=2, recompute_is_open=True)
    short = chain([20, 20, 20, 20, 20, 20, 20, 20, 90], 4, capacity_bytes=65)
    named = named_layouts(short, wanted)
    again = named["balanced unidirectional recomputed"]
    assert again.recomputed == frozenset(range(4))
    assert not named["balanced unidirectional"].recomputed
    assert not any("recomputed" in name for name in named_layouts(HEADED, wanted))  # without a limit there is no use in it
    assert not any("recomputed" in name for name in named_layouts(short, OpenLayout(chunks=2)))
    assert all("recomputed" in each.name for each in baselines(short, wanted))  # only these have room


@pytest.mark.slow
def test_the_search_is_repeatable_and_never_worse_than_the_baselines() -> None:
    found = []
    for _ in range(2):
        reports: list[int] = []

        def report(_evaluated: int, best: KeptArrays, reports: list[int] = reports) -> None:
            reports.append(best.value_ns)

        search = LayoutClimb(UNEVEN, OpenLayout(chunks=2), seed=2, plain=True)
        begun = search.evaluated
        search.run(evaluations=240, report=report)
        assert begun + 240 <= search.evaluated < begun + 340
        assert reports == sorted(reports, reverse=True)
        assert search.best[0].value_ns == reports[-1]
        found.append(search.best)
    assert found[0] == found[1]
    assert search.best[0].value_ns < LayoutClimb(UNEVEN, OpenLayout(chunks=2), plain=True).best[0].value_ns
    best, *others = finished(search, UNEVEN, OpenLayout(chunks=2), 2)
    assert best.objective_ns <= search.best[0].value_ns
    assert best.objective_ns <= baselines(UNEVEN, OpenLayout(chunks=2))[0].objective_ns
    assert all(each.objective_ns >= best.objective_ns for each in others)


def finished(search: LayoutClimb, workload: Workload, open_layout: OpenLayout, most: int) -> list[ScheduledLayout]:
    """This many of the best layouts with their schedules, and the baselines; the best first."""
    return sorted([*search.scheduled(most), *baselines(workload, open_layout)], key=lambda each: each.objective_ns)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_not_open_stays_and_no_layout_beats_the_bound(seed: int) -> None:
    random = Random(seed)
    workload = tiny_workload(random, layers=7, ranks=3, microbatches=4, parallel=True)
    named = next(iter(named_layouts(workload, OpenLayout()).values()))
    openings = [
        OpenLayout(chunks=2),
        OpenLayout(placement=place([0, 2, 1, 0], 3)),
        OpenLayout(layers_of_stage=named.layers_of_stage),
        OpenLayout(chunks=3, recompute=(True,)),
    ]
    for open_layout in openings:
        if seed % 2 == 0:
            open_layout = replace(open_layout, recompute=(False,), recompute_is_open=True)
        search = LayoutClimb(workload, open_layout, seed=seed, plain=True)
        search.run(evaluations=40)
        for layout in [kept.draft.layout() for kept in search.best]:
            assert not verify_layout(workload, layout)
            assert open_layout.layers_of_stage in (None, layout.layers_of_stage)
            assert open_layout.placement is None or open_layout.placement.rank_of_stage == layout.rank_of_stage
            assert open_layout.placement is not None or max(map(layout.rank_of_stage.count, range(3))) <= open_layout.chunks
            if seed % 2:
                stages = range(len(layout.rank_of_stage))
                assert layout.recomputed == {stage for stage in stages if open_layout.recomputes(stage)}
        if seed % 2 and search.best:
            bound_ns = layout_bound(workload, open_layout).value_ns
            assert finished(search, workload, open_layout, 1)[0].objective_ns >= bound_ns


def test_it_recomputes_where_memory_asks_for_it() -> None:
    roomy = chain([20] * 4, 2, capacity_bytes=45)
    layers = tuple(replace(layer, activation_after_input_bytes=0, forward_again_ns=(1,)) for layer in roomy.layers)
    tight = replace(roomy, layers=layers)
    found = []
    for recompute in (False, True):
        search = LayoutClimb(tight, OpenLayout(chunks=1, recompute_is_open=recompute), plain=True)
        search.run(evaluations=40)
        found.append(search.best[0])
    assert found[1].value_ns < found[0].value_ns
    assert any(found[1].draft.again)


@pytest.mark.slow
def test_it_finds_a_layout_where_memory_holds_hardly_more_than_one_does() -> None:
    """Each rank has room for what a random layout holds there with one microbatch, and for a byte more at most."""
    walked = 0
    for seed in range(12):
        random, ample = Random(seed), 10**6
        workload = tiny_workload(random, layers=7, ranks=3, microbatches=3)
        ranks = [0, 1, 2, 0, 1, 2][: random.randint(3, 6)]
        random.shuffle(ranks)
        cuts = (0, *sorted(random.sample(range(1, 7), len(ranks) - 1)), 7)
        again = tuple(seed % 3 == 0 and random.random() < 0.5 for _ in ranks)
        free = replace(
            workload,
            devices=tuple(Device(speed=device.speed, capacity_bytes=ample) for device in workload.devices),
            network=replace(workload.network, links=()),
        )
        problem = problem_of(free, LayoutArrays(cuts, tuple(ranks), again).layout())
        limits = [limit for limit in problem.memory_limit_bytes if limit is not None]
        held = [ample - limit + least for limit, least in zip(limits, minimum_limit_bytes(problem), strict=True)]
        more = random.choice((0, 1))
        devices = tuple(replace(device, capacity_bytes=size + more) for device, size in zip(free.devices, held, strict=True))
        wanted = OpenLayout(chunks=2, recompute_is_open=seed % 3 == 0)
        search = LayoutClimb(replace(free, devices=devices), wanted, seed=seed, plain=True)
        if not search.best:
            walked += 1
            search.run(evaluations=1500)
        assert search.best, seed
    assert walked > 2


def test_an_interruption_leaves_what_was_found() -> None:
    class Stop(BaseException):
        pass

    def stop(_evaluated: int, _best: KeptArrays) -> None:
        raise Stop

    search = LayoutClimb(UNEVEN, OpenLayout(chunks=2), plain=True)
    before = search.best[0]
    with pytest.raises(Stop):
        search.run(evaluations=10_000, report=stop)
    assert search.best[0].value_ns < before.value_ns
    assert search.scheduled(1)[0].objective_ns <= search.best[0].value_ns
    search.run(seconds=0.01)
    with pytest.raises(ValueError, match="expected a number"):
        search.run()
