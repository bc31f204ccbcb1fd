"""Layers that move off a rank that has slowed down: against all boundaries of small models."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations, permutations
from random import Random

import pytest
from inputs.chains import LAYERS, RANKS, STEPS, layout, slow, workload
from inputs.few_plans import few_plan
from inputs.plans import plan_of

from schedc.adapt.condensation import condensed_layouts, critical_layers
from schedc.adapt.repartition import RepartitionMethod, repartition
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import InvalidInput, Unsupported
from schedc.ir.conditions import AS_PLANNED, Conditions, LinkState
from schedc.ir.costs import MessageCost
from schedc.ir.network import Network
from schedc.ir.workload import Device, Workload
from schedc.lower.problem import problem_of, problem_under, static_bytes
from schedc.solvers.heuristics.rule_table import RuleTable
from schedc.solvers.layout.layout_arrays import LayoutArrays
from schedc.verify.plan.checks import verify_plan


@cache
def after_ns(seed: int, cuts: tuple[int, ...], rank: int, factor: float) -> int:
    """The step of this seed's workload with these boundaries and a slow rank."""
    problem = problem_under(problem_of(workload(Random(seed)), layout(cuts)), slow(rank, factor))
    return simulate(problem, RuleTable(climb_ops=0)(problem)).makespan_ns


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 6), marks=pytest.mark.slow)])
def test_no_boundaries_gain_much_more(seeds: range) -> None:
    """In nearly all cases none gains more: the neighbourhood has few local optima."""
    best = 0
    for seed in seeds:
        random = Random(seed)
        given = workload(random)
        start = problem_of(given, layout((3, 6)))
        plan = plan_of(start, RuleTable()(start))
        rank, factor = random.randrange(RANKS), random.choice((1.3, 1.7, 2.5))
        found = repartition(plan, given, slow(rank, factor), steps=STEPS)
        gains = [0]
        for cuts in combinations(range(1, LAYERS), RANKS - 1):
            moved_ns = move_ns(given, cuts)
            gains.append(STEPS * (found.stay_ns - after_ns(seed, cuts, rank, factor)) - moved_ns if cuts != (3, 6) else 0)
        assert found.gain_ns == STEPS * (found.stay_ns - found.objective_ns) - found.move_ns
        assert found.gain_ns >= 0.8 * max(gains)
        best += found.gain_ns >= max(gains)
        if found.moved:
            assert found.plan.problem.stages != plan.problem.stages
            assert verify_plan(found.plan) == ()
            assert found.plan.certificate.makespan_ns == found.objective_ns < found.stay_ns
            assert [stage.rank for stage in found.plan.problem.stages] == [*range(RANKS)]
    assert best >= 0.9 * len(seeds)


@pytest.mark.parametrize("method", ["transfer", "condensation"])
def test_searches_keep_what_they_say_of_a_gain(method: RepartitionMethod) -> None:
    given = workload(Random(3))
    start = problem_of(given, layout((3, 6)))
    found = repartition(plan_of(start, RuleTable()(start)), given, slow(1, 2.0), steps=STEPS, method=method)
    assert found.moved
    assert found.gain_ns == STEPS * (found.stay_ns - found.objective_ns) - found.move_ns
    assert verify_plan(found.plan) == ()


