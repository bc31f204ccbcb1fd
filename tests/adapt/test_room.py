"""Layers that leave a rank that can hold less: against all boundaries of small models."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.chains import LAYERS, RANKS, STEPS, layout, slow, workload
from inputs.plans import plan_of

from schedc.adapt.repartition import RepartitionMethod, repartition
from schedc.adapt.room import lacking_bytes, limited, with_room
from schedc.analysis.simulation.memory import exceeded_limit, peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Infeasible, NoPlanFound
from schedc.ir.conditions import AS_PLANNED
from schedc.ir.workload import Device
from schedc.lower.problem import problem_of, problem_under, static_bytes
from schedc.solvers.heuristics.rule_table import RuleTable
from schedc.solvers.layout.layout_arrays import LayoutArrays
from schedc.verify.plan.checks import verify_plan

if TYPE_CHECKING:
    from schedc.ir import Conditions, Plan, Workload


def uneven(random: Random) -> Workload:
    """14 layers on four ranks, some of which hold fifty times as much as others."""
    given, sizes = workload(random), (1, 1, 2, 30, 50)
    layers = tuple(replace(given.layers[at % LAYERS], position=(at, at + 1), static_bytes=random.choice(sizes)) for at in range(14))
    return replace(
        given, layers=layers, devices=(Device(capacity_bytes=10**6),) * 4, network=replace(given.network, site_of_rank=(0,) * 4)
    )


def has_room(given: Workload, cuts: tuple[int, ...], limits: dict[int, int]) -> bool:
    """Whether each rank holds its layers and one microbatch of them, written anew."""
    needed = [sum(layer.static_bytes + layer.activation_bytes for layer in given.layers[a:b]) for a, b in pairwise(cuts)]
    return all(needed[rank] <= limit for rank, limit in limits.items())


def test_a_layout_with_room_is_found_where_there_is_one() -> None:
    """By transfers in most cases; they end too early in every sixth or so."""
    found = refused = 0
    running = LayoutArrays((0, 4, 8, 11, 14), (0, 1, 2, 3), (False,) * 4)
    for seed in range(100):
        random = Random(seed)
        given = uneven(random)
        whole = sum(layer.static_bytes + layer.activation_bytes for layer in given.layers)
        limits = {rank: random.randint(whole // 8, whole // 2) for rank in range(4)}
        every = [(0, *cuts, 14) for cuts in combinations(range(1, 14), 3)]
        fitting = [cuts for cuts in every if has_room(given, cuts, limits)]
        if not fitting:
            with pytest.raises(Infeasible, match=r"^chain: no boundaries of the stages have room on their ranks: in the best ones"):
                with_room(limited(given, limits), running, None)
            refused += 1
            continue
        draft = with_room(limited(given, limits), running, None)
        assert draft.cuts in fitting
        assert not any(lacking_bytes(limited(given, limits), draft, None))
        assert (draft == running) == (running.cuts in fitting)
        found += 1
    assert min(found, refused) >= 20


def planned(given: Workload) -> Plan:
    start = problem_of(given, layout((3, 6)))
    return plan_of(start, RuleTable()(start))


def least_ns(given: Workload, conditions: Conditions) -> int:
    """The shortest step of all boundaries, by the rule table's orders within memory."""
    values = []
    for cuts in combinations(range(1, LAYERS), RANKS - 1):
        problem = problem_under(problem_of(given, layout(cuts)), conditions)
        if all(limit is None or limit > 0 for limit in problem.memory_limit_bytes) and not any(
            lacking_bytes(given, LayoutArrays((0, *cuts, LAYERS), (0, 1, 2), (False,) * 3), None)
        ):
            schedule = RuleTable(climb_ops=0)(problem)
            if exceeded_limit(problem, schedule) is None:
                values.append(simulate(problem, schedule).makespan_ns)
    return min(values)


