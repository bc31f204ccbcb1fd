"""AdaPtis's generator: never worse than a baseline nor better than the optimum, sound, repeatable, within what is open."""

from __future__ import annotations

from random import Random

import pytest
from inputs.all_layouts import best_of_all, tiny_workload
from oracles.brute_force import optimum

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import NoPlanFound
from schedc.ir.costs import MessageCost
from schedc.ir.layout import OpenLayout
from schedc.ir.network import Network
from schedc.ir.workload import Device, Layer, Workload
from schedc.lower.placement import place
from schedc.lower.problem import problem_of
from schedc.solvers.layout.adaptis import Adaptis
from schedc.solvers.layout.baselines import baselines, named_layouts
from schedc.verify.layout import verify_layout
from schedc.verify.schedule.checks import verify_schedule


def check(workload: Workload, open_layout: OpenLayout) -> int | None:
    """What it finds, once all that must hold of it does; None: it finds nothing, as no named layout has room."""
    named = baselines(workload, open_layout)
    try:
        found = Adaptis().choose(workload, open_layout, plain=True)
    except NoPlanFound:
        assert not named
        return None
    assert found == Adaptis().choose(workload, open_layout, plain=True)
    assert not verify_layout(workload, found.layout)
    problem = problem_of(workload, found.layout)
    assert not verify_schedule(problem, found.schedule)
    assert simulate(problem, found.schedule).objective_ns(problem.objective) == found.objective_ns
    for peak, limit in zip(peak_bytes(problem, found.schedule), problem.memory_limit_bytes, strict=True):
        assert limit is None or peak <= limit
    assert found.objective_ns <= min((each.objective_ns for each in named), default=found.objective_ns)
    assert open_layout.layers_of_stage in (None, found.layout.layers_of_stage)
    assert open_layout.placement is None or open_layout.placement.rank_of_stage == found.layout.rank_of_stage
    counts = [found.layout.rank_of_stage.count(rank) for rank in range(workload.ranks)]
    assert open_layout.placement is not None or 0 < min(counts) <= max(counts) <= open_layout.chunks
    stages = range(len(found.layout.rank_of_stage))
    assert found.layout.recomputed == {stage for stage in stages if open_layout.recomputes(stage)}
    return found.objective_ns


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_it_is_sound_and_never_worse_than_a_baseline(seed: int) -> None:
    random = Random(seed)
    for _ in range(2):
        workload = tiny_workload(random, layers=6, ranks=3, microbatches=5, differ=True, parallel=True)
        bounds = next(iter(named_layouts(workload, OpenLayout()).values())).layers_of_stage
        check(workload, OpenLayout(chunks=2))
        check(workload, OpenLayout(placement=place([0, 2, 1, 0], 3)))
        check(workload, OpenLayout(layers_of_stage=bounds))
        check(workload, OpenLayout(chunks=1, recompute=(True,)))


@pytest.mark.slow
def test_it_is_no_better_than_the_best_of_all_layouts() -> None:
    equal = compared = 0
    for seed in range(40):
        workload = tiny_workload(Random(seed), layers=2 + seed % 2, ranks=2, microbatches=2)
        open_layout = OpenLayout(chunks=1 + seed % 2)
        best, found = best_of_all(workload, open_layout, optimum), check(workload, open_layout)
        if found is not None:
            assert best is not None
            assert found >= best
            compared += 1
            equal += found == best
    assert compared > 30
    assert equal > compared // 4


def uneven() -> Workload:
    """A chain whose costs rise, in pieces too coarse for a partition alone; links take time."""
    layers = [
        Layer(
            forward_ns=(each,),
            backward_input_ns=(each,),
            backward_weight_ns=(each,),
            backward_ns=(2 * each,),
            activation_bytes=10,
            activation_after_input_bytes=5,
        )
        for each in (10, 50, 20, 35, 20, 60, 20, 15, 40, 25, 90, 10)
    ]
    network = Network(site_of_rank=(0,) * 3, within=MessageCost(latency_ns=3))
    devices = (Device(limit_bytes=250),) * 3
    return Workload(name="uneven", microbatches=8, layers=tuple(layers), devices=devices, network=network)


@pytest.mark.slow
def test_tuning_is_better_than_every_baseline() -> None:
    reports: list[tuple[int, int]] = []
    found = Adaptis().choose(uneven(), OpenLayout(chunks=2), report=lambda *each: reports.append(each), plain=True)
    assert found.name == "adaptis"
    assert found.objective_ns < baselines(uneven(), OpenLayout(chunks=2))[0].objective_ns
    assert [best_ns for _, best_ns in reports] == sorted({best_ns for _, best_ns in reports}, reverse=True)
    assert found.objective_ns <= reports[-1][1]
    assert check(uneven(), OpenLayout(chunks=2)) == found.objective_ns


def test_it_stops_when_it_is_asked_to() -> None:
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 12

    found = Adaptis().choose(uneven(), OpenLayout(chunks=2), stop=stop, plain=True)
    assert calls < 20
    assert found.objective_ns <= baselines(uneven(), OpenLayout(chunks=2))[0].objective_ns
    assert Adaptis().choose(uneven(), OpenLayout(), stop=lambda: True, plain=True) == baselines(uneven(), OpenLayout())[0]
