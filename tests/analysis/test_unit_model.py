"""The model that bounds and solvers are held against is itself held against brute force, the simulator, and longer units."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from inputs.claim_problems import long_weights, weights_in_units
from inputs.problems import make_problem
from inputs.tiny_problems import tiny_problem
from oracles.brute_force import SearchTooLarge, optimum as by_brute_force
from oracles.unit_model import ALL, WEIGHTS, Unsettled, optimum, search

from schedc.analysis.simulation.simulate import simulate
from schedc.ir.ops import Kind
from schedc.ir.problem import Objective, Problem
from schedc.verify.schedule.checks import verify_schedule


def check(seed: int) -> bool:
    """One tiny problem; returns whether brute force could settle it."""
    problem = tiny_problem(Random(seed), most_ops=14, data_parallel=seed % 4 == 0)
    compared = False
    for objective in Objective:
        asked = replace(problem, objective=objective)
        try:
            expected_ns = by_brute_force(asked, most_states=2_000)
        except SearchTooLarge:
            continue
        found = search(asked)
        assert found.is_settled and found.found_ns == expected_ns
        if found.schedule is not None:
            assert not verify_schedule(asked, found.schedule)
            assert simulate(asked, found.schedule).objective_ns(objective) == expected_ns
        compared = True
    return compared


def test_equals_brute_force() -> None:
    assert sum(check(seed) for seed in range(16)) >= 10


@pytest.mark.slow
def test_equals_brute_force_on_more_problems() -> None:
    assert sum(check(seed) for seed in range(24, 150)) >= 80


def large_and_small(seed: int) -> tuple[Problem, Problem, int]:
    """Two problems, the first of which takes a given number of times as long and as many bytes: many odd nanoseconds and GiB."""
    random = Random(seed)
    placement = random.choice(["loop", "wave"])
    costs = [(random.randint(2, 9), random.randint(2, 9), random.randint(2, 9)) for _ in range(4)]
    held = [(random.randint(6, 14), random.randint(1, 5)) for _ in range(4)]
    limit = max(held[0][0] + held[2][0], held[1][0] + held[3][0]) + random.randint(0, 12)
    ns, held_bytes = 12_345_679, (1 << 30) + 1

    def scaled(ns: int, size: int) -> Problem:
        return make_problem(
            2,
            2,
            placement=placement,
            chunks=2,
            costs_ns=[(f * ns, b * ns, w * ns) for f, b, w in costs],
            activation=[(whole * size, after * size) for whole, after in held],
            memory_limit_bytes=[limit * size + size - 1] * 2,
            links={(0, 1): (3 * ns, 2 * ns), (1, 0): (3 * ns, 2 * ns)},
        )

    return scaled(ns, held_bytes), scaled(1, 1), ns


@pytest.mark.parametrize("objective", list(Objective))
def test_large_numbers_change_nothing(objective: Objective) -> None:
    for seed in range(2):
        large, small, ns = large_and_small(seed)
        expected_ns = optimum(small, objective)
        assert optimum(large, objective) == (None if expected_ns is None else ns * expected_ns)


def test_cut_blocks_are_never_worse() -> None:
    for seed in range(6):
        problem = tiny_problem(Random(seed), most_ops=6)
        for objective in Objective:
            whole_ns, cut_ns = (optimum(problem, objective, cut=cut) for cut in (frozenset[Kind](), ALL))
            assert cut_ns is not None and whole_ns is not None and cut_ns <= whole_ns


@pytest.mark.parametrize("seed", [0, 1, 14, 20, 34])
def test_cut_weights_equal_brute_force(seed: int) -> None:
    problem = long_weights(seed)
    assert optimum(problem, cut=WEIGHTS) == by_brute_force(problem, weights_in_units(problem))


def test_only_better_schedules_count_where_that_is_asked() -> None:
    problem = make_problem(2, 2)
    least_ns = optimum(problem)
    assert least_ns is not None
    assert search(problem, below_ns=least_ns).found_ns is None
    assert search(problem, below_ns=least_ns + 1).found_ns == least_ns
    with pytest.raises(Unsettled):
        optimum(make_problem(4, 6), work=1e-3)


def test_a_block_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 ns"):
        optimum(make_problem(1, 1, costs_ns=(0, 1, 1)))
