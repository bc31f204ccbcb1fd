"""Measured sizes and times: solvers get units in which nothing overflows, and what they prove holds in bytes."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.problems import make_problem

from schedc.models.blocks import grid_of, unit_bytes
from schedc.solvers.common.base import Limits
from schedc.solvers.driver.registry import constructive
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.exact.milp import solve_milp
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

GIB = 1 << 30
MS = 1_000_000


@given(st.lists(st.integers(0, 200 * GIB), max_size=30), st.integers(0, 500 * GIB), st.integers(1, 1 << 40), st.data())
def test_what_fits_in_bytes_fits_in_units(held: list[int], limit: int, most: int, data: st.DataObject) -> None:
    unit = unit_bytes(held, limit, most)
    assert sum(each // unit for each in held) <= most
    assert limit // unit <= most
    chosen = [each for each in held if data.draw(st.booleans())]
    if sum(chosen) <= limit:
        assert sum(each // unit for each in chosen) <= limit // unit


def test_a_common_divisor_is_exact() -> None:
    assert unit_bytes([6 * GIB, 4 * GIB], 31 * GIB, most=1 << 20) == 2 * GIB
    assert unit_bytes([], 0, most=5) == 1


def measured(seed: int, bytes_in_unit: int = 1) -> Problem:
    """A wave of two chunks with odd nanoseconds and gigabytes; in larger units what is held is rounded up, and the limit down."""
    random = Random(seed)
    costs = [tuple(random.randint(low * MS, high * MS) for low, high in ((30, 45), (35, 55), (18, 35))) for _ in range(4)]
    held = [(random.randint(6 * GIB, 14 * GIB), random.randint(GIB, 5 * GIB)) for _ in range(4)]
    limit = int(random.uniform(1.2, 2.2) * sum(whole for whole, _ in held) / 2)
    return make_problem(
        2,
        3,
        placement="wave",
        chunks=2,
        costs_ns=[(forward, inputs, weights) for forward, inputs, weights in costs],
        activation=[(-(-whole // bytes_in_unit), -(-after // bytes_in_unit)) for whole, after in held],
        memory_limit_bytes=(limit // bytes_in_unit,) * 2,
        links={(0, 1): (20_123_457, 0), (1, 0): (20_123_457, 0)},
    )


@pytest.mark.parametrize("seed", [900, 904])
def test_no_bound_is_above_a_schedule_of_a_harder_problem(seed: int) -> None:
    """CP-SAT once multiplied bytes by nanoseconds beyond 64 bits, and said that there was no schedule at all."""
    problem, harder = measured(seed), measured(seed, bytes_in_unit=100_000)
    greedy = constructive("greedy{n_sub=1}")
    exists = solve_cpsat(harder, greedy(harder), limits=Limits(workers=1, deterministic=0.2))
    assert not verify_schedule(problem, exists.schedule)
    for solve in (solve_cpsat, solve_milp):
        solved = solve(problem, greedy(problem), limits=Limits(workers=1, deterministic=0.2))
        assert solved.lower_bound_ns <= min(exists.objective_ns, solved.objective_ns)
        assert not verify_schedule(problem, solved.schedule)


def test_a_step_of_seconds_in_odd_nanoseconds_is_exact() -> None:
    problem = make_problem(4, 8, costs_ns=(138_123_457, 146_123_459, 120_523_451))
    grid = grid_of(problem, 4_520_000_001)
    assert (grid.tick_ns, grid.exact) == (1, True)