@pytest.mark.parametrize("top_k", [LAYERS, LAYERS + 5, None, 5, 3])
def test_condensation_finds_the_best_of_the_boundaries_that_it_may_take(top_k: int | None) -> None:
    """With all layers critical, that is the best of all boundaries; the layers that take longest are found anew here."""
    for seed in range(2):
        random = Random(seed)
        given = workload(random)
        start = problem_of(given, layout((3, 6)))
        rank, factor = random.randrange(RANKS), random.choice((1.3, 1.7, 2.5))
        conditions = slow(rank, factor)
        found = repartition(plan_of(start, RuleTable()(start)), given, conditions, steps=STEPS, method="condensation", top_k=top_k)
        time_ns = {
            number: (layer.forward_ns[0] + layer.backward_ns[0]) * (factor if number // 3 == rank else 1.0)
            for number, layer in enumerate(given.layers)
        }
        critical = sorted(time_ns, key=lambda number: -time_ns[number])[:top_k]
        best_gain_ns = 0
        best_cuts: tuple[int, ...] = (3, 6)
        for cuts in combinations(range(1, LAYERS), RANKS - 1):
            if all(cut - 1 in critical for cut in cuts):
                gain_ns = STEPS * (found.stay_ns - after_ns(seed, cuts, rank, factor)) - move_ns(given, cuts)
                if cuts != (3, 6) and gain_ns > best_gain_ns:
                    best_gain_ns, best_cuts = gain_ns, cuts
        assert tuple(stage.layers[0] for stage in found.plan.problem.stages[1:] if stage.layers) == best_cuts
        assert found.gain_ns >= best_gain_ns  # the best one's orders are improved at the end


def test_critical_layers_are_those_that_take_longest() -> None:
    assert critical_layers([1, 9, 2, 8, 3], 2) == [1, 3]
    assert critical_layers([5, 5, 5, 5, 5, 5, 9, 5], 3) == [1, 5, 6]  # of equal ones, some that lie evenly
    assert critical_layers([5, 5, 5], 3) == critical_layers([5, 5, 5], 7) == [0, 1, 2]


def move_ns(given: Workload, cuts: tuple[int, ...]) -> int:
    """How long layers are under way, written anew: 4 bytes for each parameter over 100 MB/s, and 500 ns for each pair of ranks."""
    sizes: dict[tuple[int, int], int] = {}
    for number, layer in enumerate(given.layers):
        pair = (number // 3, sum(number >= cut for cut in cuts))
        if pair[0] != pair[1]:
            sizes[pair] = sizes.get(pair, 0) + 4 * layer.parameters
    times = {pair: 500 + 10 * size for pair, size in sizes.items()}
    ends = [sum(time for pair, time in times.items() if pair[end] == rank) for end in (0, 1) for rank in range(RANKS)]
    return max(ends)


def test_a_rank_that_is_full_gets_no_layer() -> None:
    random = Random(5)
    roomy = workload(random)
    layers = tuple(replace(layer, parameters=10, static_bytes=40) for layer in roomy.layers)
    start = problem_of(roomy, layout((3, 6)))
    plan = plan_of(start, RuleTable()(start))
    free = repartition(plan, replace(roomy, layers=layers), slow(1, 2.5), steps=STEPS)
    assert free.moved
    full = replace(roomy, layers=layers, devices=(Device(capacity_bytes=3 * 40 + 30), Device(), Device(capacity_bytes=1000)))
    found = repartition(plan, full, slow(1, 2.5), steps=STEPS)
    assert {taker for _, taker in found.moved.values()} == {2}
    assert found.gain_ns <= free.gain_ns
    held = static_bytes(full, layout(tuple(stage.layers[0] for stage in found.plan.problem.stages[1:] if stage.layers)))
    peaks = peak_bytes(found.plan.problem, found.plan.schedule())
    for device, static, peak in zip(full.devices, held, peaks, strict=True):
        assert device.capacity_bytes is None or static + peak <= device.capacity_bytes


def test_a_move_must_pay() -> None:
    given = workload(Random(1))
    start = problem_of(given, layout((3, 6)))
    plan = plan_of(start, RuleTable()(start))
    many = repartition(plan, given, slow(0, 2.0), steps=STEPS)
    assert many.moved
    assert many.moved_bytes == sum(4 * given.layers[layer].parameters for layer in many.moved)
    for steps, pause_ns in ((0, 0), (STEPS, STEPS * many.stay_ns)):
        few = repartition(plan, given, slow(0, 2.0), steps=steps, pause_ns=pause_ns)
        assert (few.moved, few.gain_ns, few.move_ns) == ({}, 0, 0)
        assert few.objective_ns == few.stay_ns == many.stay_ns
    slower = Conditions(slowdown=slow(0, 2.0).slowdown, links={(0, 1): LinkState(bytes_per_second=10**4)})
    assert repartition(plan, given, slower, steps=STEPS, bytes_per_parameter=Fraction(8)).move_ns != many.move_ns


def test_a_link_with_the_time_of_a_message_takes_layers_as_one_with_a_bandwidth() -> None:
    """A message is 1 byte, and takes 10 us; a layer is many. Where messages have several sizes, nobody knows what it takes."""
    given = workload(Random(1))
    found = []
    for cost in (MessageCost(latency_ns=500, bytes_per_second=10**5), MessageCost(latency_ns=500, transfer_ns=10_000)):
        costly = replace(given, network=Network(site_of_rank=(0,) * RANKS, within=cost))
        start = problem_of(costly, layout((3, 6)))
        found.append(repartition(plan_of(start, RuleTable()(start)), costly, slow(0, 2.5), steps=STEPS))
    one, other = found
    assert one.moved
    assert (one.moved, one.move_ns, one.gain_ns) == (other.moved, other.move_ns, other.gain_ns)
    sizes = replace(costly, layers=(*costly.layers[:2], replace(costly.layers[2], message_bytes=2), *costly.layers[3:]))
    plan = plan_of(start := problem_of(sizes, layout((3, 6))), RuleTable()(start))
    with pytest.raises(InvalidInput, match=r"found a transfer of 10 us between ranks 0 and 1, expected a bandwidth: layers cross"):
        repartition(plan, sizes, slow(0, 2.5), steps=STEPS)
    measured = {pair: LinkState(bytes_per_second=10**5) for pair in permutations(range(RANKS), 2)}
    assert repartition(plan, sizes, Conditions(slowdown=slow(0, 2.5).slowdown, links=measured), steps=STEPS).moved
    nothing = replace(sizes, layers=tuple(replace(layer, static_bytes=0) for layer in sizes.layers))
    assert repartition(plan, nothing, slow(0, 2.5), steps=STEPS).move_ns == 500


def test_layers_are_those_that_the_stages_of_the_plan_have() -> None:
    """Its origin is not asked: that of version 1 counts layers of the model, and one that is damaged may say anything."""
    given = workload(Random(3))
    pieces = replace(given, layers=tuple(replace(each, position=(2 * at, 2 * at + 2)) for at, each in enumerate(given.layers)))
    start = problem_of(pieces, layout((3, 6)))
    plan = plan_of(start, RuleTable()(start))
    found = repartition(plan, pieces, slow(1, 2.0), steps=STEPS)
    assert found.moved
    assert start.origin is not None
    for of_model in (((0, 6), (6, 12), (12, 18)), ((0, 1), (1, 2), (2, LAYERS))):
        origin = replace(start.origin, layers_of_stage=of_model)
        assert repartition(replace(plan, problem=replace(start, origin=origin)), pieces, slow(1, 2.0), steps=STEPS) == found
    stages = tuple(replace(stage, layers=layers) for stage, layers in zip(start.stages, ((0, 6), (12, 18), (6, 12)), strict=True))
    with pytest.raises(InvalidInput, match="is not in the layers of job 'chain'"):
        repartition(replace(plan, problem=replace(start, stages=stages)), pieces, slow(1, 2.0), steps=STEPS)


def test_more_critical_layers_than_can_be_tried_are_refused() -> None:
    given = workload(Random(1))
    many = replace(given, layers=tuple(replace(given.layers[at % 9], position=(at, at + 1)) for at in range(600)))
    bounds = ((0, 200), (200, 400), (400, 600))
    start = problem_of(many, replace(layout((3, 6)), layers_of_stage=bounds))
    plan = plan_of(start, RuleTable()(start))
    with pytest.raises(InvalidInput, match=r"^top_k: found 600, which makes 179101 layouts of 3 stages, expected at most 447$"):
        repartition(plan, many, slow(1, 2.0), steps=STEPS, method="condensation", top_k=600)


@pytest.mark.parametrize("dear_end", [False, True])
def test_without_a_number_of_critical_layers_there_are_as_many_layouts_as_said(*, dear_end: bool) -> None:
    """Whether or not the last layer is critical, behind which no block begins."""
    given = workload(Random(1))
    layers = tuple(replace(given.layers[at % 9], position=(at, at + 1)) for at in range(80))
    last = replace(layers[-1], forward_ns=(10**9 if dear_end else 1,))
    many = replace(given, layers=(*layers[:-1], last))
    running = LayoutArrays((0, 20, 50, 80), (0, 1, 2), (False,) * 3)
    assert 1800 < len({*condensed_layouts(running, many, AS_PLANNED, [], None, 2000)}) <= 2000


def test_refusals() -> None:
    given = workload(Random(1))
    start = problem_of(given, layout((3, 6)))
    plan = plan_of(start, RuleTable()(start))
    with pytest.raises(InvalidInput, match="steps and pause_ns: found -1 and 0, expected"):
        repartition(plan, given, AS_PLANNED, steps=-1)
    for method, top_k in (("transfer", 3), ("condensation", 0)):
        with pytest.raises(InvalidInput, match=f"top_k: found {top_k} with method {method}, expected a number of at least 1"):
            repartition(plan, given, AS_PLANNED, steps=1, method=method, top_k=top_k)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="method: found 'random', expected transfer or condensation"):
        repartition(plan, given, AS_PLANNED, steps=1, method="random")  # type: ignore[arg-type]
    by_stage = replace(given, layers=tuple(replace(layer, position=None) for layer in given.layers))
    with pytest.raises(InvalidInput, match="plan 'chain' is not in the layers of job 'chain'; give the plan's job"):
        repartition(plan, by_stage, AS_PLANNED, steps=1)
    both = few_plan("bidirectional")
    with pytest.raises(Unsupported, match=f"^plan '{both.name}' has two paths; layers can move where there is one$"):
        repartition(both, given, AS_PLANNED, steps=1)
