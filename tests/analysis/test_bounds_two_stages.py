"""The bound over layouts with at most two stages on a rank: beside brute force over all, beside known schedules, and its covers."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from inputs.all_layouts import best_of_all, tiny_workload
from oracles.brute_force import SearchTooLarge, optimum

from schedc.analysis.bounds.layouts.cover import RankKind, may_cover
from schedc.analysis.bounds.layouts.shared_ranks import shared_ranks_bound
from schedc.analysis.bounds.layouts.two_stages import _Crossings, two_stages_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.ir.costs import MessageCost
from schedc.ir.layout import Layout, OpenLayout
from schedc.ir.network import Network
from schedc.ir.problem import Objective
from schedc.lower.problem import problem_of
from schedc.solvers.heuristics.greedy import Greedy
from schedc.verify.layout import verify_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.workload import Workload


def in_sites(random: Random, workload: Workload) -> Workload:
    """The workload's ranks in two sites or one, for the makespan."""
    workload = replace(workload, objective=Objective.MAKESPAN)
    if random.random() < 0.4:
        return workload
    sites = [random.randint(0, 1) for _ in range(workload.ranks)]
    between = MessageCost(latency_ns=random.choice([0, 5, 13]), transfer_ns=random.choice([0, 3, 9]))
    within = MessageCost(latency_ns=random.choice([0, 0, 1]))
    return replace(workload, network=Network(site_of_rank=(0, 1, *sites)[: workload.ranks], between=between, within=within))


def is_sound(seed: int) -> bool:
    """Whether the bound is not above the best of all layouts of a tiny workload."""
    random = Random(seed)
    ranks = 2 if seed % 4 else 3
    layers = random.randint(ranks, 3 if ranks == 3 or seed % 2 else 4)
    workload = tiny_workload(random, layers=layers, ranks=ranks, microbatches=random.choice([1, 2, 2, 3][: 5 - ranks]), differ=True)
    workload = in_sites(random, workload)
    open_layout = OpenLayout(chunks=2, recompute=random.choice([(False,), (False,), (True,)]))
    try:
        best = best_of_all(workload, open_layout, lambda problem: optimum(problem, most_states=60_000))
    except SearchTooLarge:
        return True
    return best is None or two_stages_bound(workload, open_layout, 0) <= best


@pytest.mark.parametrize("seed", range(24))
def test_bound_is_not_above_the_best_of_all_layouts(seed: int) -> None:
    assert is_sound(seed)


def is_below_known(seed: int) -> tuple[bool, bool]:
    """Whether the bound is not above schedules of random layouts, and whether it is above what sums say."""
    random = Random(seed)
    ranks, layers = random.randint(2, 4), random.randint(5, 9)
    workload = tiny_workload(random, layers=layers, ranks=ranks, microbatches=random.randint(4, 9))
    workload = in_sites(random, workload)
    known_ns = shared_ranks_bound(workload, OpenLayout(chunks=2))
    bound_ns = two_stages_bound(workload, OpenLayout(chunks=2), known_ns)
    for _ in range(12):
        stages = random.randint(ranks, min(layers, 2 * ranks))
        order = [*range(ranks), *random.sample(range(ranks), stages - ranks)]
        random.shuffle(order)
        inner = sorted(random.sample(range(1, layers), stages - 1))
        bounds = tuple(pairwise((0, *inner, layers)))
        layout = Layout(rank_of_stage=tuple(order), paths=(tuple(range(stages)),), layers_of_stage=bounds)
        if not verify_layout(workload, layout):
            problem = problem_of(workload, layout)
            held = [sum(stage.activation_bytes for stage in problem.stages if stage.rank == rank) for rank in range(ranks)]
            has_room = all(limit is None or size <= limit for size, limit in zip(held, problem.memory_limit_bytes, strict=True))
            if has_room and simulate(problem, Greedy(n_sub=1)(problem)).makespan_ns < bound_ns:
                return False, True
    return True, bound_ns > known_ns


def test_bound_is_below_known_schedules_and_above_what_all_ranks_do_together() -> None:
    found = [is_below_known(seed) for seed in range(10)]
    assert all(sound for sound, _ in found)
    assert sum(more for _, more in found) > 5


def test_when_the_time_is_up_what_is_known_counts() -> None:
    workload = in_sites(Random(1), tiny_workload(Random(1), layers=6, ranks=3, microbatches=4))
    assert two_stages_bound(workload, OpenLayout(chunks=2), 7) > 7
    assert two_stages_bound(workload, OpenLayout(chunks=2), 7, lambda: True) == 7


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_halves_of_crossings_have_each_place_once(number: int) -> None:
    layers, found = 7, []
    left = [_Crossings((0,), tuple(range(1, number + 1)), tuple(range(layers - number, layers)))]
    while left:
        crossings = left.pop()
        halves = [*crossings.halves()]
        left += halves
        if not halves:
            assert crossings.first == crossings.last
            found.append(crossings.first)
    assert sorted(found) == [*combinations(range(1, layers), number)]


def can_cover(layer: int, layers: int, left: Sequence[tuple[int, list[frozenset[int]]]], had: frozenset[int]) -> bool:
    """Whether shares of the ranks that are left have the other layers, each once, by trying all."""
    if layer == layers:
        return True
    if layer in had:
        return can_cover(layer + 1, layers, left, had)
    for at, (ranks, shares) in enumerate(left):
        less = [*left[:at], (ranks - 1, shares), *left[at + 1 :]]
        if ranks and any(can_cover(layer + 1, layers, less, had | share) for share in shares if layer in share and not share & had):
            return True
    return False


def test_what_prices_refute_cannot_be_covered() -> None:
    refuted = possible = 0
    for seed in range(300):
        random, layers = Random(seed), 6
        kinds, sets = [], []
        for _ in range(random.randint(1, 2)):
            shares = []
            for _ in range(random.randint(2, 9)):
                first, end, again, last = sorted(random.choices(range(layers + 1), k=4))
                if first < end:
                    shares.append((first, end, again, last))
            ranks = random.randint(1, 2)
            kinds.append(RankKind(ranks, np.array(shares, np.int64).reshape(-1, 4).T))
            sets.append((ranks, [frozenset((*range(a, b), *range(c, d))) for a, b, c, d in shares]))
        is_possible = can_cover(0, layers, sets, frozenset())
        possible += is_possible
        if all(shares for _, shares in sets):
            may = may_cover(layers, kinds)
            assert may or not is_possible
            refuted += not may
    assert possible > 30 and refuted > 0.6 * (300 - possible)