def test_layers_leave_a_rank_that_has_no_room_for_them() -> None:
    """The plan is within memory, and about as good as that of the best boundaries."""
    best: dict[RepartitionMethod, int] = {"transfer": 0, "condensation": 0}
    for seed in range(4):
        random = Random(seed)
        given = workload(random, capacity=10**6)
        plan, rank = planned(given), random.randrange(RANKS)
        full = [
            static + peak
            for static, peak in zip(static_bytes(given, layout((3, 6))), peak_bytes(plan.problem, plan.schedule()), strict=True)
        ]
        limits = {rank: static_bytes(given, layout((3, 6)))[rank] - random.randint(1, 12)}
        conditions = slow((rank + 1) % RANKS, 1.2) if seed % 2 else AS_PLANNED
        least = least_ns(limited(given, limits), conditions)
        for method in best:
            found = repartition(plan, given, conditions, steps=STEPS, memory_limits=limits, method=method)
            assert (found.running_fits, found.stay_fits, found.stay_ns) == (False, False, found.running_ns)
            assert any(giver == rank for giver, _ in found.moved.values())
            assert verify_plan(found.plan) == ()
            assert found.gain_ns == STEPS * (found.stay_ns - found.objective_ns) - found.move_ns
            cuts = tuple(stage.layers[0] for stage in found.plan.problem.stages[1:] if stage.layers)
            held = [
                static + peak
                for static, peak in zip(
                    static_bytes(given, layout(cuts)), peak_bytes(found.plan.problem, found.plan.schedule()), strict=True
                )
            ]
            assert held[rank] <= limits[rank] < full[rank]
            best[method] += found.objective_ns <= least * 1.02
    assert min(best.values()) >= 3


def test_other_orders_do_where_they_have_room() -> None:
    """Only if layers that move gain more do they move; the plan that runs is left where it has room."""
    given = workload(Random(2), capacity=10**6)
    plan = planned(given)
    held, static = peak_bytes(plan.problem, plan.schedule()), static_bytes(given, layout((3, 6)))
    same = repartition(plan, given, AS_PLANNED, steps=0, memory_limits={0: static[0] + held[0]})
    assert (same.plan.ranks, same.running_fits, same.stay_fits, same.moved) == (plan.ranks, True, True, {})
    tight = {0: static[0] + held[0] - 1}
    found = repartition(plan, given, AS_PLANNED, steps=0, memory_limits=tight)
    assert (found.running_fits, found.stay_fits, found.moved, found.gain_ns) == (False, True, {}, 0)
    assert found.objective_ns == found.stay_ns == found.plan.certificate.makespan_ns
    assert peak_bytes(found.plan.problem, found.plan.schedule())[0] < held[0]
    assert verify_plan(found.plan) == ()
    assert repartition(plan, given, AS_PLANNED, steps=10**6, memory_limits=tight).objective_ns <= found.objective_ns


def test_a_limit_of_activations_takes_the_place_of_the_jobs() -> None:
    given = workload(Random(2))
    for devices in (given.devices, tuple(replace(device, in_flight=5) for device in given.devices)):
        of_job = replace(given, devices=devices)
        plan = planned(of_job)
        held = peak_bytes(plan.problem, plan.schedule())
        found = repartition(plan, of_job, AS_PLANNED, steps=STEPS, memory_limits={1: held[1] // 2})
        assert not found.running_fits
        assert found.plan.problem.memory_limit_bytes[1] == held[1] // 2 >= peak_bytes(found.plan.problem, found.plan.schedule())[1]


def test_ranks_of_several_stages() -> None:
    """There, nothing says that no layout has room."""
    given = workload(Random(4), capacity=10**6)
    looped = LayoutArrays((0, 2, 3, 5, 7, 8, LAYERS), (0, 1, 2) * 2, (False,) * 6)
    static = static_bytes(given, looped.layout("loop"))
    draft = with_room(limited(given, {1: static[1]}), looped, "loop")
    assert draft.ranks == looped.ranks
    assert not any(lacking_bytes(limited(given, {1: static[1]}), draft, "loop"))
    with pytest.raises(NoPlanFound, match=r"^chain: no layout was found that has room: in the best one rank 1 lacks \d+ B for one"):
        with_room(limited(given, {1: 3}), looped, "loop")
